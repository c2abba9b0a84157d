# SPDX-License-Identifier: Apache-2.0
"""The video DiT of MODEL.md in PyTorch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from config import Config


def rope_tables(config: Config, grid: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32 [tokens, head_dim / 2], computed in float64."""
    axes = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in grid), indexing="ij")
    angles = []
    for position, channels in zip(axes, config.rope_split):
        exponent = torch.arange(0, channels, 2, dtype=torch.float64) / channels
        angles.append(position.reshape(-1, 1) * config.rope_theta**-exponent)
    table = torch.cat(angles, dim=1)
    return table.cos().float(), table.sin().float()


def time_features(config: Config, t: torch.Tensor) -> torch.Tensor:
    half = config.dim // 2
    k = torch.arange(half, dtype=torch.float64, device=t.device)
    rates = torch.exp(-math.log(config.time_max_period) * k / half)
    angle = config.time_scale * t.double()[:, None] * rates
    return torch.cat([angle.cos(), angle.sin()], dim=1).float()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


class HeadRmsNorm(nn.Module):
    def __init__(self, head_dim: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(head_dim))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Block(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        width = config.heads * config.head_dim
        self.mod = nn.Linear(config.dim, 6 * config.dim)
        self.qkv = nn.Linear(config.dim, 3 * width)
        self.q_norm = HeadRmsNorm(config.head_dim, config.norm_eps)
        self.k_norm = HeadRmsNorm(config.head_dim, config.norm_eps)
        self.proj = nn.Linear(width, config.dim)
        self.fc1 = nn.Linear(config.dim, config.mlp_dim)
        self.fc2 = nn.Linear(config.mlp_dim, config.dim)

    def forward(self, z, silu_cond, cos, sin, round_qkv: bool):
        c = self.config
        parts = self.mod(silu_cond)[:, None].float().chunk(6, dim=-1)
        shift1, scale1, gate1, shift2, scale2, gate2 = parts

        u = F.layer_norm(z, (c.dim,), eps=c.norm_eps) * (1 + scale1) + shift1
        q, k, v = self.qkv(u).unflatten(-1, (3, c.heads, c.head_dim)).permute(2, 0, 3, 1, 4)
        q = rotate(self.q_norm(q), cos, sin).to(v.dtype)
        k = rotate(self.k_norm(k), cos, sin).to(v.dtype)
        if round_qkv:
            q, k, v = (x.bfloat16().to(v.dtype) for x in (q, k, v))
        o = F.scaled_dot_product_attention(q, k, v)
        z = z + gate1 * self.proj(o.transpose(1, 2).flatten(2)).float()

        w = F.layer_norm(z, (c.dim,), eps=c.norm_eps) * (1 + scale2) + shift2
        hidden = F.gelu(self.fc1(w), approximate="tanh")
        return z + gate2 * self.fc2(hidden).float()


class Final(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.mod = nn.Linear(config.dim, 2 * config.dim)
        self.proj = nn.Linear(config.dim, config.patch_elems)

    def forward(self, z, silu_cond):
        shift, scale = self.mod(silu_cond)[:, None].float().chunk(2, dim=-1)
        w = F.layer_norm(z, (self.config.dim,), eps=self.config.norm_eps) * (1 + scale) + shift
        return self.proj(w).float()


class VideoDit(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        config.check()
        self.config = config
        t, h, w = config.grid
        self.patch_embed = nn.Linear(config.patch_elems, config.dim)
        self.pos_space = nn.Parameter(torch.randn(h * w, config.dim) * 0.02)
        self.pos_time = nn.Parameter(torch.randn(t, config.dim) * 0.02)
        self.class_embed = nn.Parameter(torch.randn(len(config.classes) + 1, config.dim) * 0.02)
        self.time_mlp = nn.Sequential(
            nn.Linear(config.dim, config.dim), nn.SiLU(), nn.Linear(config.dim, config.dim)
        )
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final = Final(config)
        for name, table in zip(("rope_cos", "rope_sin"), rope_tables(config, config.grid)):
            self.register_buffer(name, table, persistent=False)
        self.reset()

    def reset(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        # adaLN-zero: every block starts as the identity, the output as zero.
        for module in [*(b.mod for b in self.blocks), self.final.mod, self.final.proj]:
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)

    def rope(self, grid, device):
        if grid == self.config.grid:
            return self.rope_cos, self.rope_sin
        return tuple(table.to(device) for table in rope_tables(self.config, grid))

    def positions(self, grid) -> torch.Tensor:
        t, h, w = grid
        full_t, full_h, full_w = self.config.grid
        if t > full_t or h > full_h or w > full_w:
            raise ValueError(f"grid: got {grid}, allowed up to {self.config.grid}")
        space = self.pos_space.unflatten(0, (full_h, full_w))[:h, :w]
        return (self.pos_time[:t, None, None] + space[None]).reshape(t * h * w, -1)

    def forward(self, x, t, y, grid=None, round_qkv: bool = False, trace: dict | None = None):
        """x [B, N, P], t [B] in (0, 1], y [B] class indices; returns the prediction of x0."""
        grid = tuple(grid or self.config.grid)
        cos, sin = self.rope(grid, x.device)
        cond = self.time_mlp(time_features(self.config, t)).float() + self.class_embed[y]
        silu_cond = F.silu(cond)
        z = self.patch_embed(x).float() + self.positions(grid)
        states = [z]
        for block in self.blocks:
            z = block(z, silu_cond, cos, sin, round_qkv)
            states.append(z)
        if trace is not None:
            trace.update(cond=cond, states=states)
        return self.final(z, silu_cond)


def patchify(config: Config, video: torch.Tensor) -> torch.Tensor:
    """[..., F, Y, X, 3] to tokens [..., N, P]."""
    pt, ph, pw = config.patch
    x = video.unflatten(-4, (-1, pt)).unflatten(-3, (-1, ph)).unflatten(-2, (-1, pw))
    # [..., T, pt, H, ph, W, pw, 3] -> [..., T, H, W, pt, ph, pw, 3]
    lead = x.dim() - 7
    order = [*range(lead), *(lead + i for i in (0, 2, 4, 1, 3, 5, 6))]
    return x.permute(order).flatten(-4).flatten(-4, -2)


def unpatchify(config: Config, tokens: torch.Tensor, grid=None) -> torch.Tensor:
    t, h, w = grid or config.grid
    pt, ph, pw = config.patch
    x = tokens.unflatten(-1, (pt, ph, pw, 3)).unflatten(-5, (t, h, w))
    lead = x.dim() - 7
    order = [*range(lead), *(lead + i for i in (0, 3, 1, 4, 2, 5, 6))]
    return x.permute(order).reshape(*x.shape[:lead], t * pt, h * ph, w * pw, 3)


def to_pixels(x: torch.Tensor) -> torch.Tensor:
    return ((x + 1) * 127.5 + 0.5).floor().clamp(0, 255).to(torch.uint8)
