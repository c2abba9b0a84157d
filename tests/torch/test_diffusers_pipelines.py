# SPDX-License-Identifier: Apache-2.0
"""vcattn.integrations.diffusers on diffusers' own pipelines: steps, branches, orders, frames."""

import pytest
import torch
import vcattn

diffusers = pytest.importorskip("diffusers")
from common import NEAR  # noqa: E402
from diffusers_models import (  # noqa: E402
    FP32_CHAIN,
    OWN,
    run_model,
    tiny,
    wan_model_inputs,
)
from oracle import error  # noqa: E402
from vcattn.integrations import diffusers as vc  # noqa: E402

diffusers.utils.logging.set_verbosity_error()


def latents_of(pipe, inputs):
    pipe.set_progress_bar_config(disable=True)
    inputs["generator"].manual_seed(5)
    return torch.as_tensor(pipe(**inputs | {"output_type": "latent"}).frames)


def test_wan_pipeline_keeps_an_order_per_layer_and_branch_over_both_experts():
    pipe, inputs = tiny.wan(), tiny.wan_inputs(steps=6)
    native = latents_of(pipe, inputs)
    set_timesteps = pipe.scheduler.set_timesteps
    vc.enable(pipe, min_keys=100)
    ours = latents_of(pipe, inputs)
    attachment = vc._attached[pipe]
    counts = vc.report(pipe)
    used = [n for n, c in counts.items() if "vcattn" in c]
    assert used == [f"transformer{e}.blocks.{i}.attn1" for e in ("", "_2") for i in (0, 1)]
    assert sum(counts[n]["vcattn"] for n in used) == 2 * 2 * 6  # layers x branches x steps
    for layer in attachment.layers:
        if layer.name in used:
            assert set(layer.states) == {0, 1}
            assert all(state.nbytes > 0 for _, state, _ in layer.states.values())
    assert (attachment.clock.step, attachment.clock.steps) == (6, 6)
    # A new generation forgets the old order: the same clip again gives the same bits.
    assert torch.equal(latents_of(pipe, inputs), ours)
    # Another size is another problem, without a complaint.
    latents_of(pipe, inputs | {"height": 64})
    assert torch.equal(latents_of(pipe, inputs), ours)
    vc.disable(pipe)
    assert "step" not in vars(pipe.scheduler) and pipe.scheduler.set_timesteps == set_timesteps
    assert torch.equal(latents_of(pipe, inputs), native)
    assert 0 < error(ours, native) < 1


def test_the_kept_order_is_used_and_policy_false_groups_anew():
    pipe, inputs = tiny.wan(), tiny.wan_inputs(steps=4)
    results = {}
    policies = {
        "fresh": False,
        "every step": vcattn.Policy(steps=4, window=4),
        "first step only": vcattn.Policy(steps=4, window=1, after="reuse"),
    }
    for name, policy in policies.items():
        vc.enable(pipe, min_keys=100, policy=policy)
        results[name] = latents_of(pipe, inputs)
        vc.disable(pipe)
    # The order of the first step is another one than a fresh one's later. Regrouping in every step
    # is a warm start: it keeps the order while that removes enough, and exchanges pairs, so it may
    # end with either.
    assert not torch.equal(results["fresh"], results["first step only"])
    assert not torch.equal(results["fresh"], results["every step"])


def test_grouping_is_passed_on():
    model, inputs = tiny.wan().transformer, wan_model_inputs()
    results = {}
    for grouping in (None, "auto", "identity"):
        vc.enable(model, min_keys=100, grouping=grouping)
        results[grouping] = run_model(model, inputs)
        vc.disable(model)
    assert torch.equal(results[None], results["auto"])
    assert not torch.equal(results["identity"], results["auto"])
    with pytest.raises(ValueError, match="grouping"):
        vc.enable(model, grouping="sorted")


def test_first_steps_stay_native():
    pipe, inputs = tiny.wan(), tiny.wan_inputs(steps=4)
    native = latents_of(pipe, inputs)
    vc.enable(pipe, min_keys=100, first_steps_bf16=4)
    assert torch.equal(latents_of(pipe, inputs), native)
    vc.disable(pipe)
    vc.enable(pipe, min_keys=100, first_steps_bf16=3)
    assert not torch.equal(latents_of(pipe, inputs), native)
    counts = [c for n, c in vc.report(pipe).items() if "attn1" in n]
    total = {key: sum(c.get(key, 0) for c in counts) for key in ("vcattn", "native: first steps")}
    assert total == {"vcattn": 2 * 2, "native: first steps": 2 * 2 * 3}
    vc.disable(pipe)


def test_hunyuan_pipeline_end_to_end_with_exact_arithmetic():
    pipe, inputs = tiny.hunyuan(), tiny.hunyuan_inputs()
    native = latents_of(pipe, inputs)
    vc.enable(pipe, recipe="exact", min_keys=100)
    ours = latents_of(pipe, inputs)
    counts = vc.report(pipe)
    vc.disable(pipe)
    assert all(c == {"vcattn": 2 * 3} for n, c in counts.items() if "refiner" not in n)
    # Guidance multiplies the difference of two branches by 6; three steps.
    assert error(ours, native) < 3 * 2 * 6 * FP32_CHAIN


def test_minimax_h3_modular_pipeline_with_exact_arithmetic_and_kept_orders():
    pipe = tiny.minimax_h3_pipeline()

    def latents():
        return pipe(**tiny.minimax_h3_pipeline_inputs())

    native = latents()
    for recipe, budget in (("exact", 2 * FP32_CHAIN), ("vc8", 2 * 2 * NEAR)):  # two steps, two layers
        vc.enable(pipe, recipe=recipe, min_keys=100)
        ours = latents()
        counts, attachment = vc.report(pipe), vc._attached[pipe]
        assert 0 < error(ours, native) < budget
        assert all(counts[f"transformer.{layer}"] == {"vcattn": 2} for layer in OWN["minimax_h3"])
        assert (attachment.clock.step, attachment.clock.steps) == (2, 2)
        layers = [layer for layer in attachment.layers if "refiner" not in layer.name]
        assert all(set(layer.states) == {0} for layer in layers)  # guidance is distilled: one branch
        assert [kind for _, _, kind in layers[0].segments] == ["text", "text", "video"]
        vc.disable(pipe)
    assert torch.equal(latents(), native)


def test_frames_come_out_of_the_vae():
    pipe = tiny.wan()
    pipe.set_progress_bar_config(disable=True)
    vc.enable(pipe, min_keys=100)
    frames = pipe(**tiny.wan_inputs(steps=2)).frames
    assert frames.shape == (1, tiny.FRAMES, tiny.HEIGHT, tiny.WIDTH, 3) and (frames == frames).all()
