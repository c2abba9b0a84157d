# SPDX-License-Identifier: Apache-2.0
"""What a clip costs beside its denoising steps: text encoder and VAE decoder, random weights.

Each is built alone (the transformer is gone by then), warmed up and timed once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .models import BF16, build, randn
from .timing import Stopwatch


def _once(call: Callable[[], Any], warm: Callable[[], Any], device: str) -> float:
    watch = Stopwatch(device)
    with torch.no_grad():
        warm()
        with watch.span():
            call()
    return round(watch.take()[0], 1)


def umt5(device: str, tiny: bool, prompts: int = 2) -> tuple[float, str]:
    """Text encoder of Wan2.2 and LongCat-Video."""
    from transformers import UMT5Config, UMT5EncoderModel

    shape = {"vocab_size": 256384, "d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_layers": 24,
             "num_heads": 64, "feed_forward_proj": "gated-gelu"}  # fmt: skip
    if tiny:
        shape |= {"vocab_size": 256, "d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 1}
    model = build(lambda: UMT5EncoderModel(UMT5Config(**shape)), device)
    tokens = torch.randint(0, shape["vocab_size"], (prompts, 512), device=device)
    mask = torch.ones_like(tokens)

    def call():
        return model(tokens, attention_mask=mask)

    return _once(call, call, device), f"UMT5-XXL's shape, BF16, {prompts} prompts of 512 tokens"


def decoder(device: str, layers: int, measured: int, tokens: int, prompts: int, tiny: bool,
            qwen3: bool, **shape: int) -> tuple[float, str]:  # fmt: skip
    """A Qwen text model: `measured` of its `layers` are timed and scaled up."""
    import transformers

    kind = "Qwen3" if qwen3 else "Qwen2"
    config = getattr(transformers, f"{kind}Config")
    cls = getattr(transformers, f"{kind}Model")
    if tiny:
        shape |= {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2,
                  "num_key_value_heads": 1, "vocab_size": 256}  # fmt: skip
        layers, measured, tokens = 4, 2, 20
    model = build(lambda: cls(config(num_hidden_layers=measured, **shape)), device)
    ids = torch.randint(0, shape["vocab_size"], (prompts, tokens), device=device)

    def call():
        return model(ids, use_cache=False)

    ms = _once(call, call, device) * layers / measured
    what = f"text model of {kind}'s shape, BF16, {prompts} prompt(s) of {tokens} tokens"
    return round(ms, 1), what + (f"; {measured} of {layers} layers timed" if measured < layers else "")


def glyphs(device: str, tiny: bool, prompts: int = 2) -> tuple[float, str]:
    """HunyuanVideo-1.5's second text encoder, for text in quotation marks. A pipeline skips it for
    prompts without; here both guidance branches have some."""
    from transformers import T5Config, T5EncoderModel

    shape = {"vocab_size": 1510, "d_model": 1472, "d_kv": 64, "d_ff": 3584, "num_layers": 12,
             "num_heads": 6, "feed_forward_proj": "gated-gelu"}  # fmt: skip
    if tiny:
        shape |= {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 1}
    model = build(lambda: T5EncoderModel(T5Config(**shape)), device)
    tokens = torch.randint(0, shape["vocab_size"], (prompts, 256), device=device)
    mask = torch.ones(tokens.shape, device=device)

    def call():
        return model(input_ids=tokens, attention_mask=mask)

    return _once(call, call, device), f"ByT5-small's shape, BF16, {prompts} prompts of 256 bytes"


def both(*measure: Callable[[str, bool], tuple[float, str]]) -> Callable[[str, bool], tuple[float, str]]:
    """One stage of several parts, one after the other."""

    def run(device: str, tiny: bool) -> tuple[float, str]:
        found = [part(device, tiny) for part in measure]
        return round(sum(ms for ms, _ in found), 1), "; ".join(f"{what}: {ms} ms" for ms, what in found)

    return run


def vae(device: str, tiny: bool, cls: str, latent: tuple[int, ...], dtype: torch.dtype,
        tiling: bool, warm: int = 2, chunks: tuple[int, int, int] | None = None,
        **small: Any) -> tuple[float, str]:  # fmt: skip
    """A VAE's decoder, once over the whole clip, after its first `warm` latent frames. `chunks`, for
    one that decodes equal pieces of time on their own: (n, of how many, latent frames of n) are timed
    and scaled up."""
    import diffusers

    made = build(lambda: getattr(diffusers, cls)(**(small if tiny else {})), device, dtype)
    if tiling:
        made.enable_tiling()
    if tiny:
        latent = (1, latent[1], warm, 8, 8)
    z = randn(*latent, device=device, dtype=dtype)

    def decode(z):
        return made.decode(z, return_dict=False)[0]

    what = f"{cls}, {str(dtype).removeprefix('torch.')}, latents {list(latent)}" + (", tiled" if made.use_tiling else "")
    if chunks is None or tiny:
        return _once(lambda: decode(z), lambda: decode(z[:, :, :warm]), device), what
    some, whole, frames = chunks
    ms = _once(lambda: decode(z[:, :, :frames]), lambda: decode(z[:, :, :warm]), device)
    return round(ms * whole / some, 1), what + f"; {some} of {whole} pieces of time timed"


WAN_TINY = {"base_dim": 8, "z_dim": 16, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1,
            "temperal_downsample": [False, True, True]}  # fmt: skip
HY_TINY = {"latent_channels": 32, "block_out_channels": (32, 32, 32, 32, 32), "layers_per_block": 1}
H3_TINY = {"block_out_channels": (32, 32, 32, 32, 32, 32), "layers_per_block": 1,
           "decoder_num_layers": 1, "decoder_num_attention_heads": 1}  # fmt: skip

# Model -> stage -> (device, tiny) -> (ms, what it was).
STAGES: dict[str, dict[str, Callable[[str, bool], tuple[float, str]]]] = {
    "wan2.2-a14b": {
        "text_encoder": umt5,
        "vae_decode": lambda device, tiny: vae(
            device, tiny, "AutoencoderKLWan", (1, 16, 21, 90, 160), torch.float32, False, **WAN_TINY
        ),
    },
    "longcat-video": {
        "text_encoder": umt5,
        "vae_decode": lambda device, tiny: vae(
            device, tiny, "AutoencoderKLWan", (1, 16, 24, 60, 104), torch.float32, False, **WAN_TINY
        ),
    },
    "hunyuanvideo-1.5": {
        "text_encoder": both(lambda device, tiny: decoder(
            device, 28, 28, 1108, 2, tiny, False, hidden_size=3584, intermediate_size=18944,
            num_attention_heads=28, num_key_value_heads=4, vocab_size=152064,
        ), glyphs),  # fmt: skip
        "vae_decode": lambda device, tiny: vae(
            device, tiny, "AutoencoderKLHunyuanVideo15", (1, 32, 31, 45, 80), BF16, True, **HY_TINY
        ),
    },
    "minimax-h3": {
        "text_encoder": lambda device, tiny: decoder(
            device, 64, 8, 388, 1, tiny, True, hidden_size=5120, intermediate_size=25600,
            num_attention_heads=64, num_key_value_heads=8, head_dim=128, vocab_size=151936,
        ),  # fmt: skip
        "vae_decode": lambda device, tiny: vae(
            device, tiny, "AutoencoderKLMiniMaxH3", (1, 24, 72, 48, 84), BF16, False, 7, (4, 14, 22), **H3_TINY
        ),
    },
}
