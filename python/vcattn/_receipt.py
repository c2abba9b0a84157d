# SPDX-License-Identifier: Apache-2.0
"""What the last call ran, so that nothing is chosen silently."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from . import _capi as capi


@dataclass(frozen=True)
class Receipt:
    """What one attention call ran.

    recipe, grouping, target, hadamard: resolved, never "auto" or "default".
    reason: how the recipe came about ("asked for", or what "auto" chose and for which target).
    kernel, schedule, mma_model: code path, order of blocks and sums, and chip arithmetic.
    evidence: "specification", "emulated", "measured", ...: how the kernel was checked.
    device: -1 for the CPU, else the CUDA ordinal.
    shape: (B, H_q, H_kv, S_q, S_kv, D). dtype: "bf16", "fp16" or "fp32" of the inputs.
    workspace_bytes: what the call needed beside inputs and outputs.
    library: version of the library and of its numerics specification.
    """

    recipe: str
    grouping: str
    target: str
    hadamard: bool
    reason: str
    kernel: str
    schedule: str
    mma_model: str
    evidence: str
    device: int
    shape: tuple[int, int, int, int, int, int]
    dtype: str
    workspace_bytes: int
    library: str

    def __str__(self) -> str:
        b, h_q, h_kv, s_q, s_kv, d = self.shape
        heads = f"H{h_q}" if h_q == h_kv else f"H{h_q}/{h_kv}"
        length = f"S{s_q}" if s_q == s_kv else f"S{s_q}x{s_kv}"
        hadamard = "+had" if self.hadamard else ""
        return (
            f"vcattn {self.library}: {self.recipe}{hadamard} ({self.reason}) on {self.kernel} "
            f"[{self.evidence}], grouping {self.grouping}, B{b} {heads} {length} D{d} {self.dtype}"
        )


_last = threading.local()


def record(desc: capi.AttnDesc, info: capi.AttnInfo) -> None:
    # Only numbers are taken here: names are made when somebody asks, not in every call.
    shape = (*desc.q.shape[:2], desc.k.shape[1], desc.q.shape[2], desc.k.shape[2], desc.q.shape[3])
    _last.values = (desc.recipe, shape, desc.q.dtype, desc.device, info)


def last_receipt() -> Receipt | None:
    """The ``Receipt`` of this thread's last attention call that ran; None before the first.

    Replays of a CUDA graph leave none: the receipt is that of the capture.
    """
    values = getattr(_last, "values", None)
    if values is None:
        return None
    asked, shape, dtype, device, info = values
    recipe = str(capi.recipe_name(info.recipe))
    target = str(capi.target_name(info.target))
    auto = asked == capi.Recipe.AUTO
    return Receipt(
        recipe=recipe,
        grouping=str(capi.grouping_name(info.grouping)),
        target=target,
        hadamard=bool(info.hadamard),
        reason=f"auto: the default on {target}" if auto else "asked for",
        kernel=info.kernel.decode(),
        schedule=info.schedule.decode(),
        mma_model=info.mma_model.decode(),
        evidence=info.evidence.decode(),
        device=device,
        shape=shape,
        dtype=capi.Dtype(dtype).name.lower(),
        workspace_bytes=info.workspace_bytes,
        library=f"{capi.version()} (specification {capi.spec_version()})",
    )
