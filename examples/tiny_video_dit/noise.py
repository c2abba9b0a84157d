# SPDX-License-Identifier: Apache-2.0
"""The sampler's noise and time grid (MODEL.md sections 6 and 7), numpy only."""

from __future__ import annotations

import numpy as np

_MUL0, _MUL1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY0, _KEY1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox_words(seed: int, first_block: int, blocks: int) -> np.ndarray:
    """Words of Philox4x32-10 as uint64 [blocks, 4], counters first_block ... first_block + blocks - 1."""
    index = np.arange(first_block, first_block + blocks, dtype=np.uint64)
    c0, c1 = index & _LOW, index >> _HALF
    c2, c3 = np.zeros_like(c0), np.zeros_like(c0)
    k0, k1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = _MUL0 * c0, _MUL1 * c2
        c0, c1, c2, c3 = (
            (p1 >> _HALF) ^ c1 ^ np.uint64(k0),
            p1 & _LOW,
            (p0 >> _HALF) ^ c3 ^ np.uint64(k1),
            p0 & _LOW,
        )
        k0, k1 = (k0 + _KEY0) & 0xFFFFFFFF, (k1 + _KEY1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1)


def normals(seed: int, count: int) -> np.ndarray:
    """`count` standard normals as float32, element j depending on (seed, j) only."""
    words = philox_words(seed, 0, (count + 3) // 4).astype(np.float64)
    unit = (words + 0.5) * 2.0**-32
    radius = np.sqrt(-2.0 * np.log(unit[:, 0::2]))
    angle = 2.0 * np.pi * unit[:, 1::2]
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=2)
    return pairs.reshape(-1)[:count].astype(np.float32)


def time_grid(steps: int, shift: float) -> np.ndarray:
    """t_0 = 1 ... t_steps = 0 as float64."""
    u = 1.0 - np.arange(steps + 1, dtype=np.float64) / steps
    return shift * u / (1.0 + (shift - 1.0) * u)
