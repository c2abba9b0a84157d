# SPDX-License-Identifier: Apache-2.0
"""What the examples of diffusers pipelines share: options, enabling vcattn, saying what ran."""

from __future__ import annotations

import argparse
import pathlib
import sys
import time

import tiny_pipelines
import torch

try:
    import vcattn
except ImportError:  # a checkout without an installed package
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
    import vcattn
from vcattn.integrations import diffusers as vc


def main(tiny: str, model: str, call: dict, fps: int) -> None:
    parser = argparse.ArgumentParser(description="Text to video with vcattn in diffusers.")
    parser.add_argument("--model", default=model, help=f"diffusers folder or name ({model})")
    parser.add_argument("--prompt", default="A red kite over a beach, slow camera pan.")
    parser.add_argument("--recipe", default="vc8", help="vc8, vc8-hq, vc8-turbo, vc8+had, ... (vc8)")
    parser.add_argument("--first-steps-bf16", type=int, default=0, help="steps left as they are (0)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out.mp4", help="the clip (out.mp4)")
    parser.add_argument("--tiny", action="store_true", help="small random model, on the CPU")
    given = parser.parse_args()

    if given.tiny:
        pipe = getattr(tiny_pipelines, tiny)()
        call = getattr(tiny_pipelines, f"{tiny}_inputs")() | {"output_type": "np"}
    else:
        from diffusers import DiffusionPipeline

        pipe = DiffusionPipeline.from_pretrained(given.model, torch_dtype=torch.bfloat16).to("cuda")
        call = {"prompt": given.prompt, **call}
    call["generator"] = torch.Generator().manual_seed(given.seed)

    # The one line that matters; min_keys lets the tiny model's short calls through.
    vc.enable(
        pipe,
        recipe=given.recipe,
        first_steps_bf16=given.first_steps_bf16,
        **({"min_keys": 100} if given.tiny else {}),
    )
    begin = time.perf_counter()
    frames = pipe(**call).frames[0]
    print(f"{time.perf_counter() - begin:.1f} s")
    print(vcattn.last_receipt())
    for layer, calls in vc.report(pipe).items():
        print(f"  {layer}: " + ", ".join(f"{who} {count}" for who, count in calls.items()))

    from vcattn.fidelity import write_video

    write_video(given.out, frames, fps)
    print(given.out)
