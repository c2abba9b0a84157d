# SPDX-License-Identifier: Apache-2.0
"""vcattn.fidelity with settings that do not fit, frames that are no picture, and damaged folders."""

import contextlib
import shutil

import numpy as np
import pytest
import vcattn
from vcattn import fidelity
from vcattn.fidelity.__main__ import main

pytestmark = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="no ffmpeg")


class Pipe:
    """Noise of the seed; counts its calls."""

    def __init__(self, make=lambda seed: np.random.default_rng(seed).random((2, 16, 16, 3))):
        self.make, self.calls = make, 0

    def __call__(self, prompt, generator, output_type):
        self.calls += 1
        return type("Output", (), {"frames": [self.make(generator.initial_seed())]})


@pytest.fixture(autouse=True)
def any_backend(monkeypatch):
    monkeypatch.setattr(fidelity, "_attention", lambda *_: contextlib.nullcontext(dict))


def run(out, pipe=None, prompts=("a", "b"), **options):
    return fidelity.run(pipe or Pipe(), prompts, out, progress=False, **options)


@pytest.mark.parametrize("options, word", [
    ({"prompts": "a cat"}, "prompts"), ({"prompts": ()}, "prompts"), ({"prompts": None}, "prompts"),
    ({"prompts": ("a", 2)}, "a prompt"), ({"backends": "native,vcattn:vc8"}, "backends"),
    ({"backends": ("native",)}, "backends"), ({"backends": ("native", "native")}, "backends"),
    ({"backends": ("native", "")}, "backends"), ({"backends": ("native", "..")}, "backends"),
    ({"backends": ("native", "a:b", "a-b")}, "backends"), ({"backends": ("native", 3)}, "backends"),
    ({"fps": 0}, "fps"), ({"fps": -1}, "fps"), ({"fps": "x"}, "fps"), ({"fps": float("inf")}, "fps"),
    ({"seed": "x"}, "seed"), ({"seed": -5}, "seed"), ({"seed": 2**63 - 1}, "seed"), ({"seed": 1.5}, "seed"),
    ({"call": 5}, "call"), ({"call": {"a": object()}}, "call"), ({"enable_options": 5}, "enable_options"),
])  # fmt: skip
def test_settings_that_do_not_fit_are_refused_before_the_first_clip(options, word, tmp_path):
    pipe = Pipe()
    with pytest.raises(vcattn.InvalidArgumentError, match=word):
        run(tmp_path, pipe, **options)
    assert pipe.calls == 0 and not list(tmp_path.iterdir())


def test_a_backends_clips_stay_in_the_folder_of_the_run(tmp_path):
    run(tmp_path / "run", backends=("native", "../../x"))
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run/clips/..-..-x/000.mp4").is_file()


@pytest.mark.parametrize("shape", [(2, 8, 16, 3), (0, 16, 16, 3), (16, 16), (2, 16, 16, 1)])
def test_frames_of_another_form_are_refused(shape, tmp_path):
    with pytest.raises(vcattn.InvalidArgumentError, match="frames of native"):
        run(tmp_path, Pipe(lambda seed: np.zeros(shape)))


def test_frames_that_are_not_finite_are_an_error_and_no_black_picture(tmp_path):
    def frames(seed):
        pixels = np.zeros((2, 16, 16, 3))
        pixels[1, 3, 5] = np.nan
        return pixels

    with pytest.raises(vcattn.NonFiniteError, match="native gave frames with 3 of 1536"):
        run(tmp_path, Pipe(frames))
    assert not list((tmp_path / "clips").glob("*.json"))


def test_a_damaged_record_or_a_missing_clip_is_made_again(tmp_path):
    want = run(tmp_path)
    for damage in (
        lambda: (tmp_path / "clips/000.json").write_text("{"),
        lambda: (tmp_path / "clips/000.json").write_text("[]"),
        lambda: (tmp_path / "clips/native/000.mp4").unlink(),
    ):
        damage()
        pipe = Pipe()
        assert run(tmp_path, pipe)["clips"] == want["clips"]
        assert pipe.calls == 2  # one clip, two backends
    pipe = Pipe()
    run(tmp_path, pipe)
    assert pipe.calls == 0


def test_clips_of_unknown_settings_are_not_mixed_in(tmp_path):
    run(tmp_path)
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(vcattn.InvalidArgumentError, match="settings.json' is damaged"):
        run(tmp_path)
    (tmp_path / "settings.json").unlink()
    with pytest.raises(vcattn.InvalidArgumentError, match="no settings.json"):
        run(tmp_path, prompts=("x", "y"))


def test_prompt_files(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufeffa cat\r\n\r\nb".encode())
    assert fidelity.read_prompts(file) == ["a cat", "b"]
    for count in (0, -1, 1.5):
        with pytest.raises(vcattn.InvalidArgumentError, match="count"):
            fidelity.read_prompts(file, count)
    file.write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(ValueError):
        fidelity.read_prompts(file)


def test_prompts_are_text_on_the_page(tmp_path):
    run(tmp_path, prompts=("<script>alert(1)</script>",))
    assert "<script>alert" not in (tmp_path / "index.html").read_text()


def test_command_says_what_is_wrong_without_a_traceback(tmp_path, capsys, monkeypatch):
    (tmp_path / "prompts.txt").write_text("a\n")
    (tmp_path / "model.py").write_text("def five(): return 5\n")
    base = ["--prompts", str(tmp_path / "prompts.txt"), "--out", str(tmp_path / "out")]
    for model, words in (("none.py:f", "no file"), (f"{tmp_path}/model.py:f", "no function 'f'"),
                         (f"{tmp_path}/model.py:five", "gave int")):  # fmt: skip
        assert main([model, *base]) == 2 and words in capsys.readouterr().err
    (tmp_path / "good.py").write_text("def make(): return None, None\n")

    def fails(*_, **__):
        raise RuntimeError("ffmpeg failed")

    monkeypatch.setattr("vcattn.fidelity.__main__.run", fails)
    assert main([f"{tmp_path}/good.py:make", *base]) == 1
    assert "ffmpeg failed" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
