# SPDX-License-Identifier: Apache-2.0
"""diffusers' context parallelism over two processes (gloo, CPU): ring merges by our LSE."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch
from common import NEAR
from oracle import error

pytest.importorskip("diffusers")
HERE = pathlib.Path(__file__).resolve().parent
FP32_CHAIN = 2.0**-13  # as in test_diffusers.py


@pytest.mark.parametrize("kind", ["ring", "ulysses"])
def test_B19_split_over_two_ranks_equals_one(kind, tmp_path):
    command = [sys.executable, str(HERE / "context_parallel.py")]
    arguments = [str(tmp_path / "store"), kind, str(tmp_path / "out.pt")]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([*command, str(rank), *arguments], env=env, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=240)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors)
    results = torch.load(tmp_path / "out.pt", weights_only=True)
    for recipe, bound in (("exact", FP32_CHAIN), ("vc8", 2 * NEAR)):
        out = results[recipe]
        assert out["report"]["blocks.0.attn1"] == {"vcattn": 1}
        assert error(out["split"], out["alone"]) < bound
