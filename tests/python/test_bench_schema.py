# SPDX-License-Identifier: Apache-2.0
"""The result files of the benchmark: the committed ones hold, and every fault is told."""

import copy
import json
import pathlib
import subprocess
import sys

import pytest
from compare_dumps import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import problems  # noqa: E402
import schema  # noqa: E402

RESULTS = ROOT / "bench" / "results"
WAN = problems.parse("b1 hq40 hkv40 sq75600 skv75600 d128 bf16")


def full_run() -> dict:
    rows = []
    for impl, preparing in (("vc8", 3.0), ("sageattention2", 4.0), ("fa3-bf16", 0.0)):
        times = [100.0, 101.0, 99.5, 100.5]
        rows.append(schema.make_row(WAN.row(), impl, "kernel", "none", times, rel_error=0.01))
        whole = [t + preparing for t in times]
        rows.append(schema.make_row(WAN.row(), impl, "whole", "none", whole, clock_mhz=1650, power_w=690))
    rows.append(schema.make_row(WAN.row(), "vc8", "whole", "warm", [104.0]))
    rows.append(schema.make_row(WAN.row(), "vc8", "prep", "none", [3.0]))
    return {"gpu": "NVIDIA H200", "driver": "580.159.04", "date": "2026-11-30T12:34:56Z", "commit": "4f970b3",
            "problems": {"wan22-720p": str(WAN)}, "rows": rows}  # fmt: skip


@pytest.mark.parametrize("path", sorted(RESULTS.glob("**/h200-*.json")), ids=lambda p: p.name)
def test_committed_results_hold(path):
    """A file directly in results/ must be a full run; parts/ may hold anything of the schema."""
    schema.load(path)


def test_committed_full_runs_are_found_by_their_names():
    assert schema.is_full_name(RESULTS / "h200-20261130-1.json")
    assert schema.is_full_name(RESULTS / "h200-partial.json")  # and is then refused for its name
    assert not schema.is_full_name(RESULTS / "parts" / "h200-20261130-1.json")
    assert not schema.is_full_name(RESULTS / "quality-20261129.json")


def test_a_full_run_passes():
    assert schema.faults(full_run(), full=True) == []


def test_tflops_follow_from_the_median():
    row = schema.make_row(WAN.row(), "vc8", "kernel", "none", [120.0, 80.0, 100.0])
    assert (row["ms_median"], row["ms_min"], row["ms_max"]) == (100.0, 80.0, 120.0)
    # 4 * 40 * 75600^2 * 128 operations in a tenth of a second, by hand.
    assert row["tflops"] == pytest.approx(1170.505728, rel=1e-5)
    assert schema.make_row(WAN.row(), "vc8", "kernel", "none", [1.0, 2.0])["ms_median"] == 1.5


def change(path, value):
    def apply(data):
        *parents, last = path
        for name in parents:
            data = data[name]
        if value is KeyError:
            del data[last]
        else:
            data[last] = value

    return apply


FAULTS = {
    "no gpu key": (change(["gpu"], KeyError), "'gpu' is missing"),
    "unknown key": (change(["host"], "x"), "'host' is unknown"),
    "another gpu": (change(["gpu"], "NVIDIA H100"), "is no H200"),
    "gpu without driver": (change(["driver"], None), "both or neither"),
    "date without seconds": (change(["date"], "2026-11-30T12:34Z"), "date"),
    "date without zone": (change(["date"], "2026-11-30T12:34:56"), "date"),
    "date with fractions": (change(["date"], "2026-11-30T12:34:56.5Z"), "date"),
    "month 13": (change(["date"], "2026-13-30T12:34:56Z"), "date"),
    "no commit": (change(["commit"], "main"), "commit"),
    "changed tree": (change(["commit"], "4f970b3-dirty"), "comes from a commit"),
    "no rows": (change(["rows"], []), "at least one row"),
    "rows no list": (change(["rows"], {}), "at least one row"),
    "row key missing": (change(["rows", 0, "power_w"], KeyError), "'power_w' is missing"),
    "row key unknown": (change(["rows", 0, "gflops"], 1), "'gflops' is unknown"),
    "size missing": (change(["rows", 0, "problem", "d"], KeyError), "'d' is missing"),
    "size of zero": (change(["rows", 0, "problem", "s_q"], 0), "no integer >= 1"),
    "size no integer": (change(["rows", 0, "problem", "s_q"], 75600.0), "no integer >= 1"),
    "size true": (change(["rows", 0, "problem", "b"], True), "no integer >= 1"),
    "heads": (change(["rows", 0, "problem", "h_kv"], 7), "no multiple"),
    "impl": (change(["rows", 0, "impl"], "vc8-fast"), "impl 'vc8-fast'"),
    "impl of partial files": (change(["rows", 0, "impl"], "vc8+had"), "impl 'vc8+had'"),
    "scope": (change(["rows", 0, "scope"], "total"), "scope 'total'"),
    "grouping": (change(["rows", 1, "grouping"], "kdtree"), "grouping 'kdtree'"),
    "kernel row with grouping": (change(["rows", 0, "grouping"], "warm"), "a kernel row"),
    "time of zero": (change(["rows", 0, "ms_min"], 0), "numbers > 0"),
    "time of NaN": (change(["rows", 0, "ms_median"], float("nan")), "numbers > 0"),
    "order of times": (change(["rows", 0, "ms_max"], 1.0), "does not hold"),
    "tflops": (change(["rows", 0, "tflops"], 1170.0), "ms_median gives"),
    "tflops null": (change(["rows", 0, "tflops"], None), "ms_median gives"),
    "negative error": (change(["rows", 0, "rel_error"], -0.1), "rel_error"),
    "clock as text": (change(["rows", 0, "clock_mhz"], "1650"), "clock_mhz"),
    "problem text": (change(["problems", "wan22-720p"], "b1"), "problems.wan22-720p"),
    "problem not told": (change(["problems"], {"other": "b1 hq1 hkv1 sq1 skv1 d64 bf16"}), "not in problems"),
    "row twice": (lambda data: data["rows"].append(copy.deepcopy(data["rows"][0])), "the same problem"),
    "our kernel is missing": (lambda data: data["rows"].pop(0), "no kernel row of ours"),
    "peers are missing": (
        lambda data: change(["rows"], [r for r in data["rows"] if r["impl"] == "vc8"])(data),
        "no whole row of peers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_told(name):
    data = full_run()
    apply, words = FAULTS[name]
    apply(data)
    found = schema.faults(data, full=True)
    assert any(words in fault for fault in found), found


@pytest.mark.parametrize("data", [None, [], "x", 1, {"rows": None}])
def test_anything_else_is_no_result(data):
    assert schema.faults(data, full=True) != []


def test_partial_runs_may_lack_peers_and_a_gpu():
    data = full_run()
    data["rows"] = data["rows"][:1]
    data["rows"][0]["impl"] = "vc8-hq+had"
    data.update(gpu=None, driver=None, commit="4f970b3-dirty")
    assert schema.faults(data, full=False) == []
    assert schema.faults(data, full=True) != []


def test_the_name_decides_what_is_asked(tmp_path):
    (tmp_path / "parts").mkdir()
    data = full_run()
    schema.write(tmp_path / "h200-20261130-2.json", data)
    assert schema.load(tmp_path / "h200-20261130-2.json") == data
    for name in ("h200-20261129-1.json", "h200-20261130.json", "h200-20261130-0.json", "h200-kernel.json"):
        with pytest.raises(schema.SchemaError, match="name"):
            schema.write(tmp_path / name, data)
    data["rows"] = data["rows"][:2]
    with pytest.raises(schema.SchemaError, match="not a full run"):
        schema.write(tmp_path / "h200-20261130-3.json", data)
    schema.write(tmp_path / "parts" / "h200-20261130-3.json", data)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["h200-20261130-2.json", "parts"]  # what was refused left nothing


def test_program(tmp_path):
    good, bad = tmp_path / "h200-20261130-1.json", tmp_path / "other.json"
    schema.write(good, full_run())
    bad.write_text(json.dumps({"gpu": None}))
    program = [sys.executable, str(ROOT / "bench" / "schema.py")]
    done = subprocess.run([*program, good], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == f"{good}: full run, 8 rows\n"
    done = subprocess.run([*program, good, bad, tmp_path / "none.json"], capture_output=True, text=True)
    assert done.returncode == 1 and "'driver' is missing" in done.stderr and "none.json" in done.stderr
    assert subprocess.run(program, capture_output=True).returncode == 2
    assert pathlib.Path(good).exists()
