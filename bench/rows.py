# SPDX-License-Identifier: Apache-2.0
"""Rows of a result file (schema.py) as charts and tables need them: by problem, by implementation."""

from __future__ import annotations

import problems as problem_texts
import schema

# Ours, then peers, in the order in which they are shown.
OURS = ("vc8-turbo", "vc8", "vc8-paper", "vc8-exp", "sage2-ours", "fp8-ours")
PEERS = ("fa3-fp8", "sageattention2", "cudnn-fp8", "fa3-bf16", "fa4-bf16", "cudnn-bf16", "flash2-bf16")
# What ratios are to, the first that a problem has.
BASELINES = ("fa3-bf16", "cudnn-bf16", "flash2-bf16", "fa4-bf16")
GROUPING_ORDER = ("warm", "none", "cold")


def problem_key(row: dict) -> tuple:
    """The six sizes of a row's problem."""
    return schema.key(row)[:6]


def problem_names(data: dict) -> dict[tuple, str]:
    """Six sizes -> name: of the file's `problems`, of shapes.json, else heads and lengths."""
    names = {}
    for row in data["rows"]:
        p = row["problem"]
        lengths = f"N{p['s_q']:,}" if p["s_q"] == p["s_kv"] else f"{p['s_q']:,}→{p['s_kv']:,}"
        names[problem_key(row)] = f"B{p['b']} H{p['h_q']} {lengths}"
    told = {name: problem_texts.parse(text) for name, text in data.get("problems", {}).items()}
    for source in (problem_texts.shapes()[0], told):
        for name, problem in source.items():
            if tuple(problem.row().values()) in names and " " not in name:
                names[tuple(problem.row().values())] = name
    return names


def best_rows(data: dict, scope: str) -> dict[tuple[tuple, str], dict]:
    """(problem, impl) -> row. Of whole calls the warm one, which is what most steps of a clip cost,
    else the one without grouping, else the cold one."""
    chosen: dict[tuple[tuple, str], dict] = {}
    for row in data["rows"]:
        if row["scope"] != scope:
            continue
        at = (problem_key(row), row["impl"])
        rank = GROUPING_ORDER.index(row["grouping"])
        if at not in chosen or rank < GROUPING_ORDER.index(chosen[at]["grouping"]):
            chosen[at] = row
    return chosen


def impl_order(data: dict) -> list[str]:
    """Implementations of the file: ours first, each side in a fixed order."""
    present = {row["impl"] for row in data["rows"]}
    fixed = [*OURS, *sorted(present - set(OURS) - set(PEERS)), *PEERS]
    return [impl for impl in fixed if impl in present]
