# SPDX-License-Identifier: Apache-2.0
"""``attention``, ``prepare`` and ``explain``: what users call, and which path takes it on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from . import _capi as capi
from . import _options
from ._errors import UnsupportedError, refuse
from ._options import Pointers, Policy, Rope
from ._state import GroupState

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
        num_threads: CPU threads; None: all (one in a forked child, where OpenMP has no threads). No
            result depends on it.

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
    return_lse = bool(return_lse)
    if _is_torch(q, k, v):
        from . import _torch

        return _torch.attention(*call, return_lse, out)
    from . import _host

    return _host.attention(*call, return_lse, out)


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
    defaults_of: dict[str, Any] = attention.__kwdefaults__ or {}
    known = set(defaults_of)
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
        name: defaults_of[name]
        for name in ("layout", "scale", "segments", "grid", "rope", "grouping", "policy")
    } | {"check_finite": False, "num_threads": None}
    flat = _options.flatten(recipe=recipe, **(defaults | options))
    if _is_torch(q, k, v):
        from . import _torch_inputs

        _torch_inputs.check_small(q, k, v, flat, rope=rope, **tensors)
        return capi.explain(_torch_inputs.describe_shapes(q, k, v, flat))
    from . import _host

    inputs, _ = _host.inputs(q, k, v, flat.layout)
    lengths = _host.lengths_array(tensors["kv_lens"], inputs["q"].shape[0])
    mask = _host.mask_array(tensors["key_mask"], inputs["k"])
    addresses, _ = _host.tables(rope, flat, inputs["q"].shape[2])
    _host.step_array(tensors["step"])
    _options.instance("state", tensors["state"], GroupState)
    pointers = Pointers(
        kv_lens=_host.address(lengths), key_mask=_host.address(mask), **addresses
    )
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
