# SPDX-License-Identifier: Apache-2.0
"""Streams, graphs, devices and memory: what only a CUDA device can show (skipped elsewhere)."""

import sys

import pytest
import torch
import vcattn
from common import assert_near, random_qkv
from conftest import ROOT, has_kernels

SHAPE = (1, 4, 1000, 128)


def busy(stream: torch.cuda.Stream) -> None:
    """Keeps a stream at work for some milliseconds without the host waiting."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)


def test_B12_side_stream_orders_producer_and_attention(cuda):
    source = random_qkv(SHAPE, device=cuda)
    want = vcattn.attention(*source)
    q, k, v = (torch.zeros_like(x) for x in source)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    for _ in range(10):
        for x in (q, k, v):
            x.zero_()
        torch.cuda.synchronize()
        busy(side)
        with torch.cuda.stream(side):
            for x, y in zip((q, k, v), source):
                x.copy_(y)
            out = vcattn.attention(q, k, v)
        side.synchronize()
        assert torch.equal(out, want)


def test_B12_attention_does_not_wait_for_the_device(cuda):
    q, k, v = random_qkv(SHAPE, device=cuda)
    vcattn.attention(q, k, v)
    torch.cuda.synchronize()
    stream = torch.cuda.current_stream()
    busy(stream)
    vcattn.attention(q, k, v)
    assert not stream.query()  # the call came back while the sleep before it still ran
    torch.cuda.synchronize()


def test_B12_B13_graph_replays_with_new_data(cuda):
    q, k, v = random_qkv(SHAPE, device=cuda)
    lens = torch.tensor([1000], dtype=torch.int32, device=cuda)
    vcattn.attention(q, k, v, kv_lens=lens)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = vcattn.attention(q, k, v, kv_lens=lens, return_lse=True)
    v.fill_(2)  # captured with another V
    graph.replay()
    torch.cuda.synchronize()
    assert (out == 2).all()
    for replay in range(50):
        for x, y in zip((q, k, v), random_qkv(SHAPE, device=cuda, seed=replay)):
            x.copy_(y)
        lens.fill_(1000 - replay)
        graph.replay()
        got, got_lse = out.clone(), lse.clone()
        want, want_lse = vcattn.attention(q, k, v, kv_lens=lens, return_lse=True)
        assert torch.equal(got, want) and torch.equal(got_lse, want_lse), replay


def test_graph_of_a_compiled_model(cuda):
    @torch.compile(mode="reduce-overhead", fullgraph=True)
    def block(q, k, v):
        return vcattn.attention(q, k, v) * 2

    for seed in range(5):
        q, k, v = random_qkv(SHAPE, device=cuda, seed=seed)
        got = block(q, k, v).clone()
        assert torch.equal(got, vcattn.attention(q, k, v) * 2)


def test_B14_another_device_than_the_current_one(cuda):
    if not has_kernels(1):
        pytest.skip("one device only")
    q, k, v = random_qkv((1, 10, 2904, 128), device="cuda:1")
    assert torch.cuda.current_device() == 0
    out = vcattn.attention(q, k, v, layout="HND")
    assert out.device.index == 1 and torch.cuda.current_device() == 0
    assert_near(out, q, k, v)
    with pytest.raises(ValueError, match="k is not where q is"):
        vcattn.attention(q, k.to("cuda:0"), v)


def test_B16_poisoned_output_memory_is_overwritten(cuda):
    q, k, v = random_qkv(SHAPE, device=cuda)
    v.fill_(1)
    for _ in range(3):
        pool = [torch.full(SHAPE, 12345.0, dtype=q.dtype, device=cuda) for _ in range(4)]
        del pool
        assert (vcattn.attention(q, k, v) == 1).all()


def test_same_bits_in_every_run(cuda):
    q, k, v = random_qkv(SHAPE, device=cuda)
    want = vcattn.attention(q, k, v)
    assert all(torch.equal(vcattn.attention(q, k, v), want) for _ in range(100))


def test_device_and_specification_agree_on_rows(cuda):
    """A row of the device's output against the CPU's run of the sm_90 specification."""
    import ctypes

    from vcattn import _capi as capi

    q, k, v = random_qkv((1, 2, 300, 128), device=cuda)
    out = vcattn.attention(q, k, v, recipe="vc8", grouping="identity",
                           out=torch.empty(q.shape, device=cuda)).cpu()
    desc = capi.AttnDesc(recipe=capi.Recipe.VC8, grouping=capi.Grouping.IDENTITY)
    host = [x.cpu() for x in (q, k, v)]
    for name, x in zip("qkv", host):
        setattr(desc, name, capi.tensor(x.data_ptr(), capi.Dtype.BF16, x.shape, x.stride()))
    rows = torch.empty(7, 128)
    io = capi.RefIo(o=ctypes.c_void_p(rows.data_ptr()))
    capi.ref_attn(desc, capi.Target.SM90, 0, 1, 250, 7, io)
    assert torch.equal(rows, out[0, 1, 250:257])


def test_workspace_is_given_back_and_is_what_the_receipt_says(cuda):
    q, k, v = random_qkv((1, 8, 8192, 128), device=cuda)
    out = torch.empty_like(q)
    vcattn.attention(q, k, v, out=out)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    vcattn.attention(q, k, v, out=out)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
    used = torch.cuda.max_memory_allocated() - before
    # torch's allocator rounds a block up to 512 bytes.
    assert 0 <= used - vcattn.last_receipt().workspace_bytes < 512


def test_group_state_lives_on_the_device_and_keeps_the_order(cuda):
    q, k, v = random_qkv((1, 2, 1024, 128), device=cuda)
    other = random_qkv((1, 2, 1024, 128), device=cuda, seed=9)[2]
    policy = vcattn.Policy(steps=4, window=1, after="reuse")
    state = vcattn.GroupState()
    first = vcattn.attention(q, k, v, state=state, step=0, policy=policy)
    assert torch.equal(first, vcattn.attention(q, k, v)) and "CUDA device 0" in repr(state)
    kept = vcattn.attention(q, k, other, state=state, step=1, policy=policy)
    assert not torch.equal(kept, vcattn.attention(q, k, other))  # another order than a fresh one
    assert_near(kept, q, k, other)
    # The step is a number on the device: one graph serves all steps.
    step = torch.ones(1, dtype=torch.int32, device=cuda)
    vcattn.attention(q, k, other, state=state, step=step, policy=policy)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = vcattn.attention(q, k, other, state=state, step=step, policy=policy)
    step.fill_(2)
    graph.replay()
    assert torch.equal(out, kept)
    state.reset()
    step.fill_(0)
    graph.replay()
    assert torch.equal(out, vcattn.attention(q, k, other))


def test_state_and_tensors_on_different_devices_are_refused(cuda):
    q, k, v = random_qkv((1, 2, 256, 128))
    state = vcattn.GroupState()
    vcattn.attention(q, k, v, state=state, step=0)
    with pytest.raises(vcattn.StateError, match="lives on device cpu and the tensors on cuda:0"):
        vcattn.attention(*(x.to(cuda) for x in (q, k, v)), state=state, step=0)


@pytest.fixture
def wan_on_the_device(cuda):
    diffusers = pytest.importorskip("diffusers")
    sys.path.insert(0, str(ROOT / "examples"))
    import tiny_pipelines as tiny

    diffusers.utils.logging.set_verbosity_error()
    pipe = tiny.wan().to(cuda)
    pipe.set_progress_bar_config(disable=True)
    inputs = tiny.wan_inputs(steps=4)
    for name in ("prompt_embeds", "negative_prompt_embeds"):
        inputs[name] = inputs[name].to(cuda)

    def latents():
        inputs["generator"].manual_seed(5)
        return torch.as_tensor(pipe(**inputs | {"output_type": "latent"}).frames)

    return pipe, latents


def test_wan_pipeline_keeps_its_orders_on_the_device(wan_on_the_device):
    from vcattn.integrations import diffusers as vc

    pipe, latents = wan_on_the_device
    native = latents()
    vc.enable(pipe, min_keys=100)
    ours = latents()
    receipt = vcattn.last_receipt()
    counts = vc.report(pipe)
    states = [layer.states for layer in vc._attached[pipe].layers if layer.states]
    assert torch.equal(latents(), ours)  # a new generation begins with new orders
    vc.disable(pipe)
    assert receipt.target == "sm90"
    used = [c for c in counts.values() if "vcattn" in c]
    assert len(used) == len(states) == 4 and all(set(s) == {0, 1} for s in states)
    assert sum(c["vcattn"] for c in used) == 2 * 2 * 4  # layers x branches x steps
    assert torch.equal(latents(), native)
    assert 0 < (ours - native).norm() < native.norm()


def test_default_of_min_keys_is_where_auto_begins(cuda, monkeypatch):
    from vcattn.integrations import _common

    monkeypatch.delenv("VCATTN_AUTO")
    _common.shortest_auto.cache_clear()
    try:
        for state in (False, True):
            keys = _common.break_even_keys(state)
            shapes = [torch.empty(1, 1, n, 128, dtype=torch.bfloat16, device=cuda) for n in (keys - 1, keys)]
            refused, taken = (vcattn.explain(x, x, x) for x in shapes)
            if state is False and keys > _common.MIN_KEYS:
                assert "declines" in refused and "chosen" not in refused
            assert "chosen" in taken
    finally:
        _common.shortest_auto.cache_clear()


def test_rotation_inside_the_call_on_the_device(wan_on_the_device, cuda):
    """Rotated before or inside, FP32 queries and keys differ by roundings, which move some INT8
    codes of 127 by one: 2^-7 in each of the two layers, to first order."""
    from vcattn.integrations import diffusers as vc

    model = wan_on_the_device[0].transformer
    generator = torch.Generator().manual_seed(3)
    latents, prompt = (torch.randn(shape, generator=generator).to(cuda)
                       for shape in ((1, 16, 3, 16, 12), (1, 24, 32)))  # fmt: skip
    results = []
    for fuse in (True, False):
        vc.enable(model, min_keys=100, fuse_rope=fuse)
        with torch.no_grad():
            results.append(model(latents, torch.tensor([500], device=cuda), prompt).sample)
        vc.disable(model)
    fused, before = results
    assert (fused - before).norm() < 2 * 2.0**-7 * before.norm()
