# SPDX-License-Identifier: Apache-2.0
"""vcattn: low-bit attention for video diffusion transformers.

    import vcattn
    o = vcattn.attention(q, k, v)          # numpy, torch or DLPack; [B, H, S, D]
    print(vcattn.last_receipt())           # what ran

Importing this package imports neither torch nor numpy, and loads no library before the first call.
"""

from ._attention import attention, explain, prepare
from ._errors import (
    InternalError,
    InvalidArgumentError,
    LibraryNotFoundError,
    NonFiniteError,
    OutOfMemoryError,
    StateError,
    UnsupportedError,
    VcattnError,
    WorkspaceError,
)
from ._options import Policy, Rope, Segment
from ._receipt import Receipt, last_receipt
from ._state import GroupState

__all__ = [
    "GroupState",
    "InternalError",
    "InvalidArgumentError",
    "LibraryNotFoundError",
    "NonFiniteError",
    "OutOfMemoryError",
    "Policy",
    "Receipt",
    "Rope",
    "Segment",
    "StateError",
    "UnsupportedError",
    "VcattnError",
    "WorkspaceError",
    "attention",
    "explain",
    "last_receipt",
    "prepare",
    "spec_version",
    "version",
]


def version() -> str:
    """Version of the library, for example "0.1.0"."""
    from . import _capi

    return _capi.version()


def spec_version() -> int:
    """Version of the numerics specification that the library follows."""
    from . import _capi

    return _capi.spec_version()
