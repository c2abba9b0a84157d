# SPDX-License-Identifier: Apache-2.0
"""vcattn.integrations.diffusers on diffusers' own transformers and pipelines (small, random)."""

import gc
import sys

import pytest
import torch
import vcattn
from conftest import ROOT

diffusers = pytest.importorskip("diffusers")
sys.path.insert(0, str(ROOT / "examples"))
import tiny_pipelines as tiny  # noqa: E402
from common import NEAR  # noqa: E402
from diffusers.models import attention_dispatch as dispatch  # noqa: E402
from oracle import error  # noqa: E402
from vcattn.integrations import diffusers as vc  # noqa: E402

diffusers.utils.logging.set_verbosity_error()

# The whole chain of a small FP32 model: fewer than 2^11 dependent roundings of 2^-24 each.
FP32_CHAIN = 2.0**-13


def run_model(model, inputs):
    with torch.no_grad():
        out = model(**inputs, return_dict=False)
    return torch.cat([x.flatten() for x in out])


def wan_model_inputs(batch=1):
    generator = torch.Generator().manual_seed(3)
    return {
        "hidden_states": torch.randn(batch, 16, 3, 16, 12, generator=generator),
        "timestep": torch.full((batch,), 500),
        "encoder_hidden_states": torch.randn(batch, 24, 32, generator=generator),
    }


def hunyuan_model_inputs():
    generator = torch.Generator().manual_seed(3)
    masks = [(torch.arange(n)[None] < torch.tensor([[a], [b]])).long()
             for n, a, b in ((40, 17, 3), (20, 9, 0))]
    return {
        "hidden_states": torch.randn(2, 65, 3, 12, 12, generator=generator),
        "timestep": torch.full((2,), 500.0),
        "encoder_hidden_states": torch.randn(2, 40, 32, generator=generator),
        "encoder_attention_mask": masks[0],
        "encoder_hidden_states_2": torch.randn(2, 20, 24, generator=generator),
        "encoder_attention_mask_2": masks[1],
        "image_embeds": torch.zeros(2, 11, 16),
    }


MODELS = {
    "wan": (lambda: tiny.wan().transformer, wan_model_inputs),
    "hunyuan": (lambda: tiny.hunyuan().transformer, hunyuan_model_inputs),
    "minimax_h3": (tiny.minimax_h3, tiny.minimax_h3_inputs),
}


@pytest.fixture(params=MODELS)
def case(request):
    make, inputs = MODELS[request.param]
    return request.param, make(), inputs()


# The layers of each model that attend to themselves; everything else is cross attention or text.
OWN = {
    "wan": ["blocks.0.attn1", "blocks.1.attn1"],
    "hunyuan": ["transformer_blocks.0.attn", "transformer_blocks.1.attn"],
    "minimax_h3": ["transformer_blocks.0.attn", "transformer_blocks.1.attn"],
}


def test_models_equal_native_with_exact_arithmetic(case):
    """Layout, scale, masks and segments are right: FP64 attention differs by FP32 rounding only."""
    name, model, inputs = case
    native = run_model(model, inputs)
    vc.enable(model, recipe="exact", min_keys=100)
    ours = run_model(model, inputs)
    counts = vc.report(model)
    vc.disable(model)
    assert error(ours, native) < FP32_CHAIN
    assert all(counts[layer] == {"vcattn": 1} for layer in OWN[name]), counts


def test_models_are_near_native_with_vc8(case):
    """Budget: each of the two layers is off by less than NEAR, added up."""
    name, model, inputs = case
    native = run_model(model, inputs)
    vc.enable(model, recipe="vc8", min_keys=100)
    ours = run_model(model, inputs)
    vc.disable(model)
    assert 0 < error(ours, native) < 2 * NEAR


def test_attention_is_bit_equal_to_a_direct_call(case, monkeypatch):
    name, model, inputs = case
    calls = []
    original = vcattn.attention

    def recorded(q, k, v, **options):
        out = original(q, k, v, **options)
        calls.append(([x.clone() for x in (q, k, v)], options, out.clone()))
        return out

    monkeypatch.setattr(vcattn, "attention", recorded)
    vc.enable(model, min_keys=100)
    run_model(model, inputs)
    vc.disable(model)
    monkeypatch.undo()
    assert len(calls) == 2
    for (q, k, v), options, out in calls:
        assert options["layout"] == "NHD" and options["recipe"] == "vc8"
        assert torch.equal(vcattn.attention(q, k, v, **options), out)
    kinds = {"wan": None, "hunyuan": ["video", "text"], "minimax_h3": ["text", "text", "video"]}
    segments = calls[0][1]["segments"]
    assert (segments and [kind for _, _, kind in segments]) == kinds[name]
    assert (calls[0][1]["key_mask"] is not None) == (name == "hunyuan")
    conventions = {"wan": "interleaved", "hunyuan": "interleaved", "minimax_h3": "half"}
    assert all(options["rope"].convention == conventions[name] for _, options, _ in calls)


# ------------------------------------------------------------------------- rotation
def test_rotation_inside_the_call_or_before_it(case):
    """Without fuse_rope the model rotates; both are native's result to FP32 rounding."""
    name, model, inputs = case
    native = run_model(model, inputs)
    results = {}
    for fuse in (True, False):
        vc.enable(model, recipe="exact", min_keys=100, fuse_rope=fuse)
        results[fuse] = run_model(model, inputs)
        vc.disable(model)
    assert not torch.equal(results[True], results[False])
    assert all(error(result, native) < FP32_CHAIN for result in results.values())


def test_a_call_that_goes_native_after_all_is_rotated_then(case, monkeypatch):
    name, model, inputs = case
    native = run_model(model, inputs)
    vc.enable(model, min_keys=100)
    monkeypatch.setattr(vc._backend, "why_native", lambda *call: "test")
    result = run_model(model, inputs)
    counts = vc.report(model)
    vc.disable(model)
    assert all(counts[layer] == {"native: test": 1} for layer in OWN[name])
    assert error(result, native) < FP32_CHAIN


def test_what_stays_native_is_rotated_by_the_model(case):
    name, model, inputs = case
    native = run_model(model, inputs)
    for options in ({"min_keys": 100_000}, {"skip_layers": [0, 1]}):
        vc.enable(model, **{"min_keys": 100} | options)
        assert torch.equal(run_model(model, inputs), native), options
        vc.disable(model)


def test_unknown_angles_are_left_to_the_model():
    model = tiny.wan().transformer
    inputs = wan_model_inputs()
    model.rope.freqs_cos[1] += 1e-3
    native = run_model(model, inputs)
    vc.enable(model, recipe="exact", min_keys=100)
    assert error(run_model(model, inputs), native) < FP32_CHAIN
    assert vc._attached[model].ropes.current is None
    vc.disable(model)


def test_disable_restores_everything(case):
    name, model, inputs = case
    processors = {n: m.processor for n, m in model.named_modules() if hasattr(m, "processor")}
    before = {n: (type(p), dict(vars(p))) for n, p in processors.items()}
    vc.register()
    registered = set(dispatch._AttentionBackendRegistry._backends)
    native = run_model(model, inputs)
    vc.enable(model, min_keys=0)
    with pytest.raises(ValueError, match="enabled already"):
        vc.enable(model)
    vc.disable(model)
    assert {n: (type(p), dict(vars(p))) for n, p in processors.items()} == before
    assert set(dispatch._AttentionBackendRegistry._backends) == registered
    assert not model._forward_pre_hooks
    assert torch.equal(run_model(model, inputs), native)
    for function in (vc.disable, vc.report):
        with pytest.raises(ValueError, match="not enabled"):
            function(model)


def test_nothing_keeps_an_enabled_model_alive():
    import weakref

    model = tiny.minimax_h3()
    alive = weakref.ref(model)
    vc.enable(model)
    del model
    gc.collect()
    assert alive() is None


# ----------------------------------------------------------------- what is native
def test_short_calls_and_cross_attention_stay_native():
    model = tiny.wan().transformer
    vc.enable(model, min_keys=25)
    run_model(model, wan_model_inputs())
    assert vc.report(model) == {
        "blocks.0.attn1": {"vcattn": 1},
        "blocks.0.attn2": {"native: short": 1},
        "blocks.1.attn1": {"vcattn": 1},
        "blocks.1.attn2": {"native: short": 1},
    }
    vc.disable(model)
    vc.enable(model)  # the default is meant for long videos
    native = run_model(model, wan_model_inputs())
    assert all(set(c) == {"native: short"} for c in vc.report(model).values())
    vc.disable(model)
    assert torch.equal(native, run_model(model, wan_model_inputs()))


@pytest.mark.parametrize("skip, left", [([0], [1]), ([-1], [0]), (["blocks.1.*"], [0]), ([0, 1], [])])
def test_skip_layers(skip, left):
    model = tiny.wan().transformer
    vc.enable(model, min_keys=25, skip_layers=skip)
    run_model(model, wan_model_inputs())
    ours = [name for name, counts in vc.report(model).items() if "vcattn" in counts]
    assert ours == [f"blocks.{i}.attn1" for i in left]
    vc.disable(model)
    for wrong in ([2], ["nothing.*"]):
        with pytest.raises(ValueError, match="skip_layers"):
            vc.enable(model, skip_layers=wrong)
    with pytest.raises(ValueError, match="recipe"):
        vc.enable(model, recipe="vc9")
    with pytest.raises(ValueError, match="nothing to enable"):
        vc.enable(object())


def test_calls_that_cannot_be_honoured_go_to_the_native_backend():
    member = vc.register()
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 1100, 1, 160, generator=generator)
    x = q[..., :64]
    float_mask = torch.zeros(1, 1, 1, 1100)
    float_mask[..., 500:] = -1e9
    square = torch.rand(1, 1, 1100, 1100, generator=generator) < 0.5
    for options in (
        {"query": q, "key": q, "value": q},
        {"query": x, "key": x, "value": x, "attn_mask": float_mask},
        {"query": x, "key": x, "value": x, "attn_mask": square},
        {"query": x, "key": x, "value": x, "is_causal": True},
        {"query": x.double(), "key": x.double(), "value": x.double()},
    ):
        got = dispatch.dispatch_attention_fn(**options, backend=member)
        want = dispatch.dispatch_attention_fn(**options, backend=dispatch.AttentionBackendName.NATIVE)
        assert torch.equal(got, want), list(options)
    x = x.clone().requires_grad_()
    dispatch.dispatch_attention_fn(x, x, x, backend=member).sum().backward()
    assert x.grad is not None


def test_B29_key_masks_in_every_shape_diffusers_knows():
    member = vc.register()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 1100, 2, 64, generator=generator)
    mask = torch.arange(1100)[None] < torch.tensor([[37], [900]])
    want = vcattn.attention(x, x, x, layout="NHD", key_mask=mask)
    for form in (
        mask[:, None, None],
        mask[:, None, None].expand(2, 2, 1100, 1100),
        mask[:, None].expand(2, 1100, 1100),
    ):
        assert torch.equal(dispatch.dispatch_attention_fn(x, x, x, form, backend=member), want)
    one = dispatch.dispatch_attention_fn(x, x, x, mask[:1].expand(1100, 1100), backend=member)
    assert torch.equal(one, vcattn.attention(x, x, x, layout="NHD", key_mask=mask[:1]))


def test_set_attention_backend_by_name():
    model = tiny.wan().transformer
    vc.register()
    vc.register()
    assert [x.value for x in dispatch.AttentionBackendName].count("vcattn") == 1
    assert dispatch.AttentionBackendName("vcattn").name == "VCATTN"
    active = dispatch._AttentionBackendRegistry._active_backend
    try:
        model.set_attention_backend("vcattn")
        inputs = wan_model_inputs() | {"hidden_states": torch.randn(1, 16, 5, 32, 28)}
        ours = run_model(model, inputs)  # 1120 tokens: above the default of min_keys
        assert vcattn.last_receipt().shape == (1, 2, 2, 1120, 1120, 64)
        model.set_attention_backend("native")
        assert 0 < error(ours, run_model(model, inputs)) < 2 * NEAR
    finally:
        dispatch._AttentionBackendRegistry.set_active_backend(active)


def test_B39_backend_of_a_single_module_is_loaded_when_it_is_set(monkeypatch):
    model = tiny.wan().transformer
    inputs = wan_model_inputs() | {"hidden_states": torch.randn(1, 16, 5, 32, 28)}
    native = run_model(model, inputs)
    vc.register()
    model.blocks[1].attn1.set_attention_backend("vcattn")
    ours = run_model(model, inputs)
    assert vcattn.last_receipt().shape[3] == 1120 and 0 < error(ours, native) < NEAR
    # A library that is not there is missed at once, by whoever plugs us in.
    from vcattn import _capi

    monkeypatch.setenv("VCATTN_LIBRARY", "/nowhere.so")
    _capi.lib.cache_clear()
    try:
        for plug_in in (vc.register, lambda: vc.enable(tiny.wan().transformer)):
            with pytest.raises(vcattn.LibraryNotFoundError, match="/nowhere.so"):
                plug_in()
    finally:
        _capi.lib.cache_clear()


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """Bytes of the largest memory behind any result."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
        return out


def test_hunyuan_never_makes_a_mask_of_queries_times_keys():
    model = tiny.hunyuan().transformer
    inputs = hunyuan_model_inputs() | {"hidden_states": torch.randn(2, 65, 3, 40, 40)}
    tokens = 3 * 40 * 40 + 40 + 20 + 11
    square = 2 * tokens * tokens
    with Largest() as native:
        run_model(model, inputs)
    vc.enable(model, recipe="vc8", min_keys=100)
    with Largest() as ours:
        run_model(model, inputs)
    vc.disable(model)
    assert native.bytes >= square > ours.bytes


# ------------------------------------------------------------------- pipelines
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
