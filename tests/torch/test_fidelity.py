# SPDX-License-Identifier: Apache-2.0
"""vcattn.fidelity: its measures, a run on the small Wan pipeline, resuming, the command."""

import html.parser
import json
import math
import sys
import types

import numpy as np
import pytest
from conftest import ROOT

pytest.importorskip("diffusers")
sys.path.insert(0, str(ROOT / "examples"))
import tiny_pipelines as tiny  # noqa: E402
import torch  # noqa: E402
from vcattn import fidelity  # noqa: E402
from vcattn.fidelity import _metrics  # noqa: E402
from vcattn.fidelity.__main__ import main  # noqa: E402

PROMPTS = ["a red kite", "<b>rain</b> & wind"]
OPTIONS = {"min_keys": 25}  # 32 video tokens, 24 of text


def clip(seed=0, frames=3):
    return np.random.default_rng(seed).integers(0, 256, (frames, 24, 20, 3), np.uint8)


# --------------------------------------------------------------------- measures
def test_psnr_of_known_differences():
    a = np.full((2, 16, 16, 3), 100, np.uint8)
    assert _metrics.psnr(a, a) is None
    assert _metrics.psnr(a, a + 1) == pytest.approx(20 * math.log10(255))
    b = a.copy()
    b[1] = 110  # one frame of two: the mean square error is 50
    assert _metrics.psnr(a, b) == pytest.approx(10 * math.log10(255**2 / 50))
    assert _metrics.psnr(np.zeros_like(a), np.full_like(a, 255)) == pytest.approx(0)


def test_ssim_of_constants_and_noise():
    a, b = (np.full((2, 16, 16, 3), value, np.uint8) for value in (100, 120))
    c1 = (0.01 * 255) ** 2  # no variance: only the luminance term is left
    assert _metrics.ssim(a, b) == pytest.approx((2 * 100 * 120 + c1) / (100**2 + 120**2 + c1))
    x = clip()
    assert _metrics.ssim(x, x) == pytest.approx(1)
    noisy = np.clip(x.astype(int) + np.random.default_rng(1).integers(-20, 21, x.shape), 0, 255)
    assert 0.5 < _metrics.ssim(x, noisy.astype(np.uint8)) < 1
    assert abs(_metrics.ssim(x, clip(5))) < 0.2


def test_ssim_equals_the_formula_written_out_for_one_window():
    x, y = clip(0, 1)[:, :11, :11], clip(1, 1)[:, :11, :11]
    g = np.exp(-((np.arange(11) - 5) ** 2) / (2 * 1.5**2))
    w = np.outer(g, g) / g.sum() ** 2
    p, q = (np.tensordot(f[0].astype(float), [0.299, 0.587, 0.114], 1) for f in (x, y))
    mp, mq = (w * p).sum(), (w * q).sum()
    vp, vq, cov = ((w * (a - ma) * (b - mb)).sum()
                   for a, ma, b, mb in ((p, mp, p, mp), (q, mq, q, mq), (p, mp, q, mq)))
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    want = (2 * mp * mq + c1) * (2 * cov + c2) / ((mp**2 + mq**2 + c1) * (vp + vq + c2))
    assert _metrics.ssim(x, y) == pytest.approx(want, rel=1e-9)


def test_clips_of_different_shape_are_refused():
    with pytest.raises(ValueError, match="differ in shape"):
        _metrics.compare(clip(), clip(frames=2))


def test_lpips_is_asked_with_frames_in_minus_one_to_one(monkeypatch):
    """The package is a stand-in here: its weights are not in any registry."""
    asked = []

    class Stand(torch.nn.Module):
        def __init__(self, net, verbose):
            super().__init__()

        def forward(self, a, b):
            asked.append((a, b))
            return (a - b).abs().mean().view(1, 1, 1, 1)

    module = types.ModuleType("lpips")
    module.LPIPS = Stand
    monkeypatch.setitem(sys.modules, "lpips", module)
    _metrics._lpips_model.cache_clear()
    black, white = (np.full((2, 16, 16, 3), value, np.uint8) for value in (0, 255))
    assert _metrics.lpips_distance(black, white) == 2
    assert len(asked) == 2 and asked[0][0].shape == (1, 3, 16, 16)
    assert asked[0][0].min() == -1 and asked[0][1].max() == 1
    _metrics._lpips_model.cache_clear()


def test_vbench_is_asked_for_its_two_dimensions(monkeypatch, tmp_path):
    """A stand-in with the interface of vbench 0.1.5 (constructor, evaluate, result file)."""

    class Stand:
        def __init__(self, device, full_info_dir, output_path):
            self.out = output_path

        def evaluate(self, videos_path, name, prompt_list=[], dimension_list=None, local=False,
                     read_frame=False, mode="vbench_standard", **kwargs):
            assert mode == "custom_input"
            scores = {d: [0.5 + i, []] for i, d in enumerate(dimension_list)}
            with open(f"{self.out}/{name}_eval_results.json", "w") as file:
                json.dump(scores, file)

    module = types.ModuleType("vbench")
    module.VBench = Stand
    module.__file__ = str(tmp_path / "vbench" / "__init__.py")
    monkeypatch.setitem(sys.modules, "vbench", module)
    scores = _metrics.vbench(tmp_path, "native", tmp_path, "cpu")
    assert scores == {"subject_consistency": 0.5, "imaging_quality": 1.5}


# --------------------------------------------------------------------------- runs
class Counted:
    """The pipeline, counting its calls."""

    def __init__(self):
        self.pipe, self.inputs = tiny.wan_for_fidelity()
        self.calls = 0
        inner = self.inputs

        def inputs(prompt, generator):
            self.calls += 1
            return inner(prompt, generator)

        self.inputs = inputs


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.videos, self.open = [], []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        if tag == "video":
            self.videos.append(dict(attrs)["src"])
        if tag in ("table", "tr", "td", "th", "section", "figure", "video", "div"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in ("table", "tr", "td", "th", "section", "figure", "video", "div"):
            assert self.open.pop() == tag


def test_a_run_compares_and_goes_on_where_it_stopped(tmp_path):
    out = tmp_path / "out"
    backends = ["native", "vcattn:vc8", "vcattn:exact", "_native_math"]

    def run(counted, prompts=PROMPTS, **options):
        return fidelity.run(
            counted.pipe, prompts, out, backends=backends, inputs=counted.inputs,
            enable_options=OPTIONS, progress=False, **options,
        )  # fmt: skip

    class Stop(Exception):
        pass

    stopping = Counted()
    inner = stopping.inputs

    def stop_in_the_second_clip(prompt, generator):
        if stopping.calls == 5:
            raise Stop
        return inner(prompt, generator)

    stopping.inputs = stop_in_the_second_clip
    with pytest.raises(Stop):
        run(stopping)
    assert (out / "clips" / "000.json").is_file() and not (out / "result.json").exists()
    assert not list(out.rglob("*part*"))

    counted = Counted()
    result = run(counted)
    assert counted.calls == 4  # only the second clip
    summary = result["summary"]
    assert list(summary) == backends[1:]
    # FP64 attention differs by rounding: most of the shown 8-bit values are equal.
    assert summary["vcattn:exact"]["psnr"] is None or summary["vcattn:exact"]["psnr"] > 60
    assert summary["vcattn:exact"]["ssim"] > summary["vcattn:vc8"]["ssim"] > 0.5
    assert summary["vcattn:vc8"]["psnr"] > 20
    for entry in result["clips"]:
        assert entry["backends"]["vcattn:vc8"]["calls"]["vcattn"] == 2 * 2 * 2
        assert "measures" not in entry["backends"]["native"]
    assert json.loads((out / "result.json").read_text()) == result

    text = (out / "index.html").read_text()
    page = Page(text)
    assert len(page.videos) == 2 * 4
    for video in page.videos:
        assert (out / video).stat().st_size > 500
    assert "&lt;b&gt;rain&lt;/b&gt; &amp; wind" in text and "<b>rain" not in text

    again = Counted()
    assert run(again) == result and again.calls == 0
    for options in ({"seed": 7}, {"prompts": PROMPTS[:1]}):
        with pytest.raises(ValueError, match="other settings"):
            run(again, **options)


def test_a_backend_that_ran_nothing_is_an_error(tmp_path):
    counted = Counted()
    with pytest.raises(ValueError, match="ran no attention call"):
        fidelity.run(counted.pipe, PROMPTS[:1], tmp_path, inputs=counted.inputs, progress=False)
    for wrong in (["native"], ["native", "native"]):
        with pytest.raises(ValueError, match="backends"):
            fidelity.run(counted.pipe, PROMPTS, tmp_path, backends=wrong)


def test_command(tmp_path, capsys):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\n\n two \nthree\n")
    assert fidelity.read_prompts(prompts, 2) == ["one", "two"]
    model = f"{ROOT / 'examples' / 'tiny_pipelines.py'}:wan_for_fidelity"
    base = [model, "--prompts", str(prompts), "--out", str(tmp_path / "out"), "--clips", "1",
            "--enable", json.dumps(OPTIONS)]  # fmt: skip
    assert main(base) == 0
    shown = capsys.readouterr()
    assert "vcattn:vc8: psnr" in shown.out and "index.html" in shown.out
    assert "fidelity" in shown.err  # the progress bar
    assert main([*base, "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert main([*base, "--seed", "3"]) == 2
    assert "other settings" in capsys.readouterr().err
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    assert main([model, "--prompts", str(empty), "--out", str(tmp_path / "o")]) == 2
    assert "no prompt" in capsys.readouterr().err
    assert main(["none.py:x", "--prompts", str(prompts), "--out", str(tmp_path / "o")]) == 2
