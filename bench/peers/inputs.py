# SPDX-License-Identifier: Apache-2.0
"""Random queries, keys and values of a problem, in the memory layout that it names."""

from __future__ import annotations

import dataclasses

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclasses.dataclass
class Inputs:
    """[B, H, S, D] views. k_valid, v_valid: without the keys beyond the key length; where there are
    some, contiguous copies, so that every peer gets what it knows best."""

    q: object
    k: object
    v: object
    kv_len: int
    k_valid: object = dataclasses.field(init=False)
    v_valid: object = dataclasses.field(init=False)

    def __post_init__(self):
        self.k_valid, self.v_valid = (
            x if x.shape[2] == self.kv_len else x[:, :, : self.kv_len].contiguous()
            for x in (self.k, self.v)
        )


def make(problem, seed: int = 0, device: str = "cuda") -> Inputs:
    """Standard normal values: zeros and other easy data let the chip draw less power and run
    faster than any model does."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    dtype = getattr(torch, DTYPES[problem.dtype])

    def normal(*shape):
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    p = problem
    if p.layout == "fused":  # one [B, S, 3, H, D] buffer
        views = normal(p.b, p.s_q, 3, p.h_q, p.d).permute(2, 0, 3, 1, 4)
        return Inputs(views[0], views[1], views[2], p.keys)
    sizes = [(p.h_q, p.s_q), (p.h_kv, p.s_kv), (p.h_kv, p.s_kv)]
    if p.layout == "nhd":
        q, k, v = (normal(p.b, s, h, p.d).transpose(1, 2) for h, s in sizes)
    else:
        q, k, v = (normal(p.b, h, s, p.d) for h, s in sizes)
    return Inputs(q, k, v, p.keys)
