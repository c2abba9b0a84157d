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
from ._errors import MASK_HINT, InvalidArgumentError, UnsupportedError, refuse
from ._options import Flat, Pointers, Rope
from ._state import GroupState, elsewhere

_DTYPES = {
    torch.bfloat16: capi.Dtype.BF16,
    torch.float16: capi.Dtype.FP16,
    torch.float32: capi.Dtype.FP32,
}


def current_stream(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream


# ------------------------------------------------------------ tensors to views
def _check_inputs(tensors: dict[str, torch.Tensor], layout: str) -> None:
    q = tensors["q"]
    if q.device.type not in ("cpu", "cuda"):
        what = "q holds no data" if q.device.type == "meta" else "q's device has no kernels"
        error = InvalidArgumentError if q.device.type == "meta" else UnsupportedError
        raise error(f"{what}; got {q.device}; allowed: a tensor on the CPU or a CUDA device")
    for name, tensor in tensors.items():
        if tensor.device != q.device:
            raise refuse(
                f"{name} is not where q is",
                f"{name} on {tensor.device}, q on {q.device}",
                "all tensors on one device",
            )
        if tensor.dtype not in _DTYPES:
            raise refuse(f"{name}'s dtype", tensor.dtype, "bfloat16, float16 or float32")
        if tensor.ndim != 4:
            wanted = "[B, H, S, D]" if layout == "HND" else "[B, S, H, D]"
            raise refuse(f"{name} is not four-dimensional", f"shape {tuple(tensor.shape)}", wanted)


def _inner_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.shape[3] <= 1 or tensor.stride(3) == 1 else tensor.contiguous()


def _view(tensor: torch.Tensor, layout: str, data: int | None) -> capi.Tensor:
    strides = list(tensor.stride())
    if tensor.shape[3] <= 1:
        strides[3] = 1
    return capi.tensor(
        data,
        _DTYPES[tensor.dtype],
        _options.bhsd(tensor.shape, layout),
        _options.bhsd(strides, layout),
    )


def _pointer(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None or tensor.numel() == 0 else tensor.data_ptr()


def _ordinal(device: torch.device) -> int:
    if device.type == "cpu":
        return capi.DEVICE_CPU
    return torch.cuda.current_device() if device.index is None else device.index


def describe_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, flat: Flat) -> capi.AttnDesc:
    """A descriptor without data, for questions about shapes; fake and meta tensors do."""
    inputs = {"q": q, "k": k, "v": v}
    views = {name: _view(tensor, flat.layout, None) for name, tensor in inputs.items()}
    for view in views.values():
        view.stride[3] = 1  # a copy will have it
    device = capi.DEVICE_CPU if q.device.type in ("cpu", "meta") else _ordinal(q.device)
    # RoPE by tables, told by the absent grid: addresses that a question about shapes does not follow.
    tables = Pointers(cos=64, sin=64) if flat.rope and not any(flat.rope[4:7]) else Pointers()
    return _options.describe(flat._replace(policy=[]), device, views, tables)


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
    _check_inputs(inputs, flat.layout)
    # Copies are torch's: made on the current stream, their memory not reused before it is done.
    inputs = {name: _inner_contiguous(tensor) for name, tensor in inputs.items()}
    views = {
        name: _view(tensor, flat.layout, _pointer(tensor) or None)
        for name, tensor in (inputs | {"o": out}).items()
    }
    pointers = Pointers(
        lse=_pointer(lse),
        kv_lens=_pointer(kv_lens),
        key_mask=_pointer(key_mask),
        state=_pointer(state),
        step=_pointer(step),
        cos=_pointer(rope_cos),
        sin=_pointer(rope_sin),
    )
    desc = _options.describe(flat, _ordinal(q.device), views, pointers)
    info = capi.query(desc)
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
        _check_inputs({"q": q, "k": k, "v": v}, flat.layout)
        inputs = {n: _inner_contiguous(x) for n, x in (("q", q), ("k", k), ("v", v))}
        views = {n: _view(x, flat.layout, _pointer(x) or None) for n, x in inputs.items()}
        pointers = Pointers(
            kv_lens=_pointer(kv_lens), key_mask=_pointer(key_mask), state=_pointer(state),
            step=_pointer(step), cos=_pointer(cos), sin=_pointer(sin),
        )  # fmt: skip
        self._desc = _options.describe(flat, _ordinal(device), views, pointers)
        self._info = capi.query(self._desc)
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
        self._desc.o = _view(out, self._layout, _pointer(out) or None)
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
def _lengths(kv_lens: Any, q: torch.Tensor) -> torch.Tensor | None:
    if kv_lens is None:
        return None
    if not isinstance(kv_lens, torch.Tensor):
        kv_lens = torch.tensor(list(kv_lens), device=q.device)
    if kv_lens.device != q.device or kv_lens.is_floating_point() or kv_lens.dtype == torch.bool:
        raise refuse(
            "kv_lens", f"{kv_lens.dtype} on {kv_lens.device}", f"integers on {q.device} (q's device)"
        )
    if tuple(kv_lens.shape) != (q.shape[0],):
        raise refuse("kv_lens' shape", tuple(kv_lens.shape), f"({q.shape[0]},)")
    return kv_lens.to(torch.int32).contiguous()


def _mask(key_mask: Any, k: torch.Tensor, layout: str) -> torch.Tensor | None:
    if key_mask is None:
        return None
    if not isinstance(key_mask, torch.Tensor):
        raise refuse("key_mask", type(key_mask).__name__, "a bool tensor for torch inputs")
    if key_mask.dtype != torch.bool:
        raise refuse("key_mask's dtype", key_mask.dtype, "torch.bool (True = attend)", MASK_HINT)
    if key_mask.device != k.device:
        raise refuse("key_mask's device", key_mask.device, f"{k.device}")
    b, _, s, _ = _options.bhsd(k.shape, layout)
    mask = key_mask
    if mask.ndim == 4 and tuple(mask.shape[1:3]) == (1, 1):
        mask = mask[:, 0, 0]
    if mask.ndim != 2 or mask.shape[1] != s or mask.shape[0] not in (1, b):
        raise refuse(
            "key_mask's shape",
            tuple(key_mask.shape),
            f"({b}, {s}) or ({b}, 1, 1, {s})",
            "one mask for all queries; masks that differ by query are not supported",
        )
    return mask.expand(b, s).contiguous()


def _table(name: str, table: Any, q: torch.Tensor) -> torch.Tensor | None:
    if table is None:
        return None
    if not isinstance(table, torch.Tensor) or table.device != q.device:
        raise refuse(f"rope.{name}", f"{type(table).__name__}", f"a float32 tensor on {q.device}")
    return table.to(torch.float32).contiguous()


def _step(step: Any, q: torch.Tensor) -> torch.Tensor | None:
    if step is None:
        return None
    if not isinstance(step, torch.Tensor):
        return torch.full((1,), step, dtype=torch.int32, device=q.device)
    if step.dtype != torch.int32 or step.numel() != 1 or step.device != q.device:
        raise refuse(
            "step",
            f"{step.dtype}, {step.numel()} elements on {step.device}",
            f"an int, or one int32 element on {q.device}",
        )
    return step


def _state(
    state: GroupState | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, flat: Flat
) -> torch.Tensor | None:
    if state is None:
        return None
    if state._buffer is None:
        if torch.compiler.is_compiling():
            raise InvalidArgumentError(
                "a group state is empty when the call is compiled; hint: make one call outside "
                "torch.compile first, so that the state has its memory"
            )
        desc = describe_shapes(q, k, v, flat)
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
    _check_inputs({"q": q, "k": k, "v": v}, flat.layout)
    return (
        q,
        k,
        v,
        _lengths(kv_lens, q),
        _mask(key_mask, k, flat.layout),
        _table("cos", None if rope is None else rope.cos, q),
        _table("sin", None if rope is None else rope.sin, q),
        _state(state, q, k, v, flat),
        _step(step, q),
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
        if not isinstance(out, torch.Tensor) or out.device != q.device or out.dtype not in _DTYPES:
            raise refuse("out", f"{type(out).__name__}", f"a tensor on {q.device}, 16 or 32 bit")
        if out.shape != q.shape:
            raise refuse("out's shape", tuple(out.shape), f"{tuple(q.shape)}")
        lse = _empty_lse(q, flat.layout, True) if return_lse else None
        torch.ops.vcattn.attention_out(*tensors, *flat, out, lse)
    return (out, lse) if return_lse else out
