# SPDX-License-Identifier: Apache-2.0
"""LongCat-Video: its own repository's transformer, which diffusers 0.42.1 does not have.

The folder of the repository (commit 6b3f4b8 was read) is given on the command line and is no part
of this project. Its code runs unchanged. Two modules that it imports are put in its place: the
block-sparse attention, which dense generation does not use, and `flash_attn_interface`, whose
functions returned a tuple when LongCat was written and return a tensor today.

vcattn is plugged in where a user of LongCat would do it, at `Attention._process_attn`.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import Any

import torch
import vcattn

from .models import Case, Pipe, build, flow_case, randn


def _flash(q: Any, k: Any, v: Any, softmax_scale: float | None = None, **_: Any) -> tuple:
    """[B, S, H, D] attention in BF16: flash-attention 3 where it is installed, else torch's own."""
    try:
        from flash_attn_interface_installed import flash_attn_func
    except ImportError:
        flash_attn_func = None
    if flash_attn_func is None or not q.is_cuda:
        swap = (x.transpose(1, 2) for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(*swap, scale=softmax_scale)
        return out.transpose(1, 2), None
    return flash_attn_func(q, k, v, softmax_scale=softmax_scale), None


def _varlen(q: Any, k: Any, v: Any, cu_seqlens_q: Any, max_seqlen_q: int, max_seqlen_k: int,
            **_: Any) -> tuple:  # fmt: skip
    """Packed sequences of equal length, which padded prompts of LongCat are."""
    batch = len(cu_seqlens_q) - 1
    if (q.shape[0], k.shape[0]) != (batch * max_seqlen_q, batch * max_seqlen_k):
        raise ValueError("sequences of different lengths")
    split = (x.unflatten(0, (batch, -1)) for x in (q, k, v))
    return (_flash(*split)[0].flatten(0, 1),)


def import_model(folder: str) -> Any:
    """LongCatVideoTransformer3DModel of the repository in `folder`."""
    try:
        import flash_attn_interface as installed

        sys.modules["flash_attn_interface_installed"] = installed
    except ImportError:
        pass
    # diffusers takes its functions when this is imported: before the module is replaced.
    import diffusers.models.attention_dispatch  # noqa: F401

    shim: Any = types.ModuleType("flash_attn_interface")
    shim.__spec__ = importlib.machinery.ModuleSpec(shim.__name__, None)  # others look for it
    shim.flash_attn_func, shim.flash_attn_varlen_func = _flash, _varlen
    sys.modules["flash_attn_interface"] = shim
    sparse: Any = types.ModuleType("longcat_video.block_sparse_attention.bsa_interface")
    sparse.flash_attn_bsa_3d = None
    sys.modules[sparse.__name__] = sparse
    sys.path.insert(0, folder)
    from longcat_video.modules.longcat_video_dit import LongCatVideoTransformer3DModel

    return LongCatVideoTransformer3DModel


class Plug:
    """vcattn in LongCat's attention layers; `enable`, `disable` and the step as for diffusers."""

    def __init__(self, model: torch.nn.Module, steps: int) -> None:
        self.layers = [m for m in model.modules() if type(m).__name__ == "Attention"]
        self.steps, self.step = steps, 0

    def begin(self) -> None:
        self.step = 0
        for layer in self.layers:
            state = getattr(layer, "vcattn_state", None)
            if state is not None:
                state.reset()

    def enable(self, recipe: str) -> None:
        policy = vcattn.Policy(steps=self.steps)
        for layer in self.layers:
            layer.vcattn_state = vcattn.GroupState()

            def attend(q, k, v, shape, layer=layer):
                return vcattn.attention(q, k, v, scale=layer.scale, recipe=recipe, policy=policy,
                                        state=layer.vcattn_state, step=self.tensor(q))  # fmt: skip

            layer._process_attn = attend

    def tensor(self, q: torch.Tensor) -> torch.Tensor:
        return torch.full((1,), self.step, dtype=torch.int32, device=q.device)

    def disable(self) -> None:
        for layer in self.layers:
            del layer._process_attn, layer.vcattn_state


def longcat(device: str, tiny: bool, folder: str) -> Case:
    import diffusers

    cls = import_model(folder)
    shape = {"in_channels": 16, "out_channels": 16, "hidden_size": 4096, "depth": 48,
             "num_heads": 32, "caption_channels": 4096, "mlp_ratio": 4, "adaln_tembed_dim": 512,
             "frequency_embedding_size": 256, "patch_size": [1, 2, 2], "enable_flashattn3": True,
             "cp_split_hw": [1, 1], "text_tokens_zero_pad": True}  # fmt: skip
    latent, text = (16, 24, 60, 104), 512
    if tiny:
        shape |= {"hidden_size": 256, "depth": 3, "num_heads": 2, "caption_channels": 64}
        latent, text = (16, 3, 40, 40), 20
    model = build(lambda: cls(**shape), device)
    if device == "cpu":  # its autocast(float32) regions are CUDA's; on the CPU weights are cast here
        for name, module in model.named_modules():
            if name.split(".")[-1] in ("adaLN_modulation", "t_embedder"):
                module.float()
    steps = 50
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=12.0)
    latents = randn(1, *latent, device=device, dtype=torch.float32)
    flow_begin, flow_advance = flow_case(scheduler, steps, latents, 4.0)
    plug = Plug(model, steps)
    inputs = {
        "hidden_states": randn(2, *latent, device=device),
        "timestep": torch.full((2,), 500.0, device=device),
        "encoder_hidden_states": randn(2, 1, text, shape["caption_channels"], device=device),
        "encoder_attention_mask": torch.ones(2, text, device=device, dtype=torch.long),
    }

    def begin() -> None:
        flow_begin()
        plug.begin()

    def advance() -> Any:
        plug.step += 1
        return flow_advance()

    return Case(
        name="longcat-video", code="LongCat-Video's own repository, commit 6b3f4b8",
        clip="832x480, 93 frames", tokens=latent[1] * latent[2] * latent[3] // 4,
        heads=shape["num_heads"], layers=shape["depth"], steps=steps, forwards_per_step=1, batch=2,
        note="guidance doubles the batch: one forward of batch 2 in each step",
        model=model, blocks="blocks", call=lambda: model(**inputs), advance=advance, begin=begin,
        pipe=Pipe(scheduler, plug=plug), experts=[steps],
    )  # fmt: skip
