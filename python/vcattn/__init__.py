# SPDX-License-Identifier: Apache-2.0
"""vcattn: low-bit attention for video diffusion transformers."""

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

__all__ = [
    "InternalError",
    "InvalidArgumentError",
    "LibraryNotFoundError",
    "NonFiniteError",
    "OutOfMemoryError",
    "StateError",
    "UnsupportedError",
    "VcattnError",
    "WorkspaceError",
]
