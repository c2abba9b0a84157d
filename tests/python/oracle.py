# SPDX-License-Identifier: Apache-2.0
"""Independent FP64 attention in numpy, and the bound that "not broken" means.

NEAR: one rounding to E4M3, the coarsest step of any recipe, is off by 2^-4 at most; on random
tensors the errors of many keys average, so a recipe that reaches it does something else than it
should. (How accurate the recipes are is tested in tests/accuracy, against written budgets.)
"""

import numpy as np

NEAR = 2**-4


def random_qkv(shape=(1, 2, 200, 64), kv_shape=None, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    kv_shape = kv_shape or shape
    return tuple(
        rng.standard_normal(s, dtype=np.float32).astype(dtype) for s in (shape, kv_shape, kv_shape)
    )


def exact(q, k, v, scale=None, mask=None):
    """(O, LSE) of [B, H, S, D] in FP64; mask: bool [B, S_kv]."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) * (q.shape[3] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = np.where(mask[:, None, None, :], scores, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-1e300)
    p = np.exp(scores - top)
    total = p.sum(-1, keepdims=True)
    out = np.einsum("bhqk,bhkd->bhqd", np.divide(p, total, where=total > 0, out=0 * p), v)
    with np.errstate(divide="ignore"):
        return out, (top + np.log(total))[..., 0]


def error(got, want):
    want = np.asarray(want, np.float64)
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)
