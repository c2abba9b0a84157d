# SPDX-License-Identifier: Apache-2.0
"""The training script on a CPU with its tiny model. Needs PyTorch (examples/tiny_video_dit/requirements.txt)."""

from __future__ import annotations

import csv
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="training needs PyTorch")

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "tiny_video_dit"


def train(out: pathlib.Path, *flags: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "train.py", "--tiny", "--device", "cpu", "--no-compile", "--batch", "2"]
    command += ["--out", str(out), *flags]
    return subprocess.run(command, cwd=EXAMPLE, capture_output=True, text=True, timeout=300)


def losses(out: pathlib.Path) -> list[tuple[str, ...]]:
    with open(out / "loss.csv", newline="") as handle:
        return [(r["step"], r["velocity_loss"], r["x0_mse"]) for r in csv.DictReader(handle)]


def test_a_resumed_run_ends_with_the_same_bytes(tmp_path):
    assert train(tmp_path / "a", "--steps", "6").returncode == 0
    assert train(tmp_path / "b", "--steps", "6", "--pause-steps", "3").returncode == 0
    assert len(losses(tmp_path / "b")) == 3
    assert train(tmp_path / "b", "--steps", "6", "--resume").returncode == 0
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    a, b = ((tmp_path / n / "tiny_video_dit.safetensors").read_bytes() for n in "ab")
    assert a == b


def test_another_seed_is_another_run(tmp_path):
    assert train(tmp_path / "a", "--steps", "2").returncode == 0
    assert train(tmp_path / "b", "--steps", "2", "--seed", "2").returncode == 0
    assert losses(tmp_path / "a") != losses(tmp_path / "b")


def test_resume_without_a_checkpoint_says_so(tmp_path):
    result = train(tmp_path / "none", "--resume")
    assert result.returncode != 0
    assert "checkpoint.pt does not exist" in result.stderr
