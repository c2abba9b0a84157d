# SPDX-License-Identifier: Apache-2.0
"""SageAttention 2.2: `sageattn` as its users call it, and its Hopper kernel on operands quantised as
`sageattn` quantises them (per thread, key mean out, values per channel)."""

from __future__ import annotations

from . import import_reason, no_hopper
from .cell import Cell

IMPLS = ("sageattention2",)

_HND, _NOT_CAUSAL, _PER_THREAD, _NO_LSE = 1, 0, 3, 0
_KEY_BLOCK = 128


def available(impl: str) -> str:
    return no_hopper() or import_reason("sageattention", "sageattention.sm90_compile")


def cells(impl: str, problem, inputs) -> list[Cell]:
    import torch
    from sageattention import sageattn, sm90_compile
    from sageattention.quant import per_channel_fp8
    from sageattention.triton.quant_per_thread import per_thread_int8

    q, k, v = inputs.q, inputs.k_valid, inputs.v_valid
    if problem.d not in (64, 128):
        raise ValueError(f"sageattention2: head_dim {problem.d}; allowed here: 64, 128")

    def quantise():
        mean = k.mean(dim=2, keepdim=True)
        q8, q_scale, k8, k_scale = per_thread_int8(
            q, k, mean, tensor_layout="HND", BLKQ=64, WARPQ=16, BLKK=_KEY_BLOCK, WARPK=_KEY_BLOCK
        )
        # Its value quantiser takes whole blocks of keys.
        pad = -v.shape[2] % _KEY_BLOCK
        padded = torch.nn.functional.pad(v, (0, 0, 0, pad)) if pad else v
        v8, v_scale, _ = per_channel_fp8(padded, tensor_layout="HND", smooth_v=False)
        return q8, k8, v8, q_scale, k_scale, v_scale

    ready = quantise()
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)

    def attend():
        q8, k8, v8, q_scale, k_scale, v_scale = ready
        sm90_compile.qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf(
            q8, k8, v8, out, q_scale, k_scale, v_scale,
            _HND, _NOT_CAUSAL, _PER_THREAD, problem.d**-0.5, _NO_LSE,
        )  # fmt: skip
        return out

    def prepare():
        quantise()

    return [
        Cell(impl, "kernel", attend),
        Cell(impl, "whole", lambda: sageattn(q, k, v, tensor_layout="HND")),
        Cell(impl, "prep", prepare),
    ]
