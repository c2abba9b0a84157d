# SPDX-License-Identifier: Apache-2.0
"""vcattn.compat.sageattn: the signature, what it does, and what it refuses instead of dropping."""

import inspect

import numpy as np
import pytest
import vcattn
from oracle import NEAR, error, exact, random_qkv
from vcattn.compat import sageattn


def test_signature_is_sageattentions():
    parameters = inspect.signature(sageattn).parameters
    assert [
        (p.name, p.default) for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD
    ] == [
        ("q", inspect.Parameter.empty),
        ("k", inspect.Parameter.empty),
        ("v", inspect.Parameter.empty),
        ("tensor_layout", "HND"),
        ("is_causal", False),
        ("sm_scale", None),
        ("return_lse", False),
    ]
    assert list(parameters)[-1] == "kwargs"


def test_is_attention_in_either_layout():
    q, k, v = random_qkv((2, 4, 100, 64), (2, 2, 90, 64), dtype=np.float16)
    want, want_lse = vcattn.attention(q, k, v, scale=0.2, return_lse=True)
    out, lse = sageattn(q, k, v, "HND", False, 0.2, True)
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(lse, want_lse)
    nhd = (x.swapaxes(1, 2) for x in (q, k, v))
    got = sageattn(*nhd, tensor_layout="NHD", sm_scale=0.2, smooth_k=False, enable_gqa=True)
    np.testing.assert_array_equal(got.swapaxes(1, 2), want)
    assert sageattn(q, k, v, recipe="sage2").dtype == np.float16
    assert vcattn.last_receipt().recipe == "sage2"


def test_B29_attn_mask_is_honoured_or_refused():
    q, k, v = random_qkv((2, 2, 256, 64))
    mask = np.arange(256)[None, None, None] < np.array([37, 256])[:, None, None, None]
    v[0, :, 37:] = 1e4
    out = sageattn(q, k, v, attn_mask=mask)
    np.testing.assert_array_equal(out, vcattn.attention(q, k, v, kv_lens=[37, 256]))
    assert abs(out).max() < 100
    for wrong in (np.zeros((2, 1, 1, 256), np.float32), np.ones((2, 1, 256, 256), bool)):
        with pytest.raises(ValueError, match="mask"):
            sageattn(q, k, v, attn_mask=wrong)


def test_what_cannot_be_honoured_is_refused():
    q, k, v = random_qkv()
    with pytest.raises(NotImplementedError, match="is_causal"):
        sageattn(q, k, v, is_causal=True)
    with pytest.raises(NotImplementedError, match="dropout_p"):
        sageattn(q, k, v, dropout_p=0.1)
    sageattn(q, k, v, dropout_p=0.0, attn_mask=None)
    for name in ("pv_accum_dtype", "qk_quant_gran", "smooth_v", "window_size"):
        with pytest.raises(TypeError, match=name):
            sageattn(q, k, v, **{name: "fp32"})
    with pytest.raises(ValueError, match="layout"):
        sageattn(q, k, v, tensor_layout="BSHD")


def test_B28_many_short_calls_leave_keys_alone():
    """A text encoder's calls: hundreds of batches of a dozen tokens, through the drop-in."""
    q, k, v = random_qkv((476, 20, 12, 128), dtype=np.float32)
    before = [x.copy() for x in (q, k, v)]
    out = sageattn(q, k, v, recipe="vc8")
    for now, then in zip((q, k, v), before):
        np.testing.assert_array_equal(now, then)
    some = [0, 200, 475]
    assert error(out[some], exact(q[some], k[some], v[some])[0]) < NEAR
