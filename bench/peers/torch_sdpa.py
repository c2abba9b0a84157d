# SPDX-License-Identifier: Apache-2.0
"""BF16 attention of torch.nn.functional.scaled_dot_product_attention, one backend at a time."""

from __future__ import annotations

from . import import_reason
from .cell import Cell

_BACKENDS = {"cudnn-bf16": "CUDNN_ATTENTION", "flash2-bf16": "FLASH_ATTENTION"}
IMPLS = tuple(_BACKENDS)


def available(impl: str) -> str:
    if reason := import_reason("torch.nn.attention"):
        return reason
    import torch

    return "" if torch.cuda.is_available() else "no CUDA device"


def cells(impl: str, problem, inputs) -> list[Cell]:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    backend = getattr(SDPBackend, _BACKENDS[impl])
    q, k, v = inputs.q, inputs.k_valid, inputs.v_valid
    shared = problem.h_q != problem.h_kv

    def call():
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, enable_gqa=shared)

    return [Cell(impl, "kernel", call, also=("whole",))]
