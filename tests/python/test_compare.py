# SPDX-License-Identifier: Apache-2.0
"""`vcattn compare`: figures, JSON, table, page, and every hard input that must work."""

import html.parser
import json
import os
import pty
import re
import subprocess

import numpy as np
import pytest
from compare_dumps import BINARY, FIGURES, RECIPES, compare, dump, random_qkv, vcattn

# Figures that a recipe does not have: no means, no 8-bit codes.
WITHOUT_ENERGY = {"exact", "bf16", "fp8", "sage2", "fp4", "sage3"}
WITHOUT_CODES = {"exact", "bf16"}

# "Not broken", not "accurate" (tests/accuracy is for that). One rounding to E4M3, the coarsest step
# of any recipe, is off by 2^-4 at most; on random tensors the errors of many keys average, so a
# recipe that reaches it does something else than it should.
NEAR = 2**-4
# NVFP4 scores of random keys: half a step of E2M1 is up to a fifth of an element.
FOUR_BIT = {"fp4", "sage3", "vc4-paper", "vc4", "vc4-int8qk"}


def near(name: str) -> float:
    return 5 * NEAR if name in FOUR_BIT else NEAR


@pytest.fixture(scope="module")
def basic(tmp_path_factory):
    """Two batches, grouped heads, a tail block; every recipe."""
    path = tmp_path_factory.mktemp("basic") / "basic.safetensors"
    dump(path, random_qkv(s_q=150, s_kv=300, heads=4, kv_heads=2, batch=2), "BF16")
    return path, compare(path, "--rows", 10)


def check_figures(name: str, figures: dict):
    assert list(figures) == FIGURES
    for key in FIGURES:
        undefined = (key == "energy_removed" and name in WITHOUT_ENERGY) or (
            key[:3] in ("tv_", "tau") and name in WITHOUT_CODES
        )
        assert (figures[key] is None) == undefined, (name, key, figures[key])
    for key in ("rel_l2", "worst_row", "qk_only", "p_only", "v_only", "seconds"):
        assert figures[key] >= 0
    assert figures["rel_l2"] <= figures["worst_row"] or figures["rel_l2"] == 0
    assert abs(figures["cosine"]) <= 1 + 1e-12
    for key in ("energy_removed", "tv_mean", "tv_max", "tau_mean", "tau_max"):
        assert figures[key] is None or 0 <= figures[key] <= 1 + 1e-6
    if figures["tv_mean"] is not None:
        assert figures["tv_mean"] <= figures["tv_max"]
        assert figures["tau_mean"] <= figures["tau_max"]


def test_json_has_every_figure_of_every_recipe(basic):
    _, result = basic
    assert list(result) == ["version", "spec_version", "input", "recipes"]
    assert result["version"] and result["spec_version"] >= 1
    assert list(result["recipes"]) == RECIPES
    for name, figures in result["recipes"].items():
        check_figures(name, figures)


def test_json_describes_the_input(basic):
    path, result = basic
    given = result["input"]
    assert given["file"] == str(path)
    assert (given["batch"], given["heads_q"], given["heads_kv"]) == (2, 4, 2)
    assert (given["tokens_q"], given["tokens_kv"], given["head_dim"]) == (150, 300, 64)
    assert (given["dtype"], given["layout"], given["target"]) == ("BF16", "HND", "cpu")
    assert given["scale"] == 1 / 8
    assert given["rows"] == 10 and given["grouping"] == "default" and given["grid"] is None
    assert "sampled rows" in given["timed"]


def test_exact_is_the_reference(basic):
    exact = basic[1]["recipes"]["exact"]
    for key in ("rel_l2", "worst_row", "qk_only", "p_only", "v_only"):
        assert exact[key] == 0
    assert exact["cosine"] == 1


def test_every_eight_bit_recipe_is_near_and_not_exact(basic):
    for name, figures in basic[1]["recipes"].items():
        if name not in WITHOUT_CODES:
            assert 1e-5 < figures["rel_l2"] < near(name), name
            assert figures["cosine"] > 0.998, name


def test_only_seconds_change_from_run_to_run_and_with_threads(basic, tmp_path):
    path, first = basic
    second = compare(path, "--rows", 10, "--threads", 1, json_path=tmp_path / "again.json")
    for result in (first, second):
        result["input"].pop("threads")
        for figures in result["recipes"].values():
            figures["seconds"] = 0
    assert first == second


def reference_rel_l2(tensors: dict, approximate) -> float:
    """Error of `approximate(q, k, v, scale)` against FP64 softmax attention, all rows."""
    error = norm = 0.0
    group = tensors["q"].shape[1] // tensors["k"].shape[1]
    for b in range(tensors["q"].shape[0]):
        for h in range(tensors["q"].shape[1]):
            q = tensors["q"][b, h]
            k, v = tensors["k"][b, h // group], tensors["v"][b, h // group]
            scale = 1 / np.sqrt(q.shape[1])
            s = q @ k.T * scale
            p = np.exp(s - s.max(1, keepdims=True))
            exact = p / p.sum(1, keepdims=True) @ v
            error += ((approximate(q, k, v, scale) - exact) ** 2).sum()
            norm += (exact**2).sum()
    return float(np.sqrt(error / norm))


def test_bf16_error_is_that_of_rounded_inputs(tmp_path):
    """An independent witness from numpy: on FP32 input the recipe bf16 computes the FP64 attention
    of BF16 q, k, v up to FP32 noise."""
    tensors = {n: a.astype(np.float32).astype(float) for n, a in random_qkv(heads=2).items()}

    def bf16(x):
        bits = x.astype(np.float32).view(np.uint32)
        return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).view(np.float32).astype(float)

    def attention(q, k, v, scale):
        s = bf16(q) @ bf16(k).T * scale
        p = np.exp(s - s.max(1, keepdims=True))
        return p / p.sum(1, keepdims=True) @ bf16(v)

    path = dump(tmp_path / "t.safetensors", tensors)
    got = compare(path, "--recipes", "bf16", "--rows", 0)["recipes"]["bf16"]["rel_l2"]
    expected = reference_rel_l2({n: np.repeat(a, 2, 1) if a.shape[1] == 1 and n == "q" else a
                                 for n, a in tensors.items()}, attention)  # fmt: skip
    # FP32 sums of 130 terms: 130 * 2^-24 = 8e-6 at the very most, beside an error of about 2e-3.
    assert got == pytest.approx(expected, abs=8e-6)


def test_rows_are_evenly_spread_and_zero_means_all(tmp_path):
    path = dump(tmp_path / "t.safetensors", random_qkv(s_q=37, s_kv=64))
    run = lambda rows: compare(path, "--recipes", "vc8", "--rows", rows)  # noqa: E731
    assert run(5)["input"]["rows"] == 5
    everything, more = run(0), run(1000)
    assert everything["input"]["rows"] == more["input"]["rows"] == 37
    assert "whole call" in everything["input"]["timed"]
    for result in (everything, more):
        result["recipes"]["vc8"].pop("seconds")
    assert everything["recipes"] == more["recipes"]


def test_default_is_256_rows(tmp_path):
    path = dump(tmp_path / "t.safetensors", random_qkv(s_q=300, s_kv=64))
    assert compare(path, "--recipes", "sage2")["input"]["rows"] == 256


def test_layout_nhd_is_the_same_problem(tmp_path):
    tensors = random_qkv(s_q=50, s_kv=140, heads=4, kv_heads=2, batch=2)
    hnd = compare(dump(tmp_path / "hnd.safetensors", tensors), "--recipes", "vc8,sage2")
    turned = {name: np.ascontiguousarray(a.transpose(0, 2, 1, 3)) for name, a in tensors.items()}
    nhd = compare(
        dump(tmp_path / "nhd.safetensors", turned), "--recipes", "vc8,sage2", "--layout", "NHD"
    )
    assert nhd["input"]["layout"] == "NHD"
    for result in (hnd, nhd):
        for figures in result["recipes"].values():
            figures.pop("seconds")
    assert hnd["recipes"] == nhd["recipes"]


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_dtypes(tmp_path, dtype):
    path = dump(tmp_path / "t.safetensors", random_qkv(), dtype)
    result = compare(path, "--recipes", "vc8")
    assert result["input"]["dtype"] == dtype
    check_figures("vc8", result["recipes"]["vc8"])


def test_a_file_of_the_safetensors_package_and_other_tensors_in_it(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    tensors = {n: a.astype(np.float16) for n, a in random_qkv().items()}
    tensors["step"] = np.arange(3, dtype=np.int64)
    path = tmp_path / "t.safetensors"
    safetensors.save_file(tensors, path, metadata={"layer": "3"})
    check_figures("vc8", compare(path, "--recipes", "vc8")["recipes"]["vc8"])


def test_hadamard_suffix_and_repeated_names(tmp_path):
    tensors = random_qkv()
    tensors["q"][..., 3] *= 30  # an outlier channel: what the rotation is for
    path = dump(tmp_path / "t.safetensors", tensors)
    recipes = compare(path, "--recipes", "vc8,vc8+had,vc8")["recipes"]
    assert list(recipes) == ["vc8", "vc8+had"]
    assert recipes["vc8+had"]["qk_only"] < recipes["vc8"]["qk_only"]


def test_grouping_override(tmp_path):
    """V has six clusters: a grouping that sees V takes more energy out than token order."""
    path = dump(tmp_path / "t.safetensors", random_qkv(s_q=16, s_kv=1024))
    energy = {}
    for grouping in ("identity", "cubes", "kdtree", "vsmooth", "kmeans", "balanced", "auto"):
        result = compare(
            path, "--recipes", "vc8,sage2", "--grouping", grouping, "--grid", "4,16,16"
        )
        assert result["input"]["grouping"] == grouping
        assert result["input"]["grid"] == [4, 16, 16]
        assert result["recipes"]["sage2"]["energy_removed"] is None
        energy[grouping] = result["recipes"]["vc8"]["energy_removed"]
    for grouping in ("kdtree", "vsmooth", "kmeans", "balanced", "auto"):
        assert energy[grouping] > 2 * energy["identity"], energy


@pytest.mark.parametrize("target", ["cpu", "sm89", "sm90", "sm100", "sm103", "sm120"])
def test_targets(tmp_path, target):
    path = dump(tmp_path / "t.safetensors", random_qkv(s_q=8, s_kv=200))
    result = compare(path, "--target", target, "--recipes", "vc8,sage2,vc8-fp8qk")
    assert result["input"]["target"] == target
    assert 0 < result["recipes"]["vc8"]["rel_l2"] < NEAR


# ---- hard input: everything here must work ----


@pytest.mark.parametrize("s", [0, 1, 2, 63, 65, 127, 128, 129, 191, 193, 255])
def test_token_counts(tmp_path, s):
    path = dump(tmp_path / "t.safetensors", random_qkv(s_q=s, s_kv=s, heads=2))
    result = compare(path, "--rows", 4)
    for name, figures in result["recipes"].items():
        if s > 0:
            assert figures["rel_l2"] < near(name), name
        else:
            assert {figures[key] for key in FIGURES if key != "seconds"} == {None}, name


def test_cross_attention_with_no_keys_or_no_queries(tmp_path):
    no_keys = dump(tmp_path / "k.safetensors", random_qkv(s_q=5, s_kv=0))
    for figures in compare(no_keys)["recipes"].values():
        assert figures["rel_l2"] == 0  # O = 0 is exact
        assert figures["cosine"] is None
    no_queries = dump(tmp_path / "q.safetensors", random_qkv(s_q=0, s_kv=5))
    for figures in compare(no_queries, "--rows", 0)["recipes"].values():
        assert figures["rel_l2"] is None


def test_no_batch(tmp_path):
    path = dump(tmp_path / "t.safetensors", random_qkv(batch=0))
    assert compare(path)["recipes"]["vc8"]["rel_l2"] is None


@pytest.mark.parametrize("d", [1, 2, 3, 31, 32, 63, 64, 65, 96, 127, 128])
def test_head_dims(tmp_path, d):
    tensors = random_qkv(s_q=9, s_kv=150, d=d)
    # In few channels an output can cancel to nothing; an offset keeps it long. Then errors of scores
    # hardly count, and what remains is at most one rounding of V and one of P against FP32 sums.
    tensors["v"] += 8
    for name, figures in compare(dump(tmp_path / "t.safetensors", tensors))["recipes"].items():
        assert figures["rel_l2"] < 2 * near(name), name


def test_all_equal_tokens(tmp_path):
    tensors = {name: np.full((1, 2, 300, 64), value) for name, value in
               {"q": 0.5, "k": -0.25, "v": 3.0}.items()}  # fmt: skip
    for name, figures in compare(dump(tmp_path / "t.safetensors", tensors))["recipes"].items():
        # Block means reproduce constant V whatever P is, up to FP32 arithmetic and the mean's BF16
        # form (3 is exact): about 300 sums of 2^-24. Without means P, rounded to E4M3, meets sums of
        # unrounded exponentials: up to 2^-4.
        assert figures["rel_l2"] < (near(name) if name in WITHOUT_ENERGY else 300 * 2**-24), name


def test_fewer_distinct_tokens_than_clusters(tmp_path):
    tensors = random_qkv(s_q=40, s_kv=700)
    for name in tensors:
        tensors[name] = tensors[name][:, :, np.arange(tensors[name].shape[2]) % 3]
    for name, figures in compare(dump(tmp_path / "t.safetensors", tensors))["recipes"].items():
        assert figures["rel_l2"] < near(name), name


def test_v_constant_per_cluster(tmp_path):
    """Each of three values fills whole blocks after grouping: residuals and with them V's own error
    vanish, up to the rounding of the stored mean (half a unit in the last place of BF16: 2^-9)."""
    tensors = random_qkv(s_q=20, s_kv=3 * 256)
    centres = np.random.default_rng(5).standard_normal((3, 64))
    labels = np.random.default_rng(6).permutation(np.repeat(np.arange(3), 256))
    tensors["v"] = centres[labels][None, None]
    recipes = compare(dump(tmp_path / "t.safetensors", tensors), "--grouping", "kdtree")["recipes"]
    assert recipes["vc8"]["v_only"] <= 2**-9
    assert recipes["vc8"]["energy_removed"] > 0.999


@pytest.mark.parametrize("magnitude", [1e-38, 1e-30, 1e-10, 1e4, 1e18, 1e36, 3e38])
def test_magnitudes_of_v(tmp_path, magnitude):
    tensors = random_qkv(s_q=20)
    tensors["v"] = tensors["v"] / np.abs(tensors["v"]).max() * magnitude
    for name, figures in compare(dump(tmp_path / "t.safetensors", tensors))["recipes"].items():
        # Below 2^-100 (8e-31) a channel counts as zero by specification; above 2^121 (2.7e36) the sum
        # of a block of 128 values leaves FP32 and figures may be undefined. Both must still work.
        if 1e-30 < magnitude < 2**121 and name not in WITHOUT_CODES:
            assert figures["rel_l2"] < near(name), name


@pytest.mark.parametrize("magnitude", [1e-30, 1e-6, 1e4, 1e18, 1e38])
def test_magnitudes_of_q_and_k(tmp_path, magnitude):
    tensors = random_qkv(s_q=20)
    for name in ("q", "k"):
        tensors[name] = tensors[name] / np.abs(tensors[name]).max() * magnitude
    result = compare(dump(tmp_path / "t.safetensors", tensors))
    assert list(result["recipes"]) == RECIPES
    if magnitude < 1e-3:  # scores are all but equal: uniform attention
        for name, figures in result["recipes"].items():
            assert figures["rel_l2"] < near(name), name


def test_zero_tensors(tmp_path):
    path = dump(tmp_path / "t.safetensors", {n: np.zeros((1, 1, 130, 64)) for n in "qkv"})
    for name, figures in compare(path)["recipes"].items():
        assert figures["rel_l2"] == 0, name
        assert figures["cosine"] is None
        assert figures["energy_removed"] is None


# ---- table and page ----


def test_table(basic):
    done = vcattn("compare", basic[0], "--recipes", "vc8,sage2,exact", "--rows", 4)
    assert done.returncode == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    header = next(line for line in lines if line.startswith("recipe"))
    for title in ("rel_l2", "worst row", "cosine", "QK only", "P only", "V only", "f", "TV mean",
                  "τ max", "seconds"):  # fmt: skip
        assert title in header
    rows = [line for line in lines if re.match(r"(vc8|sage2|exact) ", line)]
    assert len(rows) == 3 and all(len(row) == len(header) for row in rows)
    assert re.search(r"vc8 +\d\.\d+ %", rows[0])


def stderr_on_a_terminal(*args) -> str:
    """What the command writes to stderr when that is a terminal."""
    try:
        master, slave = pty.openpty()
    except OSError:  # a chroot without /dev/pts
        pytest.skip("this machine has no pseudo-terminals")
    with subprocess.Popen([BINARY, *map(str, args)], stdout=subprocess.DEVNULL, stderr=slave) as p:
        os.close(slave)
        text = b""
        while True:
            try:
                chunk = os.read(master, 4096)
            except OSError:  # how Linux says that the other end is closed
                break
            if not chunk:
                break
            text += chunk
    os.close(master)
    assert p.returncode == 0
    return text.decode()


def test_progress_on_a_terminal_only(basic):
    text = stderr_on_a_terminal("compare", basic[0], "--rows", 8)
    assert "compare" in text and "%" in text
    assert text.endswith("\r\x1b[K")  # the line is gone before the table comes
    assert stderr_on_a_terminal("compare", basic[0], "--rows", 8, "--quiet") == ""
    assert vcattn("compare", basic[0], "--rows", 8).stderr == ""


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.stack, self.addresses, self.scripts, self.charts = [], [], 0, 0

    def handle_starttag(self, tag, attrs):
        self.addresses += [v for k, v in attrs if k in ("src", "href", "data", "action", "srcset")]
        self.scripts += tag == "script"
        self.charts += tag == "svg"
        if tag not in ("meta", "link", "br", "img", "hr", "input"):
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.addresses += [v for k, v in attrs if k in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


def test_report_is_one_page_that_needs_nothing(basic, tmp_path):
    out = tmp_path / "new" / "report"
    done = vcattn("compare", basic[0], "--rows", 6, "--report", out, "--quiet")
    assert done.returncode == 0, done.stderr
    assert [p.name for p in out.iterdir()] == ["index.html"]
    text = (out / "index.html").read_text()
    page = Page()
    page.feed(text)
    assert page.stack == [] and page.addresses == [] and page.scripts == 0
    assert not re.search(r"url\(|@import|https?://", text)
    # Stages, rows, energy, heads; one small chart of codes a recipe
    # with 8-bit ones, and one of the worst row each.
    assert page.charts == 4 + 9 + 14
    for heading in ("Error by recipe and stage", "Energy map of V by head", "Codes of P",
                    "Worst rows", "All figures", "What the figures mean"):  # fmt: skip
        assert f"<h2>{heading}</h2>" in text
    assert "prefers-color-scheme:dark" in text
    assert "nan" not in re.sub(r"<style>.*</style>", "", text, flags=re.S)


def test_report_escapes_the_file_name(tmp_path):
    path = tmp_path / "<b>&\"'.safetensors"
    dump(path, random_qkv(s_q=4))
    assert vcattn("compare", path, "--report", tmp_path / "r", "--quiet").returncode == 0
    text = (tmp_path / "r" / "index.html").read_text()
    assert "&lt;b&gt;&amp;&quot;&#39;.safetensors" in text and "<b>&" not in text


@pytest.mark.parametrize("s_q,s_kv", [(0, 0), (3, 0), (1, 1)])
@pytest.mark.parametrize("recipes", ["exact", "bf16,exact", "vc8"])
def test_report_of_next_to_nothing(tmp_path, s_q, s_kv, recipes):
    path = dump(tmp_path / "t.safetensors", random_qkv(s_q=s_q, s_kv=s_kv))
    done = vcattn("compare", path, "--recipes", recipes, "--report", tmp_path / "r")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "r" / "index.html").read_text()
    Page().feed(text)
    assert "nan" not in re.sub(r"<style>.*</style>", "", text, flags=re.S)


def test_json_to_a_device_is_written_directly(basic):
    done = vcattn("compare", basic[0], "--recipes", "vc8", "--rows", 1, "--json", "/dev/stdout",
                  "--quiet")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "vc8" in json.loads(done.stdout)["recipes"]


def test_nvfp4_recipes_and_their_targets(tmp_path):
    path = tmp_path / "a.safetensors"
    dump(path, random_qkv(s_q=40, s_kv=200, heads=1), "BF16")
    chips = {
        target: compare(path, "--target", target, "--rows", 8)["recipes"]
        for target in ("cpu", "sm90", "sm120")
    }
    assert FOUR_BIT <= set(chips["cpu"]) and FOUR_BIT <= set(chips["sm120"])
    assert not FOUR_BIT & set(chips["sm90"])
    for name in FOUR_BIT:
        assert abs(chips["cpu"][name]["rel_l2"] / chips["sm120"][name]["rel_l2"] - 1) < 0.2, name
        result = vcattn("compare", path, "--target", "sm90", "--recipes", name)
        assert result.returncode == 2
        assert "needs NVFP4" in result.stderr and "sm120" in result.stderr
