# SPDX-License-Identifier: Apache-2.0
"""bench/break_even.py without a GPU: which lengths follow from which times."""

import pathlib
import re
import sys

import pytest
from compare_dumps import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import break_even  # noqa: E402
import problems  # noqa: E402
import schema  # noqa: E402


def rows_of(n_q: int, n_kv: int, d: int = 128, *, ours: dict[str, float], bf16: dict[str, float]) -> list:
    problem = problems.parse(f"b1 hq24 hkv24 sq{n_q} skv{n_kv} d{d} bf16").row()
    rows = [schema.make_row(problem, "vc8", "whole", g, [ms]) for g, ms in ours.items()]
    return rows + [schema.make_row(problem, impl, "whole", "none", [ms]) for impl, ms in bf16.items()]


def square(times: dict[int, float]) -> list:
    """Ours takes times[n] where BF16 takes 1."""
    return [r for n, ms in times.items() for r in rows_of(n, n, ours={"none": ms}, bf16={"fa3-bf16": 1})]


def test_the_length_from_which_on_ours_is_always_faster():
    rows = square({1024: 0.9, 2048: 1.1, 4096: 0.8, 8192: 0.5})
    assert break_even.min_tokens(rows, 128, "vc8", "none") == 4096
    assert break_even.min_tokens(square({4096: 0.9, 8192: 1.0}), 128, "vc8", "none") is None
    assert break_even.min_tokens(rows, 64, "vc8", "none") is None
    assert break_even.min_tokens(rows, 128, "vc8", "warm") is None


def test_a_cross_shape_counts_by_its_shorter_side():
    rows = square({2048: 0.9, 4096: 0.8})
    rows += rows_of(32768, 2048, ours={"none": 1.2}, bf16={"fa3-bf16": 1.0})
    assert break_even.min_tokens(rows, 128, "vc8", "none") == 4096


def test_the_faster_baseline_is_the_one_to_beat():
    rows = rows_of(4096, 4096, ours={"none": 1.0, "warm": 2.0}, bf16={"fa3-bf16": 3.0, "cudnn-bf16": 1.5})
    (cells,) = break_even.ratios(rows).values()
    assert cells == {("vc8", "none"): pytest.approx(1.5), ("vc8", "warm"): pytest.approx(0.75)}
    assert "| 24 | 4,096 | 4,096 | 128 | 1.500 | cudnn-bf16 | 1.50 | 0.75 |" in break_even.table(rows)
    assert "| 128 | 4,096 | – |" in break_even.table(rows)


def test_only_whole_calls_count():
    rows = square({4096: 0.8})
    kernel = schema.make_row(rows[0]["problem"], "vc8", "kernel", "none", [5.0])
    assert break_even.min_tokens([*rows, kernel], 128, "vc8", "none") == 4096


def test_problems_cover_heads_lengths_and_both_cross_shapes():
    chosen = list(break_even.problem_list().values())
    assert {(p.h_q, p.s_q) for p in chosen if p.s_q == p.s_kv and p.d == 128} == {
        (h, n) for h in break_even.HEADS for n in break_even.LENGTHS
    }
    assert any(p.s_q > p.s_kv for p in chosen) and any(p.s_q < p.s_kv for p in chosen)
    assert any(p.d == 64 for p in chosen)
    brief = list(break_even.problem_list(brief=True).values())
    assert len(brief) == 20 and {str(p) for p in brief} <= {str(p) for p in chosen}


def test_the_program_prints_the_table_of_a_file(tmp_path, capsys):
    rows = square({4096: 0.8})
    text = "b1 hq24 hkv24 sq4096 skv4096 d128 bf16"
    path = tmp_path / "parts" / "h200-20261130-1.json"
    path.parent.mkdir()
    schema.write(path, {"gpu": "NVIDIA H200", "driver": "1", "date": "2026-11-30T01:02:03Z",
                        "commit": "0123abc", "problems": {text: text}, "rows": rows})  # fmt: skip
    assert break_even.main(["--table", str(path)]) == 0
    assert "From this many queries and keys on" in capsys.readouterr().out


PAGE = ROOT / "docs" / "benchmarking.md"


def quoted_files() -> list[str]:
    (line,) = re.findall(r"<!-- bench/break_even\.py ratios -->\n(From [^\n]*)", PAGE.read_text(encoding="utf-8"))
    return re.findall(r"`([^`]+)`", line)


def test_the_page_holds_the_table_of_the_files_that_it_names():
    text = PAGE.read_text(encoding="utf-8")
    assert break_even.rewritten(text, quoted_files()) == (text, 1)


def test_auto_declines_where_the_table_says():
    """kBreakEven: for each head_dim and ordering the length from which on both recipes are faster."""
    rows = [row for path in quoted_files() for row in schema.load(ROOT / path)["rows"]]
    source = (ROOT / "src" / "core" / "break_even.hpp").read_text()
    held = re.findall(r"Target::sm90, (\d+), Ordering::(\w+), (\d+),", source)
    orderings = {"token": "none", "kept": "warm", "anew": "cold"}
    assert {(d, ordering) for d, ordering, _ in held} == {(d, o) for d in ("64", "128") for o in orderings}
    for d, ordering, length in held:
        found = [break_even.min_tokens(rows, int(d), impl, orderings[ordering]) for impl in break_even.OURS]
        assert None not in found and int(length) == max(found), (d, ordering, found)


def test_a_document_without_a_mark_is_refused(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("nothing here\n")
    assert break_even.main(["--table", str(ROOT / quoted_files()[0]), "--write", str(page)]) == 2
    assert "has no line" in capsys.readouterr().err


def test_files_that_cannot_be_read_or_quoted_are_refused(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("<!-- bench/break_even.py ratios -->\nold\n<!-- end of table -->\n")
    away = tmp_path / pathlib.Path(quoted_files()[0]).name
    away.write_bytes((ROOT / quoted_files()[0]).read_bytes())
    assert break_even.main(["--table", str(away), "--write", str(page)]) == 2
    assert "is outside of" in capsys.readouterr().err
    assert break_even.main(["--table", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err
    assert "old" in page.read_text()
