# SPDX-License-Identifier: Apache-2.0
"""vcattn.attention with numpy and DLPack tensors: results, options, receipts, refusals."""

import pathlib
import re
import sys
import threading

import numpy as np
import pytest
import vcattn
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import NEAR, error, exact, random_qkv

SEGMENTS = [(0, 120, "video"), (120, 50, "text"), (170, 30, "padding")]


@pytest.mark.parametrize("recipe", ["exact", "bf16", "sage2", "vc8", "vc8-turbo", "vc8-hq"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_near_exact_and_of_the_inputs_dtype(recipe, dtype):
    q, k, v = random_qkv(dtype=dtype)
    out, lse = vcattn.attention(q, k, v, recipe=recipe, return_lse=True)
    want, want_lse = exact(q, k, v)
    assert out.dtype == dtype and out.shape == q.shape
    assert error(out, want) < NEAR
    assert lse.dtype == np.float32 and lse.shape == q.shape[:3]
    # The LSE is off by ln(1 + relative error of the row sum), which NEAR bounds too.
    np.testing.assert_allclose(lse, want_lse, atol=NEAR)


def test_nhd_is_hnd_with_other_strides():
    q, k, v = random_qkv((2, 4, 150, 64), (2, 2, 90, 64))
    out, lse = vcattn.attention(q, k, v, return_lse=True)
    nhd = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (q, k, v)]
    other, other_lse = vcattn.attention(*nhd, layout="NHD", return_lse=True)
    assert other.shape == (2, 150, 4, 64) and other.flags.c_contiguous
    np.testing.assert_array_equal(other.transpose(0, 2, 1, 3), out)
    np.testing.assert_array_equal(other_lse, lse)


def test_scale_and_its_aliases():
    q, k, v = random_qkv()
    out = vcattn.attention(q, k, v, scale=0.5)
    assert error(out, exact(q, k, v, 0.5)[0]) < NEAR
    for alias in ("sm_scale", "softmax_scale"):
        np.testing.assert_array_equal(vcattn.attention(q, k, v, **{alias: 0.5}), out)
        with pytest.raises(TypeError, match=f"scale and {alias}"):
            vcattn.attention(q, k, v, scale=0.5, **{alias: 0.5})
    assert not np.array_equal(vcattn.attention(q, k, v), out)


def test_unknown_arguments_are_a_type_error():
    q, k, v = random_qkv()
    for name in ("attn_mask", "is_causal", "smooth_k", "scael"):
        with pytest.raises(TypeError, match=name):
            vcattn.attention(q, k, v, **{name: None})
        with pytest.raises(TypeError, match=name):
            vcattn.explain(q, k, v, **{name: None})


def test_inputs_are_not_written_and_may_be_read_only():
    arrays = random_qkv()
    copies = [a.copy() for a in arrays]
    for a in arrays:
        a.flags.writeable = False
    vcattn.attention(*arrays, recipe="sage2")
    for a, b in zip(arrays, copies):
        np.testing.assert_array_equal(a, b)


# -------------------------------------------------------------------- views
def test_views_give_the_bits_of_contiguous_arrays():
    q, k, v = random_qkv((2, 3, 140, 64))
    want = vcattn.attention(q, k, v)
    fused = np.stack([x.transpose(0, 2, 1, 3) for x in (q, k, v)], axis=2)  # [B, S, 3, H, D]
    views = [fused[:, :, i].transpose(0, 2, 1, 3) for i in range(3)]
    np.testing.assert_array_equal(vcattn.attention(*views), want)
    inner = [np.ascontiguousarray(x.swapaxes(2, 3)).swapaxes(2, 3) for x in (q, k, v)]
    assert inner[0].strides[3] != 4
    np.testing.assert_array_equal(vcattn.attention(*inner), want)
    # An odd offset in bytes: the elements themselves are misaligned.
    raw = np.zeros(q.nbytes + 1, np.uint8)
    odd = raw[1:].view(np.float32).reshape(q.shape)
    odd[:] = q
    assert not odd.flags.aligned
    np.testing.assert_array_equal(vcattn.attention(odd, k, v), want)


def test_expanded_heads_and_batches_have_stride_zero():
    q, k, v = random_qkv((2, 4, 100, 64), (1, 1, 100, 64))
    wide = [np.broadcast_to(x, (2, 4, 100, 64)) for x in (k, v)]
    assert wide[0].strides[:2] == (0, 0)
    full = [np.ascontiguousarray(x) for x in wide]
    np.testing.assert_array_equal(vcattn.attention(q, *wide), vcattn.attention(q, *full))


@settings(max_examples=40, deadline=None)
@given(
    b=st.integers(0, 2),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 3),
    s_q=st.integers(0, 140),
    s_kv=st.integers(0, 270),
    d=st.sampled_from([1, 2, 16, 40, 63, 64, 65, 128]),
    layout=st.sampled_from(["HND", "NHD"]),
)
def test_any_shape(b, kv_heads, group, s_q, s_kv, d, layout):
    q, k, v = random_qkv((b, kv_heads * group, s_q, d), (b, kv_heads, s_kv, d), seed=s_q)
    given = [x if layout == "HND" else x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    out, lse = vcattn.attention(*given, layout=layout, return_lse=True, recipe="exact")
    out = out if layout == "HND" else out.transpose(0, 2, 1, 3)
    assert out.shape == q.shape and lse.shape == q.shape[:3]
    want, want_lse = exact(q, k, v)
    # FP64 inside, so what remains is the rounding to FP32.
    np.testing.assert_allclose(out, want, rtol=1e-6, atol=1e-6)
    if s_kv:
        np.testing.assert_allclose(lse, want_lse, rtol=1e-6, atol=1e-6)
    else:
        assert (out == 0).all() and (lse == -np.inf).all()


class Producer:
    """A DLPack producer that is neither numpy's nor torch's."""

    def __init__(self, array, versions=True):
        self.array, self.versions = array, versions

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        if options and not self.versions:
            raise TypeError("no keywords here")
        return self.array.__dlpack__(**(options if self.versions else {}))


@pytest.mark.parametrize("versions", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_dlpack_producers(versions, dtype):
    arrays = random_qkv((2, 2, 130, 64), dtype=dtype)
    want = vcattn.attention(*arrays)
    got = vcattn.attention(*(Producer(a, versions) for a in arrays))
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, want)
    turned = [Producer(np.asfortranarray(a), versions) for a in arrays]
    np.testing.assert_array_equal(vcattn.attention(*turned), want)


def test_dlpack_frees_its_tensor():
    import weakref

    class Owner(np.ndarray):
        pass

    arrays = [a.view(Owner) for a in random_qkv()]
    alive = [weakref.ref(a) for a in arrays]
    vcattn.attention(*(Producer(a) for a in arrays))
    del arrays
    assert all(ref() is None for ref in alive)


def test_dlpack_on_a_device_is_refused_with_the_way_out():
    class OnDevice(Producer):
        def __dlpack_device__(self):
            return (2, 1)

    with pytest.raises(vcattn.UnsupportedError, match="CUDA device 1.*torch"):
        vcattn.attention(*(OnDevice(a) for a in random_qkv()))


# --------------------------------------------------------------- masks, lengths
def test_B29_masked_values_never_leak():
    q, k, v = random_qkv((2, 2, 256, 64))
    mask = np.zeros((2, 256), bool)
    mask[:, :37] = True
    v[:, :, 37:] = 1e4
    for options in ({"key_mask": mask}, {"key_mask": mask[:, None, None, :]}, {"kv_lens": [37, 37]},
                    {"key_mask": mask[:1]}, {"kv_lens": np.array([37, 37], np.int64)}):
        out, lse = vcattn.attention(q, k, v, return_lse=True, **options)
        want, want_lse = exact(q, k, v, mask=mask)
        assert error(out, want) < NEAR, options
        np.testing.assert_allclose(lse, want_lse, atol=NEAR)


@pytest.mark.parametrize(
    "mask, word",
    [
        (np.zeros((2, 256), np.float32), "float"),
        (np.ones((2, 256), np.uint8), "uint8"),
        (np.ones((2, 1, 256, 256), bool), "shape"),
        (np.ones((2, 255), bool), "shape"),
        (np.ones((3, 256), bool), "shape"),
    ],
)
def test_B29_masks_that_cannot_be_honoured_raise(mask, word):
    with pytest.raises(ValueError, match=f"key_mask.*{word}|key_mask's {word}"):
        vcattn.attention(*random_qkv((2, 2, 256, 64)), key_mask=mask)


@pytest.mark.parametrize("lens", [[37.0, 5.0], [37], [[37, 5]], [-1, 5], [257, 5], [2**40, 5]])
def test_key_lengths_that_do_not_fit_raise(lens):
    with pytest.raises(ValueError, match="kv_lens"):
        vcattn.attention(*random_qkv((2, 2, 256, 64)), kv_lens=lens)


def test_B33_rows_without_keys():
    q, k, v = random_qkv((2, 2, 64, 64))
    out, lse = vcattn.attention(q, k, v, kv_lens=[0, 64], return_lse=True)
    assert (out[0] == 0).all() and (lse[0] == -np.inf).all()
    np.testing.assert_array_equal(out[1:], vcattn.attention(q[1:], k[1:], v[1:]))


def test_segments():
    q, k, v = random_qkv((1, 2, 200, 64))
    out = vcattn.attention(q, k, v, segments=SEGMENTS)
    mask = np.arange(200)[None] < 170
    assert error(out, exact(q, k, v, mask=mask)[0]) < NEAR
    named = [vcattn.Segment(*s) for s in SEGMENTS]
    np.testing.assert_array_equal(vcattn.attention(q, k, v, segments=named), out)
    ragged = vcattn.attention(q, k, v, segments=[(0, 80, "sequence"), (80, 120, "sequence")])
    for part in (slice(0, 80), slice(80, 200)):
        alone = exact(*(x[:, :, part] for x in (q, k, v)))[0]
        assert error(ragged[:, :, part], alone) < NEAR
    for wrong in ([(0, 200, "speech")], [(0,)], [(0, 100)]):
        with pytest.raises(ValueError, match="segment"):
            vcattn.attention(q, k, v, segments=wrong)


def test_rope_by_grid_equals_rope_by_table_and_before_the_call():
    q, k, v = random_qkv((1, 2, 24, 16))
    grid, axis_dim = (2, 3, 4), (4, 6, 6)
    t, h, w = np.meshgrid(*(np.arange(n) for n in grid), indexing="ij")
    angles = []
    for position, dim in zip((t, h, w), axis_dim):
        frequency = 100.0 ** (-np.arange(0, dim, 2) / dim)
        angles.append(position.reshape(-1, 1) * frequency)
    angle = np.concatenate(angles, 1)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    rope = {"convention": "interleaved", "axis_dim": axis_dim, "theta": 100.0}
    by_grid = vcattn.attention(q, k, v, recipe="exact", rope=vcattn.Rope(grid=grid, **rope))
    by_table = vcattn.attention(q, k, v, recipe="exact", rope=vcattn.Rope(cos=cos, sin=sin, **rope))
    np.testing.assert_array_equal(by_grid, by_table)

    def turned(x):
        y = np.empty_like(x, np.float64)
        y[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
        y[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
        return y

    np.testing.assert_allclose(by_grid, exact(turned(q), turned(k), v)[0], atol=1e-5)
    for wrong in ({"convention": "quarter"}, {"grid": grid, "cos": cos, "sin": sin}, {}):
        with pytest.raises(ValueError, match="rope"):
            vcattn.attention(q, k, v, rope=vcattn.Rope(**(rope | wrong)))


# -------------------------------------------------------------------- out, state
def test_out_is_written_in_place_in_either_layout():
    q, k, v = random_qkv()
    want = vcattn.attention(q, k, v)
    room = np.full((1, 200, 2, 96), np.float32(7))
    out = room[..., :64].transpose(0, 2, 1, 3)
    assert vcattn.attention(q, k, v, out=out) is out
    np.testing.assert_array_equal(out, want)
    assert (room[..., 64:] == 7).all()
    half = vcattn.attention(q, k, v, out=np.empty(q.shape, np.float16))
    np.testing.assert_array_equal(half, want.astype(np.float16))
    frozen = np.empty_like(q)
    frozen.flags.writeable = False
    for wrong in (frozen, np.empty((1, 2, 199, 64), np.float32), np.empty(q.shape), q, [1],
                  np.empty((1, 2, 64, 200), np.float32).swapaxes(2, 3)):
        with pytest.raises(ValueError):
            vcattn.attention(q, k, v, out=wrong)


def test_group_state_keeps_the_order_over_steps():
    q, k, v = random_qkv((1, 2, 512, 64))
    policy = vcattn.Policy(steps=4, window=1, after="reuse")
    state = vcattn.GroupState()
    assert state.nbytes == 0 and "empty" in repr(state)
    first = vcattn.attention(q, k, v, state=state, step=0, policy=policy)
    assert state.nbytes > 0
    other = random_qkv((1, 2, 512, 64), seed=9)[2]
    kept = vcattn.attention(q, k, other, state=state, step=1, policy=policy)
    fresh = vcattn.attention(q, k, other)
    assert not np.array_equal(kept, fresh)  # other order, other bits
    resumed = vcattn.GroupState(state.save())
    again = vcattn.attention(q, k, other, state=resumed, step=2, policy=policy)
    np.testing.assert_array_equal(again, kept)
    state.reset()
    np.testing.assert_array_equal(
        vcattn.attention(q, k, other, state=state, step=0, policy=policy), fresh
    )
    np.testing.assert_array_equal(first, vcattn.attention(q, k, v))
    with pytest.raises(vcattn.StateError):
        vcattn.attention(*random_qkv((1, 2, 600, 64)), state=state, step=0)
    with pytest.raises(ValueError, match="step"):
        vcattn.attention(q, k, v, state=state)
    with pytest.raises(ValueError, match="state"):
        vcattn.attention(q, k, v, policy=policy)
    state.clear()
    assert state.nbytes == 0


# ------------------------------------------------------------------ receipts
def test_receipt_says_what_ran_and_why():
    q, k, v = random_qkv((1, 4, 200, 64), (1, 2, 90, 64), dtype=np.float16)
    vcattn.attention(q, k, v)
    receipt = vcattn.last_receipt()
    assert receipt.recipe == "vc8" and receipt.reason == "auto: the default on cpu"
    assert receipt.target == "cpu" and receipt.kernel.startswith("cpu/")
    assert receipt.shape == (1, 4, 2, 200, 90, 64) and receipt.dtype == "fp16"
    assert receipt.grouping == "auto" and not receipt.hadamard
    vcattn.attention(q, k, v, recipe="sage2+had", grouping="kdtree")
    receipt = vcattn.last_receipt()
    assert (receipt.recipe, receipt.hadamard, receipt.reason) == ("sage2", True, "asked for")
    assert receipt.grouping == "identity"  # sage2 has no V-Smooth, and the receipt says so
    assert "sage2+had (asked for)" in str(receipt) and "H4/2" in str(receipt)
    with pytest.raises(ValueError):
        vcattn.attention(q, k, v, recipe="none")
    assert vcattn.last_receipt() == receipt  # a call that failed ran nothing


def test_receipts_are_per_thread():
    q, k, v = random_qkv()
    vcattn.attention(q, k, v, recipe="vc8-hq")
    seen = []

    def other():
        seen.append(vcattn.last_receipt())
        vcattn.attention(q, k, v, recipe="sage2")
        seen.append(vcattn.last_receipt().recipe)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [None, "sage2"] and vcattn.last_receipt().recipe == "vc8-hq"


def test_explain_lists_every_candidate():
    q, k, v = random_qkv()
    text = vcattn.explain(q, k, v, scale=0.3, kv_lens=[5], layout="HND")
    assert re.search(r"^cpu/\w+: chosen", text, re.M)
    for arch in ("sm90", "sm100", "sm103", "sm120", "sm89"):
        assert re.search(rf"^{arch}: refused: .+", text, re.M)
    with pytest.raises(ValueError, match="recipe"):
        vcattn.explain(q, k, v, recipe="none")


# ------------------------------------------------------------------ refusals
def arrays(**changed):
    q, k, v = random_qkv()
    return {"q": q, "k": k, "v": v} | changed


@pytest.mark.parametrize(
    "given, words",
    [
        (arrays(q=np.zeros((2, 200, 64), np.float32)), "q.*four-dimensional"),
        (arrays(k=np.zeros((1, 2, 200, 64), np.float64)), "k's dtype.*float64"),
        (arrays(k=np.zeros((1, 2, 200, 64), np.int32)), "k's dtype.*int32"),
        (arrays(k=np.zeros((1, 2, 200, 64), ">f4")), "k's dtype.*byte order"),
        (arrays(v=np.zeros((1, 2, 200, 64), np.float16)), "differ in dtype"),
        (arrays(v=np.zeros((1, 2, 200, 32), np.float32)), "D_v"),
        (arrays(k=np.zeros((1, 2, 150, 64), np.float32)), "S_kv"),
        (arrays(q=np.zeros((1, 3, 200, 64), np.float32)), "H_q"),
        (arrays(q=[[1.0]]), "q is not a tensor; got list"),
        (arrays(q=random_qkv()[0][:, :, ::-1]), "negative stride"),
        (arrays(q=random_qkv()[0][..., ::-1]), "negative stride"),
        (arrays(layout="BSHD"), "layout is unknown; got 'BSHD'"),
        (arrays(recipe="vc9"), "recipe name is unknown"),
        (arrays(recipe=7), "recipe"),
        (arrays(grouping="random"), "grouping name is unknown"),
        (arrays(grid=(1, 2)), "grid does not have three"),
        (arrays(scale=float("nan")), "scale is not finite"),
        (arrays(policy=vcattn.Policy(4, window=0)), "window"),
        (arrays(policy=vcattn.Policy(4, after="never")), "policy.after"),
    ],
)
def test_bad_input_says_what_was_given_and_what_is_allowed(given, words):
    with pytest.raises(vcattn.InvalidArgumentError, match=words) as caught:
        vcattn.attention(**given)
    assert "got" in str(caught.value) and "allowed" in str(caught.value)


def test_head_dim_beyond_128_is_refused():
    with pytest.raises(vcattn.VcattnError, match="head_dim"):
        vcattn.attention(*random_qkv((1, 1, 8, 256)))


def test_check_finite_names_tensor_and_index():
    q, k, v = random_qkv()
    v[0, 1, 7, 3] = np.inf
    with pytest.raises(vcattn.NonFiniteError, match=r"v.*0, 1, 7, 3"):
        vcattn.attention(q, k, v, check_finite=True)
    vcattn.attention(q, k, v)


def test_number_of_threads_changes_no_bit():
    q, k, v = random_qkv((1, 3, 300, 64))
    np.testing.assert_array_equal(
        vcattn.attention(q, k, v, num_threads=1), vcattn.attention(q, k, v, num_threads=4)
    )


def test_torch_is_not_imported_for_numpy():
    import subprocess

    code = (
        "import sys, numpy as np, vcattn; x = np.ones((1, 1, 8, 16), np.float32); "
        "print(vcattn.attention(x, x, x).sum(), 'torch' in sys.modules)"
    )
    root = pathlib.Path(vcattn.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(root)}
    )
    assert done.stdout.split() == ["128.0", "False"], done.stderr
