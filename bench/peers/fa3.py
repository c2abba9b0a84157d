# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3 (`flash_attn_interface` of its hopper folder), BF16 and FP8.

FP8: the cast to E4M3 is the preparation, with unit scales. That is the cheapest preparation there
is (one pass over the inputs, no maximum sought) and loses nothing on standard normal data; models
need the maximum as well, so its whole-call time is a lower bound.
"""

from __future__ import annotations

from . import import_reason, no_hopper
from .cell import Cell

IMPLS = ("fa3-bf16", "fa3-fp8")


def available(impl: str) -> str:
    return no_hopper() or import_reason("flash_attn_interface")


def cells(impl: str, problem, inputs) -> list[Cell]:
    import torch
    from flash_attn_interface import flash_attn_func

    # [B, S, H, D] views; the last dimension is contiguous in every layout.
    source = [x.transpose(1, 2) for x in (inputs.q, inputs.k_valid, inputs.v_valid)]

    def attend(operands):
        out = flash_attn_func(*operands)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    if impl == "fa3-bf16":
        return [Cell(impl, "kernel", lambda: attend(source), also=("whole",))]

    def cast():
        return [x.to(torch.float8_e4m3fn) for x in source]

    ready = cast()

    def prepare():
        cast()

    return [
        Cell(impl, "kernel", lambda: attend(ready)),
        Cell(impl, "whole", lambda: attend(cast())),
        Cell(impl, "prep", prepare),
    ]
