# SPDX-License-Identifier: Apache-2.0
"""bench/ladder.py on the CPU: every composition of the parts gives the same codes, which are the specification's,
and the comparison finds what differs."""

import json
import sys

import pytest
import torch
from conftest import ROOT
from programs import run

sys.path.insert(0, str(ROOT / "bench"))
import ladder  # noqa: E402


@pytest.fixture(scope="module")
def given():
    return ladder.inputs(2, (3, 5, 16), "cpu")


@pytest.fixture(scope="module")
def unfused(given):
    return ladder.sample(ladder.chain(0, None)(given), [0, 1])


@pytest.mark.parametrize("rung", [1, 2, 3])
def test_rungs_compute_the_same(given, unfused, rung):
    got = ladder.sample(ladder.chain(rung, lambda f: f)(given), [0, 1])
    assert ladder.compare(got, unfused)["codes"] <= 1


@pytest.mark.parametrize("rung", [1, 2, 3])
def test_each_rung_compiles_as_whole_graphs(given, unfused, rung):
    torch._dynamo.reset()
    run_ = ladder.chain(rung, lambda f: torch.compile(f, fullgraph=True, dynamic=False, backend="eager"))
    assert ladder.compare(ladder.sample(run_(given), [0, 1]), unfused)["codes"] <= 1


def test_codes_decode_to_the_rotated_keys_without_their_mean(given):
    codes, scale = ladder.chain(0, None)(given)["k"]
    decoded = (codes.float() * scale).flatten(1, 4) @ given["hadamard"] / ladder.D
    n = given["q"].shape[1]
    order = given["order"][:, :n]
    rotated = ladder.rope(given["k"], given["cos"], given["sin"])
    want = ladder.gather(rotated - rotated[:, ::16].mean(1, keepdim=True), order)
    # Half a step of a code in each of 128 channels, rotated back: at most sqrt(128) / 2 of the scale by
    # Cauchy-Schwarz on the whole row's error, and the inverse transform divides its norm by sqrt(128).
    error = (decoded[:, :n] - want).norm(dim=-1)
    assert float((error / (scale.max() / 2)).max()) <= 1 + 1e-3
    assert float(rotated.norm()) == pytest.approx(float(given["k"].float().norm()), rel=1e-5)


def test_residuals_and_means_decode_to_the_values(given):
    found = ladder.chain(0, None)(given)
    residual, mean = found["v"]
    n = given["v"].shape[1]
    residual = residual.float().transpose(2, 3)
    decoded = ((residual + mean.float()).flatten(1, 2) * found["s_v"])[:, :n]
    want = ladder.gather(given["v"], given["order"][:, :n]).float()
    # Half a step of E4M3: 2^-4 of the residual, and 2^-10 of the scale among subnormal numbers.
    bound = (residual.abs() * 2**-4 + 2**-10).flatten(1, 2)[:, :n] * found["s_v"] * 1.07 + 1e-6
    assert bool(((decoded - want).abs() <= bound).all())


@pytest.mark.parametrize("name, change", [
    ("q", lambda t: t.sub_(4)), ("k", lambda t: t.flatten()[7:8].add_(5)), ("v", lambda t: t.flatten()[9:10].add_(3)),
    ("q_scale", lambda t: t.mul_(1.002)), ("s_v", lambda t: t.mul_(0.998)), ("mean", lambda t: t.mul_(1.01)),
])  # fmt: skip
def test_a_different_result_is_refused(unfused, name, change):
    got = {n: t.clone() for n, t in unfused.items()}
    change(got[name])
    with pytest.raises(ValueError, match="not the same result"):
        ladder.compare(got, unfused)


def test_program_fills_a_file(tmp_path):
    path = tmp_path / "ladder.json"
    done = run(sys.executable, ROOT / "bench" / "ladder.py", "--device", "cpu", "--no-compile", "--heads", 2,
               "--grid", 3, 5, 16, "--calls", 2, "--out", path, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    data = json.loads(path.read_text())
    assert [r["rung"] for r in data["rungs"]] == [0, 1, 2, 3] and data["faults"] == {}
    assert all(r["check"]["codes"] <= 1 for r in data["rungs"])
