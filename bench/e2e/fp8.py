# SPDX-License-Identifier: Apache-2.0
"""Linear layers in FP8 by torch's own means: E4M3 with one scale for each row of the input and each
row of the weight (`torch._scaled_mm`). Shows that low-bit attention and low-bit linears compose."""

from __future__ import annotations

import torch

E4M3_MAX = 448.0


def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes, scale [rows, 1] in FP32): x = codes * scale within E4M3's rounding."""
    scale = x.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-12) / E4M3_MAX
    return (x * scale.reciprocal().to(x.dtype)).to(torch.float8_e4m3fn), scale


class Fp8Linear(torch.nn.Module):
    """In place of a torch.nn.Linear in BF16; its weight is quantised once."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        codes, scale = quantise(linear.weight)
        self.register_buffer("weight", codes)  # [out, in]
        self.register_buffer("scale", scale.t().contiguous())  # [1, out]
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes, scale = quantise(x.reshape(-1, x.shape[-1]))
        if x.is_cuda:
            out = torch._scaled_mm(codes, self.weight.t(), scale_a=scale, scale_b=self.scale,
                                   bias=self.bias, out_dtype=x.dtype, use_fast_accum=True)  # fmt: skip
        else:  # torch has no scale per row on the CPU
            out = (codes.float() @ self.weight.float().t() * scale * self.scale).to(x.dtype)
            out = out if self.bias is None else out + self.bias
        return out.reshape(*x.shape[:-1], -1)


def convert(blocks: torch.nn.Module) -> int:
    """All BF16 linears in the blocks, in place; how many there were."""
    count = 0
    for module in list(blocks.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear) and child.weight.dtype == torch.bfloat16:
                setattr(module, name, Fp8Linear(child))
                count += 1
    return count
