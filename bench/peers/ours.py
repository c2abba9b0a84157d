# SPDX-License-Identifier: Apache-2.0
"""This library through its C ABI. kernel: vca_attn_attend on a prepared workspace; prep:
vca_attn_prepare; whole: vca_attn_run.

Groupings of prep and whole rows, where the device can group:
    none   token order
    cold   the group state is reset ahead of each call (untimed), so each forms its order anew
    warm   every call is the next denoising step inside the regrouping window: it starts from the
           order of the call before
"""

from __future__ import annotations

import ctypes
import pathlib
import sys

from . import import_reason
from .cell import Cell

_RECIPES = {
    "vc8": "VC8", "vc8-turbo": "VC8_TURBO", "vc8-paper": "VC8_PAPER", "vc8-exp": "VC8_EXP",
    "sage2-ours": "SAGE2", "fp8-ours": "FP8",
}  # fmt: skip
IMPLS = tuple(_RECIPES)
# The others are our kernels for other numerics: their groupings would tell nothing new.
_GROUPED = ("vc8", "vc8-turbo", "vc8-paper")
# More steps than any run has calls, so that all of them lie inside the window.
_STEPS = 1 << 20


def _capi():
    root = str(pathlib.Path(__file__).resolve().parents[2] / "python")
    if root not in sys.path:
        sys.path.insert(0, root)
    from vcattn import _capi

    return _capi


class _Call:
    """A descriptor with everything that it borrows. `workspace` is set by the caller."""

    def __init__(self, impl: str, problem, inputs, grouping: str, out):
        import torch

        capi = self.capi = _capi()
        q = inputs.q
        self.keep = [inputs, out]
        self.out = out
        self.workspace = None
        on_cpu = q.device.type == "cpu"
        self.stream = None if on_cpu else torch.cuda.current_stream().cuda_stream
        desc = self.desc = capi.AttnDesc(device=capi.DEVICE_CPU if on_cpu else q.device.index)
        desc.recipe = capi.Recipe[_RECIPES[impl]]
        desc.grouping = capi.Grouping.IDENTITY if grouping == "none" else capi.Grouping.DEFAULT
        dtype = capi.Dtype[problem.dtype.upper()]
        for name, x in (("q", q), ("k", inputs.k), ("v", inputs.v), ("o", out)):
            setattr(desc, name, capi.tensor(x.data_ptr(), dtype, x.shape, x.stride()))
        if problem.kv_len is not None:
            lens = torch.full((problem.b,), problem.kv_len, dtype=torch.int32, device=q.device)
            desc.kv_lens = lens.data_ptr()
            self.keep.append(lens)
        if grouping != "none":
            self._add_state(torch, q.device)
        self.bytes = capi.workspace(desc)

    def _add_state(self, torch, device):
        capi, desc = self.capi, self.desc
        self.step = torch.zeros(1, dtype=torch.int32, device=device)
        desc.step = self.step.data_ptr()
        desc.policy = ctypes.pointer(capi.Policy(steps=_STEPS, window=_STEPS))
        self.state_bytes = capi.group_state_bytes(desc)
        self.state = torch.zeros(self.state_bytes, dtype=torch.uint8, device=device)
        desc.state = self.state.data_ptr()
        capi.group_state_init(desc, desc.state, self.state_bytes, self.stream)

    def forget(self):
        self.capi.group_state_reset(self.desc.state, self.state_bytes, self.stream)

    def next_step(self):
        self.step.add_(1)

    def prepare(self):
        self.capi.prepare(self.desc, self.workspace.data_ptr(), self.bytes, self.stream)

    def attend(self):
        self.capi.attend(self.desc, self.workspace.data_ptr(), self.bytes, self.stream)
        return self.out

    def run(self):
        self.capi.run(self.desc, self.workspace.data_ptr(), self.bytes, self.stream)
        return self.out


def _probe_desc(impl: str, device: int):
    """A small problem for vca_attn_query, which reads no data."""
    capi = _capi()
    desc = capi.AttnDesc(device=device, recipe=capi.Recipe[_RECIPES[impl]])
    for name in ("q", "k", "v", "o"):
        # The address is never followed, but a tensor with elements must have one.
        setattr(desc, name, capi.tensor(256, capi.Dtype.BF16, (1, 1, 128, 128), (16384, 16384, 128, 1)))
    desc.o.data = 1 << 20
    return desc


def available(impl: str) -> str:
    if reason := import_reason("torch"):
        return reason
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device"
    try:
        capi = _capi()
        capi.query(_probe_desc(impl, torch.cuda.current_device()))
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return ""


def groups(impl: str, device: int) -> bool:
    """Whether the device forms groups for this recipe; in token order there is nothing warm or
    cold to time."""
    capi = _capi()
    return capi.query(_probe_desc(impl, device)).grouping != capi.Grouping.IDENTITY


def cells(impl: str, problem, inputs) -> list[Cell]:
    import torch

    device = inputs.q.device
    out = torch.empty(inputs.q.shape, dtype=inputs.q.dtype, device=device)

    def call(grouping: str) -> _Call:
        return _Call(impl, problem, inputs, grouping, out)

    # The kernel's operands stay as prepared; all other calls of a recipe share one workspace.
    kernel, plain = call("none"), call("none")
    grouped = []
    if impl in _GROUPED and groups(impl, plain.desc.device):
        try:
            grouped = [(g, scope, call(g)) for g in ("warm", "cold") for scope in ("whole", "prep")]
        except NotImplementedError:  # vcattn.UnsupportedError: it groups, but keeps no state
            pass
    size = max(c.bytes for c in (plain, *(c for _, _, c in grouped)))
    # torch's allocator aligns to 512 bytes; the library asks for 256.
    shared = torch.empty(size, dtype=torch.uint8, device=device)
    kernel.workspace = torch.empty(kernel.bytes, dtype=torch.uint8, device=device)
    for c in (plain, *(c for _, _, c in grouped)):
        c.workspace = shared
    kernel.prepare()
    found = [
        Cell(impl, "kernel", kernel.attend),
        Cell(impl, "whole", plain.run),
        Cell(impl, "prep", plain.prepare),
    ]
    for grouping, scope, c in grouped:
        before = c.next_step if grouping == "warm" else c.forget
        timed = c.run if scope == "whole" else c.prepare
        found.append(Cell(impl, scope, timed, grouping=grouping, before=before))
    return found
