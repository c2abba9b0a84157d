# SPDX-License-Identifier: Apache-2.0
"""The options of an attention call that are not tensors, and how they reach the descriptor.

``flatten`` turns what the user gave into plain strings, integers and floats: the only things that
an operator of torch can take, and cheap to pass everywhere else. ``describe`` writes them into a
descriptor of the C ABI.
"""

from __future__ import annotations

import ctypes
import functools
import operator
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _capi as capi
from ._errors import refuse

LAYOUTS = ("HND", "NHD")
SEGMENT_KINDS = {kind.name.lower(): int(kind) for kind in capi.SegmentKind}
ROPE_CONVENTIONS = {"interleaved": 1, "half": 2}
POLICY_AFTER = {after.name.lower(): int(after) for after in capi.PolicyAfter}


class Segment(NamedTuple):
    """Tokens [begin, begin + len) of the keys, the same in every batch.

    kind: "video", "text", "padding" (as if masked) or "sequence" (one sequence of a ragged batch:
    its queries see its keys only). Segments are given in order, disjoint, and cover all keys.
    Value blocks never mix segments.
    """

    begin: int
    len: int
    kind: str = "video"


@dataclass(frozen=True)
class Rope:
    """Rotary embedding inside the call, of queries and keys alike (so S_q == S_kv).

    convention: "interleaved" rotates channels (2i, 2i+1): Wan2.2, HunyuanVideo-1.5, LongCat;
        "half" rotates (i, i + rotated/2): MiniMax-H3.
    axis_dim: rotated channels of the axes t, h, w; even, their sum at most head_dim (44, 42, 42 in
        Wan2.2). The remaining channels pass unrotated.
    grid: T, H, W of the rotated tokens, w fastest; begin: the first of them. Tokens outside pass
        unrotated.
    theta: base of the frequencies.
    cos, sin: instead of the grid, FP32 tables [S, sum(axis_dim) / 2] where the tensors live.
    """

    convention: str
    axis_dim: tuple[int, int, int]
    grid: tuple[int, int, int] | None = None
    begin: int = 0
    theta: float = 10000.0
    cos: Any = None
    sin: Any = None


@dataclass(frozen=True)
class Policy:
    """When values are regrouped over the denoising steps; needs ``state`` and ``step``.

    steps: denoising steps in all.
    window: regroup during steps [0, window); None: max(1, ceil(steps / 4)); -1: no window.
    refresh: steps between regroupings inside the window.
    after: "refresh_on_decay" regroups a head whose removed energy fell below ``decay`` times its
        value at the last grouping; "reuse" keeps the last order; "identity" goes to token order.
    share_cfg: a second call at the same step (the other guidance branch) keeps the order.
    """

    steps: int
    window: int | None = None
    refresh: int = 1
    after: str = "refresh_on_decay"
    decay: float = 0.9
    share_cfg: bool = False


class Flat(NamedTuple):
    """Options as plain values. Empty list: not given."""

    layout: str
    scale: float | None
    recipe: str
    grouping: str
    segments: list[int]  # begin, len, kind of each
    grid: list[int]
    rope: list[int]  # convention, axis_dim x 3, grid x 3, begin
    theta: float
    policy: list[int]  # steps, window, refresh, after, share_cfg
    decay: float
    check_finite: bool
    num_threads: int


class Pointers(NamedTuple):
    """Addresses that go into a descriptor; 0: not given."""

    lse: int = 0
    kv_lens: int = 0
    key_mask: int = 0
    state: int = 0
    step: int = 0
    cos: int = 0
    sin: int = 0


def choice(what: str, value: Any, allowed: Collection[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise refuse(f"{what} is unknown", repr(value), ", ".join(repr(name) for name in allowed))
    return value


def integer(what: str, value: Any, bits: int = 64) -> int:
    """The value as an int that a C integer of so many bits holds: ctypes would cut it off silently."""
    if type(value).__name__ == "SymInt":  # a traced call's; the operator sees the number
        return value
    if not isinstance(value, int):
        try:
            value = operator.index(value)
        except TypeError:
            raise refuse(f"{what} is not an integer", repr(value), "an integer") from None
    limit = 1 << (bits - 1)
    if not -limit <= value < limit:
        raise refuse(f"{what} is out of range", value, f"{-limit} .. {limit - 1}")
    return value


def number(what: str, value: Any) -> float:
    """The value as a float; strings and complex numbers are none."""
    if isinstance(value, float) or type(value).__name__ == "SymFloat":
        return value
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise refuse(f"{what} is not a number", repr(value), "a float") from None


def name(what: str, value: Any) -> str:
    """A name for the C ABI, which would stop at a zero byte."""
    if not isinstance(value, str) or "\0" in value:
        raise refuse(f"{what} is not a name", repr(value), "a string, for example 'vc8' or 'kdtree'")
    return value


def instance(what: str, value: Any, cls: type) -> None:
    if value is not None and not isinstance(value, cls):
        raise refuse(what, type(value).__name__, f"a vcattn.{cls.__name__}")


def _three(what: str, value: Sequence[int], bits: int = 64) -> list[int]:
    try:
        entries = list(value)
    except TypeError:
        entries = []
    if len(entries) != 3:
        raise refuse(f"{what} does not have three entries", value, "(T, H, W)")
    return [integer(what, entry, bits) for entry in entries]


def _segments(segments: Iterable[Sequence]) -> list[int]:
    flat: list[int] = []
    try:
        rows = [tuple(item) for item in segments]
    except TypeError:
        raise refuse("segments", repr(segments), "a list of (begin, len) or (begin, len, kind)") from None
    for item in rows:
        if len(item) not in (2, 3):
            raise refuse("a segment is malformed", item, "(begin, len) or (begin, len, kind)")
        kind = item[2] if len(item) == 3 else "video"
        begin, length = integer("a segment's begin", item[0]), integer("a segment's len", item[1])
        flat += [begin, length, SEGMENT_KINDS[choice("segment kind", kind, SEGMENT_KINDS)]]
    return flat


def flatten(
    *,
    layout: str,
    scale: float | None,
    recipe: str,
    grouping: str | None,
    segments: Iterable[Sequence] | None,
    grid: Sequence[int] | None,
    rope: Rope | None,
    policy: Policy | None,
    check_finite: bool,
    num_threads: int | None,
) -> Flat:
    choice("layout", layout, LAYOUTS)
    instance("rope", rope, Rope)
    instance("policy", policy, Policy)
    rope_ints: list[int] = []
    if rope is not None:
        convention = ROPE_CONVENTIONS[choice("rope.convention", rope.convention, ROPE_CONVENTIONS)]
        if (rope.grid is None) == (rope.cos is None and rope.sin is None):
            raise refuse(
                "rope needs either a grid or tables",
                "both" if rope.grid is not None else "neither",
                "grid=(T, H, W), or cos= and sin=",
            )
        axis_dim = _three("rope.axis_dim", rope.axis_dim, 32)
        rope_grid = [0, 0, 0] if rope.grid is None else _three("rope.grid", rope.grid)
        rope_ints = [convention, *axis_dim, *rope_grid, integer("rope.begin", rope.begin)]
    policy_ints: list[int] = []
    if policy is not None:
        after = POLICY_AFTER[choice("policy.after", policy.after, POLICY_AFTER)]
        window = 0 if policy.window is None else integer("policy.window", policy.window, 32)
        if policy.window == 0:
            after_hint = "window=-1 means no window, None the default"
            raise refuse("policy.window is 0", 0, "a positive number, -1 or None", after_hint)
        steps = integer("policy.steps", policy.steps, 32)
        refresh = integer("policy.refresh", policy.refresh, 32)
        policy_ints = [steps, window, refresh, after, int(bool(policy.share_cfg))]
    return Flat(
        layout=layout,
        scale=None if scale is None else number("scale", scale),
        recipe=name("recipe", recipe),
        grouping="default" if grouping is None else name("grouping", grouping),
        segments=[] if segments is None else _segments(segments),
        grid=[] if grid is None else _three("grid", grid),
        rope=rope_ints,
        theta=10000.0 if rope is None else number("rope.theta", rope.theta),
        policy=policy_ints,
        decay=0.9 if policy is None else number("policy.decay", policy.decay),
        check_finite=bool(check_finite),
        num_threads=0 if num_threads is None else integer("num_threads", num_threads, 32),
    )


def table_shape(flat: Flat, tokens: int) -> tuple[int, int]:
    """[S, pairs] that the tables of a rotation must have; the library is given no sizes."""
    return tokens, sum(flat.rope[1:4]) // 2


@functools.lru_cache(maxsize=64)
def _numbers(recipe: str, grouping: str) -> tuple[int, int, int]:
    number, hadamard = capi.parse_recipe(recipe)
    return number, hadamard, capi.parse_grouping(grouping)


def bhsd(values: Sequence[int], layout: str) -> list[int]:
    """Sizes or strides in the user's layout as [B, H, S, D]."""
    if layout == "HND":
        return list(values)
    return [values[0], values[2], values[1], values[3]]


def describe(
    flat: Flat,
    device: int,
    tensors: dict[str, capi.Tensor],
    pointers: Pointers,
) -> capi.AttnDesc:
    """A descriptor. It owns the segments, rope and policy that it points at."""
    desc = capi.AttnDesc(device=device)
    for name, view in tensors.items():
        setattr(desc, name, view)
    if flat.scale is not None:
        desc.has_scale, desc.scale = 1, float(flat.scale)
    desc.recipe, desc.hadamard, desc.grouping = _numbers(flat.recipe, flat.grouping)
    desc.flags = capi.CHECK_FINITE if flat.check_finite else 0
    desc.num_threads = flat.num_threads or capi.default_threads()
    for name in ("lse", "kv_lens", "key_mask", "state", "step"):
        setattr(desc, name, getattr(pointers, name) or None)
    if flat.segments:
        rows = [flat.segments[i : i + 3] for i in range(0, len(flat.segments), 3)]
        desc.segments = (capi.Segment * len(rows))(*(capi.Segment(*row) for row in rows))
        desc.n_segments = len(rows)
    if flat.grid:
        desc.grid[:] = flat.grid
    if flat.rope:
        rope = capi.Rope(convention=flat.rope[0], begin=flat.rope[7], theta=flat.theta)
        rope.axis_dim[:] = flat.rope[1:4]
        rope.grid[:] = flat.rope[4:7]
        rope.cos, rope.sin = pointers.cos or None, pointers.sin or None
        desc.rope = ctypes.pointer(rope)
    if flat.policy:
        steps, window, refresh, after, share_cfg = flat.policy
        desc.policy = ctypes.pointer(
            capi.Policy(
                steps=steps,
                window=window,
                refresh=refresh,
                after=after,
                share_cfg=share_cfg,
                decay=flat.decay,
            )
        )
    return desc
