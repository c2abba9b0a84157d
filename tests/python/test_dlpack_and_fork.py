# SPDX-License-Identifier: Apache-2.0
"""Producers whose DLPack methods give something odd, and calls in a forked child."""

import multiprocessing

import numpy as np
import pytest
import vcattn
from oracle import random_qkv


class Producer:
    def __init__(self, capsule=None, device=(1, 0)):
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **_):
        return self.capsule() if callable(self.capsule) else self.capsule

    def __dlpack_device__(self):
        return self.device


def consumed():
    capsule = np.ones((1, 1, 8, 16), np.float32).__dlpack__()
    np.from_dlpack(Producer(capsule))
    return capsule


@pytest.mark.parametrize("producer, word", [
    (Producer(device=5), "__dlpack_device__.*5"),
    (Producer(device=(1, 2, 3)), "__dlpack_device__"),
    (Producer(capsule=5), "__dlpack__.*5.*consumed"),
    (Producer(capsule=consumed), "__dlpack__.*used_dltensor"),
])  # fmt: skip
def test_producers_that_give_no_tensor_are_refused(producer, word):
    with pytest.raises(vcattn.InvalidArgumentError, match=word):
        vcattn.attention(producer, producer, producer)


def test_what_a_producer_raises_comes_through():
    def broken():
        raise BufferError("not exportable")

    producer = Producer(capsule=broken)
    with pytest.raises(BufferError, match="not exportable"):
        vcattn.attention(producer, producer, producer)


def call(queue, q, k, v):
    queue.put(vcattn.attention(q, k, v))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes_the_same():
    """Data loaders fork; OpenMP's threads of the parent are not there in the child."""
    q, k, v = random_qkv((1, 2, 300, 64))
    want = vcattn.attention(q, k, v)  # starts the parent's threads
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=call, args=(queue, q, k, v))
    child.start()
    try:
        np.testing.assert_array_equal(queue.get(timeout=60), want)
    finally:
        child.kill()
        child.join()
