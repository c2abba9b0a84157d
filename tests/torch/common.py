# SPDX-License-Identifier: Apache-2.0
"""Inputs and checks shared by the tests with torch."""

import torch
from oracle import NEAR, error, exact

__all__ = ["NEAR", "assert_near", "exact_torch", "random_qkv"]


def random_qkv(shape=(1, 2, 200, 64), kv_shape=None, device="cpu", dtype=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(s, generator=generator).to(device=device, dtype=dtype)
        for s in (shape, kv_shape or shape, kv_shape or shape)
    )


def exact_torch(q, k, v, **options):
    """(O, LSE) in FP64 on the CPU; the mask is a bool tensor [B, S_kv]."""
    if options.get("mask") is not None:
        options["mask"] = options["mask"].cpu().numpy()
    return exact(*(x.detach().double().cpu().numpy() for x in (q, k, v)), **options)


def assert_near(got, q, k, v, **options):
    assert error(got.detach().double().cpu().numpy(), exact_torch(q, k, v, **options)[0]) < NEAR
