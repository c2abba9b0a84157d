# SPDX-License-Identifier: Apache-2.0
"""The order of keys and values that one attention layer keeps over denoising steps."""

from __future__ import annotations

from typing import Any

from . import _capi as capi
from ._errors import StateError, refuse

_ALIGN = 64


class GroupState:
    """What a layer carries from one denoising step to the next: the order of its keys and values.

    One per attention layer and, unless ``Policy.share_cfg`` is set, per guidance branch. It is
    empty at first; the first call that gets it takes memory of the right size where the tensors
    live (a later call must be of the same problem: shapes, segments, recipe family). Give the same
    object and the ``step`` to every call, and ``reset()`` it when a new generation begins.

        state = vcattn.GroupState()
        for step in range(40):
            o = vcattn.attention(q, k, v, state=state, step=step, policy=vcattn.Policy(steps=40))
    """

    __slots__ = ("_blob", "_buffer", "_device")

    def __init__(self, saved: bytes | None = None) -> None:
        """``saved``: what ``save()`` gave; the first call continues from there."""
        if saved is not None and not isinstance(saved, (bytes, bytearray, memoryview)):
            raise refuse("saved", type(saved).__name__, "the bytes that save() gave")
        self._blob = None if saved is None else bytes(saved)
        self._buffer: Any = None
        self._device = capi.DEVICE_CPU

    @property
    def nbytes(self) -> int:
        """Bytes held; 0 before the first call."""
        return 0 if self._buffer is None else self._buffer.nbytes

    def __repr__(self) -> str:
        where = "the CPU" if self._device < 0 else f"CUDA device {self._device}"
        return f"<vcattn.GroupState: {f'{self.nbytes} bytes on {where}' if self.nbytes else 'empty'}>"

    def reset(self) -> None:
        """A new generation begins: the next call forms a new order. Memory is kept."""
        if self._buffer is not None:
            capi.group_state_reset(self._address(), self.nbytes, self._stream())

    def clear(self) -> None:
        """Empty again: the memory is given back, and the next call may be of another problem."""
        self._buffer = self._blob = None

    def save(self) -> bytes:
        """A portable, checksummed copy of a state on the CPU."""
        if self._buffer is None:
            raise StateError("the group state is empty; hint: save it after the first call")
        if self._device >= 0:
            raise StateError("only a group state on the CPU can be saved in this version")
        return capi.group_state_save(self._address(), self.nbytes)

    def _address(self) -> int:
        data_ptr = getattr(self._buffer, "data_ptr", None)
        return self._buffer.ctypes.data if data_ptr is None else data_ptr()

    def _stream(self) -> int | None:
        if self._device < 0:
            return None
        from ._torch import current_stream

        return current_stream(self._device)

    def _ready(self, desc: capi.AttnDesc, allocate: Any) -> Any:
        """The buffer for ``desc``; at first use ``allocate(bytes)`` makes it."""
        if self._buffer is None:
            size = capi.group_state_bytes(desc)
            self._device = desc.device
            self._buffer = allocate(size)
            try:
                capi.group_state_init(desc, self._address(), size, self._stream())
                if self._blob is not None:
                    capi.group_state_load(desc, self._address(), size, self._blob)
            except Exception:
                self._buffer = None
                raise
        elif self._device != desc.device:
            raise elsewhere(self._device, desc.device)
        return self._buffer


def elsewhere(state: Any, tensors: Any) -> StateError:
    return StateError(
        f"the group state lives on device {state} and the tensors on {tensors}; "
        "hint: use one state per device (-1 is the CPU)"
    )


def host_buffer(size: int) -> Any:
    """``size`` bytes of host memory at a multiple of 64, as a numpy array."""
    import numpy as np

    memory = np.empty(size + _ALIGN, np.uint8)
    start = -memory.ctypes.data % _ALIGN
    return memory[start : start + size]
