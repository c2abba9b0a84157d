# SPDX-License-Identifier: Apache-2.0
"""Transformers of diffusers, small and random, with inputs: shared by the tests of the integration."""

import sys

import torch
from conftest import ROOT

sys.path.insert(0, str(ROOT / "examples"))
import tiny_pipelines as tiny  # noqa: E402

# The whole chain of a small FP32 model: fewer than 2^11 dependent roundings of 2^-24 each.
FP32_CHAIN = 2.0**-13


def run_model(model, inputs):
    with torch.no_grad():
        out = model(**inputs, return_dict=False)
    return torch.cat([x.flatten() for x in out])


def wan_model_inputs(batch=1):
    generator = torch.Generator().manual_seed(3)
    return {
        "hidden_states": torch.randn(batch, 16, 3, 16, 12, generator=generator),
        "timestep": torch.full((batch,), 500),
        "encoder_hidden_states": torch.randn(batch, 24, 32, generator=generator),
    }


def hunyuan_model_inputs():
    generator = torch.Generator().manual_seed(3)
    masks = [(torch.arange(n)[None] < torch.tensor([[a], [b]])).long()
             for n, a, b in ((40, 17, 3), (20, 9, 0))]
    return {
        "hidden_states": torch.randn(2, 65, 3, 12, 12, generator=generator),
        "timestep": torch.full((2,), 500.0),
        "encoder_hidden_states": torch.randn(2, 40, 32, generator=generator),
        "encoder_attention_mask": masks[0],
        "encoder_hidden_states_2": torch.randn(2, 20, 24, generator=generator),
        "encoder_attention_mask_2": masks[1],
        "image_embeds": torch.zeros(2, 11, 16),
    }


MODELS = {
    "wan": (lambda: tiny.wan().transformer, wan_model_inputs),
    "hunyuan": (lambda: tiny.hunyuan().transformer, hunyuan_model_inputs),
    "minimax_h3": (tiny.minimax_h3, tiny.minimax_h3_inputs),
}


# The layers of each model that attend to themselves; everything else is cross attention or text.
OWN = {
    "wan": ["blocks.0.attn1", "blocks.1.attn1"],
    "hunyuan": ["transformer_blocks.0.attn", "transformer_blocks.1.attn"],
    "minimax_h3": ["transformer_blocks.0.attn", "transformer_blocks.1.attn"],
}
