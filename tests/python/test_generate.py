# SPDX-License-Identifier: Apache-2.0
"""`vcattn generate` on a small random model: files, numbers, determinism, refusals, interruption."""

from __future__ import annotations

import json
import math
import os
import pathlib
import re
import signal
import struct
import subprocess
import time

import matplotlib.image
import numpy as np
import pytest
import tiny_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
VCATTN = os.environ.get("VCATTN_BINARY", str(ROOT / "build" / "bin" / "vcattn"))
MEASURES = ("psnr", "ssim", "ssimulacra2", "ssimulacra", "butteraugli", "vif", "lpips")


def generate(*arguments, env: dict | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(
        [VCATTN, "generate", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=None if env is None else {**os.environ, **env},
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> pathlib.Path:
    return tiny_model.write(tmp_path_factory.mktemp("model") / "tiny.safetensors")


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """One run that many tests look at: (completed process, output directory, JSON)."""
    out = tmp_path_factory.mktemp("generate") / "new" / "out"
    done = generate(
        "--model", model, "--recipes", "sage2,vc8", "--class", "two", "--seed", 5, "--steps", 2,
        "--threads", 2, "--out", out, "--json", out.parent.parent / "result.json",
        "--capture", out / "capture", "--capture-steps", "0,1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done, out, json.loads((out / "generate.json").read_text())


def refused(done: subprocess.CompletedProcess, *words: str) -> None:
    assert done.returncode == 2, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


def read_frames(path: pathlib.Path) -> np.ndarray:
    """Frames of a contact sheet: 7 columns, 4 pixels of paper around each."""
    sheet = np.rint(matplotlib.image.imread(path)[..., :3] * 255).astype(np.uint8)
    frames = int(tiny_model.METADATA["frames"])
    height, width = int(tiny_model.METADATA["height"]), int(tiny_model.METADATA["width"])
    return np.stack(
        [
            sheet[
                4 + f // 7 * (height + 4) : 4 + f // 7 * (height + 4) + height,
                4 + f % 7 * (width + 4) : 4 + f % 7 * (width + 4) + width,
            ]
            for f in range(frames)
        ]
    )


def read_safetensors(path: pathlib.Path) -> tuple[dict, bytes]:
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


# ---- what a run leaves ----


def test_files(run):
    _, out, result = run
    recipes = result["runs"][0]["recipes"]
    wanted = {"index.html", "generate.json", "side-by-side.png", "difference.png", "capture"}
    for recipe in recipes.values():
        wanted |= set(recipe["files"].values())
    assert {p.name for p in out.iterdir()} == wanted
    assert all(p.stat().st_size > 0 for p in out.iterdir())
    assert (out.parent.parent / "result.json").read_text() == (out / "generate.json").read_text()


def test_json_has_every_field(run):
    _, _, result = run
    assert set(result) == {
        "version", "spec_version", "model", "class", "denoising_steps", "guidance", "threads",
        "reference", "runs", "mean",
    }  # fmt: skip
    assert (result["class"], result["denoising_steps"], result["reference"]) == ("two", 2, "bf16")
    assert result["model"]["tokens"] == math.prod(tiny_model.GRID)
    assert result["runs"][0]["seed"] == 5
    recipes = result["runs"][0]["recipes"]
    assert list(recipes) == ["bf16", "sage2", "vc8"]
    for name, recipe in recipes.items():
        assert set(recipe) == {
            *MEASURES, "identical", "unavailable", "energy_removed", "regroupings", "latent_error",
            "seconds", "attention_seconds", "grouping", "kernel", "policy", "files", "encoder",
            "steps",
        }, name  # fmt: skip
        assert len(recipe["steps"]) == 2
        for number, step in enumerate(recipe["steps"]):
            assert step["step"] == number
            assert 0 <= step["attention_seconds"] <= step["seconds"]
            assert (step["latent_error"] is None) == (name == "bf16")
        for measure in MEASURES:
            if recipe[measure] is None:
                assert name == "bf16" or recipe["unavailable"][measure]
    assert recipes["vc8"]["steps"][0]["t"] == 1
    # 60 tokens are one block: the mean takes out a part, not all of the energy.
    assert 0 < recipes["vc8"]["energy_removed"] < 1
    assert recipes["sage2"]["energy_removed"] is None


def test_latent_error_starts_small_and_is_not_zero(run):
    _, _, result = run
    for name in ("sage2", "vc8"):
        errors = [s["latent_error"] for s in result["runs"][0]["recipes"][name]["steps"]]
        assert all(1e-7 < e < 0.2 for e in errors), (name, errors)


def test_psnr_is_that_of_the_written_frames(run):
    _, out, result = run
    reference = read_frames(out / "bf16-frames.png").astype(float)
    for name in ("sage2", "vc8"):
        recipe = result["runs"][0]["recipes"][name]
        error = np.mean((read_frames(out / recipe["files"]["frames"]) - reference) ** 2)
        assert recipe["psnr"] == pytest.approx(10 * math.log10(255**2 / error), abs=1e-9)
        assert result["mean"][name]["psnr"] == pytest.approx(recipe["psnr"])


def test_clip_plays(run):
    _, out, result = run
    for recipe in result["runs"][0]["recipes"].values():
        probe = subprocess.run(
            ["ffprobe", "-v", "error", "-count_frames", "-show_entries", "stream=nb_read_frames",
             "-of", "csv=p=0", out / recipe["files"]["clip"]],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert probe.stdout.strip().strip(",") == tiny_model.METADATA["frames"]


def test_page_is_self_contained(run):
    _, out, _ = run
    page = (out / "index.html").read_text()
    assert page.count("<video") == 3
    assert re.findall(r"""(?:src|href)=["'](?!data:)""", page) == []
    assert "http" not in page


def test_table(run):
    done, _, result = run
    lines = done.stdout.splitlines()
    assert lines[0].split()[0] == "recipe"
    vc8 = next(line for line in lines if line.startswith("vc8"))
    assert f"{result['runs'][0]['recipes']['vc8']['psnr']:.2f}" in vc8


def test_capture_holds_the_operands(run):
    _, out, _ = run
    files = sorted((out / "capture").iterdir())
    assert [f.name for f in files] == [
        f"layer-{layer}-step-{step}.safetensors" for layer in range(2) for step in range(2)
    ]
    for file in files:
        header, data = read_safetensors(file)
        metadata = header.pop("__metadata__")
        assert metadata["grid"] == ",".join(map(str, tiny_model.GRID))
        assert metadata["recipe"] == "bf16"
        for name in "qkv":
            info = header[name]
            shape = [1, tiny_model.HEADS, math.prod(tiny_model.GRID), tiny_model.HEAD_DIM]
            assert (info["dtype"], info["shape"]) == ("BF16", shape)
        # QK norm: the mean square of a key is that of the norm's weights, whatever rotated it.
        begin, end = header["k"]["data_offsets"]
        bits = np.frombuffer(data[begin:end], np.uint16).astype(np.uint32) << 16
        keys = bits.view(np.float32).reshape(-1, tiny_model.HEAD_DIM)
        assert np.all(np.abs(np.sqrt((keys**2).mean(1)) - 1.5) < 0.6)


def test_capture_is_a_problem_for_compare(run, tmp_path):
    _, out, _ = run
    done = subprocess.run(
        [VCATTN, "compare", out / "capture" / "layer-1-step-1.safetensors", "--recipes",
         "bf16,sage2", "--json", tmp_path / "c.json"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    recipes = json.loads((tmp_path / "c.json").read_text())["recipes"]
    assert 0 < recipes["bf16"]["rel_l2"] < recipes["sage2"]["rel_l2"] < 0.1


# ---- the same again ----


def strip_times(value):
    if isinstance(value, dict):
        skip = ("seconds", "attention_seconds", "threads")
        return {k: strip_times(v) for k, v in value.items() if k not in skip}
    return [strip_times(v) for v in value] if isinstance(value, list) else value


def test_same_seed_same_bytes_with_any_thread_count(run, model, tmp_path):
    _, out, result = run
    again = tmp_path / "again"
    done = generate("--model", model, "--recipes", "sage2,vc8", "--class", "two", "--seed", 5,
                    "--steps", 2, "--threads", 1, "--out", again, "--quiet")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    for file in again.iterdir():
        if file.suffix in (".png", ".mp4", ".webm"):
            assert file.read_bytes() == (out / file.name).read_bytes(), file.name
    assert strip_times(json.loads((again / "generate.json").read_text())) == strip_times(result)


def test_several_seeds(run, model, tmp_path):
    _, single, _ = run
    out = tmp_path / "seeds"
    done = generate("--model", model, "--recipes", "vc8", "--class", "two", "--seed", 4, "--seeds",
                    2, "--steps", 2, "--out", out)  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads((out / "generate.json").read_text())
    assert [r["seed"] for r in result["runs"]] == [4, 5]
    psnr = [r["recipes"]["vc8"]["psnr"] for r in result["runs"]]
    assert psnr[0] != psnr[1]
    assert result["mean"]["vc8"]["psnr"] == pytest.approx(sum(psnr) / 2)
    # A seed gives the same clip alone and in company.
    assert (out / "seed-5" / "vc8-frames.png").read_bytes() == (
        single / "vc8-frames.png"
    ).read_bytes()


def test_class_matters(run, model, tmp_path):
    _, two, _ = run
    done = generate("--model", model, "--recipes", "bf16", "--seed", 5, "--steps", 2, "--out",
                    tmp_path / "one")  # fmt: skip
    assert done.returncode == 0, done.stderr
    # The first class is the default.
    assert json.loads((tmp_path / "one" / "generate.json").read_text())["class"] == "one"
    name = "bf16-frames.png"
    assert (tmp_path / "one" / name).read_bytes() != (two / name).read_bytes()


# ---- tools that are not there ----


def test_missing_tools_leave_null_and_a_reason(model, tmp_path):
    done = generate("--model", model, "--recipes", "sage2", "--steps", 1, "--out", tmp_path / "o",
                    env={"PATH": "/nonexistent"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    recipe = json.loads((tmp_path / "o" / "generate.json").read_text())["runs"][0]["recipes"]["sage2"]
    for measure in ("ssimulacra2", "ssimulacra", "butteraugli", "vif"):
        assert recipe[measure] is None
        assert "not found" in recipe["unavailable"][measure]
    assert recipe["psnr"] > 0


def test_unwritable_temporary_directory_leaves_null_and_a_reason(model, tmp_path):
    done = generate("--model", model, "--recipes", "sage2", "--steps", 1, "--out", tmp_path / "o",
                    env={"TMPDIR": "/proc"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    recipe = json.loads((tmp_path / "o" / "generate.json").read_text())["runs"][0]["recipes"]["sage2"]
    assert recipe["vif"] is None
    assert "/proc" in recipe["unavailable"]["vif"]
    assert recipe["psnr"] > 0


# ---- refusals: exit code 2, a text that helps, nothing written ----


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--class", "three"], ["three", "one, two"]),
        (["--recipes", "sage2,vc9"], ["vc9", "vc8-turbo"]),
        (["--recipes", "sage2,"], ["recipe"]),
        (["--steps", "0"], ["--steps"]),
        (["--steps", "two"], ["--steps"]),
        (["--seeds", "0"], ["--seeds"]),
        (["--seed", "-1"], ["--seed"]),
        (["--seed", "99999999999999999999999"], ["--seed"]),
        (["--recipes", ""], ["--recipes is empty"]),
        (["--class", ""], ["--class is empty"]),
        (["--json", ""], ["--json is empty"]),
        (["--threads", "0"], ["--threads"]),
        (["--guidance", "-1"], ["--guidance"]),
        (["--guidance", "nan"], ["--guidance", "nan"]),
        (["--grouping", "raster"], ["raster", "kdtree"]),
        (["--capture-steps", "1"], ["--capture"]),
        (["--capture", "c", "--capture-steps", "2"], ["--capture-steps"]),
        (["--lpips-weights", "/nonexistent.safetensors"], ["nonexistent"]),
        (["--unknown"], ["--unknown"]),
    ],
)
def test_bad_arguments(model, tmp_path, arguments, words):
    done = generate("--model", model, "--steps", 2, "--out", tmp_path / "o", *arguments) \
        if "--steps" not in arguments else \
        generate("--model", model, "--out", tmp_path / "o", *arguments)  # fmt: skip
    refused(done, *words)
    assert list(tmp_path.iterdir()) == []


def test_out_is_required(model):
    refused(generate("--model", model), "--out")


def test_unwritable_outputs(model, tmp_path):
    (tmp_path / "file").write_text("")
    refused(generate("--model", model, "--out", tmp_path / "file" / "o"), "file")
    refused(generate("--model", model, "--out", tmp_path / "file"), "file")
    refused(generate("--model", model, "--out", "/proc/o"), "/proc/o")
    done = generate("--model", model, "--out", tmp_path / "o", "--json", tmp_path / "no" / "j")
    refused(done, "no/j")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def damaged_models():
    values = tiny_model.tensors()
    missing = {k: v for k, v in values.items() if k != "blocks.1.fc1.bias"}
    shape = {**values, "pos_time": values["pos_time"].T}
    nan = {k: v.copy() for k, v in values.items()}
    nan["final.proj.bias"][3] = np.nan
    metadata = tiny_model.METADATA
    return {
        "missing": (missing, metadata, ["blocks.1.fc1.bias", "missing"]),
        "shape": (shape, metadata, ["pos_time", "[32, 2]", "[2, 32]"]),
        "nan": (nan, metadata, ["final.proj.bias", "flat index 3"]),
        "format": (values, {**metadata, "format": "other"}, ["format", "tiny_video_dit"]),
        "grid": (values, {**metadata, "grid": "2,5,7"}, ["grid"]),
        "huge": (values, {**metadata, "layers": "1e300"}, ["layers"]),
        "fraction": (values, {**metadata, "heads": "1.5"}, ["heads"]),
        "negative": (values, {**metadata, "mlp_dim": "-64"}, ["mlp_dim"]),
        "text": (values, {**metadata, "norm_eps": "small"}, ["norm_eps", "small"]),
        "rope": (values, {**metadata, "rope_split": "12,10,12"}, ["rope_split"]),
        "no_metadata": (values, {}, ["format", "missing"]),
    }


@pytest.mark.parametrize("name", list(damaged_models()))
def test_damaged_model(tmp_path, name):
    values, metadata, words = damaged_models()[name]
    path = tiny_model.write(tmp_path / "bad.safetensors", values, metadata)
    refused(generate("--model", path, "--out", tmp_path / "o"), *words)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("size", [0, 7, 100, -2])
def test_truncated_model(model, tmp_path, size):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(model.read_bytes()[:size])
    refused(generate("--model", path, "--out", tmp_path / "o"), "bad.safetensors")
    assert not (tmp_path / "o").exists()


# ---- the bundled model ----


def test_bundled_model(tmp_path):
    done = generate("--recipes", "vc8", "--steps", 1, "--out", tmp_path / "o")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "o" / "generate.json").read_text())
    assert result["model"]["tokens"] >= 4096
    assert result["model"]["layers"] >= 4
    vc8 = result["runs"][0]["recipes"]["vc8"]
    # One step already shows the clip; INT8 and E4M3 attention stays close to BF16's.
    assert vc8["psnr"] > 30
    assert vc8["grouping"] == "auto"
    assert 0.05 < vc8["energy_removed"] < 1


def test_ctrl_c_leaves_nothing(tmp_path):
    process = subprocess.Popen(
        [VCATTN, "generate", "--recipes", "vc8", "--steps", "200", "--out", tmp_path / "a" / "b",
         "--capture", tmp_path / "c", "--capture-steps", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    # The first capture shows that sampling has begun.
    while not any((tmp_path / "c").glob("*.safetensors")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert list(tmp_path.iterdir()) == []
