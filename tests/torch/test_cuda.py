# SPDX-License-Identifier: Apache-2.0
"""Streams, graphs, devices and memory: what only a CUDA device can show (skipped elsewhere)."""

import pytest
import torch
import vcattn
from common import assert_near, random_qkv
from conftest import has_kernels

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
