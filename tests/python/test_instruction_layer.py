# SPDX-License-Identifier: Apache-2.0
"""Kernels reach the hardware through src/ptx alone (decision 0003), so that all of them run on the emulator."""

from __future__ import annotations

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Inline assembly, static shared memory, thread and block numbers, and the intrinsics that cross threads.
FORBIDDEN = re.compile(
    r"\basm\b|\bthreadIdx\b|\bblockIdx\b|\bblockDim\b|\bgridDim\b|(?<!extern )\b__shared__\b"
    r"|\b__syncthreads|\b__syncwarp\b|\b__shfl|\b__ballot|\b__any_sync|\b__reduce_|\batomic[A-Z]\w*\("
)
MEMBERS = re.compile(r"\b\w+\.(blockDim|gridDim)\b")  # of cudaLaunchConfig_t, on the host


def uses(text: str) -> list[str]:
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    return FORBIDDEN.findall(MEMBERS.sub("", code))


def sources() -> list[pathlib.Path]:
    return sorted(p for p in (ROOT / "src" / "kernels").rglob("*") if p.suffix in {".hpp", ".cuh", ".cu"})


def test_kernels_use_the_instruction_layer_alone():
    assert len(sources()) > 40
    assert {str(p.relative_to(ROOT)): uses(p.read_text()) for p in sources() if uses(p.read_text())} == {}


@pytest.mark.parametrize(
    "line",
    [
        'asm volatile("griddepcontrol.wait;");',
        "const int i = threadIdx.x;",
        "int n = gridDim.x * blockDim.x;",
        "__shared__ float x[32];",
        "__syncthreads();",
        "atomicAdd(at, 1);",
        "__shfl_xor_sync(~0u, x, 1);",
    ],
)
def test_sees(line):
    assert uses(line)


@pytest.mark.parametrize(
    "line",
    ["config.gridDim = grid;", "extern __shared__ unsigned char all[];", "// as __syncthreads() does"],
)
def test_allows(line):
    assert not uses(line)
