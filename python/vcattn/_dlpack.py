# SPDX-License-Identifier: Apache-2.0
"""Host tensors of any framework through the DLPack protocol, by ctypes.

numpy's own importer has no BF16, which is what most tensors here are; so the capsule is read
directly. Layout of the structs: the DLPack specification, version 1 (and the older capsule without
a version, which producers still hand out).
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

from ._errors import UnsupportedError, refuse
from ._structs import Dtype

_CPU, _CUDA, _CUDA_HOST = 1, 2, 3
_FLOAT, _BFLOAT = 2, 4
_DTYPES = {(_BFLOAT, 16): Dtype.BF16, (_FLOAT, 16): Dtype.FP16, (_FLOAT, 32): Dtype.FP32}


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager_ctx", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("dl_tensor", _DLTensor),
    ]


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


class HostView(NamedTuple):
    """A borrowed tensor in host memory; strides in elements. ``owner`` keeps the memory alive."""

    data: int
    dtype: Dtype
    shape: list[int]
    strides: list[int]
    owner: Any


def is_producer(value: object) -> bool:
    return hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")


def view(name: str, producer: Any) -> HostView:
    """The producer's tensor. Raises for anything that is not BF16, FP16 or FP32 in host memory, and
    what the producer itself raises."""
    where = producer.__dlpack_device__()
    try:
        device_type, device_id = where
    except (TypeError, ValueError):
        raise refuse(f"{name}.__dlpack_device__()", repr(where), "(device type, device number)") from None
    if device_type not in (_CPU, _CUDA_HOST):
        place = f"CUDA device {device_id}" if device_type == _CUDA else f"DLPack device {device_type}"
        raise UnsupportedError(
            f"{name} is not in host memory; got {place}; allowed: host memory, or a torch tensor on "
            f"a CUDA device; hint: torch.from_dlpack makes one without a copy"
        )
    try:
        capsule = producer.__dlpack__(max_version=(1, 0))
    except TypeError:  # a producer of the time before versions
        capsule = producer.__dlpack__()
    # The capsule is not renamed, so its own destructor frees the tensor with it.
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise refuse(f"{name}'s DLPack version", f"{managed.major}.{managed.minor}", "1.x")
        t = managed.dl_tensor
    elif _is_valid(capsule, b"dltensor"):
        t = _DLTensor.from_address(_pointer(capsule, b"dltensor"))
    else:
        raise refuse(f"{name}.__dlpack__()", repr(capsule), "a capsule that nobody has consumed yet")
    dtype = _DTYPES.get((t.code, t.bits)) if t.lanes == 1 else None
    if dtype is None:
        raise refuse(
            f"{name}'s dtype", f"DLPack code {t.code}, {t.bits} bits", "BF16, FP16 or FP32"
        )
    shape = list(t.shape[: t.ndim])
    if t.strides:
        strides = list(t.strides[: t.ndim])
    else:  # NULL means row-major
        strides = [1] * t.ndim
        for axis in range(t.ndim - 1, 0, -1):
            strides[axis - 1] = strides[axis] * shape[axis]
    return HostView((t.data or 0) + t.byte_offset, dtype, shape, strides, (producer, capsule))
