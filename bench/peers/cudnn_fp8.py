# SPDX-License-Identifier: Apache-2.0
"""FP8 attention of cuDNN through its frontend package. As for fa3-fp8, the preparation is a cast to
E4M3 with unit scales.

P is scaled by 256 before its own cast, the largest power of two that keeps [0, 1] inside E4M3's
range: without it most of P would fall among the subnormal numbers.
"""

from __future__ import annotations

from . import import_reason, no_hopper
from .cell import Cell

IMPLS = ("cudnn-fp8",)
P_SCALE = 256.0
# The first release with the forward FP8 kernel that the published figures are of.
_LEAST_BACKEND = 91900


def available(impl: str) -> str:
    if reason := no_hopper() or import_reason("cudnn"):
        return reason
    import cudnn

    have = cudnn.backend_version()
    return "" if have >= _LEAST_BACKEND else f"cuDNN {have}; {_LEAST_BACKEND} (9.19) or newer is needed"


class _Graph:
    """One attention graph for fixed shapes and strides, with everything its execution needs."""

    def __init__(self, cudnn, operands, out, scale: float):
        import torch

        self.out = out
        self.handle = cudnn.create_handle()
        cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)
        fp8, fp32 = cudnn.data_type.FP8_E4M3, cudnn.data_type.FLOAT
        graph = self.graph = cudnn.pygraph(
            io_data_type=fp8, intermediate_data_type=fp32, compute_data_type=fp32, handle=self.handle
        )
        device = out.device

        def scalar(name: str, value: float):
            node = graph.tensor(name=name, dim=[1] * 4, stride=[1] * 4, data_type=fp32)
            return node, torch.full((1, 1, 1, 1), value, dtype=torch.float32, device=device)

        nodes = [
            graph.tensor(name=name, dim=list(x.shape), stride=list(x.stride()), data_type=fp8)
            for name, x in zip("qkv", operands)
        ]
        scalars = {
            name: scalar(name, value)
            for name, value in (
                ("descale_q", 1), ("descale_k", 1), ("descale_v", 1),
                ("descale_s", 1 / P_SCALE), ("scale_s", P_SCALE), ("scale_o", 1),
            )
        }  # fmt: skip
        o, _, *maxima = graph.sdpa_fp8(
            q=nodes[0], k=nodes[1], v=nodes[2], generate_stats=False, attn_scale=scale,
            **{name: node for name, (node, _) in scalars.items()},
        )  # fmt: skip
        o.set_output(True).set_dim(list(out.shape)).set_stride(list(out.stride()))
        o.set_data_type(cudnn.data_type.BFLOAT16 if out.dtype == torch.bfloat16 else fp8)
        self.buffers = {o: out, **dict(scalars.values())}
        for node in maxima:
            node.set_output(True).set_dim([1] * 4).set_stride([1] * 4).set_data_type(fp32)
            self.buffers[node] = torch.zeros((1, 1, 1, 1), dtype=torch.float32, device=device)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A])
        graph.check_support()
        graph.build_plans()
        self.nodes = nodes
        size = max(1, graph.get_workspace_size())
        self.workspace = torch.empty(size, dtype=torch.uint8, device=device)

    def __call__(self, operands):
        self.graph.execute(
            {**self.buffers, **dict(zip(self.nodes, operands))}, self.workspace, handle=self.handle
        )
        return self.out


def cells(impl: str, problem, inputs) -> list[Cell]:
    import cudnn
    import torch

    source = [inputs.q, inputs.k_valid, inputs.v_valid]

    def cast():
        return [x.to(torch.float8_e4m3fn) for x in source]

    ready, scale = cast(), problem.d**-0.5
    out = torch.empty_like(inputs.q)
    try:
        graph = _Graph(cudnn, ready, out, scale)
        finish = graph
    except cudnn.cudnnGraphNotSupportedError:
        # Releases without a BF16 output write E4M3; the cast back belongs to the whole call.
        graph = _Graph(cudnn, ready, torch.empty_like(inputs.q, dtype=torch.float8_e4m3fn), scale)

        def finish(operands):
            return graph(operands).to(torch.bfloat16)

    def prepare():
        cast()

    return [
        Cell(impl, "kernel", lambda: graph(ready)),
        Cell(impl, "whole", lambda: finish(cast())),
        Cell(impl, "prep", prepare),
    ]
