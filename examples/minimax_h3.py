# SPDX-License-Identifier: Apache-2.0
"""MiniMax-H3's transformer with vcattn in diffusers: text, audio and video in one packed sequence.

diffusers has its pipeline as modular blocks, which take the transformer as a component; enabling
vcattn on the transformer is the same there. Its keys have outlier channels: recipe vc8+had.

    python examples/minimax_h3.py --tiny             # small random model, CPU, one forward pass
    python examples/minimax_h3.py --model FOLDER     # loads FOLDER/transformer, one forward pass
"""

from __future__ import annotations

import argparse
import pathlib
import sys

import tiny_pipelines
import torch

try:
    import vcattn
except ImportError:  # a checkout without an installed package
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
    import vcattn
from vcattn.integrations import diffusers as vc


def full_size_inputs(model: torch.nn.Module) -> dict:
    """1344 x 768, 124 frames: 37 latent frames of 24 x 42 cells, 414 audio rows, 512 text rows."""
    small, text, audio = tiny_pipelines.minimax_h3_inputs(), 512, 414
    grid = torch.cartesian_prod(torch.arange(37), torch.arange(24), torch.arange(42))
    tags = torch.tensor([1] * text + [2] * audio + [0] * len(grid))
    rows = torch.arange(len(tags))
    positions = torch.zeros(len(tags), 3)
    positions[: text + audio, 0] = rows[: text + audio]
    positions[text + audio :] = grid + torch.tensor([text + audio, 0, 0])
    config = model.config
    inputs = small | {
        "hidden_states": torch.randn(1, len(grid), 4 * config.in_channels),
        "audio_hidden_states": torch.randn(1, audio, config.audio_in_channels),
        "encoder_hidden_states": torch.randn(1, text, config.text_dim, dtype=torch.bfloat16),
        "timestep_indices": (tags == 1).long(),
        "token_tags": tags,
        "position_ids": positions,
    }
    for name, tag in (("video", 0), ("text", 1), ("audio", 2)):
        inputs[f"{name}_indices"] = rows[tags == tag]
    return {name: x.to(model.device) for name, x in inputs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="MiniMax-H3's transformer with vcattn.")
    parser.add_argument("--model", help="diffusers folder or name with a transformer/ inside")
    parser.add_argument("--recipe", default="vc8+had")
    parser.add_argument("--tiny", action="store_true", help="small random model, on the CPU")
    given = parser.parse_args()
    if given.tiny:
        model, options = tiny_pipelines.minimax_h3(), {"min_keys": 100}
        inputs = tiny_pipelines.minimax_h3_inputs()
    elif given.model:
        from diffusers import MiniMaxH3Transformer3DModel

        model = MiniMaxH3Transformer3DModel.from_pretrained(
            given.model, subfolder="transformer", torch_dtype=torch.bfloat16
        ).to("cuda")
        inputs, options = full_size_inputs(model), {}
    else:
        parser.error("give --model or --tiny")
    vc.enable(model, recipe=given.recipe, **options)
    with torch.inference_mode():
        out = model(**inputs)
    print(f"video {tuple(out.sample.shape)}, audio {tuple(out.audio_sample.shape)}")
    print(vcattn.last_receipt())
    for layer, calls in vc.report(model).items():
        print(f"  {layer}: " + ", ".join(f"{who} {count}" for who, count in calls.items()))


if __name__ == "__main__":
    main()
