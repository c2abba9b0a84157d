# SPDX-License-Identifier: Apache-2.0
"""diffusers' models with vcattn under torch.compile: one graph, and no mask of queries x keys."""

import sys
import warnings

import pytest
import torch
from conftest import ROOT

pytest.importorskip("diffusers")
sys.path.insert(0, str(ROOT / "examples"))
import tiny_pipelines as tiny  # noqa: E402
from oracle import error  # noqa: E402
from diffusers_models import FP32_CHAIN, MODELS, hunyuan_model_inputs, run_model  # noqa: E402
from vcattn.integrations import diffusers as vc  # noqa: E402


def test_compiled_hunyuan_makes_no_mask_of_queries_times_keys():
    from torch._dynamo.backends.common import aot_autograd

    largest = [0]

    def look(graph, example_inputs):
        for node in graph.graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                largest.append(value.numel())
        return graph

    model, inputs = tiny.hunyuan().transformer, hunyuan_model_inputs()
    inputs["hidden_states"] = torch.randn(2, 65, 3, 40, 40)
    tokens = 3 * 40 * 40 + 40 + 20 + 11
    for enabled in (False, True):
        torch._dynamo.reset()
        largest.clear()
        if enabled:
            vc.enable(model, min_keys=100)
        block = model.transformer_blocks[0]
        block.compile(fullgraph=True, backend=aot_autograd(fw_compiler=look))
        run_model(model, inputs)
        assert (max(largest) >= 2 * tokens * tokens) == (not enabled), max(largest)
    vc.disable(model)


@pytest.mark.parametrize("name", MODELS)
def test_compiled_model_in_one_graph(name):
    make, inputs = MODELS[name]
    model, inputs = make(), inputs()
    vc.enable(model, min_keys=100)
    eager = run_model(model, inputs)
    torch._dynamo.reset()
    # HunyuanVideo-1.5's own forward branches on data, so its blocks are compiled, not the whole.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "hunyuan":
            for block in model.transformer_blocks:
                block.compile(fullgraph=True, backend="aot_eager")
            compiled = run_model(model, inputs)
        else:
            compiled = run_model(torch.compile(model, fullgraph=True, backend="aot_eager"), inputs)
    vc.disable(model)
    assert error(compiled, eager) < FP32_CHAIN


@pytest.mark.parametrize("name", MODELS)
def test_one_compiled_block_serves_all_layers_and_steps(name):
    """Blocks compiled one by one (`compile_repeated_blocks`): more layers than torch compiles a function
    for, which is 8, and no new graph when a step begins."""
    from torch._dynamo.testing import CompileCounterWithBackend

    make, inputs = MODELS[name]
    config = dict(make().config)
    torch.manual_seed(0)
    model = type(make()).from_config(config | {"num_layers": 10}).eval()
    inputs = inputs()
    native = run_model(model, inputs)
    blocks = model.blocks if name == "wan" else model.transformer_blocks
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    for block in blocks:
        block.compile(fullgraph=True, backend=counter)
    vc.enable(model, recipe="exact", min_keys=100)
    clock = vc._attached[model].clock
    clock.new_generation(3)
    for _ in range(3):
        assert error(run_model(model, inputs), native) < 5 * FP32_CHAIN  # of ten layers, not two
        clock.advance()
    vc.disable(model)
    assert counter.frame_count == 1
