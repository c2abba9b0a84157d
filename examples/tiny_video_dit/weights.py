# SPDX-License-Identifier: Apache-2.0
"""Reading and writing the model's safetensors file (MODEL.md section 3)."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from config import Config
from model import VideoDit


def save_weights(model: VideoDit, path: Path) -> None:
    tensors = {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    aside = path.with_name(path.name + ".part")
    save_file(tensors, aside, metadata=model.config.to_metadata())
    os.chmod(aside, 0o644)
    os.replace(aside, path)


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
