# SPDX-License-Identifier: Apache-2.0
"""vcattn.integrations.diffusers when things happen while it is enabled: other backends, schedulers and
targets, copies, exceptions, threads; and arguments of the wrong kind."""

import copy
import gc
import inspect
import pickle
import threading
import weakref

import pytest
import torch
import vcattn

diffusers = pytest.importorskip("diffusers")
from diffusers.models import attention_dispatch as dispatch  # noqa: E402
from diffusers_models import FP32_CHAIN, MODELS, run_model, tiny, wan_model_inputs  # noqa: E402
from oracle import error  # noqa: E402
from test_diffusers_pipelines import latents_of  # noqa: E402
from vcattn.integrations import diffusers as vc  # noqa: E402
from vcattn.integrations.diffusers._clock import MAX_BRANCHES  # noqa: E402

diffusers.utils.logging.set_verbosity_error()
Registry = dispatch._AttentionBackendRegistry


@pytest.fixture
def wan():
    """(pipeline, latents() of it, native latents, ours)"""
    pipe, inputs = tiny.wan(), tiny.wan_inputs(steps=3)

    def latents(**more):
        return latents_of(pipe, inputs | more)

    native = latents()
    vc.enable(pipe, min_keys=100)
    ours = latents()
    vc.disable(pipe)
    assert 0 < error(ours, native) < 1
    return pipe, latents, native, ours


# ------------------------------------------------------------------- two targets
def test_a_model_of_an_enabled_pipeline_is_not_enabled_again(wan):
    pipe, latents, native, ours = wan
    vc.enable(pipe, min_keys=100)
    with pytest.raises(ValueError, match="enabled already, by another target"):
        vc.enable(pipe.transformer, min_keys=100)
    with pytest.raises(ValueError, match="not enabled"):
        vc.disable(pipe.transformer)
    assert torch.equal(latents(), ours)
    vc.disable(pipe)
    assert torch.equal(latents(), native)
    vc.enable(pipe.transformer, min_keys=100)
    with pytest.raises(ValueError, match="enabled already, by another target"):
        vc.enable(pipe, min_keys=100)
    vc.disable(pipe.transformer)
    assert torch.equal(latents(), native)


def test_two_pipelines_with_one_scheduler_are_told_both_and_leave_in_any_order(wan):
    pipe, latents, native, ours = wan
    other = tiny.wan()
    other.scheduler = pipe.scheduler
    cls = type(pipe.scheduler)
    vc.enable(pipe, min_keys=100)
    vc.enable(other, min_keys=100)
    assert torch.equal(latents(), ours)
    assert [vc._attached[p].clock.step for p in (pipe, other)] == [3, 3]
    vc.disable(pipe)
    assert type(pipe.scheduler) is not cls and torch.equal(latents(), native)
    vc.disable(other)
    assert type(pipe.scheduler) is cls and "_vcattn_clocks" not in vars(pipe.scheduler)


def test_two_pipelines_in_two_threads(wan):
    pipe, latents, _, ours = wan
    others = [tiny.wan() for _ in range(2)]
    results = [None, None]

    def generate(i):
        results[i] = latents_of(others[i], tiny.wan_inputs(steps=3))

    for other in others:
        vc.enable(other, min_keys=100)
    threads = [threading.Thread(target=generate, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for other in others:
        vc.disable(other)
    assert all(torch.equal(result, ours) for result in results)


# ------------------------------------------------------------ exceptions in between
class Interrupted(Exception):
    pass


def interrupt(*_, **__):
    raise Interrupted


def test_the_next_generation_after_an_exception_is_as_ever(wan, monkeypatch):
    pipe, latents, native, ours = wan
    vc.enable(pipe, min_keys=100)

    def after_a_step(pipe, step, timestep, inputs):
        return interrupt() if step == 1 else inputs

    with pytest.raises(Interrupted):
        latents(callback_on_step_end=after_a_step)
    assert torch.equal(latents(), ours)
    hook = pipe.transformer.blocks[1].register_forward_pre_hook(interrupt)
    with pytest.raises(Interrupted):
        latents()
    hook.remove()
    assert torch.equal(latents(), ours)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(vcattn, "attention", interrupt)
        latents()
    assert torch.equal(latents(), ours)
    vc.disable(pipe)
    assert torch.equal(latents(), native)


def test_enable_that_fails_half_way_leaves_nothing(wan, monkeypatch):
    pipe, latents, native, _ = wan
    vc.register()
    before = set(Registry._backends)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(vc._models, "follow_layout", interrupt)
        vc.enable(pipe, min_keys=100)
    assert set(Registry._backends) == before and torch.equal(latents(), native)
    vc.enable(pipe, min_keys=100)
    vc.disable(pipe)


# ------------------------------------------------------------------ other backends
@pytest.mark.parametrize("name", MODELS)
def test_another_backend_set_meanwhile_gets_rotated_queries(name):
    """Whoever sets another backend on an enabled model gets that, with the rotation that was left to us."""
    make, inputs = MODELS[name]
    model, inputs = make(), inputs()
    native = run_model(model, inputs)
    active = Registry._active_backend
    try:
        vc.enable(model, min_keys=100)
        model.set_attention_backend("_native_math" if name == "hunyuan" else "native")
        got = run_model(model, inputs)
        vc.disable(model)
        assert error(got, native) < FP32_CHAIN
        vc.enable(model, min_keys=100)
        model.reset_attention_backend()
        assert error(run_model(model, inputs), native) < FP32_CHAIN
        vc.disable(model)
    finally:
        Registry.set_active_backend(active)
    assert error(run_model(model, inputs), native) < FP32_CHAIN


def test_native_stays_native_where_vcattn_was_set_by_name_before():
    model, inputs = tiny.wan().transformer, wan_model_inputs()
    inputs = inputs | {"hidden_states": torch.randn(1, 16, 5, 32, 28)}  # 1120 tokens
    native = run_model(model, inputs)
    active = Registry._active_backend
    try:
        vc.register()
        model.set_attention_backend("vcattn")
        vc.enable(model, min_keys=100_000)
        assert torch.equal(run_model(model, inputs), native)
        vc.disable(model)
    finally:
        Registry.set_active_backend(active)


def test_one_processor_object_for_all_layers():
    from diffusers.models.transformers.transformer_wan import WanAttnProcessor

    model, inputs = tiny.wan().transformer, wan_model_inputs()
    native = run_model(model, inputs)
    shared = WanAttnProcessor()
    for block in model.blocks:
        block.attn1.processor = block.attn2.processor = shared
    vc.enable(model, recipe="exact", min_keys=100, skip_layers=[1])
    ours = run_model(model, inputs)
    counts = vc.report(model)
    vc.disable(model)
    assert counts["blocks.0.attn1"] == {"vcattn": 1} and "blocks.1.attn1" not in counts
    assert 0 < error(ours, native) < FP32_CHAIN
    assert all(b.attn1.processor is shared and b.attn2.processor is shared for b in model.blocks)
    assert type(shared) is WanAttnProcessor and torch.equal(run_model(model, inputs), native)


# --------------------------------------------------------------- schedulers and copies
def test_another_scheduler_is_followed_from_its_first_step_on(wan):
    pipe, latents, native, ours = wan
    first = pipe.scheduler
    vc.enable(pipe, min_keys=100)
    latents()
    pipe.scheduler = type(first).from_config(first.config)
    assert torch.equal(latents(), ours)
    assert vc._attached[pipe].clock.step == 3 and not hasattr(type(first), "_vcattn_original")
    vc.disable(pipe)
    assert torch.equal(latents(), native)
    assert not hasattr(type(pipe.scheduler), "_vcattn_original")


def test_a_copy_of_a_followed_scheduler_is_a_scheduler_of_its_own(wan):
    """Pipelines with sound copy the scheduler for the second stream."""
    pipe, latents, _, ours = wan
    cls, signature = type(pipe.scheduler), inspect.signature(pipe.scheduler.step)
    vc.enable(pipe, min_keys=100)
    latents()
    assert inspect.signature(pipe.scheduler.step) == signature
    assert isinstance(pipe.scheduler, cls) and pipe.scheduler.__class__.__name__ == cls.__name__
    clock = vc._attached[pipe].clock
    for other in (copy.deepcopy(pipe.scheduler), copy.copy(pipe.scheduler), pickle.loads(pickle.dumps(pipe.scheduler))):
        assert type(other) is cls
        other.set_timesteps(7)
        assert len(other.timesteps) == 7 and len(pipe.scheduler.timesteps) == 3
        assert (clock.step, clock.steps) == (3, 3)
    assert torch.equal(latents(), ours)
    vc.disable(pipe)


def test_a_copy_of_an_enabled_model_is_not_enabled(wan):
    model, inputs = tiny.wan().transformer, wan_model_inputs()
    native = run_model(model, inputs)
    vc.enable(model, min_keys=100)
    ours = run_model(model, inputs)
    twin = copy.deepcopy(model)
    assert torch.equal(run_model(twin, inputs), native) and torch.equal(run_model(model, inputs), ours)
    vc.disable(model)
    assert torch.equal(run_model(twin, inputs), native)
    vc.enable(twin, min_keys=100)
    assert torch.equal(run_model(twin, inputs), ours)
    vc.disable(twin)


def test_states_do_not_pile_up_when_nobody_tells_the_steps(wan):
    """The model alone, after an interrupted generation: calls are no guidance branches then."""
    pipe, latents, _, _ = wan
    vc.enable(pipe, min_keys=100)
    pipe.scheduler.set_timesteps(3)
    inputs = wan_model_inputs()
    for _ in range(40):
        run_model(pipe.transformer, inputs)
    limit = MAX_BRANCHES
    assert all(len(layer.states) <= limit for layer in vc._attached[pipe].layers)
    vc.disable(pipe)


def test_an_enabled_pipeline_that_goes_away_leaves_no_entry_and_no_state():
    vc.register()
    gc.collect()  # of other tests
    before = set(Registry._backends)
    pipe = tiny.wan()
    scheduler, cls = pipe.scheduler, type(pipe.scheduler)
    vc.enable(pipe, min_keys=100)
    assert set(Registry._backends) != before
    del pipe
    gc.collect()
    assert set(Registry._backends) == before
    # The scheduler, kept elsewhere, works on and can be followed by others.
    scheduler.set_timesteps(4)
    other = tiny.wan()
    other.scheduler = scheduler
    vc.enable(other, min_keys=100)
    scheduler.set_timesteps(4)
    assert vc._attached[other].clock.steps == 4
    vc.disable(other)
    assert isinstance(scheduler, cls)


def test_disable_gives_the_orders_memory_back_at_once(wan):
    pipe, latents, _, _ = wan
    gc.collect()
    gc.disable()
    try:
        vc.enable(pipe, min_keys=100)
        latents()
        layers = vc._attached[pipe].layers
        buffers = [weakref.ref(s[1]._buffer) for layer in layers for s in layer.states.values()]
        assert buffers and all(buffer() is not None for buffer in buffers)
        del layers
        vc.disable(pipe)
        assert all(buffer() is None for buffer in buffers)
    finally:
        gc.enable()


def test_a_compiled_model_is_enabled_by_its_wrapper():
    model, inputs = tiny.wan().transformer, wan_model_inputs()
    wrapper = torch.compile(model, backend="eager")
    vc.enable(wrapper, recipe="exact", min_keys=100)
    with torch.no_grad():
        ours = wrapper(**inputs, return_dict=False)[0]
    vc.disable(wrapper)
    native = run_model(model, inputs)
    assert error(ours.flatten(), native) < FP32_CHAIN


# ----------------------------------------------------------------------- arguments
@pytest.mark.parametrize("options, word", [
    ({"recipe": None}, "recipe"), ({"recipe": 3}, "recipe"), ({"recipe": "vc8\0"}, "recipe"),
    ({"grouping": 3}, "grouping"), ({"policy": "x"}, "policy"), ({"policy": {"steps": 4}}, "policy"),
    ({"skip_layers": "0"}, "skip_layers"), ({"skip_layers": 0}, "skip_layers"), ({"skip_layers": None}, "skip_layers"),
    ({"skip_layers": [0.5]}, "skip_layers"), ({"skip_layers": [True]}, "skip_layers"),
    ({"first_steps_bf16": -1}, "first_steps_bf16"), ({"first_steps_bf16": "1"}, "first_steps_bf16"),
    ({"first_steps_bf16": 1.5}, "first_steps_bf16"), ({"min_keys": "1"}, "min_keys"), ({"min_keys": -1}, "min_keys"),
])  # fmt: skip
def test_arguments_of_the_wrong_kind_are_refused(options, word):
    model = tiny.minimax_h3()
    with pytest.raises(vcattn.InvalidArgumentError, match=word):
        vc.enable(model, **options)
    with pytest.raises(vcattn.InvalidArgumentError, match="not enabled"):
        vc.disable(model)


@pytest.mark.parametrize("target", [None, 3, {}, torch.nn.Linear(2, 2), diffusers.WanPipeline])
def test_targets_of_the_wrong_kind_are_refused(target):
    for function in (vc.enable, vc.disable, vc.report):
        with pytest.raises(vcattn.InvalidArgumentError):
            function(target)
