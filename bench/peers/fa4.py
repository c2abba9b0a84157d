# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-4 (`flash_attn.cute`), BF16."""

from __future__ import annotations

from . import import_reason, no_hopper
from .cell import Cell

IMPLS = ("fa4-bf16",)


def available(impl: str) -> str:
    return no_hopper() or import_reason("flash_attn.cute")


def cells(impl: str, problem, inputs) -> list[Cell]:
    from flash_attn.cute import flash_attn_func

    q, k, v = (x.transpose(1, 2) for x in (inputs.q, inputs.k_valid, inputs.v_valid))

    def call():
        out = flash_attn_func(q, k, v)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return [Cell(impl, "kernel", call, also=("whole",))]
