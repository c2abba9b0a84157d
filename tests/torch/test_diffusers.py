# SPDX-License-Identifier: Apache-2.0
"""vcattn.integrations.diffusers on diffusers' own transformers (small, random)."""

import gc

import pytest
import torch
import vcattn

diffusers = pytest.importorskip("diffusers")
from common import NEAR  # noqa: E402
from diffusers.models import attention_dispatch as dispatch  # noqa: E402
from diffusers_models import (  # noqa: E402
    FP32_CHAIN,
    MODELS,
    OWN,
    hunyuan_model_inputs,
    run_model,
    tiny,
    wan_model_inputs,
)
from oracle import error  # noqa: E402
from vcattn.integrations import diffusers as vc  # noqa: E402

diffusers.utils.logging.set_verbosity_error()


@pytest.fixture(params=MODELS)
def case(request):
    make, inputs = MODELS[request.param]
    return request.param, make(), inputs()


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
        {"query": x.expand(2, -1, -1, -1), "key": x, "value": x},  # the native one broadcasts
        {"query": x, "key": x, "value": x[..., :32]},
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


def test_B19_lse_in_the_frameworks_layout_without_context_parallelism_too():
    member = vc.register()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 1100, 2, 64, generator=generator)
    asked = {"return_lse": True}
    out, lse = dispatch.dispatch_attention_fn(x, x, x, attention_kwargs=asked, backend=member)
    want, want_lse = vcattn.attention(x, x, x, layout="NHD", return_lse=True)
    assert torch.equal(out, want) and torch.equal(lse, want_lse.transpose(1, 2))
    assert lse.shape == (1, 1100, 2)
    # Where the call is not ours there is none to give.
    with pytest.raises(vcattn.UnsupportedError, match="no LSE"):
        dispatch.dispatch_attention_fn(x[:, :9], x[:, :9], x[:, :9], attention_kwargs=asked, backend=member)


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
