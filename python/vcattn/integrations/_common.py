# SPDX-License-Identifier: Apache-2.0
"""What the adapters share: masks over keys, and whether a device keeps an order over steps."""

from __future__ import annotations

import functools

import torch

import vcattn
from vcattn import _capi as capi

# Fewer keys than this leave too little work to pay for quantising. Chosen so that the 512 text
# tokens of Wan2.2's and LongCat's cross attention stay native; not a measured break-even.
MIN_KEYS = 1024
MAX_HEAD_DIM = 128
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def key_mask_of(attn_mask: torch.Tensor, batch: int, keys: int) -> torch.Tensor | None:
    """The mask as [B or 1, S_kv], when it is one for all heads and queries; else None.

    Told by shape and strides alone: reading the mask would stop the device.
    """
    mask = attn_mask.as_subclass(torch.Tensor)
    if mask.dtype != torch.bool or mask.shape[-1] != keys:
        return None
    while mask.ndim < 4:
        mask = mask.unsqueeze(-3 if mask.ndim == 3 else 0)
    for axis in (1, 2):  # heads, queries
        if mask.shape[axis] != 1 and mask.stride(axis) != 0:
            return None
    return mask[:, 0, 0] if mask.shape[0] in (1, batch) else None


@functools.lru_cache(maxsize=64)
def keeps_order(device: torch.device, recipe: str) -> bool:
    """Whether the kernels of this device take a group state in this version of the library."""
    if device.type == "cpu":
        return True
    desc = capi.AttnDesc(device=torch.cuda.current_device() if device.index is None else device.index)
    desc.recipe, desc.hadamard = capi.parse_recipe(recipe)
    view = capi.tensor(None, capi.Dtype.BF16, (1, 1, 128, 128), (16384, 16384, 128, 1))
    desc.q = desc.k = desc.v = desc.o = view
    desc.state = desc.step = 64  # addresses that a query does not follow
    try:
        capi.query(desc)
    except vcattn.UnsupportedError:
        return False
    return True
