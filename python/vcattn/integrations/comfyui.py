# SPDX-License-Identifier: Apache-2.0
"""ComfyUI: vcattn as a model's ``optimized_attention_override``.

ComfyUI calls ``override(func, q, k, v, heads, ...)`` where ``func`` is its own implementation, or
``override.container_function(q, k, v, heads, ...)`` with single-owner containers when the model can
give its tensors away; then they are freed before the output is allocated. What is not ours (short
calls, float masks, ``low_precision_attention=False``, ...) goes to ComfyUI's own and is counted.

The node that sets it is ``integrations/comfyui`` of the repository.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import torch

import vcattn

from vcattn import _options
from vcattn._errors import refuse

from ._common import DTYPES, MAX_HEAD_DIM, break_even_keys, keeps_order, key_mask_of, shapes_fit

# What ComfyUI passes besides that changes no result here. Anything else that is given goes to
# ComfyUI's own attention, which may know what it means.
_NEUTRAL = frozenset((
    "mask", "attn_precision", "skip_reshape", "skip_output_reshape", "transformer_options", "scale",
    "enable_gqa", "low_precision_attention", "preferred_attention", "_inside_attn_wrapper",
))  # fmt: skip


class AttentionOverride:
    """The callable for ``transformer_options["optimized_attention_override"]``.

    recipe: as in ``vcattn.attention``. window: regroup values during the first ``window`` steps of
    a sampling run; 0: the default, a quarter of them; -1: every call groups anew. skip_layers:
    block numbers that stay with ComfyUI (-1 is the last). first_steps: steps at the start that do.
    min_keys: as in ``integrations.diffusers.enable``.
    counts: calls so far, by who ran them.
    """

    def __init__(
        self,
        recipe: str = "vc8",
        window: int = 0,
        skip_layers: Collection[int] = (),
        first_steps: int = 0,
        min_keys: int | None = None,
    ) -> None:
        from vcattn import _capi

        _capi.parse_recipe(_options.name("recipe", recipe))
        for what, value, least in (("window", window, -1), ("first_steps", first_steps, 0),
                                   ("min_keys", 0 if min_keys is None else min_keys, 0)):  # fmt: skip
            if _options.integer(what, value, 32) < least:
                raise refuse(what, value, f"{least} or more")
        if isinstance(skip_layers, (str, bytes)) or not isinstance(skip_layers, Collection):
            raise refuse("skip_layers", repr(skip_layers), "a list of block numbers")
        self.recipe, self.window = recipe, window
        self.skip_layers = frozenset(_options.integer("skip_layers", x) for x in skip_layers)
        self.first_steps = first_steps
        self.min_keys = break_even_keys(state=window >= 0) if min_keys is None else min_keys
        self.counts: Counter[str] = Counter()
        self._run: Any = None  # the tensors that told run and step, kept for their identity
        self._sigma: Any = None
        self._step: int | None = None
        self._states: dict[tuple, vcattn.GroupState] = {}

    # ------------------------------------------------------------ ComfyUI's calls
    def __call__(
        self, func: Any, q: Any, k: Any, v: Any, heads: int, *args: Any, **kwargs: Any
    ) -> Any:
        call = _Call(q, k, v, heads, args, kwargs)
        reason = self._why_native(call)
        self.counts["vcattn" if reason is None else f"comfyui: {reason}"] += 1
        if reason is not None:
            return func(q, k, v, heads, *args, **kwargs)
        return self._attend(call)

    def container_function(
        self, q: Any, k: Any, v: Any, heads: int, *args: Any, **kwargs: Any
    ) -> Any:
        call = _Call(q.peek(), k.peek(), v.peek(), heads, args, kwargs)
        reason = self._why_native(call)
        self.counts["vcattn" if reason is None else f"comfyui: {reason}"] += 1
        if reason is not None:
            from comfy.ldm.modules import attention as comfy_attention

            # It was entered through ComfyUI's wrapper, which marked the call: no way back to us.
            return comfy_attention.optimized_attention(
                q.take(), k.take(), v.take(), heads, *args, **kwargs
            )
        for container in (q, k, v):
            container.take()
        return self._attend(call)

    # ---------------------------------------------------------------- the decision
    def _why_native(self, call: _Call) -> str | None:
        options = call.options
        self._follow(options)
        if call.low_precision is False:
            return "full precision asked for"
        if call.attn_precision is torch.float32:
            return "full precision asked for"
        if self._step is not None and self._step < self.first_steps:
            return "first steps"
        block, blocks = options.get("block_index"), options.get("total_blocks")
        if block is not None:
            if block in self.skip_layers or (blocks and block - blocks in self.skip_layers):
                return "skipped layer"
        if call.other is not None:
            return f"argument {call.other}"
        q, k, v = call.tensors
        if k.ndim == 4 and k.shape[1] < self.min_keys:
            return "short"
        if not shapes_fit(q, k, v) or not 1 <= q.shape[3] <= MAX_HEAD_DIM:
            return "head_dim or heads"
        if q.shape[2] != k.shape[2] and not call.gqa:
            return "head_dim or heads"
        if q.dtype not in DTYPES or k.dtype != q.dtype or v.dtype != q.dtype:
            return "dtype"
        if q.device.type not in ("cpu", "cuda"):
            return "device"
        if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
            return "gradients"
        if call.mask is not None and key_mask_of(call.mask, k.shape[0], k.shape[1]) is None:
            return "mask"
        return None

    def _follow(self, options: dict) -> None:
        """Run and step of the sampler: looked up once per model call, not once per layer."""
        run, sigma = options.get("sample_sigmas"), options.get("sigmas")
        if not isinstance(run, torch.Tensor) or not isinstance(sigma, torch.Tensor):
            self._step = None
            return
        if not run.numel() or not sigma.numel() or torch.compiler.is_compiling():
            self._step = None
            return
        if run is not self._run:
            self._run = run
            self._states.clear()
        if sigma is not self._sigma:
            self._sigma = sigma
            distance = (run.float() - sigma.flatten()[0].to(run.device).float()).abs()
            self._step = int(distance.argmin())

    # --------------------------------------------------------------------- the call
    def _attend(self, call: _Call) -> torch.Tensor:
        q, k, v = call.tensors
        mask = None if call.mask is None else key_mask_of(call.mask, k.shape[0], k.shape[1])
        layout = "HND" if call.heads_first_out else "NHD"
        if layout == "HND":
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        options = {
            "layout": layout, "scale": call.scale, "recipe": self.recipe, "key_mask": mask,
            **self._order(call.options, q, k),
        }  # fmt: skip
        if torch.compiler.is_compiling():
            out = vcattn.attention(q, k, v, **options)
        else:
            prepared = vcattn.prepare(q, k, v, **options)
            del q, k, v
            call.tensors = ()  # the last references of ours: quantised operands took their place
            out = prepared.attend()
        return out if call.heads_first_out else out.flatten(2)

    def _order(self, options: dict, q: torch.Tensor, k: torch.Tensor) -> dict:
        """state, step and policy; empty where layer or step are unknown, or no order is kept."""
        block = options.get("block_index")
        if self.window < 0 or self._step is None or block is None:
            return {}
        if not keeps_order(q.device, self.recipe):
            return {}
        branch = tuple(options.get("cond_or_uncond") or ())
        key = (options.get("block_type"), block, branch, q.shape, k.shape, q.device)
        state = self._states.setdefault(key, vcattn.GroupState())
        steps = max(1, len(self._run) - 1)
        policy = vcattn.Policy(steps=steps, window=self.window or None)
        return {"state": state, "step": self._step, "policy": policy}


class _Call:
    """One call in ComfyUI's terms; tensors as [B, S, H, D] views."""

    def __init__(self, q: Any, k: Any, v: Any, heads: int, args: tuple, kwargs: dict) -> None:
        names = ("mask", "attn_precision", "skip_reshape", "skip_output_reshape")
        given = dict(zip(names, args)) | kwargs
        self.mask = given.get("mask")
        self.attn_precision = given.get("attn_precision")
        self.heads_first_out = bool(given.get("skip_output_reshape", False))
        self.low_precision = given.get("low_precision_attention")
        self.scale = given.get("scale")
        self.gqa = bool(given.get("enable_gqa", False))
        self.options = given.get("transformer_options") or {}
        others = (n for n, x in given.items() if n not in _NEUTRAL and x is not None and x is not False)
        self.other = next(others, None)
        if given.get("skip_reshape", False):
            self.tensors = tuple(x.transpose(1, 2) for x in (q, k, v))
        else:
            head_dim = q.shape[-1] // heads
            self.tensors = tuple(x.unflatten(-1, (-1, head_dim)) for x in (q, k, v))
