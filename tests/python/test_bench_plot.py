# SPDX-License-Identifier: Apache-2.0
"""The charts of a result file: which figures they show, and that any file can be drawn."""

import copy
import sys

import pytest
from compare_dumps import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import plot  # noqa: E402
import problems  # noqa: E402
import schema  # noqa: E402

NAMED, SETS = problems.shapes()
SPEED = {"vc8": 1000.0, "fa3-bf16": 500.0, "sageattention2": 800.0}  # TFLOP/s


def rows_of(name: str, speeds: dict, scope: str, grouping: str = "none") -> list[dict]:
    problem = NAMED[name]
    return [
        schema.make_row(problem.row(), impl, scope, grouping, [problem.flops() / speed * 1e-9])
        for impl, speed in speeds.items()
    ]


@pytest.fixture
def data() -> dict:
    rows = []
    for name in ["wan22-720p", "hunyuan15-720p", "length-8192", "length-1024", "wan22-720p-text"]:
        rows += rows_of(name, SPEED, "kernel")
        rows += rows_of(name, {impl: 0.9 * s for impl, s in SPEED.items()}, "whole")
    rows += rows_of("wan22-720p", {"vc8": 950.0}, "whole", "warm")
    rows += rows_of("wan22-720p", {"vc8": 600.0}, "whole", "cold")
    return {"gpu": "NVIDIA H200", "driver": "1", "date": "2026-11-30T12:00:00Z", "commit": "1234567",
            "rows": rows}  # fmt: skip


def test_lines_run_over_the_lengths_of_equal_heads(data):
    lines = plot.length_lines(data, "kernel")
    # Wan2.2 has the sweep's heads; cross attention and other models do not belong on the line.
    assert [n for n, _ in lines["vc8"]] == [1024, 8192, 75600]
    for impl, points in lines.items():
        assert all(y == pytest.approx(SPEED[impl], rel=1e-4) for _, y in points)
    assert list(lines) == ["vc8", "sageattention2", "fa3-bf16"]  # ours first


def test_no_line_of_a_single_length(data):
    data["rows"] = [r for r in data["rows"] if r["problem"]["h_q"] == 16]
    assert plot.length_lines(data, "kernel") == {}
    assert plot.draw_lengths(data) is None


def test_bars_have_names_and_leave_the_sweep_to_the_other_chart(data):
    bars = plot.shape_bars(data, "kernel")
    assert set(bars) == {"wan22-720p", "hunyuan15-720p", "wan22-720p-text"}
    assert bars["hunyuan15-720p"]["vc8"] == pytest.approx(1000, rel=1e-4)
    data["rows"] = [r for r in data["rows"] if r["problem"]["s_q"] == 1024]
    assert set(plot.shape_bars(data, "kernel")) == {"length-1024"}  # when there is nothing else


def test_whole_calls_are_the_warm_ones_and_said_so(data):
    whole = plot.shape_bars(data, "whole")
    assert whole["wan22-720p"]["vc8"] == pytest.approx(950, rel=1e-4)
    assert whole["hunyuan15-720p"]["vc8"] == pytest.approx(900, rel=1e-4)
    assert "warm" in plot.scope_title(data, "whole")
    assert plot.scope_title(data, "kernel") == "kernel only"


def test_ratios_are_of_times_in_one_scope(data):
    baseline, times = plot.ratios(data, "kernel")
    assert baseline == "fa3-bf16"
    assert times["wan22-720p"] == {"vc8": pytest.approx(2, rel=1e-3), "sageattention2": pytest.approx(1.6, rel=1e-3)}
    assert plot.ratios(data, "whole")[1]["wan22-720p"]["vc8"] == pytest.approx(950 / 450, rel=1e-3)


def test_the_next_baseline_where_fa3_is_missing(data):
    data["rows"] = [r for r in data["rows"] if r["impl"] != "fa3-bf16"]
    assert plot.ratios(data, "kernel") == (None, {})
    more = copy.deepcopy(data)
    more["rows"] += rows_of("wan22-720p", {"cudnn-bf16": 400.0}, "kernel")
    baseline, times = plot.ratios(more, "kernel")
    assert baseline == "cudnn-bf16" and set(times) == {"wan22-720p"}  # the only one that has it
    assert times["wan22-720p"]["vc8"] == pytest.approx(2.5, rel=1e-3)


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_files(data, tmp_path, kind, capsys):
    result = tmp_path / "result.json"
    schema.write(result, data)
    assert plot.main([str(result), "--out", str(tmp_path / "new" / "images"), "--format", kind]) == 0
    made = sorted((tmp_path / "new" / "images").iterdir())
    assert [p.name for p in made] == [f"result-{n}.{kind}" for n in ("length", "ratio", "shapes")]
    assert capsys.readouterr().out.count(str(tmp_path)) == 3
    start = b"\x89PNG" if kind == "png" else b"<?xml"
    assert all(p.read_bytes().startswith(start) for p in made)
    if kind == "svg":  # the same figures give the same file
        before = {p: p.read_bytes() for p in made}
        assert plot.main([str(result), "--out", str(tmp_path / "new" / "images")]) == 0
        assert {p: p.read_bytes() for p in made} == before


@pytest.mark.parametrize("path", sorted((ROOT / "bench" / "results").glob("**/h200-*.json")), ids=lambda p: p.name)
def test_committed_results_can_be_drawn(path, tmp_path):
    assert plot.main([str(path), "--out", str(tmp_path)]) == 0
    assert list(tmp_path.iterdir())


def test_chosen_problems(data, tmp_path):
    result = tmp_path / "result.json"
    schema.write(result, data)
    assert {plot.problem_names(plot.only(data, ["models"]))[plot.problem_key(r)]
            for r in plot.only(data, ["models"])["rows"]} == {"wan22-720p", "hunyuan15-720p"}  # fmt: skip
    assert plot.main([str(result), "--problems", "no-such"]) == 2
    assert plot.main([str(result), "--problems", "shards"]) == 2  # nothing of it is in the file


def test_bad_files_are_refused(tmp_path, capsys):
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    assert plot.main([str(bad)]) == 2
    assert "'gpu' is missing" in capsys.readouterr().err
    assert plot.main([str(tmp_path / "none.json")]) == 2
    assert list(tmp_path.iterdir()) == [bad]
