# SPDX-License-Identifier: Apache-2.0
"""torch: one operator, its fake, and the wrapper that ``vcattn.attention`` calls for torch tensors.

``torch.ops.vcattn.attention`` takes tensors and plain values only (``_options.Flat``), so that it
can be traced, captured into a CUDA graph and checked by ``opcheck``. It works on the current stream
of q's device, allocates its workspace with torch's allocator, waits for nothing, and writes no
input but the group state. ``torch.ops.vcattn.attention_out`` is the same with a given output.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _capi as capi
from . import _options, _receipt
from . import _torch_inputs as given
from ._errors import InvalidArgumentError, refuse
from ._options import Flat, Pointers, Rope
from ._state import GroupState, elsewhere


def current_stream(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream


# ---------------------------------------------------------------- the operator
_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? kv_lens, Tensor? key_mask, Tensor? rope_cos, "
    "Tensor? rope_sin, Tensor(a!)? state, Tensor? step, str layout, float? scale, str recipe, "
    "str grouping, SymInt[] segments, SymInt[] grid, SymInt[] rope, float theta, SymInt[] policy, "
    "float decay, bool check_finite, int num_threads"
)


def _run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_lens: torch.Tensor | None,
    key_mask: torch.Tensor | None,
    rope_cos: torch.Tensor | None,
    rope_sin: torch.Tensor | None,
    state: torch.Tensor | None,
    step: torch.Tensor | None,
    options: tuple,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    flat = Flat(*options)
    inputs = {"q": q, "k": k, "v": v}
    given.check_inputs(inputs, flat.layout)
    side = {"kv_lens": kv_lens, "key_mask": key_mask, "rope_cos": rope_cos, "rope_sin": rope_sin,
            "state": state, "step": step}  # fmt: skip
    given.check_side(q, k, flat, side)
    # Copies are torch's: made on the current stream, their memory not reused before it is done.
    inputs = {name: given.inner_contiguous(tensor) for name, tensor in inputs.items()}
    views = {
        name: given.as_view(tensor, flat.layout, given.pointer(tensor) or None)
        for name, tensor in (inputs | {"o": out}).items()
    }
    pointers = Pointers(
        lse=given.pointer(lse),
        kv_lens=given.pointer(kv_lens),
        key_mask=given.pointer(key_mask),
        state=given.pointer(state),
        step=given.pointer(step),
        cos=given.pointer(rope_cos),
        sin=given.pointer(rope_sin),
    )
    desc = _options.describe(flat, given.ordinal(q.device), views, pointers)
    info = capi.query(desc)
    given.check_state(state, info)
    if desc.device == capi.DEVICE_CPU:
        capi.run(desc)
    else:
        # Of q's device, which need not be the current one; the library guards the device itself.
        # The memory may be used again by what is put on the same stream later, never before.
        workspace = torch.empty(info.workspace_bytes, dtype=torch.uint8, device=q.device)
        stream = current_stream(desc.device)
        capi.run(desc, workspace.data_ptr(), info.workspace_bytes, stream)
    _receipt.record(desc, info)


class Prepared:
    """Queries, keys and values as quantised operands: what ``vcattn.prepare`` gives.

    ``attend()`` may be called any number of times; q, k and v are not needed any more.
    """

    def __init__(self, tensors: tuple, flat: Flat, device: torch.device) -> None:
        q, k, v, kv_lens, key_mask, cos, sin, state, step = tensors
        given.check_inputs({"q": q, "k": k, "v": v}, flat.layout)
        inputs = {n: given.inner_contiguous(x) for n, x in (("q", q), ("k", k), ("v", v))}
        views = {n: given.as_view(x, flat.layout, given.pointer(x) or None) for n, x in inputs.items()}
        pointers = Pointers(
            kv_lens=given.pointer(kv_lens), key_mask=given.pointer(key_mask), state=given.pointer(state),
            step=given.pointer(step), cos=given.pointer(cos), sin=given.pointer(sin),
        )  # fmt: skip
        self._desc = _options.describe(flat, given.ordinal(device), views, pointers)
        self._info = capi.query(self._desc)
        given.check_state(state, self._info)
        self._layout, self._shape, self._dtype = flat.layout, q.shape, q.dtype
        # attend() looks at which of these were given; only q, k and v may go.
        self._kept = (kv_lens, key_mask, cos, sin, state, step)
        self._workspace = torch.empty(self.nbytes, dtype=torch.uint8, device=device)
        capi.prepare(self._desc, self._workspace.data_ptr(), self.nbytes, self._stream())

    @property
    def nbytes(self) -> int:
        """Bytes of the operands."""
        return self._info.workspace_bytes

    def _stream(self) -> int | None:
        return None if self._desc.device < 0 else current_stream(self._desc.device)

    def attend(self) -> torch.Tensor:
        """O, in the shape, layout and dtype that q had. Raises what ``vcattn.attention`` raises."""
        device = self._workspace.device
        out = torch.empty(self._shape, dtype=self._dtype, device=device)
        self._desc.o = given.as_view(out, self._layout, given.pointer(out) or None)
        capi.attend(self._desc, self._workspace.data_ptr(), self.nbytes, self._stream())
        _receipt.record(self._desc, self._info)
        return out


def _empty_lse(q: torch.Tensor, layout: str, wanted: bool) -> torch.Tensor:
    b, h, s, _ = _options.bhsd(q.shape, layout)
    return q.new_empty((b, h, s) if wanted else (0,), dtype=torch.float32)


@torch.library.custom_op(
    "vcattn::attention",
    mutates_args=("state",),
    schema=f"({_ARGUMENTS}, bool return_lse) -> (Tensor, Tensor)",
)
def _attention_op(
    q, k, v, kv_lens, key_mask, rope_cos, rope_sin, state, step, layout, *options_and_lse
):
    *options, return_lse = options_and_lse
    out = q.new_empty(q.shape)
    lse = _empty_lse(q, layout, return_lse)
    tensors = (q, k, v, kv_lens, key_mask, rope_cos, rope_sin, state, step)
    _run(*tensors, (layout, *options), out, lse if return_lse else None)
    return out, lse


@_attention_op.register_fake
def _(q, k, v, kv_lens, key_mask, rope_cos, rope_sin, state, step, layout, *options_and_lse):
    return q.new_empty(q.shape), _empty_lse(q, layout, options_and_lse[-1])


@torch.library.custom_op(
    "vcattn::attention_out",
    mutates_args=("state", "out", "lse"),
    schema=f"({_ARGUMENTS}, Tensor(b!) out, Tensor(c!)? lse) -> ()",
)
def _attention_out_op(q, k, v, kv_lens, key_mask, rope_cos, rope_sin, state, step, *rest):
    *options, out, lse = rest
    tensors = (q, k, v, kv_lens, key_mask, rope_cos, rope_sin, state, step)
    _run(*tensors, tuple(options), out, lse)


@_attention_out_op.register_fake
def _(q, k, v, kv_lens, key_mask, rope_cos, rope_sin, state, step, *rest):
    return None


# ----------------------------------------------------------------- the wrapper
def _state(
    state: GroupState | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, flat: Flat
) -> torch.Tensor | None:
    _options.instance("state", state, GroupState)
    if state is None:
        return None
    if state._buffer is None:
        if torch.compiler.is_compiling():
            raise InvalidArgumentError(
                "a group state is empty when the call is compiled; hint: make one call outside "
                "torch.compile first, so that the state has its memory"
            )
        desc = given.describe_shapes(q, k, v, flat)
        state._ready(desc, lambda size: torch.empty(size, dtype=torch.uint8, device=q.device))
    buffer = state._buffer
    if not isinstance(buffer, torch.Tensor):  # an earlier call was numpy's: the same memory
        buffer = torch.from_numpy(buffer)
    if buffer.device.type != q.device.type or buffer.device.index != q.device.index:
        raise elsewhere(buffer.device, q.device)
    return buffer


def _tensors(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    flat: Flat,
    kv_lens: Any,
    key_mask: Any,
    rope: Rope | None,
    state: GroupState | None,
    step: Any,
) -> tuple[torch.Tensor | None, ...]:
    """The operator's tensors, checked."""
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        raise RuntimeError(
            "vcattn.attention has no backward pass, and q, k or v require gradients; "
            "hint: call it under torch.no_grad() or torch.inference_mode(), or detach them"
        )
    if not torch.compiler.is_compiling() and given.has_tangent(q, k, v):
        raise RuntimeError(
            "vcattn.attention has no forward-mode derivative, and q, k or v carry a tangent; "
            "hint: call it on the primal values"
        )
    given.check_inputs({"q": q, "k": k, "v": v}, flat.layout)
    return (
        q,
        k,
        v,
        given.as_lengths(kv_lens, q),
        given.as_mask(key_mask, k, flat.layout),
        given.as_table("cos", rope, q, flat),
        given.as_table("sin", rope, q, flat),
        _state(state, q, k, v, flat),
        given.as_step(step, q),
    )


def prepare(*call: Any) -> Prepared:
    return Prepared(_tensors(*call), call[3], call[0].device)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    flat: Flat,
    kv_lens: Any,
    key_mask: Any,
    rope: Rope | None,
    state: GroupState | None,
    step: Any,
    return_lse: bool,
    out: torch.Tensor | None,
) -> Any:
    tensors = _tensors(q, k, v, flat, kv_lens, key_mask, rope, state, step)
    if out is None:
        out, lse = torch.ops.vcattn.attention(*tensors, *flat, return_lse)
    else:
        if not isinstance(out, torch.Tensor) or out.device != q.device or out.dtype not in given.DTYPES:
            raise refuse("out", f"{type(out).__name__}", f"a tensor on {q.device}, 16 or 32 bit")
        if out.shape != q.shape:
            raise refuse("out's shape", tuple(out.shape), f"{tuple(q.shape)}")
        negated = not torch.compiler.is_compiling() and out.is_neg()  # which cannot be traced
        if out.layout is not torch.strided or negated:
            form = "a negated view" if negated else str(out.layout)
            raise refuse("out is not a plain tensor", form, "torch.strided memory of its own")
        if torch.is_grad_enabled() and out.requires_grad:
            raise RuntimeError("vcattn.attention has no backward pass, and out requires gradients")
        lse = _empty_lse(q, flat.layout, True) if return_lse else None
        torch.ops.vcattn.attention_out(*tensors, *flat, out, lse)
    return (out, lse) if return_lse else out
