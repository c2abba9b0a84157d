# SPDX-License-Identifier: Apache-2.0
"""torch tensors for a descriptor: checks, views, and the small arguments as tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from . import _capi as capi
from . import _options
from ._errors import MASK_HINT, InvalidArgumentError, StateError, UnsupportedError, refuse
from ._options import Flat, Pointers, Rope
from ._state import GroupState

DTYPES = {
    torch.bfloat16: capi.Dtype.BF16,
    torch.float16: capi.Dtype.FP16,
    torch.float32: capi.Dtype.FP32,
}


# ------------------------------------------------------------ tensors to views
def check_inputs(tensors: dict[str, torch.Tensor], layout: str, data: bool = True) -> None:
    """Places, dtypes and forms. data: they must be where there are kernels."""
    q = tensors["q"]
    if data and q.device.type not in ("cpu", "cuda"):
        what = "q holds no data" if q.device.type == "meta" else "q's device has no kernels"
        error = InvalidArgumentError if q.device.type == "meta" else UnsupportedError
        raise error(f"{what}; got {q.device}; allowed: a tensor on the CPU or a CUDA device")
    for name, tensor in tensors.items():
        if tensor.device != q.device:
            raise refuse(
                f"{name} is not where q is",
                f"{name} on {tensor.device}, q on {q.device}",
                "all tensors on one device",
            )
        if tensor.dtype not in DTYPES:
            raise refuse(f"{name}'s dtype", tensor.dtype, "bfloat16, float16 or float32")
        if tensor.layout is not torch.strided or tensor.is_nested:
            form = "nested" if tensor.is_nested else str(tensor.layout)
            raise refuse(f"{name} is not a plain tensor", form, "torch.strided, one shape for all batches")
        if tensor.ndim != 4:
            wanted = "[B, H, S, D]" if layout == "HND" else "[B, S, H, D]"
            raise refuse(f"{name} is not four-dimensional", f"shape {tuple(tensor.shape)}", wanted)


def inner_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.shape[3] <= 1 or tensor.stride(3) == 1 else tensor.contiguous()


def as_view(tensor: torch.Tensor, layout: str, data: int | None) -> capi.Tensor:
    strides = list(tensor.stride())
    if tensor.shape[3] <= 1:
        strides[3] = 1
    return capi.tensor(
        data,
        DTYPES[tensor.dtype],
        _options.bhsd(tensor.shape, layout),
        _options.bhsd(strides, layout),
    )


def pointer(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None or tensor.numel() == 0 else tensor.data_ptr()


def ordinal(device: torch.device) -> int:
    if device.type == "cpu":
        return capi.DEVICE_CPU
    return torch.cuda.current_device() if device.index is None else device.index


def describe_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, flat: Flat) -> capi.AttnDesc:
    """A descriptor without data, for questions about shapes; fake and meta tensors do."""
    inputs = {"q": q, "k": k, "v": v}
    check_inputs(inputs, flat.layout, data=False)
    views = {name: as_view(tensor, flat.layout, None) for name, tensor in inputs.items()}
    for view in views.values():
        view.stride[3] = 1  # a copy will have it
    device = capi.DEVICE_CPU if q.device.type in ("cpu", "meta") else ordinal(q.device)
    # RoPE by tables, told by the absent grid: addresses that a question about shapes does not follow.
    tables = Pointers(cos=64, sin=64) if flat.rope and not any(flat.rope[4:7]) else Pointers()
    return _options.describe(flat._replace(policy=[]), device, views, tables)


def check_side(
    q: torch.Tensor, k: torch.Tensor, flat: Flat, tensors: dict[str, torch.Tensor | None]
) -> None:
    """The small tensors are what the descriptor says of them: it holds their addresses alone. The
    wrapper makes them so; who calls the operator itself may not."""
    b, _, s, _ = _options.bhsd(k.shape, flat.layout)
    table = _options.table_shape(flat, _options.bhsd(q.shape, flat.layout)[2])
    wanted = {
        "kv_lens": (torch.int32, (b,)), "key_mask": (torch.bool, (b, s)), "state": (torch.uint8, None),
        "step": (torch.int32, None), "rope_cos": (torch.float32, table),
        "rope_sin": (torch.float32, table),
    }  # fmt: skip
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        dtype, shape = wanted[name]
        right = tensor.dtype == dtype and tensor.device == q.device and tensor.is_contiguous()
        if not right or (shape is not None and tuple(tensor.shape) != shape) or (name == "step" and tensor.numel() != 1):
            given = f"{tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}"
            sizes = "one element" if name == "step" else shape or "any size"
            raise refuse(f"{name} of the operator", given, f"contiguous {dtype}, {sizes}, on {q.device}")


def check_state(state: torch.Tensor | None, info: capi.AttnInfo) -> None:
    """The library knows where a state begins, not where it ends."""
    if state is not None and state.numel() < info.state_bytes:
        raise StateError(
            f"the group state is of another problem; got {state.numel()} bytes; allowed: "
            f"{info.state_bytes}; hint: one state for each layer, clear() it when shapes change"
        )


# --------------------------------------------------- small arguments to tensors
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def as_lengths(kv_lens: Any, q: torch.Tensor) -> torch.Tensor | None:
    if kv_lens is None:
        return None
    if not isinstance(kv_lens, torch.Tensor):
        try:
            kv_lens = torch.tensor(list(kv_lens), device=q.device)
        except (TypeError, ValueError, RuntimeError):
            raise refuse("kv_lens", repr(kv_lens), f"{q.shape[0]} integers (one a batch)") from None
    if kv_lens.device != q.device or kv_lens.dtype not in _INTEGERS:
        raise refuse(
            "kv_lens", f"{kv_lens.dtype} on {kv_lens.device}", f"integers on {q.device} (q's device)"
        )
    if tuple(kv_lens.shape) != (q.shape[0],):
        raise refuse("kv_lens' shape", tuple(kv_lens.shape), f"({q.shape[0]},)")
    if kv_lens.dtype == torch.int64:  # what 32 bits do not hold stays out of range
        kv_lens = kv_lens.clamp(-1, 2**31 - 1)
    return kv_lens.to(torch.int32).contiguous()


def as_mask(key_mask: Any, k: torch.Tensor, layout: str) -> torch.Tensor | None:
    if key_mask is None:
        return None
    if not isinstance(key_mask, torch.Tensor):
        raise refuse("key_mask", type(key_mask).__name__, "a bool tensor for torch inputs")
    if key_mask.dtype != torch.bool:
        raise refuse("key_mask's dtype", key_mask.dtype, "torch.bool (True = attend)", MASK_HINT)
    if key_mask.layout is not torch.strided:
        raise refuse("key_mask is not a plain tensor", key_mask.layout, "torch.strided")
    if key_mask.device != k.device:
        raise refuse("key_mask's device", key_mask.device, f"{k.device}")
    b, _, s, _ = _options.bhsd(k.shape, layout)
    mask = key_mask
    if mask.ndim == 4 and tuple(mask.shape[1:3]) == (1, 1):
        mask = mask[:, 0, 0]
    if mask.ndim != 2 or mask.shape[1] != s or mask.shape[0] not in (1, b):
        raise refuse(
            "key_mask's shape",
            tuple(key_mask.shape),
            f"({b}, {s}) or ({b}, 1, 1, {s})",
            "one mask for all queries; masks that differ by query are not supported",
        )
    return mask.expand(b, s).contiguous()


def as_table(name: str, rope: Rope | None, q: torch.Tensor, flat: Flat) -> torch.Tensor | None:
    table = None if rope is None else getattr(rope, name)
    if table is None:
        return None
    shape = _options.table_shape(flat, _options.bhsd(q.shape, flat.layout)[2])
    if not isinstance(table, torch.Tensor) or table.device != q.device or table.is_complex() or table.layout is not torch.strided:
        raise refuse(f"rope.{name}", f"{type(table).__name__}", f"a float32 tensor on {q.device}")
    if tuple(table.shape) != shape:
        raise refuse(f"rope.{name}'s shape", tuple(table.shape), f"{shape}: [S, sum(axis_dim) / 2]")
    return table.detach().to(torch.float32).contiguous()


def as_step(step: Any, q: torch.Tensor) -> torch.Tensor | None:
    if step is None:
        return None
    if not isinstance(step, torch.Tensor):
        return torch.full((1,), _options.integer("step", step, 32), dtype=torch.int32, device=q.device)
    if step.dtype != torch.int32 or step.numel() != 1 or step.device != q.device:
        raise refuse(
            "step",
            f"{step.dtype}, {step.numel()} elements on {step.device}",
            f"an int, or one int32 element on {q.device}",
        )
    return step


def has_tangent(*tensors: torch.Tensor) -> bool:
    """Whether forward-mode differentiation is under way with one of these: it would go on with a
    tangent of zero."""
    if getattr(forward_ad, "_current_level", -1) < 0:
        return False
    return any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def check_small(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, flat: Flat, *, kv_lens: Any, key_mask: Any,
    rope: Rope | None, state: GroupState | None, step: Any,
) -> None:  # fmt: skip
    """Raises what ``attention`` raises for these; for questions about shapes."""
    check_inputs({"q": q, "k": k, "v": v}, flat.layout, data=False)
    _options.instance("state", state, GroupState)
    as_lengths(kv_lens, q), as_mask(key_mask, k, flat.layout), as_step(step, q)
    as_table("cos", rope, q, flat), as_table("sin", rope, q, flat)
