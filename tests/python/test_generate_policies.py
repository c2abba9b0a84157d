# SPDX-License-Identifier: Apache-2.0
"""`vcattn generate --policy`: when heads are regrouped, several policies in one run, captures of both branches."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest
import tiny_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
VCATTN = os.environ.get("VCATTN_BINARY", str(ROOT / "build" / "bin" / "vcattn"))
HEADS = tiny_model.LAYERS * tiny_model.HEADS


def generate(*arguments) -> subprocess.CompletedProcess:
    command = [VCATTN, "generate", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def results(out, *arguments) -> dict:
    done = generate("--out", out, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads((out / "generate.json").read_text())["runs"][0]["recipes"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> pathlib.Path:
    return tiny_model.write(tmp_path_factory.mktemp("model") / "tiny.safetensors")


def regroupings(model, out, *arguments) -> list[int]:
    clip = results(out, "--model", model, "--recipes", "vc8", "--steps", 4, *arguments)["vc8"]
    return [s["regroupings"] for s in clip["steps"]]


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        ("window=1,after=reuse", [HEADS, 0, 0, 0]),
        ("window=3,after=reuse", [HEADS, HEADS, HEADS, 0]),
        ("window=4,refresh=2,after=reuse", [HEADS, 0, HEADS, 0]),
        ("window=0,after=reuse", [HEADS, 0, 0, 0]),  # a head without an order gets one
        ("window=0,after=identity", [0, 0, 0, 0]),
    ],
)
def test_policy_decides_when_heads_are_regrouped(model, tmp_path, policy, wanted):
    assert regroupings(model, tmp_path / "o", "--policy", policy) == wanted


def test_share_cfg_serves_both_guidance_branches_with_one_order(model, tmp_path):
    two = regroupings(model, tmp_path / "a", "--guidance", 2, "--policy", "window=1,after=reuse")
    one = regroupings(
        model, tmp_path / "b", "--guidance", 2, "--policy", "window=1,after=reuse,share_cfg"
    )
    assert two == [2 * HEADS, 0, 0, 0]
    assert one == [HEADS, 0, 0, 0]


def without_times(clip: dict) -> dict:
    """A clip's result without what differs from run to run, and without names of files."""
    drop = ("seconds", "attention_seconds", "files")
    kept = {key: value for key, value in clip.items() if key not in drop}
    kept["steps"] = [{k: v for k, v in step.items() if k not in drop} for step in clip["steps"]]
    return kept


def test_each_named_policy_gives_what_it_gives_alone(model, tmp_path):
    """One run with three policies beside three runs with one: the same clips and numbers."""
    policies = {"once": "window=1,after=reuse", "every": "window=4,after=reuse"}
    arguments = ["--model", model, "--steps", 4]
    together = results(
        tmp_path / "t", *arguments, "--recipes", "vc8@once,vc8@every,vc8", "--policy", "window=2,after=identity",
        *(word for name, text in policies.items() for word in ("--policy", f"{name}:{text}")),
    )  # fmt: skip
    assert list(together) == ["bf16", "vc8@once", "vc8@every", "vc8"]
    for name, text in {**policies, "": "window=2,after=identity"}.items():
        alone = results(tmp_path / f"a-{name}", *arguments, "--recipes", "vc8", "--policy", text)["vc8"]
        label = f"vc8@{name}" if name else "vc8"
        assert without_times(together[label]) == without_times(alone)
        assert (tmp_path / "t" / together[label]["files"]["frames"]).is_file()
    assert together["vc8@once"]["policy"]["window"] == 1 and together["vc8"]["policy"]["after"] == "identity"


def test_both_branches_of_guidance_are_captured(model, tmp_path):
    results(tmp_path / "o", "--model", model, "--recipes", "bf16", "--steps", 2, "--guidance", 2, "--class", "two",
            "--capture", tmp_path / "c", "--capture-steps", "0,1")  # fmt: skip
    names = sorted(p.name for p in (tmp_path / "c").iterdir())
    assert len(names) == tiny_model.LAYERS * 2 * 2
    first, second = (tmp_path / "c" / f"layer-0-step-1{branch}.safetensors" for branch in ("", "-without-class"))
    assert b'"class":"two"' in first.read_bytes() and b'"class":""' in second.read_bytes()
    # Another class embedding gives other operands.
    assert first.read_bytes()[-4096:] != second.read_bytes()[-4096:]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "windows=2"], ["windows=2", "refresh"]),
        (["--policy", "window=-1"], ["window"]),
        (["--policy", "after=never"], ["after=never", "identity"]),
        (["--policy", "window=1", "--policy", "window=2"], ["window=2", "at most one"]),
        (["--policy", "a:window=1", "--policy", "a:window=2"], ["a:window=2", "each name once"]),
        (["--policy", "a b:window=1"], ["a b", "letters"]),
        (["--policy", ":window=1"], [":window=1", "letters"]),
        (["--policy", "a:windows=1"], ["windows=1"]),
        (["--recipes", "vc8@once"], ["vc8@once", "--policy once:"]),
        (["--recipes", "vc8@"], ["vc8@", "--policy NAME:"]),
        (["--recipes", "vc9@once", "--policy", "once:window=1"], ["vc9@once", "vc8-turbo"]),
    ],
)
def test_bad_policies_are_refused(model, tmp_path, arguments, words):
    done = generate("--model", model, "--steps", 2, "--out", tmp_path / "o", *arguments)
    assert done.returncode == 2, done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert not (tmp_path / "o").exists()
