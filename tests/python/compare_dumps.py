# SPDX-License-Identifier: Apache-2.0
"""Running the command, and dumps of q, k and v for it. Written by hand, so that a file can be wrong
in any way; test_compare.py also reads one that the safetensors package wrote."""

import json
import os
import pathlib
import struct
import subprocess

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("VCATTN_BINARY", ROOT / "build" / "bin" / "vcattn"))
RECIPES = [
    "exact", "bf16", "fp8", "sage2", "vc8-paper", "vc8-exp", "vc8", "vc8-turbo", "vc8-hq",
    "vc8-fp8qk", "vc8-fp8qk-paper", "fp4", "sage3", "vc4-paper", "vc4", "vc4-int8qk",
]  # fmt: skip
FIGURES = [
    "rel_l2", "worst_row", "cosine", "qk_only", "p_only", "v_only", "energy_removed", "tv_mean",
    "tv_max", "tau_mean", "tau_max", "seconds",
]  # fmt: skip


def vcattn(*args, timeout=120, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(BINARY), *map(str, args)], capture_output=True, text=True, timeout=timeout, **kwargs
    )


def to_bytes(array: np.ndarray, dtype: str) -> bytes:
    if dtype == "BF16":
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return array.astype({"F16": "<f2", "F32": "<f4", "F64": "<f8", "I32": "<i4"}[dtype]).tobytes()


def raw(header, data: bytes = b"", length: int | None = None) -> bytes:
    """`header`: bytes, or what becomes JSON. `length`: announced in place of the true one."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def dump(path, tensors: dict, dtype: str = "F32") -> pathlib.Path:
    header, data = {}, b""
    for name, array in tensors.items():
        blob = to_bytes(array, dtype)
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(blob)],
        }
        data += blob
    path = pathlib.Path(path)
    path.write_bytes(raw(header, data))
    return path


def random_qkv(s_q=130, s_kv=130, d=64, heads=1, kv_heads=1, batch=1, seed=0) -> dict:
    """K with an offset, V with clusters that no space-time structure shows."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 6, (batch, kv_heads, s_kv))
    centres = rng.standard_normal((6, d))
    return {
        "q": rng.standard_normal((batch, heads, s_q, d)),
        "k": rng.standard_normal((batch, kv_heads, s_kv, d)) + rng.standard_normal(d),
        "v": centres[labels] + 0.5 * rng.standard_normal((batch, kv_heads, s_kv, d)),
    }


def compare(path, *args, json_path=None, **kwargs) -> dict:
    """Runs a comparison that must work; returns its JSON."""
    json_path = json_path or pathlib.Path(path).with_suffix(".json")
    done = vcattn("compare", path, "--json", json_path, "--quiet", *args, **kwargs)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and done.stderr == ""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(json_path.read_text(), parse_constant=refuse)


def assert_refused(done, *words):
    """Exit code 2, and a message that says what, got and allowed."""
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    for word in words:
        assert word in done.stderr, done.stderr
    assert done.stdout == ""
