# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding inside the attention call instead of before it.

The models rotate queries and keys with half a dozen passes over memory, in FP32 (MiniMax-H3: in
BF16), and round the result to BF16, only for vcattn to read and quantise it. With ``fuse_rope`` the processor is called without
angles, and vcattn rotates in FP32 while it quantises.

What a model rotates by is told by a hook on its ``rope`` module, once per forward pass:

    Wan                 the grid of its latents, w fastest, interleaved pairs
    HunyuanVideo-1.5    the same for the video tokens; text tokens behind them are not rotated
    MiniMax-H3          tables of the packed rows' own coordinates, 96 of 128 channels, halves
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

import vcattn

from .._common import DTYPES


class Ropes:
    """What the model that runs rotates by; None: not known, then it rotates itself."""

    current: vcattn.Rope | None = None


def _wan(module: Any, args: tuple, output: tuple) -> vcattn.Rope | None:
    cells = (n // p for n, p in zip(args[0].shape[2:], module.patch_size))
    return vcattn.Rope("interleaved", (module.t_dim, module.h_dim, module.w_dim), grid=tuple(cells))


def _wan_is_known(module: Any) -> bool:
    """Whether the module's angles are those of theta = 10000, which it does not keep."""
    channel = 0
    for dim in (module.t_dim, module.h_dim, module.w_dim):
        angle = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        for table, function in ((module.freqs_cos, torch.cos), (module.freqs_sin, torch.sin)):
            row = table[1, channel : channel + dim : 2].double().cpu()
            if not torch.allclose(row, function(angle), rtol=0, atol=2.0**-20):
                return False
        channel += dim
    return True


def _hunyuan(module: Any, args: tuple, output: tuple) -> vcattn.Rope | None:
    patch = (module.patch_size_t, module.patch_size, module.patch_size)
    cells = (n // p for n, p in zip(args[0].shape[2:], patch))
    return vcattn.Rope("interleaved", tuple(module.rope_dim), grid=tuple(cells), theta=module.theta)


def _minimax_h3(module: Any, args: tuple, output: tuple) -> vcattn.Rope | None:
    half = module.rope_freq_dim * 3  # the second half of the tables repeats the first
    cos, sin = (table[:, :half].float().contiguous() for table in output)
    return vcattn.Rope("half", (2 * module.rope_freq_dim,) * 3, cos=cos, sin=sin)


# Class name of a model -> what reads its rope module, and a check of that module (or None).
_READERS: dict[str, tuple[Callable[..., Any], Callable[[Any], bool] | None]] = {
    "WanTransformer3DModel": (_wan, _wan_is_known),
    "HunyuanVideo15Transformer3DModel": (_hunyuan, None),
    "MiniMaxH3Transformer3DModel": (_minimax_h3, None),
}
# Class name of a processor -> the argument that holds the angles.
_ARGUMENTS = {
    "WanAttnProcessor": "rotary_emb",
    "HunyuanVideo15AttnProcessor2_0": "image_rotary_emb",
    "MiniMaxH3AttnProcessor": "rotary_emb",
}


def follow_rope(model: torch.nn.Module, ropes: Ropes) -> Any:
    """Keeps ``ropes`` up to date; returns what ends it, or None where nothing is known."""
    reader, check = _READERS.get(type(model).__name__, (None, None))
    module = getattr(model, "rope", None)
    if reader is None or module is None or (check is not None and not check(module)):
        return None

    def told(module: torch.nn.Module, args: tuple, output: tuple) -> None:
        ropes.current = None if torch.compiler.is_compiling() else reader(module, args, output)

    remove = module.register_forward_hook(told).remove

    def undo() -> None:
        remove()
        ropes.current = None

    return undo


def adapt(base: type) -> type | None:
    """``base``, leaving the rotation to its layer's backend where the call will be ours."""
    if base.__name__ not in _ARGUMENTS:
        return None
    argument = _ARGUMENTS[base.__name__]
    names = list(inspect.signature(base.__call__).parameters)[3:]  # after self, attn, hidden_states

    class RotatedProcessor(base):  # type: ignore[misc,valid-type]
        # The framework reads the signature and drops what it does not find there.
        @functools.wraps(base.__call__)
        def __call__(self, attn: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # rotates as before
                return super().__call__(attn, hidden_states, *args, **kwargs)
            layer = self._vcattn_layer
            kwargs |= dict(zip(names, args))
            if kwargs.get(argument) is not None and _ours(self, layer, hidden_states):
                layer.rope = layer.ropes.current
                kwargs[argument] = None
            try:
                return super().__call__(attn, hidden_states, **kwargs)
            finally:
                layer.rope = None

    RotatedProcessor.__name__ = RotatedProcessor.__qualname__ = base.__name__
    return RotatedProcessor


def _ours(processor: Any, layer: Any, hidden: torch.Tensor) -> bool:
    """Whether the backend will take this call, as far as can be told before it."""
    options, clock = layer.options, layer.clock
    if layer.ropes.current is None or torch.is_grad_enabled():
        return False
    if not processor._vcattn_ours:
        return False  # somebody has set another backend meanwhile
    if getattr(processor, "_parallel_config", None) is not None:
        return False  # the sequence is in pieces, and the angles too
    if clock.step is not None and clock.step < options.first_steps_bf16:
        return False
    return hidden.shape[1] >= options.min_keys and hidden.dtype in DTYPES


def rotate(x: torch.Tensor, rope: vcattn.Rope) -> torch.Tensor:
    """[B, S, H, D] rotated in FP32: for a call that goes to the native backend after all."""
    cos, sin = (table.to(x.device) for table in _tables(rope, x.shape[1]))
    pairs = cos.shape[1]
    turned, rest = x[..., : 2 * pairs].float(), x[..., 2 * pairs :]
    cos, sin = cos[None, :, None], sin[None, :, None]
    if rope.convention == "half":
        a, b = turned[..., :pairs], turned[..., pairs:]
        out = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
    else:
        a, b = turned[..., 0::2], turned[..., 1::2]
        out = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([out.to(x.dtype), rest], -1)


def _tables(rope: vcattn.Rope, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """FP32 [S, pairs]; tokens outside the grid are not turned."""
    if rope.grid is None:
        return rope.cos, rope.sin
    axes = []
    positions = torch.cartesian_prod(*(torch.arange(n, dtype=torch.float64) for n in rope.grid))
    for axis, dim in enumerate(rope.axis_dim):
        frequency = rope.theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        axes.append(positions[:, axis, None] * frequency)
    angles = torch.cat(axes, -1)
    angles = torch.nn.functional.pad(angles, (0, 0, rope.begin, tokens - rope.begin - len(angles)))
    return angles.cos().float(), angles.sin().float()
