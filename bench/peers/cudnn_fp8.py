# SPDX-License-Identifier: Apache-2.0
"""FP8 attention of cuDNN through its frontend package. As for fa3-fp8, the preparation is a cast to
E4M3 with unit scales.

P is scaled by 256 before its own cast, the largest power of two that keeps [0, 1] inside E4M3's
range: without it most of P would fall among the subnormal numbers.

On Hopper cuDNN writes O as E4M3 and not as BF16 (its BF16 output is for newer chips). O is scaled
into E4M3's range by the maximum of an earlier call, as FP8 users do; the whole call includes the
way back to BF16. Its error therefore has the rounding of O to 3 bits in it.
"""

from __future__ import annotations

import math

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

    def __init__(self, cudnn, operands, scale: float):
        import torch

        self.out = torch.empty_like(operands[0])
        self.handle = cudnn.create_handle()
        cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)
        fp8, fp32 = cudnn.data_type.FP8_E4M3, cudnn.data_type.FLOAT
        graph = self.graph = cudnn.pygraph(
            io_data_type=fp8, intermediate_data_type=fp32, compute_data_type=fp32, handle=self.handle
        )
        device = self.out.device
        self.nodes = [
            graph.tensor(name=name, dim=list(x.shape), stride=list(x.stride()), data_type=fp8)
            for name, x in zip("qkv", operands)
        ]
        scalars, values = {}, {}
        for name, value in (
            ("descale_q", 1), ("descale_k", 1), ("descale_v", 1),
            ("descale_s", 1 / P_SCALE), ("scale_s", P_SCALE), ("scale_o", 1),
        ):  # fmt: skip
            scalars[name] = graph.tensor(name=name, dim=[1] * 4, stride=[1] * 4, data_type=fp32)
            values[name] = torch.full((1, 1, 1, 1), value, dtype=torch.float32, device=device)
        o, _, amax_s, amax_o = graph.sdpa_fp8(
            q=self.nodes[0], k=self.nodes[1], v=self.nodes[2],
            generate_stats=False, attn_scale=scale, **scalars,
        )  # fmt: skip
        o.set_output(True).set_dim(list(self.out.shape)).set_stride(list(self.out.stride()))
        o.set_data_type(fp8)
        maxima = torch.zeros((2, 1, 1, 1, 1), dtype=torch.float32, device=device)
        for node in (amax_s, amax_o):
            node.set_output(True).set_dim([1] * 4).set_stride([1] * 4).set_data_type(fp32)
        self.buffers = {o: self.out, amax_s: maxima[0], amax_o: maxima[1]}
        self.buffers.update((node, values[name]) for name, node in scalars.items())
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        size = max(1, graph.get_workspace_size())
        self.workspace = torch.empty(size, dtype=torch.uint8, device=device)
        self(operands)
        self.descale_o = self._fit_output(float(maxima[1]), values["scale_o"])

    @staticmethod
    def _fit_output(largest: float, scale_o) -> float:
        """Sets scale_o to the power of two that puts the largest |O| into [112, 224); returns its
        inverse."""
        exponent = output_exponent(largest)
        scale_o.fill_(2.0**exponent)
        return 2.0**-exponent

    def __call__(self, operands):
        pack = {**self.buffers, **dict(zip(self.nodes, operands))}
        self.graph.execute(pack, self.workspace, handle=self.handle)
        return self.out

    def decode(self, out):
        """BF16 of the E4M3 output."""
        import torch

        return out.to(torch.bfloat16).mul_(self.descale_o)


def output_exponent(largest: float) -> int:
    """n with 112 <= largest * 2^n < 224: half of E4M3's range is left for other inputs."""
    if not (math.isfinite(largest) and largest > 0):
        raise ValueError(f"cuDNN reports a largest |O| of {largest}; a finite number > 0 is expected")
    # frexp: largest = m * 2^e with 0.5 <= m < 1.
    mantissa, exponent = math.frexp(largest)
    return 8 - exponent if mantissa < 0.875 else 7 - exponent


def cells(impl: str, problem, inputs) -> list[Cell]:
    import cudnn
    import torch

    source = [inputs.q, inputs.k_valid, inputs.v_valid]

    def cast():
        return [x.to(torch.float8_e4m3fn) for x in source]

    ready = cast()
    graph = _Graph(cudnn, ready, problem.d**-0.5)

    def prepare():
        cast()

    return [
        Cell(impl, "kernel", lambda: graph(ready), decode=graph.decode),
        Cell(impl, "whole", lambda: graph.decode(graph(cast()))),
        Cell(impl, "prep", prepare),
    ]
