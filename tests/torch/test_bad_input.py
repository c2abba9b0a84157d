# SPDX-License-Identifier: Apache-2.0
"""What vcattn.attention refuses of torch: options of the wrong kind, tensors that are no plain memory, and
derivatives; and what the bare operator refuses, which knows addresses only."""

import pytest
import torch
import vcattn
from bad_options import BAD_OPTIONS
from common import random_qkv
from test_op import op_arguments
from vcattn.compat import sageattn

QKV = random_qkv()


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_options_of_the_wrong_kind_are_refused(name):
    options, word = BAD_OPTIONS[name]
    with pytest.raises(vcattn.InvalidArgumentError, match=f"(?s){word}") as caught:
        vcattn.attention(*QKV, **options())
    assert "got" in str(caught.value)


def test_lengths_beyond_32_bits_are_not_wrapped():
    for value in (2**32 + 100, -(2**32) + 100, 2**40):
        with pytest.raises(vcattn.InvalidArgumentError, match="kv_lens"):
            vcattn.attention(*QKV, kv_lens=torch.tensor([value]))


@pytest.mark.parametrize("shape", [(100, 16), (200, 8), (1, 200, 16), (3200,)])
def test_rotation_tables_of_another_shape_are_refused(shape):
    right, wrong = torch.ones(200, 16), torch.ones(shape)
    for tables in ({"cos": wrong, "sin": right}, {"cos": right, "sin": wrong}):
        for function in (vcattn.attention, vcattn.prepare, vcattn.explain):
            with pytest.raises(vcattn.InvalidArgumentError, match=r"rope\.(cos|sin)'s shape.*\(200, 16\)"):
                function(*QKV, rope=vcattn.Rope("half", (32, 0, 0), **tables))


FORMS = {
    "sparse": lambda x: x.to_sparse(),
    "mkldnn": lambda x: x.float().to_mkldnn(),
    "nested": lambda x: torch.nested.nested_tensor([x[0], x[0]]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore")
def test_tensors_that_are_no_plain_memory_are_refused(form):
    odd = [FORMS[form](x) for x in QKV]
    for function in (vcattn.attention, vcattn.prepare, vcattn.explain):
        with pytest.raises(vcattn.InvalidArgumentError, match="q is not a plain tensor"):
            function(*odd)


def test_masks_and_outputs_that_are_no_plain_memory_are_refused():
    mask = torch.ones(1, 200, dtype=torch.bool)
    for function, name in ((vcattn.attention, "key_mask"), (sageattn, "attn_mask")):
        with pytest.raises(vcattn.InvalidArgumentError, match="key_mask is not a plain tensor"):
            function(*QKV, **{name: mask.to_sparse()})
    negated = torch.zeros(QKV[0].shape, dtype=torch.complex64).conj().imag
    for out in (torch.zeros(QKV[0].shape).to_sparse(), negated):
        with pytest.raises(vcattn.InvalidArgumentError, match="out is not a plain tensor"):
            vcattn.attention(*QKV, out=out)
    for wrong in ([[True] * 200], True, "abc"):
        with pytest.raises(vcattn.InvalidArgumentError, match="attn_mask's dtype|key_mask"):
            sageattn(*QKV, attn_mask=wrong)


def test_negated_views_are_read_negated():
    """The imaginary part of a conjugate is memory whose sign is to be turned."""
    q, k, v = (torch.randn(1, 2, 200, 64, dtype=torch.complex64).conj().imag for _ in range(3))
    assert q.is_neg()
    want = vcattn.attention(*(x.resolve_neg().clone() for x in (q, k, v)))
    assert torch.equal(vcattn.attention(q, k, v), want)
    assert torch.equal(vcattn.prepare(q, k, v).attend(), want)
    assert torch.equal(vcattn.attention(q, k, v, out=torch.empty(q.shape)), want)


def test_forward_mode_derivatives_are_refused_instead_of_being_zero():
    from torch.autograd import forward_ad

    q, k, v = (x.float() for x in QKV)
    with pytest.raises(RuntimeError, match="no forward-mode derivative"):
        torch.func.jvp(lambda x: vcattn.attention(x, k, v), (q,), (q,))
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="no forward-mode derivative"):
        vcattn.attention(q, forward_ad.make_dual(k, k), v)
    with forward_ad.dual_level():
        vcattn.attention(q, k, v)  # none of them carries one


def test_an_output_that_requires_gradients_is_refused():
    out = torch.zeros(QKV[0].shape, requires_grad=True)
    with pytest.raises(RuntimeError, match="no backward pass"):
        vcattn.attention(*QKV, out=out)
    with torch.no_grad():
        assert vcattn.attention(*QKV, out=out) is out


def test_explain_refuses_what_attention_refuses():
    q, k, v = QKV
    for arguments in ((q[0], k, v), (q.double(), k, v), (q, k.to("meta"), v), (torch.tensor(1.0), k, v)):
        with pytest.raises(vcattn.InvalidArgumentError):
            vcattn.explain(*arguments)
    for options in ({"kv_lens": [1, 2]}, {"key_mask": torch.zeros(1, 200)}, {"state": {}, "step": 0}):
        with pytest.raises(vcattn.InvalidArgumentError):
            vcattn.explain(q, k, v, **options)


WIDE = torch.ones(200, 2, dtype=torch.bool).t()[:1]  # one row of two: not contiguous


@pytest.mark.parametrize("given", [
    {"kv_lens": torch.tensor([37])},
    {"kv_lens": torch.tensor([37, 37], dtype=torch.int32)},
    {"key_mask": torch.ones(1, 199, dtype=torch.bool)},
    {"key_mask": torch.ones(1, 200)},
    {"key_mask": WIDE},
    {"step": torch.zeros(1), "state": torch.zeros(4096, dtype=torch.uint8)},
    {"step": torch.zeros(0, dtype=torch.int32), "state": torch.zeros(4096, dtype=torch.uint8)},
    {"rope": [2, 32, 0, 0, 0, 0, 0, 0], "rope_cos": torch.ones(100, 16), "rope_sin": torch.ones(200, 16)},
    {"rope": [2, 32, 0, 0, 0, 0, 0, 0], "rope_cos": torch.ones(200, 16), "rope_sin": torch.ones(200, 16).double()},
])  # fmt: skip
def test_the_operator_refuses_small_tensors_that_are_not_what_it_reads(given):
    with pytest.raises(vcattn.InvalidArgumentError, match="of the operator"):
        torch.ops.vcattn.attention(*op_arguments(*QKV, **given))


def test_the_operator_refuses_a_state_that_is_too_small():
    state = vcattn.GroupState()
    vcattn.attention(*QKV, state=state, step=0)
    step = torch.ones(1, dtype=torch.int32)
    torch.ops.vcattn.attention(*op_arguments(*QKV, state=state._buffer, step=step))
    with pytest.raises(vcattn.StateError, match="another problem"):
        torch.ops.vcattn.attention(*op_arguments(*QKV, state=state._buffer[:-64].clone(), step=step))
