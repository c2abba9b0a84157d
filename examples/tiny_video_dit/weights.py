# SPDX-License-Identifier: Apache-2.0
"""Reading and writing the model's safetensors file (MODEL.md section 3)."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import torch
from safetensors import safe_open

from config import Config
from model import VideoDit


_NAMES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}


def write_safetensors(tensors: dict[str, torch.Tensor], metadata: dict[str, str], path: Path) -> None:
    """The same bytes for the same content (the library orders the metadata at random)."""
    header, blobs, end = {"__metadata__": dict(sorted(metadata.items()))}, [], 0
    for name, tensor in sorted(tensors.items()):
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        blobs.append(flat.view(torch.uint8).numpy().tobytes())
        begin, end = end, end + len(blobs[-1])
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".part")
    with open(aside, "wb") as handle:
        handle.write(len(text).to_bytes(8, "little") + text)
        handle.writelines(blobs)
    os.replace(aside, path)


def save_weights(model: VideoDit, path: Path) -> None:
    tensors = {name: value.bfloat16() for name, value in model.state_dict().items()}
    write_safetensors(tensors, model.config.to_metadata(), path)


def load_weights(path: Path, device="cpu") -> VideoDit:
    """The model with float32 parameters that hold the file's BF16 values exactly."""
    with safe_open(path, framework="pt") as handle:
        config = Config.from_metadata(handle.metadata() or {})
        tensors = {name: handle.get_tensor(name).float() for name in handle.keys()}
    model = VideoDit(config)
    model.load_state_dict(tensors)
    return model.to(device).eval()


def file_sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
