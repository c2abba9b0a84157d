# SPDX-License-Identifier: Apache-2.0
"""The ComfyUI node and its override, against the contract of ComfyUI's attention module.

The contract is recorded here as a small stand-in (what a wrapped function does with an override, in
v0.35). With COMFYUI_PATH set to a ComfyUI checkout, the same calls also run through its own module.
"""

import functools
import os
import sys
import types
import weakref

import pytest
import torch
import vcattn
from common import NEAR, random_qkv
from conftest import ROOT
from oracle import error
from vcattn import _capi as capi
from vcattn.integrations.comfyui import AttentionOverride

sys.path.insert(0, str(ROOT / "integrations"))
from comfyui import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS  # noqa: E402
from comfyui.nodes import parse_layers  # noqa: E402


# ------------------------------------------------------------------ the stand-in
class Container:
    def __init__(self, tensor):
        self.tensor = tensor

    def peek(self):
        assert self.tensor is not None, "consumed"
        return self.tensor

    def take(self):
        tensor, self.tensor = self.peek(), None
        return tensor


def wrapped(func):
    """Overrides are looked up in the outermost call only; containers go to container_function."""

    @functools.wraps(func)
    def entry(*args, **kwargs):
        held = isinstance(args[0], Container)
        override = (kwargs.get("transformer_options") or {}).get("optimized_attention_override")
        outermost = "_inside_attn_wrapper" not in kwargs
        kwargs = kwargs | {"_inside_attn_wrapper": True}
        if outermost and override is not None and held and hasattr(override, "container_function"):
            return override.container_function(*args, **kwargs)
        if held:
            args = (*(c.take() for c in args[:3]), *args[3:])
        if outermost and override is not None:
            return override(func, *args, **kwargs)
        return func(*args, **kwargs)

    return entry


def sdpa(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False,
         skip_output_reshape=False, **kwargs):
    """ComfyUI's own attention: [B, S, H*D], or [B, H, S, D] with the skip flags."""
    if not skip_reshape:
        q, k, v = (x.unflatten(-1, (-1, q.shape[-1] // heads)).transpose(1, 2) for x in (q, k, v))
    if mask is not None:
        mask = mask[None] if mask.ndim == 2 else mask
        mask = mask[:, None] if mask.ndim == 3 else mask
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=kwargs.get("scale"), enable_gqa=q.shape[1] != k.shape[1]
    )
    return out if skip_output_reshape else out.transpose(1, 2).flatten(2)


def real_module():
    sys.path.insert(0, os.environ["COMFYUI_PATH"])
    from comfy.cli_args import args

    args.cpu = not torch.cuda.is_available()
    from comfy.ldm.modules import attention

    return attention.attention_pytorch


ENTRIES = {"recorded": lambda: wrapped(sdpa)}
if os.environ.get("COMFYUI_PATH"):
    ENTRIES["real"] = real_module


@pytest.fixture(params=ENTRIES)
def attend(request):
    return ENTRIES[request.param]()


def flat(x):
    return x.transpose(1, 2).flatten(2)


OPTIONS = {"min_keys": 100, "recipe": "vc8"}


# ------------------------------------------------------------------------- calls
def test_every_shape_of_call(attend):
    q, k, v = random_qkv((2, 4, 150, 64), dtype=torch.float32)
    override = AttentionOverride(**OPTIONS)
    transformer_options = {"optimized_attention_override": override}
    want = vcattn.attention(q, k, v, recipe="vc8")
    with torch.no_grad():
        for reshape in (False, True):
            given = (q, k, v) if reshape else [flat(x) for x in (q, k, v)]
            for out_reshape in (False, True):
                got = attend(*given, 4, skip_reshape=reshape, skip_output_reshape=out_reshape,
                             transformer_options=transformer_options)
                assert torch.equal(got, want if out_reshape else flat(want))
                native = attend(*given, 4, skip_reshape=reshape, skip_output_reshape=out_reshape)
                assert got.shape == native.shape and error(got, native) < NEAR
    assert override.counts == {"vcattn": 4}


def test_fused_views_with_large_token_stride_are_not_copied():
    """MiniMax-H3 in ComfyUI: heads-first views of one [S, 3 * H * D] buffer."""
    fused = torch.randn(150, 3, 4, 64, generator=torch.Generator().manual_seed(0))
    q, k, v = (x.transpose(0, 1)[None] for x in fused.unbind(1))
    assert q.stride(2) == 3 * 4 * 64
    override = AttentionOverride(**OPTIONS)
    got = wrapped(sdpa)(q, k, v, 4, skip_reshape=True, skip_output_reshape=True,
                        transformer_options={"optimized_attention_override": override})
    assert torch.equal(got, vcattn.attention(*(x.contiguous() for x in (q, k, v)), recipe="vc8"))


def test_gqa_and_scale():
    q, k, v = random_qkv((1, 4, 150, 64), (1, 2, 150, 64), dtype=torch.float32)
    options = {"optimized_attention_override": AttentionOverride(**OPTIONS)}
    got = wrapped(sdpa)(*(flat(x) for x in (q, k, v)), 4, scale=0.3, enable_gqa=True,
                        skip_output_reshape=True, transformer_options=options)
    assert torch.equal(got, vcattn.attention(q, k, v, recipe="vc8", scale=0.3))


NATIVE = {
    "full precision asked for": {"low_precision_attention": False},
    "short": {"keys": 99},
    "head_dim or heads": {"head_dim": 160},
    "mask": {"mask": torch.zeros(150, 150)},
    "dtype": {"dtype": torch.float64},
}


@pytest.mark.parametrize("reason", NATIVE)
def test_what_is_not_ours_is_comfyuis_own_answer(attend, reason):
    case = dict(NATIVE[reason])
    head_dim, keys = case.pop("head_dim", 64), case.pop("keys", 150)
    dtype = case.pop("dtype", torch.float32)
    q, k, v = random_qkv((1, 2, 150, head_dim), (1, 2, keys, head_dim), dtype=dtype)
    override = AttentionOverride(**OPTIONS)
    with torch.no_grad():
        got = attend(*(flat(x) for x in (q, k, v)), 2, **case,
                     transformer_options={"optimized_attention_override": override})
        case.pop("low_precision_attention", None)
        assert torch.equal(got, attend(*(flat(x) for x in (q, k, v)), 2, **case))
    assert override.counts == {f"comfyui: {reason}": 1}


def test_attn_precision_fp32_is_full_precision():
    q, k, v = (flat(x) for x in random_qkv((1, 2, 150, 64), dtype=torch.float32))
    override = AttentionOverride(**OPTIONS)
    wrapped(sdpa)(q, k, v, 2, None, torch.float32,
                  transformer_options={"optimized_attention_override": override})
    assert override.counts == {"comfyui: full precision asked for": 1}


def test_B29_key_masks_are_honoured():
    q, k, v = random_qkv((2, 2, 150, 64), dtype=torch.float32)
    mask = torch.arange(150)[None, None, None] < torch.tensor([37, 150])[:, None, None, None]
    override = AttentionOverride(**OPTIONS)
    got = wrapped(sdpa)(q, k, v, 2, mask, skip_reshape=True, skip_output_reshape=True,
                        transformer_options={"optimized_attention_override": override})
    assert override.counts == {"vcattn": 1}
    assert torch.equal(got, vcattn.attention(q, k, v, recipe="vc8", kv_lens=[37, 150]))


# -------------------------------------------------------------------- containers
def test_containers_free_their_tensors_before_the_output_is_made(monkeypatch):
    tensors = [flat(x) for x in random_qkv((1, 2, 300, 64), dtype=torch.float32)]
    want = AttentionOverride(**OPTIONS)(None, *tensors, 2)
    alive = [weakref.ref(x.untyped_storage()) for x in tensors]
    held = [Container(x) for x in tensors]
    del tensors
    seen = []
    original = capi.attend

    def attend(*args):
        seen.append([ref() is None for ref in alive])
        original(*args)

    monkeypatch.setattr(capi, "attend", attend)
    override = AttentionOverride(**OPTIONS)
    got = wrapped(sdpa)(*held, 2, transformer_options={"optimized_attention_override": override})
    assert torch.equal(got, want) and override.counts == {"vcattn": 1}
    assert seen == [[True] * 3] and all(c.tensor is None for c in held)


def test_containers_that_are_not_ours_go_to_comfyuis_own(monkeypatch):
    module = types.ModuleType("comfy.ldm.modules.attention")
    module.optimized_attention = wrapped(sdpa)
    packages = ["comfy", "comfy.ldm", "comfy.ldm.modules"]
    for name in packages:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    sys.modules["comfy.ldm.modules"].attention = module
    tensors = [flat(x) for x in random_qkv((1, 2, 60, 64), dtype=torch.float32)]
    override = AttentionOverride(**OPTIONS)
    got = wrapped(sdpa)(*(Container(x) for x in tensors), 2,
                        transformer_options={"optimized_attention_override": override})
    assert override.counts == {"comfyui: short": 1}
    assert torch.equal(got, sdpa(*tensors, 2))


# ------------------------------------------------------------------ steps, layers
def sampler_calls(override, steps=4, layers=2, values=None, q_seed=0):
    """What a sampler and a model do: sigmas down, two branches, layers in order."""
    sigmas = torch.linspace(1, 0, steps + 1)
    outs = []
    for step in range(steps):
        for branch in ([0], [1]):
            options = {
                "optimized_attention_override": override, "sample_sigmas": sigmas,
                "sigmas": sigmas[step : step + 1].clone(), "cond_or_uncond": branch,
                "total_blocks": layers, "block_type": "double",
            }  # fmt: skip
            for layer in range(layers):
                options["block_index"] = layer
                x = random_qkv((1, 1, 300, 64), dtype=torch.float32, seed=100 * step + layer)
                outs.append(wrapped(sdpa)(*(flat(t) for t in x), 1, transformer_options=options))
    return outs


def test_first_steps_and_skipped_layers_stay_with_comfyui():
    override = AttentionOverride(**OPTIONS, first_steps=1, skip_layers=[-1])
    sampler_calls(override)
    assert override.counts == {
        "comfyui: first steps": 4, "comfyui: skipped layer": 6, "vcattn": 6
    }  # fmt: skip


def test_order_is_kept_over_steps_per_layer_and_branch_and_forgotten_by_the_next_run():
    kept = AttentionOverride(**OPTIONS, window=1)
    first = sampler_calls(kept)
    assert len(kept._states) == 2 * 2
    again = sampler_calls(kept)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    fresh = sampler_calls(AttentionOverride(**OPTIONS, window=-1))
    assert all(torch.equal(a, b) for a, b in zip(first[:4], fresh[:4]))  # step 0 forms an order
    assert not all(torch.equal(a, b) for a, b in zip(first[4:], fresh[4:]))


# ------------------------------------------------------------------------- node
class Model:
    """ComfyUI's ModelPatcher as far as a node sees it."""

    def __init__(self, model_options):
        self.model_options = model_options

    def clone(self):
        return Model(dict(self.model_options))  # shallow: the inner dictionary is shared


def test_node_patches_a_clone_only():
    assert NODE_DISPLAY_NAME_MAPPINGS == {"VCAttention": "VC-Attention"}
    node = NODE_CLASS_MAPPINGS["VCAttention"]()
    inputs = node.INPUT_TYPES()["required"]
    defaults = {k: v[1]["default"] for k, v in inputs.items() if k != "model"}
    original = Model({"transformer_options": {"kept": 1}})
    (patched,) = getattr(node, node.FUNCTION)(original, **defaults)
    assert original.model_options == {"transformer_options": {"kept": 1}}
    options = patched.model_options["transformer_options"]
    assert options["kept"] == 1
    assert isinstance(options["optimized_attention_override"], AttentionOverride)
    assert set(inputs) - {"model"} == {"recipe", "window", "skip_layers", "first_steps"}
    for recipe in inputs["recipe"][0]:
        capi.parse_recipe(recipe)
    with pytest.raises(ValueError, match="vc9"):
        AttentionOverride(recipe="vc9")


def test_layers_are_numbers_and_ranges():
    assert parse_layers("0, 1, 38-39,-1") == [0, 1, 38, 39, -1]
    assert parse_layers(" ") == []
    for wrong in ("x", "1-", "2-b"):
        with pytest.raises(ValueError, match="skip_layers"):
            parse_layers(wrong)
