# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one for each status of the C ABI, all of them ``VcattnError``."""

from __future__ import annotations


class VcattnError(RuntimeError):
    """A call of the library failed. ``status`` is the number of the C ABI (``vca_status``)."""

    status = 0


class InvalidArgumentError(VcattnError, ValueError):
    """An argument, or a combination of arguments, is not allowed."""

    status = 1


class UnsupportedError(VcattnError, NotImplementedError):
    """Allowed, but nothing in this build can run it on this device; the text says why."""

    status = 2


class NonFiniteError(VcattnError, ValueError):
    """``check_finite=True`` found a NaN or an infinity; the text names tensor and index."""

    status = 3


class WorkspaceError(VcattnError):
    """The workspace is missing, too small, or holds another problem."""

    status = 4


class OutOfMemoryError(VcattnError, MemoryError):
    """The library could not get host memory."""

    status = 5


class StateError(VcattnError):
    """A group state is damaged or belongs to another problem."""

    status = 6


class InternalError(VcattnError):
    """A fault of the library: please report it."""

    status = 7


class LibraryNotFoundError(VcattnError, ImportError):
    """``libvcattn.so`` was not found, or is not one that this package can use."""


BY_STATUS: dict[int, type[VcattnError]] = {
    cls.status: cls
    for cls in (
        InvalidArgumentError,
        UnsupportedError,
        NonFiniteError,
        WorkspaceError,
        OutOfMemoryError,
        StateError,
        InternalError,
    )
}


MASK_HINT = "additive (float) masks are not supported; a padding mask is key_mask = bias == 0"


def refuse(what: str, got: object, allowed: str, hint: str = "") -> InvalidArgumentError:
    """An ``InvalidArgumentError`` with a text in the form of the library's own."""
    text = f"{what}; got {got}; allowed: {allowed}"
    return InvalidArgumentError(text + (f"; hint: {hint}" if hint else ""))
