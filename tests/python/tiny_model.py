# SPDX-License-Identifier: Apache-2.0
"""A random video DiT of the bundled model's format, small enough for tests that run it many times."""

from __future__ import annotations

import json
import pathlib
import struct

import numpy as np

GRID = (2, 5, 6)
PATCH = (2, 8, 8)
DIM, LAYERS, HEADS, HEAD_DIM, MLP = 32, 2, 2, 32, 64
CLASSES = ("one", "two")
STEPS = 4

METADATA = {
    "format": "tiny_video_dit",
    "format_version": "1",
    "frames": str(GRID[0] * PATCH[0]),
    "height": str(GRID[1] * PATCH[1]),
    "width": str(GRID[2] * PATCH[2]),
    "patch": ",".join(map(str, PATCH)),
    "grid": ",".join(map(str, GRID)),
    "dim": str(DIM),
    "layers": str(LAYERS),
    "heads": str(HEADS),
    "head_dim": str(HEAD_DIM),
    "mlp_dim": str(MLP),
    "classes": ",".join(CLASSES),
    "rope_theta": "10000",
    "rope_split": "12,10,10",
    "rope_convention": "interleaved",
    "norm_eps": "1e-06",
    "time_scale": "1000",
    "time_max_period": "10000",
    "prediction": "x0",
    "shift": "2",
    "steps": str(STEPS),
    "guidance": "1",
    "fps": "12",
}


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """FP32 values by name; weights scaled so that activations keep their size."""
    rng = np.random.default_rng(seed)
    patch_dim = int(np.prod(PATCH)) * 3
    shapes: dict[str, tuple[int, ...]] = {
        "pos_space": (GRID[1] * GRID[2], DIM),
        "pos_time": (GRID[0], DIM),
        "class_embed": (len(CLASSES) + 1, DIM),
    }

    def linear(name: str, out: int, inner: int) -> None:
        shapes[name + ".weight"] = (out, inner)
        shapes[name + ".bias"] = (out,)

    linear("patch_embed", DIM, patch_dim)
    linear("time_mlp.0", DIM, DIM)
    linear("time_mlp.2", DIM, DIM)
    for i in range(LAYERS):
        block = f"blocks.{i}."
        linear(block + "mod", 6 * DIM, DIM)
        linear(block + "qkv", 3 * HEADS * HEAD_DIM, DIM)
        linear(block + "proj", DIM, HEADS * HEAD_DIM)
        linear(block + "fc1", MLP, DIM)
        linear(block + "fc2", DIM, MLP)
        shapes[block + "q_norm.weight"] = (HEAD_DIM,)
        shapes[block + "k_norm.weight"] = (HEAD_DIM,)
    linear("final.mod", 2 * DIM, DIM)
    linear("final.proj", patch_dim, DIM)
    values = {}
    for name, shape in shapes.items():
        scale = 1.0 / np.sqrt(shape[1]) if name.endswith(".weight") and len(shape) == 2 else 0.3
        values[name] = (rng.standard_normal(shape) * scale).astype(np.float32)
        if "_norm" in name:
            values[name] += 1.5
    return values


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Round to nearest even, as uint16."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write(
    path: pathlib.Path, values: dict[str, np.ndarray] | None = None, metadata: dict | None = None
) -> pathlib.Path:
    """A safetensors file by hand: the package has no BF16 without torch."""
    values = tensors() if values is None else values
    header: dict = {"__metadata__": METADATA if metadata is None else metadata}
    data = b""
    for name, array in values.items():
        raw = to_bf16(array).tobytes()
        header[name] = {
            "dtype": "BF16",
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path
