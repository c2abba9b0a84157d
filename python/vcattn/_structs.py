# SPDX-License-Identifier: Apache-2.0
"""The structs and enums of ``include/vca/vca.h`` for ctypes, field by field.

Meaning, units and defaults of every field stand in the header and are not repeated here.
``tests/python/test_capi.py`` compares each offset, size and enum value with what a C compiler says.
"""

from __future__ import annotations

import ctypes
import enum
from ctypes import (
    POINTER,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
)

DEVICE_CPU = -1
CHECK_FINITE = 1


class Dtype(enum.IntEnum):
    BF16 = 0
    FP16 = 1
    FP32 = 2


class Recipe(enum.IntEnum):
    AUTO = 0
    EXACT = 1
    BF16 = 2
    FP8 = 3
    SAGE2 = 4
    VC8_PAPER = 5
    VC8_EXP = 6
    VC8 = 7
    VC8_TURBO = 8
    VC8_HQ = 9
    VC8_FP8QK = 10
    VC8_FP8QK_PAPER = 11
    FP4 = 12
    SAGE3 = 13
    VC4_PAPER = 14
    VC4 = 15
    VC4_INT8QK = 16


class Grouping(enum.IntEnum):
    DEFAULT = 0
    IDENTITY = 1
    CUBES = 2
    KDTREE = 3
    VSMOOTH = 4
    KMEANS = 5
    BALANCED = 6
    AUTO = 7


class Target(enum.IntEnum):
    AUTO = 0
    CPU = 1
    SM89 = 2
    SM90 = 3
    SM100 = 4
    SM103 = 5
    SM120 = 6


class SegmentKind(enum.IntEnum):
    VIDEO = 0
    TEXT = 1
    PADDING = 2
    SEQUENCE = 3


class RopeConvention(enum.IntEnum):
    NONE = 0
    INTERLEAVED = 1
    HALF = 2


class PolicyAfter(enum.IntEnum):
    REFRESH_ON_DECAY = 0
    REUSE = 1
    IDENTITY = 2


class Tensor(ctypes.Structure):
    """``vca_tensor``: a borrowed 4-D view [B, H, S, D]; strides in elements."""

    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int32),
        ("reserved", c_int32),
        ("shape", c_int64 * 4),
        ("stride", c_int64 * 4),
    ]


class Segment(ctypes.Structure):
    """``vca_segment``: tokens [begin, begin + len)."""

    _fields_ = [("begin", c_int64), ("len", c_int64), ("kind", c_int32), ("reserved", c_int32)]


class _Sized(ctypes.Structure):
    """A struct that starts with its own size, so that library and package may differ in age."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.struct_size = ctypes.sizeof(self)


class Rope(_Sized):
    """``vca_rope``."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("convention", c_int32),
        ("axis_dim", c_int32 * 3),
        ("theta", c_double),
        ("grid", c_int64 * 3),
        ("begin", c_int64),
        ("cos", c_void_p),
        ("sin", c_void_p),
    ]


class Policy(_Sized):
    """``vca_policy``."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("steps", c_int32),
        ("window", c_int32),
        ("refresh", c_int32),
        ("after", c_int32),
        ("decay", c_float),
        ("share_cfg", c_int32),
    ]


class AttnDesc(_Sized):
    """``vca_attn_desc``: everything at its default, on the CPU."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", c_void_p),
        ("scale", c_double),
        ("has_scale", c_int32),
        ("device", c_int32),
        ("recipe", c_int32),
        ("grouping", c_int32),
        ("hadamard", c_int32),
        ("target", c_int32),
        ("flags", c_uint32),
        ("num_threads", c_int32),
        ("kv_lens", c_void_p),
        ("key_mask", c_void_p),
        ("segments", POINTER(Segment)),
        ("n_segments", c_int64),
        ("grid", c_int64 * 3),
        ("rope", POINTER(Rope)),
        ("policy", POINTER(Policy)),
        ("state", c_void_p),
        ("step", c_void_p),
        ("block_mask", c_void_p),
        ("energy_removed", c_void_p),
        ("regrouped", c_void_p),
    ]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if "device" not in kwargs:
            self.device = DEVICE_CPU


class AttnInfo(_Sized):
    """``vca_attn_info``: what would run."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("recipe", c_int32),
        ("grouping", c_int32),
        ("target", c_int32),
        ("hadamard", c_int32),
        ("kernel", c_char_p),
        ("schedule", c_char_p),
        ("mma_model", c_char_p),
        ("evidence", c_char_p),
        ("workspace_bytes", c_size_t),
        ("state_bytes", c_size_t),
    ]


class RefIo(_Sized):
    """``vca_ref_io``: outputs and injections of ``vca_ref_attn``."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("permutation", c_void_p),
        ("codes_in", c_void_p),
        ("sums_in", c_void_p),
        ("order", c_void_p),
        ("s", c_void_p),
        ("m", c_void_p),
        ("codes", c_void_p),
        ("r", c_void_p),
        ("o", c_void_p),
        ("lse", c_void_p),
        ("o_exact", c_void_p),
    ]


# C name -> class, for the test of the layout.
STRUCTS = {
    "vca_tensor": Tensor,
    "vca_segment": Segment,
    "vca_rope": Rope,
    "vca_policy": Policy,
    "vca_attn_desc": AttnDesc,
    "vca_attn_info": AttnInfo,
    "vca_ref_io": RefIo,
}
# Prefix of the C constants -> enum.
ENUMS = {
    "VCA_": Dtype,
    "VCA_RECIPE_": Recipe,
    "VCA_GROUPING_": Grouping,
    "VCA_TARGET_": Target,
    "VCA_SEGMENT_": SegmentKind,
    "VCA_ROPE_": RopeConvention,
    "VCA_AFTER_": PolicyAfter,
}
