# SPDX-License-Identifier: Apache-2.0
"""What the adapters share: masks over keys, and whether a device keeps an order over steps."""

from __future__ import annotations

import functools

import torch

import vcattn
from vcattn import _capi as capi

# Without a CUDA device there is nothing to gain; this only keeps the 512 text tokens of Wan2.2's and
# LongCat's cross attention native there too, as on a device (break_even_keys).
MIN_KEYS = 1024
MAX_HEAD_DIM = 128
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def key_mask_of(attn_mask: torch.Tensor, batch: int, keys: int) -> torch.Tensor | None:
    """The mask as [B or 1, S_kv], when it is one for all heads and queries; else None.

    Told by shape and strides alone: reading the mask would stop the device.
    """
    if not isinstance(attn_mask, torch.Tensor) or attn_mask.layout is not torch.strided:
        return None
    mask = attn_mask.as_subclass(torch.Tensor)
    if mask.dtype != torch.bool or not 1 <= mask.ndim <= 4 or mask.shape[-1] != keys:
        return None
    while mask.ndim < 4:
        mask = mask.unsqueeze(-3 if mask.ndim == 3 else 0)
    for axis in (1, 2):  # heads, queries
        if mask.shape[axis] != 1 and mask.stride(axis) != 0:
            return None
    return mask[:, 0, 0] if mask.shape[0] in (1, batch) else None


def shapes_fit(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether [B, S, H, D] tensors are a call that there is here: one batch, heads that divide, one
    head_dim, one device."""
    if q.ndim != 4 or k.ndim != 4 or v.shape != k.shape or q.shape[0] != k.shape[0]:
        return False
    if q.device != k.device or v.device != k.device:
        return False
    return q.shape[3] == k.shape[3] and k.shape[2] > 0 and q.shape[2] % k.shape[2] == 0


def _runs(device: int, recipe: str, tokens: int, state: bool) -> bool:
    """Whether the library takes a call of one head of so many tokens, head_dim 128."""
    desc = capi.AttnDesc(device=device)
    desc.recipe, desc.hadamard = capi.parse_recipe(recipe)
    strides = (128 * tokens, 128 * tokens, 128, 1)
    view = capi.tensor(None, capi.Dtype.BF16, (1, 1, tokens, 128), strides)
    desc.q = desc.k = desc.v = desc.o = view
    if state:
        desc.state = desc.step = 64  # addresses that a query does not follow
    try:
        capi.query(desc)
    except vcattn.UnsupportedError:
        return False
    return True


@functools.lru_cache(maxsize=64)
def keeps_order(device: torch.device, recipe: str) -> bool:
    """Whether the kernels of this device take a group state in this version of the library."""
    if device.type == "cpu":
        return True
    ordinal = torch.cuda.current_device() if device.index is None else device.index
    return _runs(ordinal, recipe, 128, state=True)


@functools.lru_cache(maxsize=16)
def shortest_auto(device: int, state: bool) -> int | None:
    """The fewest tokens that recipe "auto" takes on a CUDA device, from the library's own table of
    break-even lengths (found by asking, as the C ABI has no call for it); None: it takes none."""
    low, high = 0, 1 << 19  # declined, taken
    if not _runs(device, "auto", high, state):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _runs(device, "auto", middle, state) else (middle, high)
    return high


def break_even_keys(state: bool) -> int:
    """From how many keys on calls run on vcattn by default: where recipe "auto" begins on the current
    CUDA device, MIN_KEYS where there is no device with kernels."""
    if not torch.cuda.is_available():
        return MIN_KEYS
    return max(MIN_KEYS, shortest_auto(torch.cuda.current_device(), state) or 0)
