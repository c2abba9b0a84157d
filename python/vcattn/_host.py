# SPDX-License-Identifier: Apache-2.0
"""The path of host tensors that are not torch's: numpy arrays and DLPack producers."""

from __future__ import annotations

import ctypes
from typing import Any

from . import _capi as capi
from . import _dlpack, _options, _receipt
from ._errors import MASK_HINT, refuse
from ._options import Flat, Pointers, Rope
from ._state import GroupState, host_buffer


def _numpy() -> Any:
    import numpy

    return numpy


_NUMPY_DTYPES = {
    "float32": capi.Dtype.FP32,
    "float16": capi.Dtype.FP16,
    "bfloat16": capi.Dtype.BF16,  # of the package ml_dtypes
}


def _array(what: str, value: Any) -> Any:
    """numpy's array of what was given for one of the small arguments."""
    np = _numpy()
    if isinstance(value, np.ma.MaskedArray):
        raise refuse(what, "a masked array, whose mask would be dropped", "a plain array")
    try:
        return np.asarray(value)
    except Exception as error:  # whatever the object's own conversion raises
        got = f"{type(value).__name__} ({error})"
        raise refuse(what, got, "what numpy.asarray takes") from None


def _numpy_view(name: str, array: Any) -> tuple[capi.Dtype, list[int], list[int], Any]:
    dtype = _NUMPY_DTYPES.get(array.dtype.name)
    if dtype is None or not array.dtype.isnative:
        allowed = "float32, float16, or bfloat16 of ml_dtypes, in the machine's byte order"
        raise refuse(f"{name}'s dtype", repr(array.dtype), allowed, "cast it first")
    size = array.itemsize
    if any(n > 1 and stride < 0 for n, stride in zip(array.shape, array.strides)):
        raise refuse(
            f"{name} has a negative stride",
            f"strides {array.strides} bytes",
            "strides >= 0",
            f"copy it first: numpy.ascontiguousarray({name})",
        )
    if any(stride % size for stride in array.strides) or not array.flags.aligned:
        array = array.copy()  # elements that lie across each other's boundaries
    strides = [stride // size for stride in array.strides]
    return dtype, list(array.shape), strides, array


def _host_view(name: str, value: Any, layout: str, inner_copy: bool) -> tuple[capi.Tensor, Any]:
    """A view [B, H, S, D] of a host tensor, and what keeps its memory alive."""
    np = _numpy()
    if isinstance(value, np.ma.MaskedArray):
        hint = "masked keys are key_mask="
        raise refuse(name, "a masked array, whose mask would be dropped", "a plain array", hint)
    if isinstance(value, np.ndarray):
        dtype, shape, strides, owner = _numpy_view(name, value)
        data = owner.ctypes.data
    elif _dlpack.is_producer(value):
        data, dtype, shape, strides, owner = _dlpack.view(name, value)
    else:
        raise refuse(
            f"{name} is not a tensor",
            type(value).__name__,
            "a torch tensor, a numpy array, or an object with __dlpack__",
        )
    if len(shape) != 4:
        wanted = "[B, H, S, D]" if layout == "HND" else "[B, S, H, D]"
        raise refuse(f"{name} is not four-dimensional", f"shape {tuple(shape)}", wanted)
    if inner_copy and shape[3] > 1 and strides[3] != 1:
        owner, strides = _packed(data, dtype, shape, strides)
        data = owner.ctypes.data
    strides[3] = 1 if shape[3] == 1 else strides[3]
    return (
        capi.tensor(
            data or None, dtype, _options.bhsd(shape, layout), _options.bhsd(strides, layout)
        ),
        owner,
    )


def _packed(data: int, dtype: capi.Dtype, shape: list[int], strides: list[int]) -> tuple:
    """A contiguous copy of memory that numpy may not know the dtype of."""
    np = _numpy()
    size = 4 if dtype == capi.Dtype.FP32 else 2
    if min(strides) < 0:
        raise refuse("a negative stride", f"strides {strides}", "strides >= 0", "copy it first")
    span = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides))
    if 0 in shape:
        copy = np.empty(shape, f"u{size}")
    else:
        memory = (ctypes.c_uint8 * (span * size)).from_address(data)
        flat = np.frombuffer(memory, f"u{size}")
        view = np.lib.stride_tricks.as_strided(flat, shape, [size * s for s in strides])
        copy = np.ascontiguousarray(view)
    return copy, [stride // size for stride in copy.strides]


def inputs(q: Any, k: Any, v: Any, layout: str) -> tuple[dict[str, capi.Tensor], list]:
    views, owners = {}, []
    for name, value in (("q", q), ("k", k), ("v", v)):
        views[name], owner = _host_view(name, value, layout, True)
        owners.append(owner)
    return views, owners


def address(array: Any) -> int:
    return 0 if array is None else array.ctypes.data


def lengths_array(kv_lens: Any, batches: int) -> Any:
    if kv_lens is None:
        return None
    np = _numpy()
    lengths = _array("kv_lens", kv_lens)
    if lengths.dtype.kind not in "iu" or lengths.shape != (batches,):
        raise refuse(
            "kv_lens", f"{lengths.dtype} of shape {lengths.shape}", f"integers of shape ({batches},)"
        )
    if lengths.size and (lengths.max() > 2**31 - 1 or lengths.min() < 0):
        raise refuse("kv_lens", f"{lengths.min()} .. {lengths.max()}", "0 .. S_kv")
    return np.ascontiguousarray(lengths, np.int32)


def mask_array(key_mask: Any, k: capi.Tensor) -> Any:
    if key_mask is None:
        return None
    np = _numpy()
    mask = _array("key_mask", key_mask)
    batches, keys = k.shape[0], k.shape[2]
    if mask.dtype != np.bool_:
        raise refuse("key_mask's dtype", mask.dtype, "bool (True = attend)", MASK_HINT)
    given = mask
    if mask.ndim == 4 and mask.shape[1:3] == (1, 1):
        mask = mask[:, 0, 0]
    if mask.shape not in ((batches, keys), (1, keys)):
        raise refuse(
            "key_mask's shape",
            given.shape,
            f"({batches}, {keys}) or ({batches}, 1, 1, {keys})",
            "one mask for all queries; masks that differ by query are not supported",
        )
    return np.ascontiguousarray(np.broadcast_to(mask, (batches, keys)))


def tables(rope: Rope | None, flat: Flat, tokens: int) -> tuple[dict[str, int], list]:
    """Addresses of RoPE's tables, and what keeps them alive."""
    addresses, owners = {}, []
    for name in ("cos", "sin"):
        table = None if rope is None else getattr(rope, name)
        if table is not None:
            table, shape = _array(f"rope.{name}", table), _options.table_shape(flat, tokens)
            if table.dtype.kind not in "fiu" or table.shape != shape:
                got = f"{table.dtype} of shape {table.shape}"
                raise refuse(f"rope.{name}", got, f"numbers of shape {shape}: [S, sum(axis_dim) / 2]")
            owners.append(_numpy().ascontiguousarray(table, "float32"))
            addresses[name] = address(owners[-1])
    return addresses, owners


def step_array(step: Any) -> Any:
    """One int32."""
    if step is None:
        return None
    given = _array("step", step)
    if given.dtype.kind not in "iu" or given.size != 1:
        raise refuse("step", f"{given.dtype} of shape {given.shape}", "one integer")
    return _numpy().array([_options.integer("step", given.item(), 32)], "int32")


def attention(
    q: Any,
    k: Any,
    v: Any,
    flat: Flat,
    kv_lens: Any,
    key_mask: Any,
    rope: Rope | None,
    state: GroupState | None,
    step: Any,
    return_lse: bool,
    out: Any,
) -> Any:
    np = _numpy()
    views, owners = inputs(q, k, v, flat.layout)
    shape = list(views["q"].shape)
    if out is None:
        dtype = q.dtype if isinstance(q, np.ndarray) else None
        if dtype is None:
            dtype = np.float16 if views["q"].dtype == capi.Dtype.FP16 else np.float32
        out = np.empty(_options.bhsd(shape, flat.layout), dtype)
    elif not isinstance(out, np.ndarray) or not out.flags.writeable or not out.flags.aligned:
        raise refuse("out", type(out).__name__, "a writable, aligned numpy array for such inputs")
    views["o"], _ = _host_view("out", out, flat.layout, False)
    lse = np.empty(shape[:3], np.float32) if return_lse else None
    lengths, mask = lengths_array(kv_lens, shape[0]), mask_array(key_mask, views["k"])
    addresses, table_owners = tables(rope, flat, shape[2])
    step_of = step_array(step)
    _options.instance("state", state, GroupState)
    pointers = Pointers(
        lse=address(lse),
        kv_lens=address(lengths),
        key_mask=address(mask),
        step=address(step_of),
        **addresses,
    )
    if state is not None:
        # Size and make of a state are asked for before there is one, hence without the policy.
        plain = flat._replace(policy=[])
        desc = _options.describe(plain, capi.DEVICE_CPU, views, pointers._replace(step=0))
        state._ready(desc, host_buffer)
        pointers = pointers._replace(state=state._address())
    desc = _options.describe(flat, capi.DEVICE_CPU, views, pointers)
    info = capi.query(desc)
    capi.run(desc)
    _receipt.record(desc, info)
    del owners, table_owners  # alive until here: the descriptor only borrows
    return (out, lse) if return_lse else out
