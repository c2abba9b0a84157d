# SPDX-License-Identifier: Apache-2.0
"""diffusers: vcattn as an attention backend, without patching files.

    from vcattn.integrations import diffusers as vc
    vc.enable(pipe)                     # every video transformer of the pipeline
    frames = pipe(prompt).frames
    print(vc.report(pipe))              # which calls ran on vcattn, which natively, and why
    vc.disable(pipe)

or, without group state and options: ``vc.register()``, then
``pipe.transformer.set_attention_backend("vcattn")``.

Works with what goes through diffusers' attention dispatch (``docs/integrations.md`` has the models
and versions that are tested). A call that vcattn cannot honour, such as a head_dim above 128, a
float mask or one that differs by query, a causal call or one that needs gradients, goes to the
native backend and is counted with its reason. It is never answered with something else.
"""

from __future__ import annotations

import copy
import fnmatch
import functools
import itertools
import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from diffusers.models.modeling_utils import ModelMixin

import vcattn
from vcattn import _options
from vcattn._capi import parse_grouping, parse_recipe
from vcattn._errors import refuse

from .._common import MIN_KEYS, break_even_keys
from . import _backend, _models, _rope
from ._backend import Layer, Options, register
from ._clock import Clock

__all__ = ["MIN_KEYS", "disable", "enable", "register", "report"]

_attached: weakref.WeakKeyDictionary[Any, _Attachment] = weakref.WeakKeyDictionary()
_numbers = itertools.count()


class _Attachment:
    def __init__(self) -> None:
        self.clock = Clock()
        self.layers: list[Layer] = []
        self.shared: dict[Any, Layer] = {}  # native backend -> what stands for all layers in traced code
        self.ropes = _rope.Ropes()
        self.undo: list[Any] = []
        self.finalizer: Any = None

    def enter(self, name: str, options: Options, native: Any) -> Layer:
        layer = Layer(name, options, self.clock, native)
        _backend.enter_layer(layer, next(_numbers))
        self.undo.append(functools.partial(_backend.leave, layer.member))
        return layer

    def everyone(self) -> list[Layer]:
        return [*self.layers, *self.shared.values()]

    def detach(self) -> None:
        if self.finalizer is not None:
            self.finalizer.detach()
        for undo in reversed(self.undo):
            undo()
        self.clock.unfollow()


def _attachment(target: Any) -> _Attachment | None:
    try:
        return _attached.get(target)
    except TypeError:  # nothing that can be enabled: no weak reference to it
        return None


def _models_of(target: Any) -> dict[str, torch.nn.Module]:
    if isinstance(target, torch.nn.Module):
        return {"": getattr(target, "_orig_mod", target)}  # what torch.compile wraps
    components = getattr(target, "components", None)
    models: dict[str, torch.nn.Module] = {}
    for name, component in (components if isinstance(components, dict) else {}).items():
        component = getattr(component, "_orig_mod", component)
        if name.startswith("transformer") and isinstance(component, ModelMixin):
            models[name] = component
    if not models:
        raise refuse(
            "nothing to enable",
            type(target).__name__,
            "a diffusers pipeline with a component 'transformer', or a model",
        )
    return models


def _attention_modules(models: dict[str, torch.nn.Module]) -> dict[str, Any]:
    """Modules whose processor goes through the dispatch; name -> module."""
    found = {}
    seen = set()
    for prefix, model in models.items():
        for name, module in model.named_modules():
            processor = getattr(module, "processor", None)
            known = processor is not None and hasattr(processor, "_attention_backend")
            if known and id(module) not in seen:  # two components may be one model
                seen.add(id(module))
                found[f"{prefix}.{name}".strip(".")] = module
    return found


def _skipped(modules: dict[str, Any], skip: Iterable[int | str]) -> set[str]:
    own = [
        name
        for name, module in modules.items()
        if not getattr(module, "is_cross_attention", False) and "refiner" not in name
    ]
    out: set[str] = set()
    if isinstance(skip, (str, bytes)) or not isinstance(skip, Iterable):
        raise refuse("skip_layers", repr(skip), "a list of positions and name patterns")
    for item in skip:
        if not isinstance(item, (int, str)) or isinstance(item, bool):
            raise refuse("skip_layers", repr(item), "positions and name patterns")
        if isinstance(item, int):
            if not -len(own) <= item < len(own):
                raise refuse("skip_layers", item, f"{-len(own)} .. {len(own) - 1}, or name patterns")
            out.add(own[item])
        else:
            matches = fnmatch.filter(modules, item)
            if not matches:
                raise refuse("skip_layers matches nothing", repr(item), ", ".join(modules))
            out.update(matches)
    return out


def enable(
    target: Any,
    recipe: str = "vc8",
    *,
    policy: vcattn.Policy | bool | None = None,
    skip_layers: Iterable[int | str] = (),
    first_steps_bf16: int = 0,
    min_keys: int | None = None,
    fuse_rope: bool = True,
    grouping: str | None = None,
) -> None:
    """Attention of a pipeline's transformers (or of one model) runs on vcattn from now on.

    Args:
        target: a pipeline (its components ``transformer``, ``transformer_2``, ...), or a model.
        recipe: as in ``vcattn.attention``.
        policy: when values are regrouped. None: the default policy with the pipeline's number of
            steps, one order per layer and guidance branch. A ``vcattn.Policy``: that one. False:
            every call groups anew. Kept orders need a pipeline (its scheduler tells the step) and
            eager execution; a compiled model, a bare model and devices whose kernels take no state
            yet group in every call.
        skip_layers: layers that stay native: positions among the self-attention layers (-1 is the
            last), or patterns of module names ("transformer_blocks.0.*").
        first_steps_bf16: denoising steps at the start that stay native.
        min_keys: calls with fewer keys stay native (cross attention to a prompt). None: where
            recipe "auto" begins on the current CUDA device; 1024 without one.
        fuse_rope: queries and keys are rotated inside the call, in FP32, instead of before it
            (Wan, HunyuanVideo-1.5, MiniMax-H3; eager execution on one device). False: the model
            rotates and rounds to its dtype, as without vcattn.
        grouping: as in ``vcattn.attention``. "identity" leaves values in token order, which costs
            nothing: for compiled models, which would form a new order in every call.

    Raises: InvalidArgumentError when nothing can be enabled, a layer does not exist, or the
        target or a model of it is enabled already (of pipelines that share a model, enable one).
    """
    if _attachment(target) is not None:
        raise refuse("vcattn is enabled already", type(target).__name__, "disable(target) first")
    parse_recipe(_options.name("recipe", recipe))
    if grouping is not None:
        parse_grouping(_options.name("grouping", grouping))
    if not isinstance(policy, bool):
        _options.instance("policy", policy, vcattn.Policy)
    for what, count in (("first_steps_bf16", first_steps_bf16), ("min_keys", min_keys)):
        if count is not None and _options.integer(what, count) < 0:
            raise refuse(what, count, "0 or more")
    register()
    models = _models_of(target)
    modules = _attention_modules(models)
    if not modules:
        raise refuse("no attention module goes through diffusers' dispatch", list(models), "others")
    taken = [n for n, m in modules.items() if _backend.is_layers(m.processor._attention_backend)]
    if taken:
        raise refuse("a model is enabled already, by another target", taken[0], "disable that first")
    skipped = _skipped(modules, skip_layers)
    attachment = _Attachment()
    scheduler = getattr(target, "scheduler", None)
    if min_keys is None:
        min_keys = break_even_keys(state=scheduler is not None and policy is not False)
    options = Options(recipe, policy, first_steps_bf16, min_keys, grouping)
    users = Counter(id(module.processor) for module in modules.values())
    try:
        for layer, module in modules.items():
            if layer in skipped:
                continue
            if users[id(module.processor)] > 1:  # one object for several modules: a layer needs its own
                undo = functools.partial(setattr, module, "processor", module.processor)
                attachment.undo.append(undo)
                module.processor = copy.copy(module.processor)
            _attach(attachment, layer, module.processor, options, fuse_rope)
        for model in {id(m): m for m in models.values()}.values():
            attachment.clock.follow_model(model)
            undos = [_models.follow_layout(model, attachment.everyone())]
            undos.append(_rope.follow_rope(model, attachment.ropes) if fuse_rope else None)
            attachment.undo += filter(None, undos)
        if scheduler is not None:
            attachment.clock.follow_pipeline(target)
    except BaseException:
        attachment.detach()
        raise
    _attached[target] = attachment
    # A target that goes away without disable() takes its entries, and the orders in them, with it.
    members = [layer.member for layer in attachment.everyone()]
    attachment.finalizer = weakref.finalize(target, _backend.leave, *members)
    attachment.finalizer.atexit = False


def _attach(
    attachment: _Attachment, name: str, processor: Any, options: Options, fuse_rope: bool
) -> None:
    native = processor._attention_backend
    # Where vcattn's own general backend was set, what stays native is the framework's default.
    fallback = None if getattr(native, "value", native) == _backend.NAME else native
    layer = attachment.enter(name, options, fallback)
    layer.ropes = attachment.ropes if fuse_rope else None
    attachment.layers.append(layer)
    shared = attachment.shared.get(fallback)
    if shared is None:
        shared = attachment.shared[fallback] = attachment.enter("compiled", options, fallback)
    attachment.undo.append(_models.adapt_processor(processor, layer, shared))


def disable(target: Any) -> None:
    """Everything as before ``enable``: processors, hooks, scheduler, registry. Raises
    InvalidArgumentError when the target is not enabled."""
    attachment = _attachment(target)
    if attachment is None:
        raise refuse("vcattn is not enabled", type(target).__name__, "a target of enable()")
    del _attached[target]
    attachment.detach()


def report(target: Any) -> dict[str, dict[str, int]]:
    """Calls since ``enable``, by layer: {"blocks.0.attn1": {"vcattn": 80}, "blocks.0.attn2":
    {"native: short": 80}, ...}. Calls of compiled code are not counted."""
    attachment = _attachment(target)
    if attachment is None:
        raise refuse("vcattn is not enabled", type(target).__name__, "a target of enable()")
    return {layer.name: dict(layer.counts) for layer in attachment.layers}
