# SPDX-License-Identifier: Apache-2.0
"""``attention`` and ``explain``: the front, and the path of host tensors that are not torch's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from . import _capi as capi
from . import _dlpack, _options, _receipt
from ._errors import UnsupportedError, refuse
from ._options import Flat, Pointers, Policy, Rope
from ._state import GroupState, host_buffer

_SCALE_ALIASES = ("sm_scale", "softmax_scale")


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    layout: str = "HND",
    scale: float | None = None,
    recipe: str = "auto",
    kv_lens: Any = None,
    key_mask: Any = None,
    segments: Iterable[Sequence] | None = None,
    grid: Sequence[int] | None = None,
    rope: Rope | None = None,
    grouping: str | None = None,
    policy: Policy | None = None,
    state: GroupState | None = None,
    step: Any = None,
    return_lse: bool = False,
    out: Any = None,
    check_finite: bool = False,
    num_threads: int | None = None,
    **aliases: Any,
) -> Any:
    """O = softmax(scale * Q K^T) V, non-causal, in low precision.

    Args:
        q: queries [B, H_q, S_q, D], or [B, S_q, H_q, D] with ``layout="NHD"``. BF16, FP16 or FP32;
            D in 1..128. torch tensors (CPU or CUDA), numpy arrays, or anything in host memory that
            speaks DLPack. Any strides >= 0, 0 included; a last dimension that is not contiguous is
            copied. Inputs are never written.
        k, v: [B, H_kv, S_kv, D] (or NHD), dtype and device of q; H_q a multiple of H_kv.
        layout: "HND" or "NHD", of q, k, v and the output.
        scale: factor of the scores; None: 1/sqrt(D). ``sm_scale`` and ``softmax_scale`` are other
            names for it.
        recipe: a name of the README's table, "+had" appended rotates Q and K; "auto" is the default
            of the device, where it declines (``UnsupportedError``) calls too short to gain
            anything. ``last_receipt()`` tells which ran.
        kv_lens: [B] integers; batch b attends to keys [0, kv_lens[b]).
        key_mask: bool [B, S_kv] or [B, 1, 1, S_kv] (B may be 1), True = attend. Combined with
            kv_lens. Float masks (biases) are refused.
        segments: ``Segment``s, or (begin, len, kind) tuples, that cover [0, S_kv).
        grid: (T, H, W) of the video's tokens, for grouping "cubes".
        rope: ``Rope``: rotate inside the call. Default: the caller has rotated.
        grouping: how values are reordered ("identity", "kdtree", ...); None: the recipe's own.
        policy, state, step: ``Policy``, ``GroupState`` and the denoising step (an int, or a
            one-element int32 tensor where q lives) keep the order of values over steps.
        return_lse: also return the natural log of sum exp(scores), FP32 [B, H_q, S_q] in either
            layout; -inf where a row has no key.
        out: where to write O: q's shape, BF16, FP16 or FP32, last dimension contiguous. A torch
            tensor for torch inputs, a numpy array otherwise.
        check_finite: refuse NaN and infinities in q, k, v (one more read; CPU only).
        num_threads: CPU threads; None: all. No result depends on it.

    Returns:
        O in q's layout, or (O, LSE). torch in, torch out; everything else gives numpy arrays.
        The dtype is q's; FP32 for BF16 that came by DLPack, as numpy has no BF16 of its own.
        A row without keys is 0; an empty batch or no queries give an empty output.

    Raises:
        TypeError: an unknown argument, or two names for one.
        InvalidArgumentError (a ValueError): shapes, dtypes, devices, strides or values that do not
            fit; the text says what was given and what is allowed.
        UnsupportedError (a NotImplementedError): nothing can run this on the device.
        NonFiniteError, StateError, OutOfMemoryError, LibraryNotFoundError: as named.

    Source: VC-Attention (README); numerics in docs/numerics.md.
    """
    if aliases:
        scale = _scale("attention", scale, aliases)
    flat = _options.flatten(
        layout=layout,
        scale=scale,
        recipe=recipe,
        grouping=grouping,
        segments=segments,
        grid=grid,
        rope=rope,
        policy=policy,
        check_finite=check_finite,
        num_threads=num_threads,
    )
    call = (q, k, v, flat, kv_lens, key_mask, rope, state, step)
    if _is_torch(q, k, v):
        from . import _torch

        return _torch.attention(*call, return_lse, out)
    return _host(*call, return_lse, out)


def prepare(
    q: Any,
    k: Any,
    v: Any,
    *,
    layout: str = "HND",
    scale: float | None = None,
    recipe: str = "auto",
    kv_lens: Any = None,
    key_mask: Any = None,
    segments: Iterable[Sequence] | None = None,
    grid: Sequence[int] | None = None,
    rope: Rope | None = None,
    grouping: str | None = None,
    policy: Policy | None = None,
    state: GroupState | None = None,
    step: Any = None,
) -> Any:
    """The first half of ``attention`` for torch tensors: quantised operands instead of q, k, v.

    Memory is what it is for: drop q, k and v, then call ``attend()`` on the result, and the output
    takes their place. Not for ``torch.compile``.

        prepared = vcattn.prepare(q, k, v)
        del q, k, v
        o = prepared.attend()

    Arguments and exceptions: as ``attention``; UnsupportedError for tensors that are not torch's.
    """
    flat = _options.flatten(
        layout=layout,
        scale=scale,
        recipe=recipe,
        grouping=grouping,
        segments=segments,
        grid=grid,
        rope=rope,
        policy=policy,
        check_finite=False,
        num_threads=None,
    )
    if not _is_torch(q, k, v):
        raise UnsupportedError(f"prepare() takes torch tensors; got {type(q).__name__}")
    from . import _torch

    return _torch.prepare(q, k, v, flat, kv_lens, key_mask, rope, state, step)


def explain(q: Any, k: Any, v: Any, *, recipe: str = "auto", **options: Any) -> str:
    """What ``attention`` would run for these arguments, and why nothing else.

    Takes ``attention``'s arguments; nothing is computed and no tensor data is read (fake and meta
    tensors do). One line per candidate: "cpu/avx512: chosen", "sm90: refused: <reason>".

    Raises: what ``attention`` raises for these arguments, except UnsupportedError.
    """
    known = set(attention.__kwdefaults__)
    unknown = options.keys() - known - set(_SCALE_ALIASES)
    if unknown:
        raise TypeError(f"explain() got an unexpected keyword argument '{min(unknown)}'")
    aliases = {name: options.pop(name) for name in _SCALE_ALIASES if name in options}
    if aliases:
        options["scale"] = _scale("explain", options.get("scale"), aliases)
    tensors = {name: options.pop(name, None) for name in ("kv_lens", "key_mask", "state", "step")}
    rope = options.get("rope")
    for name in ("return_lse", "out"):
        options.pop(name, None)
    defaults = {
        name: attention.__kwdefaults__[name]
        for name in ("layout", "scale", "segments", "grid", "rope", "grouping", "policy")
    } | {"check_finite": False, "num_threads": None}
    flat = _options.flatten(recipe=recipe, **(defaults | options))
    if _is_torch(q, k, v):
        from . import _torch

        return capi.explain(_torch.describe_shapes(q, k, v, flat))
    inputs, _ = _inputs(q, k, v, flat.layout)
    lengths = _lengths(tensors["kv_lens"], inputs["q"].shape[0])
    mask = _mask(tensors["key_mask"], inputs["k"])
    pointers = Pointers(kv_lens=_address(lengths), key_mask=_address(mask), **_tables(rope)[0])
    return capi.explain(_options.describe(flat._replace(policy=[]), -1, inputs, pointers))


def _scale(function: str, scale: float | None, aliases: dict[str, Any]) -> float | None:
    given = [] if scale is None else ["scale"]
    for name, value in aliases.items():
        if name not in _SCALE_ALIASES:
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")
        if value is not None:
            given.append(name)
            scale = value
    if len(given) > 1:
        raise TypeError(f"{function}() got the scale twice: {' and '.join(given)}")
    return scale


def _is_torch(q: Any, k: Any, v: Any) -> bool:
    """Whether q, k, v are torch's, told without importing it (also when torch traces this)."""
    torch_like = [hasattr(x, "untyped_storage") for x in (q, k, v)]
    if any(torch_like) and not all(torch_like):
        raise refuse(
            "q, k and v are a mixture of torch tensors and others",
            ", ".join(type(x).__name__ for x in (q, k, v)),
            "all torch tensors, or none",
        )
    return all(torch_like)


# ---------------------------------------------------------------- host tensors
def _numpy() -> Any:
    import numpy

    return numpy


_NUMPY_DTYPES = {
    "float32": capi.Dtype.FP32,
    "float16": capi.Dtype.FP16,
    "bfloat16": capi.Dtype.BF16,  # of the package ml_dtypes
}


def _numpy_view(name: str, array: Any) -> tuple[capi.Tensor | None, list[int], list[int], Any]:
    dtype = _NUMPY_DTYPES.get(array.dtype.name)
    if dtype is None or not array.dtype.isnative:
        allowed = "float32, float16, or bfloat16 of ml_dtypes, in the machine's byte order"
        raise refuse(f"{name}'s dtype", repr(array.dtype), allowed, "cast it first")
    size = array.itemsize
    if any(n > 1 and stride < 0 for n, stride in zip(array.shape, array.strides)):
        raise refuse(
            f"{name} has a negative stride",
            f"strides {array.strides} bytes",
            "strides >= 0",
            f"copy it first: numpy.ascontiguousarray({name})",
        )
    if any(stride % size for stride in array.strides) or not array.flags.aligned:
        array = array.copy()  # elements that lie across each other's boundaries
    strides = [stride // size for stride in array.strides]
    return dtype, list(array.shape), strides, array


def _host_view(name: str, value: Any, layout: str, inner_copy: bool) -> tuple[capi.Tensor, Any]:
    """A view [B, H, S, D] of a host tensor, and what keeps its memory alive."""
    np = _numpy()
    if isinstance(value, np.ndarray):
        dtype, shape, strides, owner = _numpy_view(name, value)
        data = owner.ctypes.data
    elif _dlpack.is_producer(value):
        data, dtype, shape, strides, owner = _dlpack.view(name, value)
    else:
        raise refuse(
            f"{name} is not a tensor",
            type(value).__name__,
            "a torch tensor, a numpy array, or an object with __dlpack__",
        )
    if len(shape) != 4:
        wanted = "[B, H, S, D]" if layout == "HND" else "[B, S, H, D]"
        raise refuse(f"{name} is not four-dimensional", f"shape {tuple(shape)}", wanted)
    if inner_copy and shape[3] > 1 and strides[3] != 1:
        owner, strides = _packed(data, dtype, shape, strides)
        data = owner.ctypes.data
    strides[3] = 1 if shape[3] == 1 else strides[3]
    return (
        capi.tensor(
            data or None, dtype, _options.bhsd(shape, layout), _options.bhsd(strides, layout)
        ),
        owner,
    )


def _packed(data: int, dtype: capi.Dtype, shape: list[int], strides: list[int]) -> tuple:
    """A contiguous copy of memory that numpy may not know the dtype of."""
    np = _numpy()
    size = 4 if dtype == capi.Dtype.FP32 else 2
    if min(strides) < 0:
        raise refuse("a negative stride", f"strides {strides}", "strides >= 0", "copy it first")
    span = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides))
    if 0 in shape:
        copy = np.empty(shape, f"u{size}")
    else:
        memory = (capi.ctypes.c_uint8 * (span * size)).from_address(data)
        flat = np.frombuffer(memory, f"u{size}")
        view = np.lib.stride_tricks.as_strided(flat, shape, [size * s for s in strides])
        copy = np.ascontiguousarray(view)
    return copy, [stride // size for stride in copy.strides]


def _inputs(q: Any, k: Any, v: Any, layout: str) -> tuple[dict[str, capi.Tensor], list]:
    views, owners = {}, []
    for name, value in (("q", q), ("k", k), ("v", v)):
        views[name], owner = _host_view(name, value, layout, True)
        owners.append(owner)
    return views, owners


def _address(array: Any) -> int:
    return 0 if array is None else array.ctypes.data


def _lengths(kv_lens: Any, batches: int) -> Any:
    if kv_lens is None:
        return None
    np = _numpy()
    lengths = np.asarray(kv_lens)
    if lengths.dtype.kind not in "iu" or lengths.shape != (batches,):
        raise refuse(
            "kv_lens", f"{lengths.dtype} of shape {lengths.shape}", f"integers of shape ({batches},)"
        )
    if lengths.size and (lengths.max() > 2**31 - 1 or lengths.min() < 0):
        raise refuse("kv_lens", f"{lengths.min()} .. {lengths.max()}", "0 .. S_kv")
    return np.ascontiguousarray(lengths, np.int32)


def _mask(key_mask: Any, k: capi.Tensor) -> Any:
    if key_mask is None:
        return None
    np = _numpy()
    mask = np.asarray(key_mask)
    batches, keys = k.shape[0], k.shape[2]
    if mask.dtype != np.bool_:
        raise refuse("key_mask's dtype", mask.dtype, "bool (True = attend)", MASK_HINT)
    if mask.ndim == 4 and mask.shape[1:3] == (1, 1):
        mask = mask[:, 0, 0]
    if mask.shape not in ((batches, keys), (1, keys)):
        raise refuse(
            "key_mask's shape",
            key_mask.shape,
            f"({batches}, {keys}) or ({batches}, 1, 1, {keys})",
            "one mask for all queries; masks that differ by query are not supported",
        )
    return np.ascontiguousarray(np.broadcast_to(mask, (batches, keys)))


MASK_HINT = "additive (float) masks are not supported; a padding mask is key_mask = bias == 0"


def _tables(rope: Rope | None) -> tuple[dict[str, int], list]:
    """Addresses of RoPE's tables, and what keeps them alive."""
    addresses, owners = {}, []
    for name in ("cos", "sin"):
        table = None if rope is None else getattr(rope, name)
        if table is not None:
            owners.append(_numpy().ascontiguousarray(table, "float32"))
            addresses[name] = _address(owners[-1])
    return addresses, owners


def _host(
    q: Any,
    k: Any,
    v: Any,
    flat: Flat,
    kv_lens: Any,
    key_mask: Any,
    rope: Rope | None,
    state: GroupState | None,
    step: Any,
    return_lse: bool,
    out: Any,
) -> Any:
    np = _numpy()
    views, owners = _inputs(q, k, v, flat.layout)
    shape = list(views["q"].shape)
    if out is None:
        dtype = q.dtype if isinstance(q, np.ndarray) else None
        if dtype is None:
            dtype = np.float16 if views["q"].dtype == capi.Dtype.FP16 else np.float32
        out = np.empty(_options.bhsd(shape, flat.layout), dtype)
    elif not isinstance(out, np.ndarray) or not out.flags.writeable or not out.flags.aligned:
        raise refuse("out", type(out).__name__, "a writable, aligned numpy array for such inputs")
    views["o"], _ = _host_view("out", out, flat.layout, False)
    lse = np.empty(shape[:3], np.float32) if return_lse else None
    lengths, mask = _lengths(kv_lens, shape[0]), _mask(key_mask, views["k"])
    tables, table_owners = _tables(rope)
    step_array = None if step is None else np.asarray(step, np.int32).reshape(1)
    pointers = Pointers(
        lse=_address(lse),
        kv_lens=_address(lengths),
        key_mask=_address(mask),
        step=_address(step_array),
        **tables,
    )
    if state is not None:
        # Size and make of a state are asked for before there is one, hence without the policy.
        plain = flat._replace(policy=[])
        desc = _options.describe(plain, capi.DEVICE_CPU, views, pointers._replace(step=0))
        pointers = pointers._replace(state=_address(state._ready(desc, host_buffer)))
    desc = _options.describe(flat, capi.DEVICE_CPU, views, pointers)
    info = capi.query(desc)
    capi.run(desc)
    _receipt.record(desc, info)
    del owners, table_owners  # alive until here: the descriptor only borrows
    return (out, lse) if return_lse else out
