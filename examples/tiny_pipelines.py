# SPDX-License-Identifier: Apache-2.0
"""diffusers' own pipelines of the supported models, small and with random weights.

For `--tiny` of the examples and for the tests: real client code, seconds on a CPU, nothing to
download. What comes out is noise; head_dim is 64 or 128 as in the real models' kernels.
"""

from __future__ import annotations

import diffusers
import torch

FRAMES, HEIGHT, WIDTH = 9, 128, 96


def wan(seed: int = 0) -> diffusers.WanPipeline:
    """Wan2.2's form: two experts, UniPC scheduler with flow shift, cross attention to the text."""
    torch.manual_seed(seed)

    def expert() -> diffusers.WanTransformer3DModel:
        return diffusers.WanTransformer3DModel(
            num_attention_heads=2, attention_head_dim=64, in_channels=16, out_channels=16,
            text_dim=32, freq_dim=32, ffn_dim=96, num_layers=2, rope_max_seq_len=64,
        ).eval()  # fmt: skip

    vae = diffusers.AutoencoderKLWan(
        base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1,
        temperal_downsample=[False, True, True],
    )  # fmt: skip
    scheduler = diffusers.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=5.0
    )
    return diffusers.WanPipeline(
        tokenizer=None, text_encoder=None, vae=vae.eval(), scheduler=scheduler,
        transformer=expert(), transformer_2=expert(), boundary_ratio=0.875,
    )  # fmt: skip


def wan_inputs(steps: int = 4, seed: int = 1) -> dict:
    """Keyword arguments of a call: 3 x 16 x 12 latent cells, 288 tokens, two guidance branches."""
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randn(2, 1, 24, 32, generator=generator)
    return {
        "prompt_embeds": prompt[0], "negative_prompt_embeds": prompt[1],
        "num_frames": FRAMES, "height": HEIGHT, "width": WIDTH, "num_inference_steps": steps,
        "guidance_scale": 4.0, "generator": generator, "output_type": "np",
    }  # fmt: skip


def hunyuan(seed: int = 0) -> diffusers.HunyuanVideo15Pipeline:
    """HunyuanVideo-1.5's form: joint attention of video and padded text."""
    torch.manual_seed(seed)
    transformer = diffusers.HunyuanVideo15Transformer3DModel(
        in_channels=65, out_channels=32, num_attention_heads=2, attention_head_dim=64,
        num_layers=2, num_refiner_layers=1, mlp_ratio=2.0, text_embed_dim=32, text_embed_2_dim=24,
        image_embed_dim=16, rope_axes_dim=(16, 24, 24), target_size=96, task_type="t2v",
    )  # fmt: skip
    vae = diffusers.AutoencoderKLHunyuanVideo15(
        latent_channels=32, block_out_channels=(32, 32, 32, 32, 32), layers_per_block=1
    )
    return diffusers.HunyuanVideo15Pipeline(
        text_encoder=None, tokenizer=None, text_encoder_2=None, tokenizer_2=None,
        transformer=transformer.eval(), vae=vae.eval(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=9.0),
        guider=diffusers.ClassifierFreeGuidance(guidance_scale=6.0),
    )  # fmt: skip


def hunyuan_inputs(steps: int = 3, seed: int = 1) -> dict:
    """3 x 12 x 12 latent cells and up to 60 text tokens, of which few are valid."""
    generator = torch.Generator().manual_seed(seed)
    inputs = {
        "num_frames": FRAMES, "height": 192, "width": 192, "num_inference_steps": steps,
        "generator": generator, "output_type": "np",
    }  # fmt: skip
    for prefix, valid in (("", (17, 9)), ("negative_", (3, 2))):
        for suffix, tokens, channels, n in (("", 40, 32, valid[0]), ("_2", 20, 24, valid[1])):
            embeds = torch.randn(1, tokens, channels, generator=generator)
            inputs[f"{prefix}prompt_embeds{suffix}"] = embeds
            mask = (torch.arange(tokens) < n).long()[None]
            inputs[f"{prefix}prompt_embeds_mask{suffix}"] = mask
    return inputs


def minimax_h3(seed: int = 0) -> diffusers.MiniMaxH3Transformer3DModel:
    """MiniMax-H3's transformer: one packed sequence of text, audio and video, no mask."""
    torch.manual_seed(seed)
    return diffusers.MiniMaxH3Transformer3DModel(
        num_attention_heads=3, attention_head_dim=128, hidden_size=64, num_layers=2,
        num_refiner_layers=1, ffn_dim=96, text_dim=32, freq_dim=32, time_embed_hidden_dim=64,
        time_embed_dim=32,
    ).eval()  # fmt: skip


def minimax_h3_inputs(seed: int = 1) -> dict:
    """20 text rows, 30 audio rows, 4 x 8 x 8 video rows."""
    generator = torch.Generator().manual_seed(seed)
    text, audio, video = 20, 30, 256
    tags = torch.tensor([1] * text + [2] * audio + [0] * video)
    rows = torch.arange(text + audio + video)
    positions = torch.zeros(len(rows), 3)
    positions[: text + audio, 0] = rows[: text + audio]
    cells = torch.cartesian_prod(torch.arange(4), torch.arange(8), torch.arange(8))
    positions[text + audio :] = cells + torch.tensor([text + audio, 0, 0])
    return {
        "hidden_states": torch.randn(1, video, 96, generator=generator),
        "audio_hidden_states": torch.randn(1, audio, 32, generator=generator),
        "encoder_hidden_states": torch.randn(1, text, 32, generator=generator),
        "timestep": torch.tensor([0.7, 0.0]),
        "timestep_indices": (tags == 1).long(),
        "token_tags": tags,
        "position_ids": positions,
        "video_indices": rows[tags == 0],
        "audio_indices": rows[tags == 2],
        "text_indices": rows[tags == 1],
    }


def minimax_h3_pipeline(seed: int = 0) -> diffusers.ModularPipeline:
    """diffusers' modular pipeline of MiniMax-H3 from the prompt's embeddings to the latents."""
    from diffusers.modular_pipelines import SequentialPipelineBlocks
    from diffusers.modular_pipelines.minimax_h3 import before_denoise, denoise

    class TextToLatents(SequentialPipelineBlocks):
        model_name = "minimax-h3"
        block_classes = [
            before_denoise.MiniMaxH3PrepareLayoutStep, before_denoise.MiniMaxH3PrepareLatentsStep,
            before_denoise.MiniMaxH3SetTimestepsStep, denoise.MiniMaxH3DenoiseStep,
        ]  # fmt: skip
        block_names = ["layout", "latents", "timesteps", "denoise"]

    pipe = TextToLatents().init_pipeline()
    pipe.update_components(
        transformer=minimax_h3(seed), scheduler=diffusers.MiniMaxH3Scheduler(shift=12.0),
        audio_scheduler=diffusers.MiniMaxH3Scheduler(shift=3.0),
    )  # fmt: skip
    return pipe


def minimax_h3_pipeline_inputs(steps: int = 3, seed: int = 1) -> dict:
    """20 text rows, 414 audio rows (the shortest clip is 5 s), 148 video rows; steps - 1 forwards."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "prompt_embeds": torch.randn(1, 20, 32, generator=generator),
        "text_token_tags": torch.ones(20, dtype=torch.long), "height": 64, "width": 64,
        "num_frames": 124, "num_inference_steps": steps, "generator": generator,
        "output": "latents",
    }  # fmt: skip


def wan_for_fidelity() -> tuple:
    """For `python -m vcattn.fidelity examples/tiny_pipelines.py:wan_for_fidelity`: the pipeline and
    its inputs; the prompt's characters stand in for a text encoder."""
    pipe = wan()
    pipe.set_progress_bar_config(disable=True)

    def inputs(prompt: str, generator: torch.Generator) -> dict:
        text = torch.Generator().manual_seed(sum(map(ord, prompt)))
        call = wan_inputs(steps=2)
        del call["output_type"]
        call["prompt_embeds"] = torch.randn(1, 24, 32, generator=text)
        return call | {"generator": generator, "height": 64, "width": 64, "num_frames": 5}

    return pipe, inputs
