# SPDX-License-Identifier: Apache-2.0
"""Run by test_cuda_build.py with the library on the emulated device: a group state that lives in
device memory, as the torch path uses it. Prints "kept" when everything holds."""

import ctypes

import numpy as np
from vcattn import _capi as capi

SHAPE = (1, 2, 512, 64)
lib = capi.lib()
memory = []


def on_device(size: int) -> int:
    at = ctypes.c_void_p()
    assert lib.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(size)) == 0
    memory.append(at)
    return at.value


def array(address: int, shape=SHAPE) -> np.ndarray:
    """The emulated device's memory is the host's."""
    raw = (ctypes.c_float * int(np.prod(shape))).from_address(address)
    return np.frombuffer(raw, np.float32).reshape(shape)


def normal(seed: int) -> int:
    at = on_device(4 * int(np.prod(SHAPE)))
    array(at)[:] = np.random.default_rng(seed).standard_normal(SHAPE)
    return at


def view(address: int) -> capi.Tensor:
    b, h, s, d = SHAPE
    return capi.tensor(address, capi.Dtype.FP32, SHAPE, (h * s * d, s * d, d, 1))


def problem(q: int, k: int, v: int) -> capi.AttnDesc:
    desc = capi.AttnDesc(device=0)
    desc.recipe, desc.hadamard = capi.parse_recipe("vc8")
    desc.q, desc.k, desc.v, desc.o = view(q), view(k), view(v), view(normal(0))
    return desc


def attend(desc: capi.AttnDesc) -> np.ndarray:
    size = capi.workspace(desc)
    capi.run(desc, on_device(size), size)
    assert lib.cudaDeviceSynchronize() == 0
    return array(desc.o.data).copy()


q, k, v, other = (normal(seed) for seed in (1, 2, 3, 9))
fresh, fresh_other = attend(problem(q, k, v)), attend(problem(q, k, other))

size = capi.group_state_bytes(problem(q, k, v))
state, step_at = on_device(size), on_device(4)
capi.group_state_init(problem(q, k, v), state, size)
policy = capi.Policy(steps=4, window=1, refresh=1, after=capi.PolicyAfter.REUSE, decay=0.9)


def with_state(v: int, step: int) -> np.ndarray:
    ctypes.c_int32.from_address(step_at).value = step
    desc = problem(q, k, v)
    desc.state, desc.step, desc.policy = state, step_at, ctypes.pointer(policy)
    return attend(desc)


assert np.array_equal(with_state(v, 0), fresh)  # the first call forms the order that a call alone does
kept = with_state(other, 1)
assert not np.array_equal(kept, fresh_other)  # another V, but the order of the first
assert np.array_equal(with_state(other, 2), kept)
assert np.linalg.norm(kept - fresh_other) < 0.1 * np.linalg.norm(fresh_other)
capi.group_state_reset(state, size)
assert np.array_equal(with_state(other, 0), fresh_other)  # a new generation forms its own
print("kept")
