# SPDX-License-Identifier: Apache-2.0
"""What single models need beyond the backend: where text ends and video begins, and masks that are
never expanded to queries x keys.

HunyuanVideo-1.5's processor makes a mask [B, 1, S, S] of its text mask (12.9 GB at S = 113,585).
``KeyMask`` goes through the same operations as a view of [B, S] bytes instead: repeating along the
queries is an expansion, and "key valid and query valid" keeps the keys' half. The rows of padding
queries, which nobody reads, then hold attention over the valid keys instead of zeros.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import functional

from . import _clock, _rope

_AND = ("__and__", "bitwise_and", "logical_and", "__rand__")


class KeyMask(torch.Tensor):
    """A bool mask over keys whose expansion over queries takes no memory."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "repeat" and not kwargs:
            mask = args[0]
            sizes = args[1:] if isinstance(args[1], int) else tuple(args[1])
            # Only dimensions of size 1 can be expanded; anything else really repeats.
            pairs = list(zip(sizes, mask.shape))
            if len(sizes) == mask.ndim and all(n == 1 or size == 1 for n, size in pairs):
                return mask.expand([n * size for n, size in pairs])
        if name in _AND and len(args) == 2 and _is_pair(*args):
            return args[0]
        return super().__torch_function__(func, types, args, kwargs or {})


def _is_pair(a: Any, b: Any) -> bool:
    """Whether b is a's transposed: the same bytes, expanded over queries and over keys."""
    if not (isinstance(a, KeyMask) and isinstance(b, KeyMask)) or a.ndim != 4 or a.shape != b.shape:
        return False
    same = a.stride()[:2] == b.stride()[:2] and a.stride()[2:] == b.stride()[:1:-1]
    return same and a.stride(2) == 0 and a.dtype == torch.bool


def _joint(base: type) -> type:
    class JointProcessor(base):  # type: ignore[misc,valid-type]
        """Video tokens first, then text, with a mask over the text."""

        # The framework reads the signature and drops what it does not find there.
        @functools.wraps(base.__call__)
        def __call__(
            self,
            attn: Any,
            hidden_states: torch.Tensor,
            encoder_hidden_states: torch.Tensor | None = None,
            attention_mask: torch.Tensor | None = None,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            layer, text = self._vcattn_layer, 0
            if torch.compiler.is_compiling():
                layer = self._vcattn_shared
            if encoder_hidden_states is not None:
                video, text = hidden_states.shape[1], encoder_hidden_states.shape[1]
                layer.segments = [(0, video, "video"), (video, text, "text")]
            if attention_mask is not None and attention_mask.ndim == 2:
                if torch.compiler.is_compiling():
                    # Tracing knows no KeyMask. The backend gets the keys' mask beside the large one,
                    # which nothing uses then, so the compiler leaves it out.
                    before = hidden_states.shape[1] + text - attention_mask.shape[1]
                    layer.key_mask = functional.pad(attention_mask.bool(), (before, 0), value=True)
                else:
                    attention_mask = attention_mask.bool().as_subclass(KeyMask)
            try:
                return super().__call__(
                    attn, hidden_states, encoder_hidden_states, attention_mask, *args, **kwargs
                )
            finally:
                layer.key_mask = None

    JointProcessor.__name__ = JointProcessor.__qualname__ = base.__name__
    return JointProcessor


# Class name of a processor -> the class that stands in for it while vcattn is enabled.
_PROCESSORS = {"HunyuanVideo15AttnProcessor2_0": _joint}

MAX_SEGMENTS = 16  # more runs than this are no layout worth a block border each


def _backend_property() -> property:
    """``_attention_backend`` of an enabled processor. In traced code it is the member that all layers
    share: one that differs by layer would have every block compiled on its own. A bool tells whether
    it is still ours, since a guard on the value would differ by layer too."""

    def get(self: Any) -> Any:
        if torch.compiler.is_compiling() and self._vcattn_ours:
            return self._vcattn_shared.member
        return self._vcattn_backend

    def set(self: Any, value: Any) -> None:
        vars(self)["_attention_backend"] = self._vcattn_backend = value  # the first for copies
        self._vcattn_ours = value is self._vcattn_layer.member

    return property(get, set)


@functools.lru_cache(maxsize=None)
def _stand_in(original: Any, rotate: bool) -> type:
    """One class for all processors of a kind, as traced code asks for theirs."""
    stand_in = original
    # The inner one first: it is called with what the outer one leaves.
    for make in (_PROCESSORS.get(original.__name__), _rope.adapt if rotate else None):
        stand_in = (make and make(stand_in)) or stand_in
    return _clock.stand_in(stand_in, {"_attention_backend": _backend_property()}, original)


def adapt_processor(processor: Any, layer: Any, shared: Any) -> Any:
    """Puts the stand-in's class on the processor; returns what takes it off again. ``shared``: the
    layer that stands for all of them in traced code."""
    original = type(processor)
    own = vars(processor)
    had = "_attention_backend" in own
    before = processor._attention_backend
    processor._vcattn_layer, processor._vcattn_shared = layer, shared
    processor.__class__ = _stand_in(original, layer.ropes is not None)
    processor._attention_backend = layer.member

    def undo() -> None:
        processor.__class__ = original
        for name in [name for name in own if name.startswith("_vcattn")]:
            del own[name]
        if had:
            processor._attention_backend = before
        else:
            own.pop("_attention_backend", None)

    return undo


def runs_of_tags(tags: list[int]) -> list[tuple[int, int, str]] | None:
    """Segments of MiniMax-H3's row tags (0 video, 1 text, 2 audio); text and audio do not mix."""
    runs: list[tuple[int, int, str]] = []
    begin = 0
    for i in range(1, len(tags) + 1):
        if i == len(tags) or tags[i] != tags[begin]:
            runs.append((begin, i - begin, "video" if tags[begin] == 0 else "text"))
            begin = i
    return runs if 0 < len(runs) <= MAX_SEGMENTS else None


def follow_layout(model: torch.nn.Module, layers: list[Any]) -> Any:
    """For models that tell the layout of their packed sequence: keeps the layers' segments up to
    date; returns what ends it, or None. The tags are read once per layout (one device read)."""
    if type(model).__name__ != "MiniMaxH3Transformer3DModel":
        return None
    seen: list[Any] = [None]

    def before_forward(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        tags = kwargs.get("token_tags", args[5] if len(args) > 5 else None)
        if tags is None or tags is seen[0]:
            return
        seen[0] = tags
        segments = runs_of_tags(tags.tolist())
        for layer in layers:
            layer.segments = segments

    return model.register_forward_pre_hook(before_forward, with_kwargs=True).remove
