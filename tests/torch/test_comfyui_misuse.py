# SPDX-License-Identifier: Apache-2.0
"""The ComfyUI override and node with calls that are not ours, options of the wrong kind, odd samplers."""

import math

import pytest
import torch
import vcattn
from common import random_qkv
from test_comfyui import OPTIONS, flat, sdpa, wrapped  # which puts the node pack on the path

from comfyui.nodes import VCAttention, parse_layers  # isort: skip
from vcattn.integrations.comfyui import AttentionOverride

QKV = random_qkv((1, 2, 150, 64), dtype=torch.float32)
FLAT = [flat(x) for x in QKV]


def native(q, k, v, heads, *args, **kwargs):
    return "comfyui's own"


@pytest.mark.parametrize("given, reason", [
    ({"is_causal": True}, "argument is_causal"),
    ({"dropout_p": 0.5}, "argument dropout_p"),
    ({"something_new": torch.ones(1)}, "argument something_new"),
    ({"mask": torch.ones(150, 150, dtype=torch.bool)}, "mask"),
    ({"mask": torch.ones(2, 150, 150, dtype=torch.bool)}, "mask"),
    ({"mask": torch.ones(1, 149, dtype=torch.bool)}, "mask"),
    ({"mask": torch.tensor(True)}, "mask"),
    ({"mask": torch.ones(1, 1, 1, 1, 150, dtype=torch.bool)}, "mask"),
    ({"mask": torch.ones(1, 150, dtype=torch.bool).numpy()}, "mask"),
    ({"mask": torch.ones(1, 150, dtype=torch.bool).to_sparse()}, "mask"),
])  # fmt: skip
def test_what_a_call_asks_for_is_never_dropped(given, reason):
    override = AttentionOverride(**OPTIONS)
    assert override(native, *FLAT, 2, **given) == "comfyui's own"
    assert override.counts == {f"comfyui: {reason}": 1}


def test_what_changes_nothing_is_no_reason():
    override = AttentionOverride(**OPTIONS)
    got = override(native, *FLAT, 2, is_causal=False, something_new=None, preferred_attention="x", enable_gqa=True)
    assert torch.equal(got, flat(vcattn.attention(*QKV, recipe="vc8")))


def test_calls_whose_tensors_do_not_fit_are_comfyuis():
    q, k, v = FLAT
    override = AttentionOverride(**OPTIONS)
    half = flat(QKV[2][..., :32])
    for call in ((q.expand(2, -1, -1), k, v), (q, k, half), (q, half, half), (q, k, v[:, :149]), (q, k.to("meta"), v)):
        assert override(native, *call, 2) == "comfyui's own"
    assert override(native, *QKV, 2) == "comfyui's own"  # four dimensions without skip_reshape
    assert set(override.counts) == {"comfyui: head_dim or heads"}


@pytest.mark.parametrize("options", [
    {"sigmas": 5, "sample_sigmas": 7, "block_index": "x"},
    {"sigmas": torch.zeros(0), "sample_sigmas": torch.zeros(0)},
    {"sigmas": torch.ones(1), "sample_sigmas": torch.zeros(0)},
    {"sigmas": [1.0], "sample_sigmas": [1.0, 0.5]},
    {"sigmas": torch.tensor([math.nan]), "sample_sigmas": torch.ones(4), "block_index": 1},
    {"sigmas": torch.ones(1), "sample_sigmas": torch.ones(4), "block_index": 1, "cond_or_uncond": None},
    {"sigmas": torch.ones(1), "sample_sigmas": torch.ones(1), "block_index": 1},
])  # fmt: skip
def test_samplers_that_tell_something_odd_get_the_same_answer(options):
    override = AttentionOverride(**OPTIONS)
    got = wrapped(sdpa)(*FLAT, 2, transformer_options=options | {"optimized_attention_override": override})
    assert override.counts == {"vcattn": 1}
    assert torch.equal(got, flat(vcattn.attention(*QKV, recipe="vc8")))


@pytest.mark.parametrize("options, word", [
    ({"recipe": None}, "recipe"), ({"recipe": "vc8\0"}, "recipe"), ({"window": "1"}, "window"),
    ({"window": 1.5}, "window"), ({"window": -2}, "window"), ({"first_steps": -1}, "first_steps"),
    ({"first_steps": "1"}, "first_steps"), ({"min_keys": "x"}, "min_keys"), ({"min_keys": -1}, "min_keys"),
    ({"skip_layers": "0"}, "skip_layers"), ({"skip_layers": None}, "skip_layers"), ({"skip_layers": [0.5]}, "skip_layers"),
])  # fmt: skip
def test_options_of_the_wrong_kind_are_refused(options, word):
    with pytest.raises(vcattn.InvalidArgumentError, match=word):
        AttentionOverride(**OPTIONS | options)


@pytest.mark.parametrize("text", ["-", "1-", "3-1", "-1--3", "1.5", "a", "--1", "0-99999999999"])
def test_layers_that_are_no_list_are_named(text):
    with pytest.raises(ValueError, match=f"skip_layers: .*'{text}'"):
        parse_layers(text)


def test_layers_in_every_form():
    assert parse_layers(" 0,1 - 3,, -1\n") == [0, 1, 2, 3, -1]
    assert parse_layers("") == parse_layers(None) == []


def test_a_clone_that_shares_its_options_leaves_the_original_alone():
    class Model:
        def __init__(self, options):
            self.model_options = options

        def clone(self):
            return Model(self.model_options)

    model = Model({"transformer_options": {"x": 1}})
    (first,) = VCAttention().patch(model, "vc8", 0, "", 0)
    (second,) = VCAttention().patch(first, "vc8-hq", 0, "", 0)
    recipes = [m.model_options["transformer_options"]["optimized_attention_override"].recipe for m in (first, second)]
    assert model.model_options == {"transformer_options": {"x": 1}} and recipes == ["vc8", "vc8-hq"]
