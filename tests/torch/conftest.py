# SPDX-License-Identifier: Apache-2.0
"""Tests that need torch: run by `make test-torch` in .venv-torch, on the CPU and, where there is a
CUDA device and a library with kernels for it, on the device too."""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python")]
# Nothing here may ask a model hub for anything.
os.environ["HF_HUB_OFFLINE"] = "1"
# The tests' calls are short; on a device recipe "auto" would decline them.
os.environ["VCATTN_AUTO"] = "always"

import pytest  # noqa: E402
import torch  # noqa: E402
import vcattn  # noqa: E402


def has_kernels(device: int = 0) -> bool:
    """Whether the loaded library runs the default recipe on this CUDA device."""
    if device >= torch.cuda.device_count():
        return False
    x = torch.empty(1, 1, 128, 128, dtype=torch.bfloat16, device=f"cuda:{device}")
    return any("chosen" in line and "sm" in line for line in vcattn.explain(x, x, x).splitlines())


DEVICES = ["cpu"] + (["cuda"] if has_kernels() else [])


@pytest.fixture(params=DEVICES)
def device(request) -> str:
    return request.param


@pytest.fixture
def cuda() -> str:
    if "cuda" not in DEVICES:
        pytest.skip("no CUDA device with kernels in the loaded library")
    return "cuda"
