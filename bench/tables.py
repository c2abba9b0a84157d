#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Markdown tables of a result file: what README.md and docs/ quote.

    python bench/tables.py bench/results/h200-20261130-1.json                  # all tables
    python bench/tables.py FILE.json --write README.md docs/benchmarking.md    # into documents

| table   | what                                                                             |
| ------- | -------------------------------------------------------------------------------- |
| main    | wan22-720p: every implementation, kernel and whole call, error, clock, power     |
| shapes  | kernels by problem: ours in TFLOP/s and against FA3 BF16 and SageAttention2       |
| lengths | kernels by length, every implementation, TFLOP/s                                  |
| whole   | whole calls by problem: ms, against FA3 BF16 and SageAttention2, by grouping      |

--write replaces what stands between two lines of a document, here of the table `main`:

    <!-- bench/tables.py main -->
    <!-- end of table -->
"""

from __future__ import annotations

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import marked  # noqa: E402
import problems as problem_texts  # noqa: E402
import schema  # noqa: E402
from rows import impl_order, problem_key, problem_names  # noqa: E402

MAIN = "wan22-720p"
BF16, SAGE = "fa3-bf16", "sageattention2"
LABELS = {
    "fa3-bf16": "FA3 BF16", "fa3-fp8": "FA3 FP8", "fa4-bf16": "FA4 BF16", "cudnn-bf16": "cuDNN BF16",
    "cudnn-fp8": "cuDNN FP8", "flash2-bf16": "FA2 BF16", "sageattention2": "SageAttention2",
}  # fmt: skip
OURS = ("vc8-turbo", "vc8")


class Result:
    """A result file's rows by (problem, impl, scope, grouping), and its problems by name."""

    def __init__(self, data: dict):
        self.data = data
        self.rows = {}
        self.problems: dict[str, tuple] = {}
        names = problem_names(data)
        for row in data["rows"]:
            key = problem_key(row)
            self.problems.setdefault(names[key], key)
            self.rows[names[key], row["impl"], row["scope"], row["grouping"]] = row
        self.impls = impl_order(data)

    def row(self, name: str, impl: str, scope: str, grouping: str = "none") -> dict | None:
        return self.rows.get((name, impl, scope, grouping))

    def ms(self, *at: str) -> float | None:
        row = self.row(*at)
        return None if row is None else row["ms_median"]


def label(impl: str) -> str:
    return LABELS.get(impl, f"`{impl}`")


def number(value: float | None, text: str = "{:.1f}") -> str:
    return "–" if value is None else text.format(value)


def ratio(of: float | None, to: float | None) -> str:
    """How many times faster: time of the other / time of this one."""
    return "–" if of is None or to is None else f"{of / to:.2f}"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def main_table(result: Result) -> str:
    head = ["", "kernel, ms", "TFLOP/s", "× FA3 BF16", "× SageAttention2", "whole call, ms", "× FA3 BF16",
            "relative error", "MHz", "W"]  # fmt: skip
    rows = []
    for impl in result.impls:
        row = result.row(MAIN, impl, "kernel")
        if row is None:
            continue
        kernel, whole = row["ms_median"], result.ms(MAIN, impl, "whole")
        bf16 = result.ms(MAIN, BF16, "kernel")
        rows.append([
            label(impl), number(kernel), f"{row['tflops']:.0f}", ratio(bf16, kernel),
            ratio(result.ms(MAIN, SAGE, "kernel"), kernel), number(whole),
            ratio(result.ms(MAIN, BF16, "whole"), whole), number(row["rel_error"], "{:.4f}"),
            number(row["clock_mhz"], "{:.0f}"), number(row["power_w"], "{:.0f}"),
        ])  # fmt: skip
    return markdown(head, rows) if rows else ""


def size(key: tuple) -> str:
    _, heads, _, s_q, s_kv, _ = key
    return f"H{heads} N{s_q:,}" + ("" if s_q == s_kv else f", {s_kv:,} keys")


def shapes_table(result: Result) -> str:
    head = ["kernel only", "shape", *(f"`{impl}`, TFLOP/s" for impl in OURS), "FA3 BF16", "FA3 FP8", "SageAttention2"]
    for impl in OURS:
        head += [f"`{impl}` × FA3 BF16", f"× SageAttention2"]
    rows = []
    for name, key in result.problems.items():
        found = {impl: result.row(name, impl, "kernel") for impl in (*OURS, BF16, "fa3-fp8", SAGE)}
        cells = [name, size(key), *(number(r and r["tflops"], "{:.0f}") for r in found.values())]
        for impl in OURS:
            ours = result.ms(name, impl, "kernel")
            cells += [ratio(result.ms(name, peer, "kernel"), ours) for peer in (BF16, SAGE)]
        rows.append(cells)
    return markdown(head, rows)


def lengths_table(result: Result) -> str:
    names = [n for n in problem_texts.shapes()[1]["lengths"] if n in result.problems]
    if not names:
        return ""
    head = ["TFLOP/s, kernel", *(f"{result.problems[n][3]:,}" for n in names)]
    rows = []
    for impl in result.impls:
        found = [result.row(n, impl, "kernel") for n in names]
        if any(found):
            rows.append([label(impl), *(number(r and r["tflops"], "{:.0f}") for r in found)])
    return markdown(head, rows)


def whole_table(result: Result) -> str:
    groupings = ("none", "warm", "cold")
    head = ["whole call, ms", "FA3 BF16", "SageAttention2",
            *(f"`{impl}` {g}" for impl in OURS for g in groupings),
            *(f"`{impl}` × FA3 BF16 (none, warm, cold)" for impl in OURS)]  # fmt: skip
    rows = []
    for name in result.problems:
        bf16, sage = (result.ms(name, impl, "whole") for impl in (BF16, SAGE))
        ours = {impl: [result.ms(name, impl, "whole", g) for g in groupings] for impl in OURS}
        text = "{:.3f}" if bf16 is not None and bf16 < 10 else "{:.1f}"
        cells = [name, number(bf16, text), number(sage, text)]
        cells += [number(ms, text) for times in ours.values() for ms in times]
        cells += [", ".join(ratio(bf16, ms) for ms in times) for times in ours.values()]
        rows.append(cells)
    return markdown(head, rows)


TABLES = {"main": main_table, "shapes": shapes_table, "lengths": lengths_table, "whole": whole_table}


def source(data: dict, path: str) -> str:
    partial = "A partial run, for orientation: " if "note" in data else ""
    return (
        f"{partial}{data['gpu']}, driver {data['driver']}, {data['date'][:10]}, "
        f"commit {data['commit']}, `{path}`."
    )


def rewritten(text: str, result: Result, path: str) -> tuple[str, int]:
    """A document with its tables made anew, and how many there were."""
    def make(name: str) -> str:
        return f"{source(result.data, path)}\n\n{TABLES[name](result)}"

    return marked.rewritten(text, "bench/tables.py", "table", TABLES, make)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tables.py", description="Markdown tables of a result file.")
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--write", nargs="+", type=pathlib.Path, metavar="DOCUMENT", default=[])
    args = parser.parse_args(argv)
    try:
        data = schema.load(args.file)
    except (OSError, schema.SchemaError) as e:
        print(f"tables.py: {e}", file=sys.stderr)
        return 2
    result = Result(data)
    root = pathlib.Path(__file__).resolve().parents[1]
    shown = args.file.resolve()
    path = str(shown.relative_to(root)) if shown.is_relative_to(root) else shown.name
    if not args.write:
        for name, make in TABLES.items():
            print(f"{name}\n\n{make(result) or 'nothing to show'}\n")
        print(source(data, path))
        return 0
    for document in args.write:
        try:
            text, count = rewritten(document.read_text(encoding="utf-8"), result, path)
        except (OSError, ValueError) as e:
            print(f"tables.py: {document}: {e}", file=sys.stderr)
            return 2
        if count == 0:
            print(f"tables.py: {document} has no line <!-- bench/tables.py NAME -->", file=sys.stderr)
            return 2
        document.write_text(text, encoding="utf-8")
        print(f"{document}: {count} tables")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
