# SPDX-License-Identifier: Apache-2.0
"""vcattn.attention with torch tensors: results, views, operator contract, compile, refusals."""

import numpy as np
import pytest
import torch
import vcattn
from common import NEAR, assert_near, exact_torch, random_qkv


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_near_exact_of_the_inputs_dtype_device_and_layout(device, dtype, layout):
    q, k, v = random_qkv((2, 4, 200, 64), (2, 2, 300, 64), device, dtype)
    given = [x if layout == "HND" else x.transpose(1, 2).contiguous() for x in (q, k, v)]
    out, lse = vcattn.attention(*given, layout=layout, return_lse=True)
    assert (out.dtype, out.device, out.shape) == (dtype, q.device, given[0].shape)
    assert out.is_contiguous() and lse.shape == q.shape[:3] and lse.dtype == torch.float32
    assert_near(out if layout == "HND" else out.transpose(1, 2), q, k, v)
    np.testing.assert_allclose(lse.cpu(), exact_torch(q, k, v)[1], atol=NEAR)
    assert vcattn.last_receipt().target == ("cpu" if device == "cpu" else "sm90")


@pytest.mark.parametrize("recipe", ["exact", "sage2", "vc8", "vc8-hq+had"])
def test_cpu_tensors_give_the_bits_of_numpy(recipe):
    q, k, v = random_qkv(dtype=torch.float32)
    out = vcattn.attention(q, k, v, recipe=recipe)
    np.testing.assert_array_equal(out, vcattn.attention(*(x.numpy() for x in (q, k, v)), recipe=recipe))


def test_bf16_by_dlpack_gives_fp32_of_the_same_call():
    class Producer:
        def __init__(self, tensor):
            self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__

    q, k, v = random_qkv()
    want = vcattn.attention(q, k, v, out=torch.empty(q.shape))
    np.testing.assert_array_equal(vcattn.attention(*map(Producer, (q, k, v))), want)


def test_views_give_the_bits_of_contiguous_tensors(device):
    q, k, v = random_qkv((2, 3, 140, 64), device=device)
    before = [x.clone() for x in (q, k, v)]
    want = vcattn.attention(q, k, v)
    fused = torch.stack([x.transpose(1, 2) for x in (q, k, v)], 2)  # [B, S, 3, H, D]
    assert torch.equal(vcattn.attention(*(x.transpose(1, 2) for x in fused.unbind(2))), want)
    inner = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]
    assert inner[0].stride(3) != 1
    assert torch.equal(vcattn.attention(*inner), want)
    for x, y in zip((q, k, v), before):
        assert torch.equal(x, y)


def test_expanded_tensors_have_stride_zero(device):
    q, k, v = random_qkv((2, 4, 100, 64), (1, 1, 100, 64), device)
    wide = [x.expand(2, 4, 100, 64) for x in (k, v)]
    full = [x.contiguous() for x in wide]
    assert torch.equal(vcattn.attention(q, *wide), vcattn.attention(q, *full))
    with pytest.raises(ValueError, match="overlap"):
        vcattn.attention(q, *wide, out=torch.empty_like(q[:1, :1]).expand_as(q))


def test_lengths_and_masks_in_every_form(device):
    q, k, v = random_qkv((2, 2, 150, 64), (2, 2, 256, 64), device)
    mask = torch.arange(256, device=device)[None] < torch.tensor([[37], [200]], device=device)
    want = vcattn.attention(q, k, v, key_mask=mask)
    assert_near(want, q, k, v, mask=mask)
    lens = torch.tensor([37, 200], device=device)
    for options in (
        {"kv_lens": [37, 200]},
        {"kv_lens": lens},
        {"kv_lens": lens.int()},
        {"key_mask": mask[:, None, None]},
        {"key_mask": mask.t().contiguous().t()},
        {"key_mask": mask, "kv_lens": lens},
    ):
        assert torch.equal(vcattn.attention(q, k, v, **options), want), options
    first = vcattn.attention(q, k, v, key_mask=mask[:1])
    assert torch.equal(first, vcattn.attention(q, k, v, kv_lens=[37, 37]))


def test_out_in_either_layout(device):
    q, k, v = random_qkv(device=device)
    want, want_lse = vcattn.attention(q, k, v, return_lse=True)
    room = torch.full((1, 200, 2, 96), 7.0, device=device, dtype=q.dtype)
    out = room[..., :64].transpose(1, 2)
    result, lse = vcattn.attention(q, k, v, out=out, return_lse=True)
    assert result is out and torch.equal(out, want) and torch.equal(lse, want_lse)
    assert (room[..., 64:] == 7).all()
    wide = vcattn.attention(q, k, v, out=torch.empty(q.shape, device=device))
    assert torch.equal(wide.to(q.dtype), want)


def test_group_state_and_step_tensor():
    q, k, v = random_qkv((1, 2, 512, 64))
    other = random_qkv((1, 2, 512, 64), seed=9)[2]
    policy = vcattn.Policy(steps=4, window=1, after="reuse")
    state = vcattn.GroupState()
    first = vcattn.attention(q, k, v, state=state, step=0, policy=policy)
    assert torch.equal(first, vcattn.attention(q, k, v))
    step = torch.tensor([1], dtype=torch.int32)
    kept = vcattn.attention(q, k, other, state=state, step=step, policy=policy)
    assert not torch.equal(kept, vcattn.attention(q, k, other))
    host = vcattn.GroupState(state.save())
    arrays = [x.float().numpy() for x in (q, k, other)]
    # The state is the same thing for torch and for numpy, also in turns.
    again = vcattn.attention(*arrays, state=host, step=2, policy=policy)
    assert torch.equal(torch.from_numpy(again).bfloat16(), kept)
    assert torch.equal(vcattn.attention(q, k, other, state=host, step=3, policy=policy), kept)
    host.clear()
    vcattn.attention(q, k, v, state=host, step=0, policy=policy)
    again = vcattn.attention(*arrays, state=host, step=1, policy=policy)
    assert torch.equal(torch.from_numpy(again).bfloat16(), kept)
    with pytest.raises(ValueError, match="step"):
        vcattn.attention(q, k, v, state=state, step=torch.tensor([1]))


def test_rope_tables_with_state_and_explain():
    """Both ask about shapes before the call; the tables go with the call alone."""
    q, k, v = random_qkv((1, 2, 256, 64))
    angle = torch.arange(256.0)[:, None] * 10000.0 ** (-torch.arange(0, 32, 2) / 32)
    rope = vcattn.Rope("half", (32, 0, 0), cos=angle.cos(), sin=angle.sin())
    want = vcattn.attention(q, k, v, rope=rope)
    state, policy = vcattn.GroupState(), vcattn.Policy(steps=4)
    assert torch.equal(vcattn.attention(q, k, v, rope=rope, state=state, step=0, policy=policy), want)
    assert "chosen" in vcattn.explain(q, k, v, rope=rope)
    # The same rotation by a grid: one axis.
    grid = vcattn.Rope("half", (32, 0, 0), grid=(256, 1, 1))
    x, y = (vcattn.attention(q, k, v, rope=r, recipe="exact").float() for r in (rope, grid))
    # Tables in FP32 arithmetic: off by angle * 2^-24 < 2^-16; then one rounding to BF16.
    assert (x - y).norm() < 2.0**-8 * y.norm()


def test_state_with_compile_needs_its_memory_first():
    q, k, v = random_qkv((1, 1, 256, 64))
    policy = vcattn.Policy(steps=4, window=1, after="reuse")
    state = vcattn.GroupState()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step_of(q, k, v, step):
        return vcattn.attention(q, k, v, state=state, step=step, policy=policy)

    zero, one = (torch.tensor([i], dtype=torch.int32) for i in (0, 1))
    with pytest.raises(Exception, match="outside torch.compile first"):
        step_of(q, k, v, zero)
    vcattn.attention(q, k, v, state=state, step=zero, policy=policy)
    other = random_qkv((1, 1, 256, 64), seed=3)[2]
    kept = vcattn.attention(q, k, other, state=state, step=one, policy=policy)
    state.reset()
    torch._dynamo.reset()
    assert torch.equal(step_of(q, k, v, zero), vcattn.attention(q, k, v))
    assert torch.equal(step_of(q, k, other, one), kept)


# ------------------------------------------------------------ operator contract
def op_arguments(q, k, v, *, layout="HND", return_lse=False, **given):
    base = {
        "kv_lens": None, "key_mask": None, "rope_cos": None, "rope_sin": None, "state": None,
        "step": None, "layout": layout, "scale": None, "recipe": "vc8", "grouping": "default",
        "segments": [], "grid": [], "rope": [], "theta": 1e4, "policy": [], "decay": 0.9,
        "check_finite": False, "num_threads": 0,
    } | given  # fmt: skip
    return (q, k, v, *base.values(), return_lse)


def cases(device):
    q, k, v = random_qkv((2, 2, 140, 64), device=device)
    fused = torch.stack([x.transpose(1, 2) for x in (q, k, v)], 2)
    mask = torch.ones(2, 140, dtype=torch.bool, device=device)
    yield op_arguments(q, k, v)
    yield op_arguments(*fused.unbind(2), layout="NHD", return_lse=True)
    yield op_arguments(*(x.transpose(2, 3) for x in random_qkv((2, 2, 64, 140), device=device)))
    yield op_arguments(q, k, v, key_mask=mask, kv_lens=torch.tensor([3, 140], device=device).int())
    yield op_arguments(q, k[:, :1].expand_as(k), v, segments=[0, 40, 1, 40, 100, 0], scale=0.2)
    rope = [1, 20, 22, 22, 5, 4, 7, 0]
    yield op_arguments(q, k, v, rope=rope, grid=[5, 4, 7], return_lse=True)


@pytest.mark.parametrize("case", range(6))
def test_B31_opcheck(device, case):
    arguments = list(cases(device))[case]
    result = torch.library.opcheck(torch.ops.vcattn.attention.default, arguments)
    assert set(result.values()) == {"SUCCESS"}
    out, lse = torch.empty_like(arguments[0]).contiguous(), None
    torch.library.opcheck(torch.ops.vcattn.attention_out.default, (*arguments[:-1], out, lse))


def test_B31_opcheck_with_state():
    q, k, v = random_qkv((1, 2, 256, 64))
    state = vcattn.GroupState()
    vcattn.attention(q, k, v, state=state, step=0)
    step = torch.zeros(1, dtype=torch.int32)
    arguments = op_arguments(q, k, v, state=state._buffer, step=step, policy=[4, 0, 1, 0, 0])
    torch.library.opcheck(torch.ops.vcattn.attention.default, arguments)


def test_B15_fake_tensors_on_a_device_without_index():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=False):
        q = torch.empty(2, 4, 100, 128, device="cuda", dtype=torch.bfloat16)
        k = torch.empty(2, 2, 300, 128, device="cuda", dtype=torch.bfloat16)
        out, lse = vcattn.attention(q, k, k, return_lse=True, kv_lens=None)
    assert out.shape == q.shape and out.device.type == "cuda" and lse.shape == (2, 4, 100)


def test_B15_device_without_index(cuda):
    q, k, v = (x.to(torch.device("cuda")) for x in random_qkv((1, 2, 200, 128)))
    assert_near(vcattn.attention(q, k, v), q, k, v)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_B30_compiled_is_eager_for_a_rope_cast_chain_and_dynamic_length(device, backend):
    def block(q, k, v, angle):
        cos, sin = angle.cos(), angle.sin()

        def rotate(x):
            a, b = x.float().chunk(2, -1)
            return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(v.dtype)

        out, lse = vcattn.attention(rotate(q), rotate(k), v, layout="HND", return_lse=True)
        return out * 2, lse + 1

    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=backend)
    for length in (130, 257):
        q, k, v = random_qkv((1, 2, length, 64), device=device)
        angle = torch.outer(torch.arange(length), 0.1 ** (torch.arange(32) / 32)).to(device)
        got, want = compiled(q, k, v, angle), block(q, k, v, angle)
        if backend == "aot_eager":  # the same kernels in the same order
            assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
        else:
            # Inductor may fuse the rotation's multiply-adds, which moves some queries and keys by a
            # BF16 rounding and so by one INT8 code of 127 at most: 2^-7 each. Logits of unit size
            # pass that on to first order, and averaging over keys makes it smaller.
            difference = (got[0] - want[0]).float().norm() / want[0].float().norm()
            assert difference < 2**-6, difference


def test_B30_compile_with_masks_segments_and_nhd():
    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def joint(q, k, v, mask):
        video = q.shape[1] - 40
        segments = [(0, video, "video"), (video, 40, "text")]
        return vcattn.attention(
            q, k, v, layout="NHD", key_mask=mask, segments=segments, recipe="vc8", sm_scale=0.125
        )

    torch._dynamo.reset()
    for length in (160, 301):
        q, k, v = random_qkv((1, length, 2, 64))
        mask = torch.arange(length)[None] < length - 10
        want = vcattn.attention(q, k, v, layout="NHD", key_mask=mask,
                                segments=[(0, length - 40, "video"), (length - 40, 40, "text")])
        assert torch.equal(joint(q, k, v, mask), want)


def test_B30_compile_with_an_output_lengths_and_tables():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def block(q, k, v, lens, cos, sin):
        rope = vcattn.Rope("half", (32, 0, 0), cos=cos, sin=sin)
        out = torch.empty_like(q)
        return vcattn.attention(q, k, v, kv_lens=lens, rope=rope, out=out), out

    torch._dynamo.reset()
    q, k, v = random_qkv()
    angle = torch.outer(torch.arange(200.0), 0.1 ** (torch.arange(16) / 16))
    cos, sin, lens = angle.cos(), angle.sin(), torch.tensor([150])
    rope = vcattn.Rope("half", (32, 0, 0), cos=cos, sin=sin)
    want = vcattn.attention(q, k, v, kv_lens=[150], rope=rope)
    got, out = block(q, k, v, lens, cos, sin)
    assert torch.equal(got, want) and torch.equal(out, want)


def test_autograd_is_refused_clearly():
    q, k, v = random_qkv()
    q.requires_grad_()
    with pytest.raises(RuntimeError, match="no backward.*no_grad"):
        vcattn.attention(q, k, v)
    with torch.no_grad():
        want = vcattn.attention(q, k, v)
    with torch.inference_mode():
        assert torch.equal(vcattn.attention(q, k, v), want)
    assert not want.requires_grad
    # The bare operator: forward runs, backward says that there is none.
    out, _ = torch.ops.vcattn.attention(*op_arguments(q, k, v))
    if out.requires_grad:
        with pytest.raises((RuntimeError, NotImplementedError), match="vcattn"):
            out.sum().backward()


# ------------------------------------------------------------------- refusals
def given(**changed):
    q, k, v = random_qkv()
    return {"q": q, "k": k, "v": v} | changed


HALF = torch.zeros(1, 2, 200, 64, dtype=torch.float16)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (given(v=HALF), "differ in dtype"),
        (given(k=HALF.double()), "k's dtype.*float64"),
        (given(k=HALF.int()), "k's dtype.*int32"),
        (given(q=HALF[0]), "q is not four-dimensional"),
        (given(q=HALF.to("meta")), "q holds no data.*meta"),
        (given(k=HALF.bfloat16().to("meta")), "k is not where q is.*meta.*cpu"),
        (given(v=HALF.numpy()), "mixture of torch tensors"),
        (given(key_mask=torch.zeros(1, 200)), "key_mask's dtype.*float32.*bias == 0"),
        (given(key_mask=torch.ones(1, 1, 200, 200, dtype=torch.bool)), "differ by query"),
        (given(key_mask=np.ones((1, 200), bool)), "key_mask.*ndarray"),
        (given(kv_lens=[3.5]), "kv_lens.*float"),
        (given(kv_lens=torch.tensor([3, 4])), "kv_lens' shape"),
        (given(kv_lens=[-1]), "kv_lens"),
        (given(out=np.empty(3)), "out.*ndarray"),
        (given(out=torch.empty(1, 2, 200, 32)), "out's shape"),
        (given(out=torch.empty(1, 2, 64, 200).transpose(2, 3)), "stride"),
        (given(layout="BHSD"), "layout is unknown"),
        (given(recipe="vc9"), "recipe name is unknown"),
    ],
)
def test_bad_input_says_what_was_given_and_what_is_allowed(arguments, words):
    with pytest.raises(vcattn.InvalidArgumentError, match=words) as caught:
        vcattn.attention(**arguments)
    assert "got" in str(caught.value) or "overlap" in str(caught.value)


def test_empty_batch_and_no_queries(device):
    for shape, kv in (((0, 2, 9, 64), None), ((1, 2, 0, 64), (1, 2, 9, 64))):
        q, k, v = random_qkv(shape, kv, device)
        out, lse = vcattn.attention(q, k, v, return_lse=True)
        assert out.shape == q.shape and lse.shape == q.shape[:3]
    q, k, v = random_qkv((1, 2, 9, 64), (1, 2, 0, 64), device)
    out, lse = vcattn.attention(q, k, v, return_lse=True)
    assert (out == 0).all() and (lse == -torch.inf).all()


def test_explain_takes_fake_and_meta_tensors():
    q = torch.empty(1, 40, 75600, 128, device="meta", dtype=torch.bfloat16)
    assert "cpu/" in vcattn.explain(q, q[:, :, :512], q[:, :, :512], recipe="vc8", layout="HND")
    q, k, v = (x.transpose(2, 3) for x in random_qkv((1, 2, 64, 64)))
    assert "chosen" in vcattn.explain(q, k, v)


def test_B10_every_tail_of_the_keys(device):
    for tail in (1, 63, 64, 65, 100, 127):
        q, k, v = random_qkv((1, 2, 70, 128), (1, 2, 256 + tail, 128), device)
        assert_near(vcattn.attention(q, k, v), q, k, v)


def test_B09_short_keys_in_nhd_with_poisoned_memory(device):
    for shape in ((9, 20, 12, 128), (1, 20, 9, 128)):
        poison = torch.full((4 << 20,), torch.nan, device=device)
        del poison
        q, k, v = random_qkv(shape, device=device)
        out = vcattn.attention(q, k, v, layout="NHD")
        assert_near(out.transpose(1, 2), *(x.transpose(1, 2) for x in (q, k, v)))


def test_B20_causal_has_no_silent_meaning():
    with pytest.raises(TypeError, match="is_causal"):
        vcattn.attention(*random_qkv(), is_causal=True)


def test_prepare_and_attend_are_attention(device):
    q, k, v = random_qkv((2, 4, 140, 64), (2, 2, 200, 64), device)
    mask = torch.arange(200, device=device)[None] < torch.tensor([[37], [200]], device=device)
    for layout in ("HND", "NHD"):
        given = [x if layout == "HND" else x.transpose(1, 2) for x in (q, k, v)]
        options = {"layout": layout, "key_mask": mask, "recipe": "vc8", "scale": 0.2}
        want = vcattn.attention(*given, **options)
        copies = [x.clone() for x in given]
        prepared = vcattn.prepare(*copies, **options)
        for x in copies:
            x.fill_(torch.nan)  # nobody looks at them any more
        for _ in range(2):
            got = prepared.attend()
            assert torch.equal(got, want) and got.dtype == want.dtype
        assert prepared.nbytes == vcattn.last_receipt().workspace_bytes
    with pytest.raises(vcattn.UnsupportedError, match="torch tensors"):
        vcattn.prepare(*(x.float().cpu().numpy() for x in (q, k, v)))
