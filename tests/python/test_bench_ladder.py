# SPDX-License-Identifier: Apache-2.0
"""bench/ladder.py without a GPU: the check of a result file, its table, the committed files, the page that quotes them."""

import copy
import json
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import ladder_table  # noqa: E402

COMMITTED = sorted((ROOT / "bench" / "results").rglob("ladder-*.json"))
PAGE = ROOT / "src" / "kernels" / "prep" / "README.md"


@pytest.fixture
def data():
    rungs = [
        {"rung": i, "name": ladder_table.NAMES[i], "ms": [ms, ms - 0.5, ms + 0.5], "calls": 12, "extra_gb": 7.0,
         "check": {"codes": 1, "scales": 2e-4, "means_moved": 1e-4}}
        for i, ms in enumerate((48.0, 24.0, 12.0, 8.0, 2.0))
    ]  # fmt: skip
    return {"gpu": "NVIDIA H200", "driver": "580.1", "date": "2026-11-30T09:40:00Z", "commit": "0123456789ab",
            "software": {"torch": "2.11.0"}, "problem": {"heads": 40, "grid": [21, 45, 80], "tokens": 75600, "d": 128},
            "compiled": True, "order": "formed by the library", "rungs": rungs,
            "token_order_ms": [1.5, 1.4, 1.6], "faults": {}}  # fmt: skip


def test_factors_are_of_the_rung_before_and_of_all(data):
    lines = ladder_table.table(data).splitlines()
    assert [line.split(" | ")[2] for line in lines[2:7]] == ["–", "2.00", "2.00", "1.50", "4.00"]
    assert [line.split(" | ")[3] for line in lines[2:7]] == ["–", "1.59", "1.43", "1.94", "1.97"]
    assert "**24.00** | 8.74" in lines[7]


def test_the_published_factors_belong_together():
    product = 1.0
    for factor in ladder_table.PUBLISHED:
        product *= factor
    # Four factors rounded to 0.005 of 1.4 or more each: within 1.4 % of the published product.
    assert abs(product / ladder_table.PUBLISHED_ALL - 1) < 0.014


def test_a_rung_that_is_missing_has_no_factor(data):
    del data["rungs"][2]
    table = ladder_table.table(data)
    assert [line.split(" | ")[2] for line in table.splitlines()[2:6]] == ["–", "2.00", "–", "4.00"]


def test_a_rung_with_another_result_is_marked(data):
    del data["rungs"][2]["check"]
    data["faults"] = {"2": "ValueError: not the same result as rung 0: codes {'v': 47}"}
    assert ladder_table.faults(data) == []
    assert [line.count("(*)") for line in ladder_table.table(data).splitlines()] == [0, 0, 0, 0, 1, 0, 0, 0]
    del data["rungs"][4]["check"]
    data["faults"]["4"] = data["faults"]["2"]
    assert any("rungs 0 and 4" in fault for fault in ladder_table.faults(data))


def test_a_good_file_has_no_faults(data):
    assert ladder_table.faults(data) == []


@pytest.mark.parametrize("change, fault", [
    (lambda d: d.pop("driver"), "keys"),
    (lambda d: d.update(more=1), "keys"),
    (lambda d: d.update(date="yesterday"), "date"),
    (lambda d: d["problem"].update(tokens=5), "grid"),
    (lambda d: d["rungs"][1].update(rung=0), "rungs 0"),
    (lambda d: d["rungs"][1].update(name="x"), "name"),
    (lambda d: d["rungs"][1].update(ms=[3.0, 4.0, 5.0]), "median"),
    (lambda d: d["rungs"][1].update(calls=9), "10 calls"),
    (lambda d: d["rungs"][1].pop("check"), "checked"),
    (lambda d: d["rungs"][1]["check"].update(codes=2), "rung 0"),
    (lambda d: d["rungs"][4]["check"].update(scales=2e-3), "rung 0"),
    (lambda d: d["rungs"][4]["check"].update(means_moved=0.5), "rung 0"),
    (lambda d: d.update(faults={"3": "out of time"}), "3"),
    (lambda d: d.update(compiled=False), "compiled"),
])  # fmt: skip
def test_faults_are_found(data, change, fault):
    spoilt = copy.deepcopy(data)
    change(spoilt)
    assert any(fault in text for text in ladder_table.faults(spoilt)), ladder_table.faults(spoilt)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda p: p.name)
def test_committed_files_are_whole_and_right(path):
    data = json.loads(path.read_text())
    assert ladder_table.faults(data) == []
    assert path.name == f"ladder-h200-{data['date'][:10].replace('-', '')}.json" and "H200" in data["gpu"]


def test_the_page_shows_the_table_of_the_file_that_it_names():
    marked = re.findall(r"<!-- bench/ladder\.py (\S+) -->\n(.*?)\n<!-- end of table -->", PAGE.read_text(), re.S)
    assert len(marked) == len(COMMITTED)
    for path, text in marked:
        assert text.strip() == ladder_table.table(json.loads((ROOT / path).read_text()))


def test_the_program_prints_a_table_and_refuses_bad_arguments(data, tmp_path):
    def run(*arguments):
        command = [sys.executable, ROOT / "bench" / "ladder.py", *arguments]
        return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=60)

    path = tmp_path / "ladder-x.json"
    path.write_text(json.dumps(data))
    assert run("--table", path).stdout.strip() == ladder_table.table(data)
    path.write_text("{}")
    assert run("--table", path).returncode == 2 and "keys" in run("--table", path).stderr
    done = run("--grid", 3, 5, 7)
    assert done.returncode == 2 and "multiple of 16" in done.stderr
