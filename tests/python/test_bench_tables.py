# SPDX-License-Identifier: Apache-2.0
"""bench/tables.py: the tables of a full run, and documents that hold them."""

import re
import sys

import pytest
from compare_dumps import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import problems  # noqa: E402
import schema  # noqa: E402
import tables  # noqa: E402
from peers import verdict  # noqa: E402

TFLOPS = {"vc8": 1100.0, "vc8-turbo": 1200.0, "fa3-bf16": 600.0, "fa3-fp8": 900.0,
          "sageattention2": 800.0, "cudnn-bf16": 550.0}  # fmt: skip


def full_run() -> dict:
    rows, texts = [], {}
    for name, problem in problems.select(list(verdict.FULL_PROBLEMS)).items():
        texts[name] = str(problem)
        for impl, speed in TFLOPS.items():
            ms = problem.flops() / speed * 1e-9
            for scope in ("kernel", "whole"):
                scale = 1.1 if scope == "whole" else 1.0
                rows.append(schema.make_row(problem.row(), impl, scope, "none", [ms * scale], rel_error=0.04))
            if impl.startswith("vc8"):
                rows.append(schema.make_row(problem.row(), impl, "whole", "warm", [ms * 1.2]))
    return {"gpu": "NVIDIA H200", "driver": "580.1", "date": "2026-11-30T01:02:03Z", "commit": "0123abc",
            "problems": texts, "rows": rows}  # fmt: skip


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "h200-20261130-1.json"
    schema.write(path, full_run())
    return path


def cells(table: str, first: str) -> list[str]:
    (line,) = [x for x in table.splitlines() if x.startswith(f"| {first} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_main_table_has_ratios_to_both_peers():
    row = cells(tables.main_table(tables.Result(full_run())), "`vc8-turbo`")
    assert row[2:5] == ["1200", "2.00", "1.50"] and row[6] == "2.00" and row[7:] == ["0.0400", "–", "–"]


def test_every_problem_of_a_full_run_has_a_line():
    result = tables.Result(full_run())
    assert len(result.problems) == len(verdict.FULL_PROBLEMS)
    for table in (tables.shapes_table(result), tables.whole_table(result)):
        assert table.count("\n") == 1 + len(verdict.FULL_PROBLEMS)
    assert cells(tables.lengths_table(result), "`vc8`") == ["`vc8`", *["1100"] * 7]
    # The key length counts, not the padding.
    assert "H16 N113,585, 111,717 keys" in tables.shapes_table(result)


def test_whole_calls_stand_by_grouping():
    row = cells(tables.whole_table(tables.Result(full_run())), "wan22-720p")
    assert row[-1] == "1.83, 1.68, –"


def test_documents_are_filled_between_their_marks(path, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench/tables.py main -->\nold\n<!-- end of table -->\nafter\n")
    for _ in range(2):  # a second time changes nothing
        assert tables.main([str(path), "--write", str(page)]) == 0
        text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "NVIDIA H200, driver 580.1, 2026-11-30, commit 0123abc" in text and "| `vc8-turbo` |" in text
    page.write_text("nothing here\n")
    assert tables.main([str(path), "--write", str(page)]) == 2
    page.write_text("<!-- bench/tables.py speed -->\n<!-- end of table -->\n")
    assert tables.main([str(path), "--write", str(page)]) == 2
    assert "allowed: main, shapes, lengths, whole" in capsys.readouterr().err


DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_TABLES = [p for p in DOCUMENTS if "<!-- bench/tables.py" in p.read_text(encoding="utf-8")]


def test_there_are_documents_with_tables():
    assert ROOT / "docs" / "benchmarking.md" in WITH_TABLES


@pytest.mark.parametrize("document", WITH_TABLES, ids=lambda p: p.name)
def test_tables_of_documents_are_those_of_the_file_that_they_name(document):
    text = document.read_text(encoding="utf-8")
    paths = set(re.findall(r"<!-- bench/tables\.py \w+ -->\n[^\n]*`(bench/results/[^`]+)`\.", text))
    assert len(paths) == 1, f"tables of several files, or of none: {paths}"
    (path,) = paths
    assert tables.rewritten(text, tables.Result(schema.load(ROOT / path)), path)[0] == text


def test_the_page_s_sentence_on_the_slow_baselines_is_of_its_table():
    text = (ROOT / "docs" / "benchmarking.md").read_text(encoding="utf-8")
    kernels, whole = ([cells(text, f"`{impl}`")[at] for impl in ("vc8-exp", "fp8-ours")] for at in (3, 6))
    said = re.search(r"their kernels reach (\S+) and (\S+) of its speed, their whole calls (\S+) and (\S+)\.\n", text)
    assert list(said.groups()) == kernels + whole


def test_a_file_that_is_no_result_is_refused(tmp_path, capsys):
    bad = tmp_path / "parts.json"
    bad.write_text("{}")
    assert tables.main([str(bad)]) == 2 and "tables.py:" in capsys.readouterr().err
