#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""f of captured values on the device against the CPU's, bit for bit.

    VCATTN_LIBRARY=.../libvcattn.so PYTHONPATH=python python3 tests/device/captured_f.py [--emulated] FILE...

FILE: captures of `vcattn generate --capture`; only v is read. Files of one layer are the steps of a clip, in
the order of their steps: each is grouped on its own by identity, cubes, kmeans and vsmooth, and then
over the steps of policies. Compared are f and which heads were regrouped; the CPU's are the
specification's. Needs numpy, and torch unless the library is the one on the emulated device. Prints a
line for each call; exit code 1 when one differs.
"""

from __future__ import annotations

import ctypes
import json
import pathlib
import struct
import sys

import numpy as np

from vcattn import _capi as capi

GROUPINGS = ("identity", "cubes", "kmeans", "vsmooth")
POLICIES = {
    "every step": {"window": 99, "after": capi.PolicyAfter.REUSE},
    "reuse": {"window": 1, "after": capi.PolicyAfter.REUSE},
    "on decay": {"window": 1, "after": capi.PolicyAfter.REFRESH_ON_DECAY},
}
QUERIES = 128  # queries have no part in this


class EmulatedMemory:
    """Device memory of the library on the emulated device (tests/device/emulated): the host's."""

    def allocate(self, size: int) -> int:
        at = ctypes.c_void_p()
        assert capi.lib().cudaMalloc(ctypes.byref(at), ctypes.c_size_t(size)) == 0
        return at.value

    def give(self, array: np.ndarray) -> int:
        at = self.allocate(array.nbytes)
        ctypes.memmove(at, array.ctypes.data, array.nbytes)
        return at

    def take(self, at: int, array: np.ndarray) -> None:
        assert capi.lib().cudaDeviceSynchronize() == 0
        ctypes.memmove(array.ctypes.data, at, array.nbytes)


class TorchMemory:
    def __init__(self) -> None:
        import torch

        self.torch, self.tensors = torch, {}

    def allocate(self, size: int) -> int:
        tensor = self.torch.empty(size, dtype=self.torch.uint8, device="cuda")
        self.tensors[tensor.data_ptr()] = tensor
        return tensor.data_ptr()

    def give(self, array: np.ndarray) -> int:
        at = self.allocate(array.nbytes)
        self.tensors[at].copy_(self.torch.from_numpy(array.view(np.uint8).reshape(-1).copy()))
        return at

    def take(self, at: int, array: np.ndarray) -> None:
        self.torch.cuda.synchronize()
        array.view(np.uint8).reshape(-1)[:] = self.tensors[at].cpu().numpy()[: array.nbytes]


class HostMemory:
    """The CPU, by the same calls."""

    def __init__(self) -> None:
        self.arrays = {}

    def allocate(self, size: int) -> int:
        array = np.empty(size + 256, np.uint8)
        at = array.ctypes.data + -array.ctypes.data % 256
        self.arrays[at] = array
        return at

    def give(self, array: np.ndarray) -> int:
        at = self.allocate(array.nbytes)
        ctypes.memmove(at, array.ctypes.data, array.nbytes)
        return at

    def take(self, at: int, array: np.ndarray) -> None:
        ctypes.memmove(array.ctypes.data, at, array.nbytes)


class Place:
    """The CPU or device 0."""

    def __init__(self, device: int, memory) -> None:
        self.device, self.memory = device, memory

    def prepare(self, at: int, v: np.ndarray, grid: list[int], grouping: str, state: int | None = None,
                policy: capi.Policy | None = None, step: int = 0) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """f and regrouped of each head."""
        desc, heads = self.descriptor(at, v, grid, grouping), v.shape[1]
        energy, regrouped = np.full(heads, np.nan, np.float32), np.full(heads, 7, np.uint8)
        energy_at, regrouped_at = self.memory.give(energy), self.memory.give(regrouped)
        desc.energy_removed, desc.regrouped = energy_at, regrouped_at
        if state is not None:
            desc.state, desc.policy = state, ctypes.pointer(policy)
            desc.step = self.memory.give(np.array([step], np.int32))
        size = capi.workspace(desc)
        capi.prepare(desc, self.memory.allocate(size), size)
        self.memory.take(energy_at, energy)
        self.memory.take(regrouped_at, regrouped)
        return energy, regrouped

    def state(self, at: int, v: np.ndarray, grid: list[int], grouping: str) -> int:
        desc = self.descriptor(at, v, grid, grouping)
        size = capi.group_state_bytes(desc)
        state = self.memory.allocate(size)
        capi.group_state_init(desc, state, size)
        return state

    def descriptor(self, at: int, v: np.ndarray, grid: list[int], grouping: str) -> capi.AttnDesc:
        b, heads, tokens, dim = v.shape
        desc = capi.AttnDesc(device=self.device, recipe=capi.Recipe.VC8, grouping=capi.parse_grouping(grouping))
        strides = (heads * tokens * dim, tokens * dim, dim, 1)
        desc.k = desc.v = capi.tensor(at, capi.Dtype.BF16, v.shape, strides)
        desc.q = capi.tensor(at, capi.Dtype.BF16, (b, heads, QUERIES, dim), strides)
        out = self.memory.allocate(2 * b * heads * QUERIES * dim)
        desc.o = capi.tensor(out, capi.Dtype.BF16, (b, heads, QUERIES, dim),
                             (heads * QUERIES * dim, QUERIES * dim, dim, 1))  # fmt: skip
        desc.grid[:] = grid
        return desc


def read(path: pathlib.Path) -> dict:
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    begin, end = (8 + length + n for n in header["v"]["data_offsets"])
    about = header["__metadata__"]
    return {"v": np.frombuffer(raw[begin:end], np.uint16).reshape(header["v"]["shape"]),
            "grid": [int(n) for n in about["grid"].split(",")], "layer": int(about["layer"]),
            "step": int(about["step"])}  # fmt: skip


def report(name: str, got: tuple, wanted: tuple) -> bool:
    equal = all(np.array_equal(a.view(np.uint8), b.view(np.uint8)) for a, b in zip(got, wanted))
    print(f"{name}: f {' '.join(f'{f:.4f}' for f in wanted[0])}: {'equal' if equal else f'DIFFERENT {got}'}")
    return equal


def main() -> int:
    emulated = "--emulated" in sys.argv
    files = [pathlib.Path(name) for name in sys.argv[1:] if name != "--emulated"]
    captures = sorted(map(read, files), key=lambda c: (c["layer"], c["step"]))
    if not captures:
        print(__doc__)
        return 2
    places = [Place(0, EmulatedMemory() if emulated else TorchMemory()), Place(-1, HostMemory())]
    equal = []
    for layer in sorted({c["layer"] for c in captures}):
        steps = [c for c in captures if c["layer"] == layer]
        where = [[place.memory.give(c["v"]) for c in steps] for place in places]
        for i, c in enumerate(steps):
            for grouping in GROUPINGS:
                found = [p.prepare(at[i], c["v"], c["grid"], grouping) for p, at in zip(places, where)]
                equal.append(report(f"layer {layer}, step {c['step']}, {grouping}", *found))
        first = steps[0]
        for name, fields in POLICIES.items():
            policy = capi.Policy(steps=100, **fields)
            states = [p.state(at[0], first["v"], first["grid"], "vsmooth") for p, at in zip(places, where)]
            for i, c in enumerate(steps):
                found = [p.prepare(at[i], c["v"], c["grid"], "vsmooth", state, policy, c["step"])
                         for p, at, state in zip(places, where, states)]  # fmt: skip
                equal.append(report(f"layer {layer}, step {c['step']}, policy: {name}", *found))
    print(f"captured f: {len(equal)} calls, {equal.count(False)} failures")
    return 0 if all(equal) else 1


if __name__ == "__main__":
    sys.exit(main())
