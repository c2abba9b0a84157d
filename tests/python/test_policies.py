# SPDX-License-Identifier: Apache-2.0
"""scripts/policies.py: the committed results hold, docs/grouping.md shows them, and the replay of captures counts
and measures what it says."""

from __future__ import annotations

import copy
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import tiny_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
VCATTN = pathlib.Path(os.environ.get("VCATTN_BINARY", ROOT / "build" / "bin" / "vcattn")).resolve()
CAPTURE = ROOT / "tests" / "golden" / "dit_capture_l2_s3.safetensors"
sys.path.insert(0, str(ROOT / "scripts"))
import policies  # noqa: E402
import policies_page  # noqa: E402
import policies_replay  # noqa: E402
import policies_schema  # noqa: E402

PAGE = ROOT / "docs" / "grouping.md"
FILES = sorted((ROOT / "bench" / "results").glob("grouping-*.json"))


# ---------------------------------------------------------------- results, page
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_committed_results_hold(path):
    results = json.loads(path.read_text())
    assert policies_schema.faults(results) == []
    assert path.name == f"grouping-{results['date'].replace('-', '')}.json"


def test_tables_of_the_page_are_those_of_the_file_that_it_names():
    text = PAGE.read_text(encoding="utf-8")
    (name,) = set(re.findall(r"\(\.\./bench/results/(grouping-\d+\.json)\)", text))
    places = {m.group(2) for m in policies_page.PLACE.finditer(text)}
    results = json.loads((ROOT / "bench" / "results" / name).read_text())
    assert places == set(policies_page.sections(results, name))
    assert policies_page.rewritten(text, results, name) == text


def test_a_changed_figure_changes_the_page():
    """The comparison above can fail: every table depends on the results."""
    results = json.loads(FILES[-1].read_text())
    before = policies_page.sections(results, "x")
    for kind in ("clips", "guided_clips"):
        for i, clip in enumerate(results[kind][0]["clips"].values()):
            clip["psnr"] += 1.0 + i
    for kind in ("replay", "guided_replay", "groupings"):
        for entry in next(iter(results[kind].values())).values():
            entry["energy_removed"][0] += 0.05
    for row in results["calibrated"].values():
        row["GA"] += 0.01
    results["spec_version"] += 1
    after = policies_page.sections(results, "x")
    assert [name for name in before if before[name] == after[name]] == []


def test_plots_of_the_page_are_made_from_the_results(tmp_path):
    """Each plot that the page shows is written, and again with other figures it is another."""
    shown = sorted(re.findall(r"\]\((grouping-\w+\.png)\)", PAGE.read_text(encoding="utf-8")))
    results = json.loads(FILES[-1].read_text())
    made = []
    for name in ("first", "second"):
        docs = tmp_path / name
        docs.mkdir()
        (docs / "grouping.md").write_text("")
        policies_page.write(results, "x", docs)
        assert sorted(path.name for path in docs.glob("*.png")) == shown
        made.append({path.name: path.read_bytes() for path in docs.glob("*.png")})
        for row in results["calibrated"].values():
            row["GA"] += 0.05
        for run in (*results["replay"].values(), *results["groupings"].values()):
            for i, entry in enumerate(run.values()):
                entry["energy_removed"][0] += 0.05 * (i + 1)
    assert [name for name in shown if made[0][name] == made[1][name]] == []


FAULTS = {
    "a key less": (lambda r: r.pop("groupings"), "groupings"),
    "no clips": (lambda r: r["clips"].clear(), "clips is empty"),
    "psnr null": (lambda r: r["clips"][0]["clips"]["vc8@every"].update(psnr=None), "psnr None"),
    "ssim above one": (lambda r: r["clips"][0]["clips"]["vc8@every"].update(ssim=1.5), "ssim 1.5"),
    "a step less": (lambda r: r["clips"][0]["clips"]["vc8@once"]["state_error"].pop(), "state_error"),
    "f above one": (lambda r: r["clips"][0]["clips"]["vc8@once"]["energy_removed"].__setitem__(0, 1.5), "energy"),
    "f of NaN": (lambda r: r["replay"]["bunny-1"]["vc8@once"]["energy_removed"].__setitem__(0, float("nan")), "energy"),
    "unknown policy": (lambda r: r["policies"].pop("once"), "unknown policy"),
    "a regrouping more": (
        lambda r: r["clips"][0]["clips"]["vc8@once"]["regroupings"].__setitem__(5, 1), "9 regroupings"),
    "a call lost": (lambda r: r["replay"]["bunny-1"]["vc8@every"]["calls"].update(warm=0), "not 80 in all"),
    "warm for kept": (
        lambda r: r["replay"]["bunny-1"]["vc8@once"]["calls"].update(warm=1, kept=71), "9 regroupings"),
    "calibrated": (lambda r: r["calibrated"].update(x={"GA": 0.5}), "calibrated, x"),
    "date": (lambda r: r.update(date="today"), "YYYY-MM-DD"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_told(name):
    results = copy.deepcopy(json.loads(FILES[-1].read_text()))
    change, words = FAULTS[name]
    change(results)
    found = policies_schema.faults(results)
    assert any(words in fault for fault in found), found


def test_anything_else_is_no_result():
    assert policies_schema.faults([]) and policies_schema.faults({})


def test_lines_of_the_accuracy_tests_are_read(tmp_path):
    (tmp_path / "calibrated.txt").write_text(
        "[ RUN      ] GroupingF.LongClip\n16384 tokens, kdtree, passes 4  GA 0.329  GB 0.547  GC 0.328\n"
        "noise 1.7, warm  GA 0.428  GB 0.469  GC 0.481\nGA kurtosis 9.0 max/rms 30.0\n"
    )
    args = policies.argparse.Namespace(work=tmp_path)
    assert policies.calibrated(args) == {
        "16384 tokens, kdtree, passes 4": {"GA": 0.329, "GB": 0.547, "GC": 0.328},
        "noise 1.7, warm": {"GA": 0.428, "GB": 0.469, "GC": 0.481},
    }


def test_operations_of_the_table():
    """By hand, 16,384 tokens: 128 clusters, a sample of 4,096 rows."""
    assert policies_page.macs(16384, "kmeans", 0) == 5 * 128 * 128
    assert policies_page.macs(16384, "vsmooth", 8) == 5 * 128 * 128 // 4 + 128 * 128 + 8 * 3 * 128
    assert policies_page.macs(16384, "kdtree", 0) == 1024 and policies_page.macs(16384, "balanced", 8) is None


# ------------------------------------------------------------------------ replay
def test_policies_are_read_as_the_command_reads_them(tmp_path):
    """The command's own account of each policy (four steps of a tiny model) against policy_of()."""
    texts = {**policies.POLICIES, **policies.GUIDED}
    command = [VCATTN, "generate", "--model", tiny_model.write(tmp_path / "m.safetensors"), "--steps", "4",
               "--recipes", ",".join(f"vc8@{name}" for name in texts), "--out", tmp_path / "o"]  # fmt: skip
    for name, text in texts.items():
        command += ["--policy", f"{name}:{text}"]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    clips = json.loads((tmp_path / "o" / "generate.json").read_text())["runs"][0]["recipes"]
    for name, text in texts.items():
        told, policy = clips[f"vc8@{name}"]["policy"], policies_replay.policy_of(text, 4)
        assert told["window"] == max(policy.window, 0) and told["refresh"] == policy.refresh
        assert policies_replay.AFTER[told["after"]] == policy.after
        assert told["share_cfg"] == bool(policy.share_cfg) and policy.decay in (0.0, told["decay"])


@pytest.fixture(scope="module")
def captured() -> policies_replay.Operands:
    return policies_replay.Operands(CAPTURE)


def shuffled(x: policies_replay.Operands) -> policies_replay.Operands:
    """The same operands with the tokens of K and V in another order: the output is the same."""
    other = copy.copy(x)
    order = np.random.default_rng(1).permutation(x.v.shape[2])
    other.k, other.v = (np.ascontiguousarray(a[:, :, order]) for a in (x.k, x.v))
    return other


def test_exact_attention_is_the_library_s(captured):
    """`exact` of the library is FP64 rounded to FP32: half a unit in the last place of each element."""
    o = captured.run(captured.descriptor("exact", "identity"))["o"]
    assert np.all(np.abs(o - captured.exact) <= 2.0**-23 * np.abs(captured.exact) + 1e-12)


def test_sampled_rows_have_the_error_of_the_whole_call(captured):
    """`vcattn compare` on the same file: rows of one tensor, so within a tenth of each other."""
    done = captured.run(captured.descriptor("vc8"))
    told = subprocess.run([VCATTN, "compare", CAPTURE, "--recipes", "vc8", "--rows", "512", "--quiet", "--json",
                           "/dev/stdout"], check=True, capture_output=True, text=True, timeout=120)  # fmt: skip
    told = json.loads(told.stdout)["recipes"]["vc8"]
    assert captured.errors(done["o"])[0] == pytest.approx(told["rel_l2"], rel=0.1)
    assert done["energy"][0] == pytest.approx(told["energy_removed"], rel=1e-6)


def replayed(policy: str, calls: list[policies_replay.Operands], recipe: str = "vc8") -> tuple[dict, list[float]]:
    layer = policies_replay.Layer(recipe, policies_replay.policy_of(policy, len(calls)))
    f = [float(layer.call(x, step, 0)["energy"][0]) for step, x in enumerate(calls)]
    return layer.calls, f


def test_cold_warm_kept_and_token_order_are_told_apart(captured):
    other = shuffled(captured)
    steps = [captured, captured, other, captured]
    calls, f = replayed("window=4", steps)
    # The shuffled tokens lose what the order was made for: a cold start, and again when they come back.
    assert calls == {"cold": 3, "warm": 1, "kept": 0, "token order": 0}
    assert f[1] >= f[0] and f[2] > 0.9 * f[0]
    calls, f = replayed("window=1,after=reuse", steps)
    assert calls == {"cold": 1, "warm": 0, "kept": 3, "token order": 0}
    assert f[2] < 0.5 * f[0] and f[3] == f[0]
    assert replayed("window=0,after=identity", steps)[0] == {"cold": 0, "warm": 0, "kept": 0, "token order": 4}
    # Decay is seen in one call and acted upon in the next.
    assert replayed("window=1,after=decay", [captured, other, other])[0]["cold"] == 2
    # Plain k-means always starts anew.
    assert replayed("window=4", steps[:2], "vc8-paper")[0] == {"cold": 2, "warm": 0, "kept": 0, "token order": 0}


def test_branches_share_an_order_or_have_their_own(captured):
    for text, kept in (("window=1,after=reuse,share_cfg", 3), ("window=1,after=reuse", 2)):
        layer = policies_replay.Layer("vc8", policies_replay.policy_of(text, 2))
        for step in range(2):
            for branch in range(2):
                layer.call(captured, step, branch)
        assert layer.calls["kept"] == kept and layer.calls["cold"] == 4 - kept


def test_means_over_layers_and_steps(captured):
    found = policies_replay.over_policies(
        lambda layer, step, branch: captured, 2, 2, 1, {"once": ("vc8", "window=1,after=reuse")})["once"]  # fmt: skip
    assert found["calls"] == {"cold": 2, "warm": 0, "kept": 2, "token order": 0}
    assert found["energy_removed"][0] == found["energy_removed"][1] and len(found["output_error"]) == 2
    groupings = policies_replay.over_groupings(lambda layer, step, branch: captured, 1, 1)
    assert groupings["vsmooth"]["energy_removed"][0] == found["energy_removed"][0]
    assert groupings["identity"]["energy_removed"][0] < groupings["kmeans"]["energy_removed"][0]
