# SPDX-License-Identifier: Apache-2.0
"""The models with their published configurations and random weights, and inputs of true size.

Timing does not depend on what the weights say, so nothing is downloaded. Weights are drawn on the
device by the frameworks' own initialisation; the dtypes are those that `from_pretrained(...,
torch_dtype=torch.bfloat16)` gives (diffusers keeps some modules in FP32).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

BF16 = torch.bfloat16


@dataclass
class Case:
    """One model with everything that a denoising step of it needs."""

    name: str
    code: str  # whose code runs
    clip: str  # what is generated
    tokens: int
    heads: int
    layers: int
    steps: int
    forwards_per_step: int
    batch: int  # of one forward
    note: str
    model: torch.nn.Module
    blocks: str  # attribute that holds the transformer blocks
    call: Callable[[], Any]  # one forward
    advance: Callable[[], Any]  # guidance and scheduler step
    begin: Callable[[], Any]  # a new generation
    pipe: Any  # what vcattn.integrations.diffusers.enable takes
    experts: list[int] = field(default_factory=list)  # steps that each expert runs
    valid_keys: int | None = None  # where a mask leaves some out
    others: list[torch.nn.Module] = field(default_factory=list)  # resident, not timed

    @contextlib.contextmanager
    def short(self, layers: int):
        """The model with its first blocks only: warms up every kernel in a fraction of the time."""
        blocks = getattr(self.model, self.blocks)
        setattr(self.model, self.blocks, torch.nn.ModuleList(list(blocks)[:layers]))
        try:
            yield
        finally:
            setattr(self.model, self.blocks, blocks)


class Pipe:
    """As much of a pipeline as `enable` looks at."""

    def __init__(self, scheduler: Any, **components: Any) -> None:
        self.scheduler = scheduler
        self.components = components


def build(
    make: Callable[[], torch.nn.Module], device: str, dtype: torch.dtype = BF16
) -> torch.nn.Module:
    """A model with random weights on the device; FP32 where diffusers keeps it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = make().eval()
    finally:
        torch.set_default_dtype(before)
    keep = set(getattr(model, "_keep_in_fp32_modules", None) or ())
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(False)
        if keep & set(name.split(".")):
            parameter.data = parameter.data.float()
    return model


def randn(*shape: int, device: str, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(shape, device=device, dtype=dtype)


def flow_case(scheduler: Any, steps: int, latents: torch.Tensor, guidance: float | None) -> tuple:
    """(begin, advance): a new generation, and the work between the forwards of two steps."""
    left: list[Any] = []

    def begin() -> None:
        scheduler.set_timesteps(steps, device=latents.device)
        left[:] = list(scheduler.timesteps)

    def advance() -> torch.Tensor:
        noise = latents
        if guidance is not None:  # unconditional + guidance * (conditional - unconditional)
            noise = latents + guidance * (noise - latents)
        return scheduler.step(noise, left.pop(0), latents, return_dict=False)[0]

    return begin, advance


# ----------------------------------------------------------------------- Wan2.2-A14B
def wan(device: str, tiny: bool) -> Case:
    import diffusers

    shape = {"num_attention_heads": 40, "attention_head_dim": 128, "in_channels": 16,
             "out_channels": 16, "text_dim": 4096, "freq_dim": 256, "ffn_dim": 13824,
             "num_layers": 40, "cross_attn_norm": True, "qk_norm": "rms_norm_across_heads",
             "eps": 1e-6, "rope_max_seq_len": 1024, "patch_size": (1, 2, 2)}  # fmt: skip
    latent, text = (16, 21, 90, 160), 512
    if tiny:
        shape |= {"num_attention_heads": 2, "text_dim": 64, "ffn_dim": 128, "num_layers": 3}
        latent, text = (16, 3, 40, 40), 20
    model = build(lambda: diffusers.WanTransformer3DModel(**shape), device)
    second = build(lambda: diffusers.WanTransformer3DModel(**shape), device)
    steps = 40
    scheduler = diffusers.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=12.0
    )
    latents = randn(1, *latent, device=device, dtype=torch.float32)
    prompt = randn(1, text, shape["text_dim"], device=device)
    begin, advance = flow_case(scheduler, steps, latents, 4.0)
    scheduler.set_timesteps(steps, device=device)
    high = int((scheduler.timesteps >= 0.875 * scheduler.config.num_train_timesteps).sum())
    timestep = torch.tensor([900], device=device)

    def call() -> torch.Tensor:
        return model(hidden_states=latents.to(BF16), timestep=timestep,
                     encoder_hidden_states=prompt, return_dict=False)[0]  # fmt: skip

    return Case(
        name="wan2.2-a14b", code=f"diffusers {diffusers.__version__}, WanTransformer3DModel",
        clip="1280x720, 81 frames", tokens=latent[1] * latent[2] * latent[3] // 4,
        heads=shape["num_attention_heads"], layers=shape["num_layers"], steps=steps,
        forwards_per_step=2, batch=1,
        note="guidance doubles the forwards: two of batch 1 in each step; both experts resident, "
        "the first one timed (they have one configuration)",
        model=model, blocks="blocks", call=call, advance=advance, begin=begin,
        pipe=Pipe(scheduler, transformer=model, transformer_2=second),
        experts=[high, steps - high], others=[second],
    )  # fmt: skip


# ---------------------------------------------------------------- HunyuanVideo-1.5
def hunyuan(device: str, tiny: bool) -> Case:
    import diffusers

    shape = {"in_channels": 65, "out_channels": 32, "num_attention_heads": 16,
             "attention_head_dim": 128, "num_layers": 54, "num_refiner_layers": 2, "mlp_ratio": 4.0,
             "patch_size": 1, "patch_size_t": 1, "qk_norm": "rms_norm", "text_embed_dim": 3584,
             "text_embed_2_dim": 1472, "image_embed_dim": 1152, "rope_theta": 256.0,
             "rope_axes_dim": (16, 56, 56), "target_size": 960, "task_type": "t2v"}  # fmt: skip
    latent, text, glyphs, image, valid = (31, 45, 80), 1000, 256, 729, 117
    if tiny:
        shape |= {"num_attention_heads": 2, "num_layers": 3, "num_refiner_layers": 1,
                  "text_embed_dim": 64, "text_embed_2_dim": 48, "image_embed_dim": 32}  # fmt: skip
        latent, text, glyphs, image, valid = (3, 20, 20), 40, 20, 11, 17
    model = build(lambda: diffusers.HunyuanVideo15Transformer3DModel(**shape), device)
    steps = 50
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=9.0)
    latents = randn(1, 32, *latent, device=device, dtype=torch.float32)
    begin, advance = flow_case(scheduler, steps, latents, 6.0)
    inputs = {
        "hidden_states": randn(1, 65, *latent, device=device),
        "timestep": torch.full((1,), 500.0, device=device, dtype=BF16),
        "encoder_hidden_states": randn(1, text, shape["text_embed_dim"], device=device),
        "encoder_attention_mask": (torch.arange(text, device=device) < valid).long()[None],
        "encoder_hidden_states_2": randn(1, glyphs, shape["text_embed_2_dim"], device=device),
        "encoder_attention_mask_2": torch.zeros(1, glyphs, device=device, dtype=torch.long),
        "image_embeds": torch.zeros(1, image, shape["image_embed_dim"], device=device, dtype=BF16),
        "return_dict": False,
    }
    video = latent[0] * latent[1] * latent[2]
    return Case(
        name="hunyuanvideo-1.5",
        code=f"diffusers {diffusers.__version__}, HunyuanVideo15Transformer3DModel",
        clip="1280x720, 121 frames", tokens=video + text + glyphs + image,
        heads=shape["num_attention_heads"], layers=shape["num_layers"], steps=steps,
        forwards_per_step=2, batch=1,
        note="guidance doubles the forwards: two of batch 1 in each step",
        model=model, blocks="transformer_blocks", call=lambda: model(**inputs), advance=advance,
        begin=begin, pipe=Pipe(scheduler, transformer=model), experts=[steps],
        valid_keys=video + valid,
    )  # fmt: skip


# --------------------------------------------------------------------- MiniMax-H3
def minimax_h3(device: str, tiny: bool) -> Case:
    import diffusers

    shape: dict[str, Any] = {}  # the class's defaults are the published configuration
    frames, rows, columns, audio, text = 72, 24, 42, 810, 388
    if tiny:
        shape = {"num_attention_heads": 3, "hidden_size": 64, "num_layers": 3, "num_refiner_layers": 1,
                 "ffn_dim": 96, "text_dim": 32, "freq_dim": 32, "time_embed_hidden_dim": 64,
                 "time_embed_dim": 32}  # fmt: skip
        frames, rows, columns, audio, text = 4, 16, 20, 30, 20
    model = build(lambda: diffusers.MiniMaxH3Transformer3DModel(**shape), device)
    config = model.config
    video = frames * rows * columns
    tags = torch.tensor([1] * text + [2] * audio + [0] * video, device=device)
    index = torch.arange(len(tags), device=device)
    positions = torch.zeros(len(tags), 3, device=device)
    positions[: text + audio, 0] = index[: text + audio].float()
    axes = [torch.arange(n, device=device) for n in (frames, rows, columns)]
    cells = torch.cartesian_prod(*axes).float()
    positions[text + audio :] = cells + torch.tensor([text + audio, 0, 0], device=device)
    inputs = {
        "hidden_states": randn(1, video, config.in_channels * 4, device=device),
        "audio_hidden_states": randn(1, audio, config.audio_in_channels, device=device),
        "encoder_hidden_states": randn(1, text, config.text_dim, device=device),
        "timestep": torch.tensor([0.7, 0.0], device=device),
        "timestep_indices": (tags == 1).long(),
        "token_tags": tags,
        "position_ids": positions,
        "video_indices": index[tags == 0],
        "audio_indices": index[tags == 2],
        "text_indices": index[tags == 1],
        "return_dict": False,
    }
    steps = 50
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=12.0)
    latents = randn(1, video, config.in_channels * 4, device=device, dtype=torch.float32)
    begin, advance = flow_case(scheduler, steps, latents, None)
    return Case(
        name="minimax-h3", code=f"diffusers {diffusers.__version__}, MiniMaxH3Transformer3DModel",
        clip="1344x768, 243 frames, with audio", tokens=len(tags),
        heads=config.num_attention_heads, layers=config.num_layers, steps=steps,
        forwards_per_step=1, batch=1,
        note="guidance is distilled into the weights: one forward in each step; a plain Euler "
        "flow scheduler of the video latents stands in for its own",
        model=model, blocks="transformer_blocks", call=lambda: model(**inputs), advance=advance,
        begin=begin, pipe=Pipe(scheduler, transformer=model), experts=[steps],
    )  # fmt: skip
