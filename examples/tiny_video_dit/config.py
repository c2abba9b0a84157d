# SPDX-License-Identifier: Apache-2.0
"""Hyperparameters of the video DiT and their form in the safetensors header (MODEL.md section 3)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

FORMAT = "tiny_video_dit"
FORMAT_VERSION = "1"
LICENCE = "CC-BY-4.0"
ATTRIBUTION = (
    "Trained on: Big Buck Bunny, (c) copyright 2008, Blender Foundation, www.bigbuckbunny.org, CC BY 3.0; "
    "car-detection and bottle-detection, Intel IoT DevKit sample videos, CC BY 4.0; "
    "NASA footage (public domain), from torchcodec's test resources (repository BSD-3-Clause)."
)


@dataclass(frozen=True)
class Config:
    frames: int = 28
    height: int = 104
    width: int = 184
    patch: tuple[int, int, int] = (2, 8, 8)
    dim: int = 256
    layers: int = 4
    heads: int = 2
    head_dim: int = 128
    mlp_dim: int = 1024
    classes: tuple[str, ...] = ("bunny", "cars", "bottles", "nasa", "shapes")
    rope_theta: float = 10000.0
    rope_split: tuple[int, int, int] = (44, 42, 42)
    norm_eps: float = 1e-6
    time_scale: float = 1000.0
    time_max_period: float = 10000.0
    shift: float = 8.0
    steps: int = 10
    guidance: float = 1.0
    fps: float = 12.5

    @property
    def grid(self) -> tuple[int, int, int]:
        return (
            self.frames // self.patch[0],
            self.height // self.patch[1],
            self.width // self.patch[2],
        )

    @property
    def tokens(self) -> int:
        t, h, w = self.grid
        return t * h * w

    @property
    def patch_elems(self) -> int:
        return self.patch[0] * self.patch[1] * self.patch[2] * 3

    @property
    def null_class(self) -> int:
        return len(self.classes)

    def check(self) -> None:
        sizes = (self.frames, self.height, self.width)
        for name, size, step in zip(("frames", "height", "width"), sizes, self.patch):
            if size <= 0 or size % step:
                raise ValueError(f"{name}: got {size}, must be a positive multiple of {step}")
        if sum(self.rope_split) != self.head_dim or any(a % 2 for a in self.rope_split):
            raise ValueError(
                f"rope_split: got {self.rope_split}, must be even numbers with sum {self.head_dim}"
            )

    def to_metadata(self) -> dict[str, str]:
        def text(value) -> str:
            if isinstance(value, tuple):
                return ",".join(str(v) for v in value)
            return f"{value:g}" if isinstance(value, float) else str(value)

        meta = {f.name: text(getattr(self, f.name)) for f in dataclasses.fields(self)}
        meta.update(
            format=FORMAT,
            format_version=FORMAT_VERSION,
            grid=text(self.grid),
            rope_convention="interleaved",
            prediction="x0",
            licence=LICENCE,
            attribution=ATTRIBUTION,
        )
        return meta

    @staticmethod
    def from_metadata(meta: dict[str, str]) -> "Config":
        if meta.get("format") != FORMAT or meta.get("format_version") != FORMAT_VERSION:
            raise ValueError(
                f"format: got {meta.get('format')!r} version {meta.get('format_version')!r}, "
                f"allowed {FORMAT!r} version {FORMAT_VERSION!r}; is this the model's weight file?"
            )
        values = {}
        for field in dataclasses.fields(Config):
            if field.name not in meta:
                raise ValueError(f"metadata: {field.name} is missing")
            default, raw = field.default, meta[field.name]
            if isinstance(default, tuple):
                kind = type(default[0])
                values[field.name] = tuple(kind(part) for part in raw.split(","))
            else:
                values[field.name] = type(default)(raw)
        config = Config(**values)
        config.check()
        return config


# Small enough for a few optimiser steps on a CPU in a test; the arithmetic is the same.
TINY = Config(frames=4, height=16, width=24, dim=256, layers=1, mlp_dim=64)
