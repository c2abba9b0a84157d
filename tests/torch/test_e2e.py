# SPDX-License-Identifier: Apache-2.0
"""bench/e2e.py as a program: small models on the CPU, the file it leaves, its refusals."""

import json
import sys

import pytest
from conftest import ROOT
from programs import run

pytest.importorskip("diffusers")
pytest.importorskip("transformers")


def e2e(*arguments):
    return run(sys.executable, ROOT / "bench" / "e2e.py", *arguments, timeout=900)


def test_tiny_models_fill_a_file_and_files_merge(tmp_path):
    files = []
    # No time is left for the second one's whole forwards.
    for model, options in (("wan2.2-a14b", []), ("minimax-h3", ["--quick", "--deadline", 1])):
        files.append(tmp_path / f"{model}.json")
        done = e2e(model, "--tiny", "--device", "cpu", "--kept", 1, "--out", files[-1], *options)
        assert done.returncode == 0, done.stderr[-3000:]
    merged = tmp_path / "merged.json"
    done = e2e("--merge", *files, "--out", merged)
    assert done.returncode == 0, done.stderr
    data = json.loads(merged.read_text())
    assert "tiny" in data["note"] and data["gpu"] is None
    wan, h3 = data["models"]
    cells = {(row["attention"], row["linears"], row["grouping"]) for row in wan["rows"]}
    for recipe, linears in (("vc8", "bf16"), ("vc8-turbo", "bf16"), ("vc8", "fp8")):
        assert {(recipe, linears, g) for g in ("cold", "warm", "kept")} <= cells
    assert sum(grouping == "none" for _, _, grouping in cells) == 2  # native, with either linears
    for model in (wan, h3):
        assert all(stage["ms"] for stage in model["stages"].values()), model["stages"]
        assert all(clip["clip_s"] > 0 for clip in model["clips"])
    assert wan["experts"] == [26, 14] and h3["forwards_per_step"] == 1
    assert {tuple(p[0] for p in row["short_ms"]) for row in h3["rows"]} == {(2, 3)}
    assert {(r["attention"], r["grouping"]) for r in h3["rows"]} >= {
        (recipe, g) for recipe in ("vc8", "vc8-turbo") for g in ("cold", "kept")
    }


def test_two_models_in_one_lean_run(tmp_path):
    out = tmp_path / "two.json"
    options = ("--tiny", "--device", "cpu", "--lean", "--no-fp8", "--kept", 1, "--out", out)
    done = e2e("hunyuanvideo-1.5", "minimax-h3", *options)
    assert done.returncode == 0, done.stderr[-3000:]
    models = json.loads(out.read_text())["models"]
    assert [m["model"] for m in models] == ["hunyuanvideo-1.5", "minimax-h3"]
    for model in models:
        assert {(r["attention"], r["grouping"]) for r in model["rows"]} >= {
            (recipe, grouping) for recipe in ("vc8", "vc8-turbo") for grouping in ("cold", "kept")
        }
    assert "ByT5" in models[0]["stages"]["text_encoder"]["what"]
    assert any("no square mask" in clip["attention"] for clip in models[0]["clips"])


@pytest.mark.parametrize("arguments, text", [
    ([], "give a model"),
    (["wan2.2-a14b", "--device", "cpu"], "full size needs a GPU"),
    (["longcat-video", "--tiny"], "--longcat DIR"),
    (["wan2.1", "--tiny"], "unknown model"),
    (["minimax-h3", "minimax-h3", "--tiny"], "a model twice"),
])  # fmt: skip
def test_refusals(arguments, text, tmp_path):
    done = e2e(*arguments, "--out", tmp_path / "x.json")
    assert done.returncode == 2 and text in done.stderr and not (tmp_path / "x.json").exists()
