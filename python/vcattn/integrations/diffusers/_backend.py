# SPDX-License-Identifier: Apache-2.0
"""The backend function, how it enters diffusers' registry, and when a call goes to the native one.

diffusers looks a backend up by a member of its enum. ``vcattn`` becomes a member at run time; each
layer of an enabled pipeline gets a member of its own besides (a key of the registry that the enum
does not list), so that the function knows its layer without any state that changes between calls.
Traced code takes one member for all layers instead, so that one compiled block serves them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from diffusers.models import attention_dispatch as dispatch

import vcattn

from .._common import (
    DTYPES,
    MAX_HEAD_DIM,
    MIN_KEYS,
    break_even_keys,
    keeps_order,
    key_mask_of,
    shapes_fit,
)
from ._clock import Clock
from ._rope import Ropes, rotate

NAME = "vcattn"


@dataclass
class Options:
    """What ``enable`` was given."""

    recipe: str = "auto"
    policy: vcattn.Policy | bool | None = None
    first_steps_bf16: int = 0
    min_keys: int = MIN_KEYS
    grouping: str | None = None


@dataclass
class Layer:
    """One attention module of an enabled model."""

    name: str
    options: Options
    clock: Clock
    native: Any  # the member that the module had, None for the framework's default
    member: Any = None  # this layer's own
    segments: list[tuple[int, int, str]] | None = None
    key_mask: torch.Tensor | None = None  # [B, S_kv], known while a call of a compiled layer lasts
    ropes: Ropes | None = None  # the model's; None: it rotates itself
    rope: vcattn.Rope | None = None  # left to this call, while it lasts
    states: dict[int, tuple] = field(default_factory=dict)  # branch -> (shape, state, generation)
    counts: Counter = field(default_factory=Counter)


# ------------------------------------------------------------------ the registry
def _member(name: str, listed: bool) -> Any:
    """A member of diffusers' enum that its source does not have."""
    cls = dispatch.AttentionBackendName
    if listed and name in cls._value2member_map_:
        return cls._value2member_map_[name]
    member: Any = str.__new__(cls, name)
    member._value_ = name
    member._name_ = name.upper() if listed else name
    member.__objclass__ = cls
    member._sort_order_ = len(cls._member_names_)
    if listed:
        cls._member_map_[member._name_] = member
        cls._member_names_.append(member._name_)
        cls._value2member_map_[name] = member
    return member


def register() -> Any:
    """Makes ``model.set_attention_backend("vcattn")`` work, on models and single modules; may be
    called again. Loads the library, so that one that is missing is missed here and not in the first
    forward pass (LibraryNotFoundError)."""
    vcattn.version()
    member = _member(NAME, listed=True)
    if member not in dispatch._AttentionBackendRegistry._backends:
        options = Options(min_keys=break_even_keys(state=False))
        layer = Layer(NAME, options, Clock(), dispatch.AttentionBackendName.NATIVE)
        _enter(member, layer)
    return member


def enter_layer(layer: Layer, number: int) -> Any:
    member = _member(f"{NAME}@{number}:{layer.name}", listed=False)
    native = layer.native  # and not the layer: no cycle may keep its states alive
    member.__deepcopy__ = lambda memo: native  # a copy of an enabled model is not enabled
    layer.member = member
    _enter(member, layer)
    return member


def is_layers(member: Any) -> bool:
    """Whether this is the member of a layer of an enabled target."""
    return str(getattr(member, "value", member)).startswith(f"{NAME}@")


def _enter(member: Any, layer: Layer) -> None:
    registry = dispatch._AttentionBackendRegistry
    registry.register(member, supports_context_parallel=True)(_function(layer))


def leave(*members: Any) -> None:
    registry = dispatch._AttentionBackendRegistry
    for member in members:
        for table in (registry._backends, registry._constraints, registry._supported_arg_names):
            table.pop(member, None)
        registry._supports_context_parallel.discard(member.value)


# ------------------------------------------------------------------ the decision
def why_native(
    layer: Layer,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    parallel_config: Any,
) -> str | None:
    """Why this call is not ours; None when it is."""
    clock, options = layer.clock, layer.options
    keys = key.shape[1] * _shards(parallel_config)
    # The step is looked at only where it matters: traced code is made anew when it changes.
    if options.first_steps_bf16 and clock.step is not None and clock.step < options.first_steps_bf16:
        return "first steps"
    if keys < options.min_keys:
        return "short"
    if query.shape[-1] > MAX_HEAD_DIM or value.shape[-1] != query.shape[-1]:
        return "head_dim"
    if not shapes_fit(query, key, value):
        return "shapes"
    if query.dtype not in DTYPES or key.dtype != query.dtype or value.dtype != query.dtype:
        return "dtype"
    if is_causal or dropout_p > 0.0:
        return "causal or dropout"
    if torch.is_grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad
    ):
        return "gradients"
    if attn_mask is not None and layer.key_mask is None:
        if key_mask_of(attn_mask, key.shape[0], key.shape[1]) is None:
            return "mask"
    return None


def _shards(parallel_config: Any) -> int:
    """In how many pieces context parallelism holds the sequence."""
    config = getattr(parallel_config, "context_parallel_config", None)
    if config is None:
        return 1
    return (config.ring_degree or 1) * (config.ulysses_degree or 1)


# ------------------------------------------------------------------- group state
def _state(layer: Layer, query: torch.Tensor, key: torch.Tensor) -> dict:
    """state, step and policy of this call; empty where no order is kept."""
    clock, options = layer.clock, layer.options
    if torch.compiler.is_compiling() or options.policy is False or not clock.running:
        return {}
    if not keeps_order(query.device, options.recipe):
        return {}
    policy = options.policy
    if policy is None or policy is True:
        policy = vcattn.Policy(steps=clock.steps)
    branch = 0 if policy.share_cfg else clock.branch
    shape = (query.shape, key.shape, query.device, str(layer.segments))
    known = layer.states.get(branch)
    if known is None or known[0] != shape:
        known = (shape, vcattn.GroupState(), clock.generation)
    elif known[2] != clock.generation:
        known[1].reset()
        known = (shape, known[1], clock.generation)
    layer.states[branch] = known
    return {"state": known[1], "step": clock.step_tensor(query.device), "policy": policy}


# ------------------------------------------------------------------ the function
def _function(layer: Layer) -> Callable[..., Any]:
    def attend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None,
        scale: float | None,
        return_lse: bool,
        parallel: bool,
    ) -> Any:
        mask = layer.key_mask
        if mask is None and attn_mask is not None:
            mask = key_mask_of(attn_mask, key.shape[0], key.shape[1])
        segments = None if parallel else layer.segments
        if segments is not None and sum(item[1] for item in segments) != key.shape[1]:
            segments = None  # another call of this module than the one that told the layout
        result = vcattn.attention(
            query,
            key,
            value,
            layout="NHD",
            scale=scale,
            recipe=layer.options.recipe,
            key_mask=mask,
            segments=segments,
            rope=layer.rope,
            grouping=layer.options.grouping,
            return_lse=return_lse,
            **({} if parallel else _state(layer, query, key)),
        )
        if not return_lse:
            return result
        return result[0], result[1].permute(0, 2, 1)  # diffusers wants [B, S, H]

    def forward_op(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        return_lse: bool = False,
        _save_ctx: bool = True,
        _parallel_config: Any = None,
    ) -> Any:
        with torch.no_grad():  # inside an autograd.Function, whose backward says what is missing
            return attend(query, key, value, attn_mask, scale, return_lse, True)

    def backward_op(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("vcattn has no backward pass; use the native backend to train")

    def vcattn_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        return_lse: bool = False,
        _parallel_config: Any = None,
    ) -> Any:
        reason = why_native(
            layer, query, key, value, attn_mask, dropout_p, is_causal, _parallel_config
        )
        if reason is not None and return_lse:
            raise vcattn.UnsupportedError(f"no LSE from the native path, which is needed: {reason}")
        if not torch.compiler.is_compiling():
            layer.counts["vcattn" if reason is None else f"native: {reason}"] += 1
        if reason is not None:
            if layer.rope is not None:
                query, key = rotate(query, layer.rope), rotate(key, layer.rope)
            if attn_mask is not None:
                attn_mask = attn_mask.as_subclass(torch.Tensor)
            return dispatch.dispatch_attention_fn(
                query,
                key,
                value,
                attn_mask=attn_mask,
                dropout_p=dropout_p,
                is_causal=is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
                backend=layer.native or dispatch.AttentionBackendName.NATIVE,
                parallel_config=_parallel_config,
            )
        if _parallel_config is None:
            return attend(query, key, value, attn_mask, scale, return_lse, False)
        return dispatch._templated_context_parallel_attention(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale,
            False,
            return_lse,
            forward_op=forward_op,
            backward_op=backward_op,
            _parallel_config=_parallel_config,
        )

    return vcattn_attention
