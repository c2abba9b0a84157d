#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From which length on a whole 8-bit call beats BF16 attention: src/core/break_even.hpp.

    VCATTN_LIBRARY=build-cuda/lib/libvcattn.so python bench/break_even.py     # measure, then the table
    python bench/break_even.py --table FILE.json…      # rows of several files, here also a full run's
    python bench/break_even.py --table FILE.json… --write docs/benchmarking.md

Device time of whole calls (BF16 in, BF16 out) of vc8 and vc8-turbo in token order (none), with the
order of the step before improved (warm) and with a new order (cold), against the faster of
FlashAttention-3 BF16 and cuDNN BF16, whichever can be imported. Square shapes of 512 to 32,768
tokens with 8, 24 and 40 heads, cross attention between 32,768 tokens and fewer, and head_dim 64. Few and short turns of
each (peers/measure.py): about a minute in all. What the host needs to launch a call is not in it;
below about 1,024 tokens that is more than the call itself.

The result file is a partial run of schema.py and goes to OUT/parts. --write replaces what stands between

    <!-- bench/break_even.py ratios -->
    <!-- end of table -->
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench")]

import marked  # noqa: E402
import peers  # noqa: E402
import problems as problem_texts  # noqa: E402
import schema  # noqa: E402
from peers import measure, verdict  # noqa: E402

OURS = ("vc8", "vc8-turbo")
BASELINES = ("fa3-bf16", "cudnn-bf16")
GROUPINGS = ("none", "warm", "cold")
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
HEADS = (8, 24, 40)
CALLS, ROUNDS = 6, 2
# Shorter turns than a full run's: clock and power of so short ones mean nothing and are not kept.
TURN_S, LEAD_S, MAX_CALLS = 0.015, 0.01, 24


def problem_list(brief: bool = False) -> dict[str, object]:
    """Problem text -> problem, the ones whose loss would hurt least last. `brief`: 20 lengths around the
    expected ones; 40 heads are left to the full run's `length-…` rows."""

    def text(heads: int, queries: int, keys: int, d: int = 128) -> str:
        return f"b1 hq{heads} hkv{heads} sq{queries} skv{keys} d{d} bf16"

    longest = LENGTHS[-1]
    if brief:
        texts = [text(heads, n, n) for n in (8192, 4096, 16384, 2048) for heads in (24, 8)]
        texts += [text(24, *x) for n in (4096, 2048, 8192) for x in ((longest, n), (n, longest))]
        texts += [text(24, n, n, d=64) for n in (8192, 4096, 16384, 2048)]
        texts += [text(24, longest, 1024), text(24, longest, 512)]
        return {t: problem_texts.parse(t) for t in texts}
    texts = [text(heads, n, n) for heads in (24, 40, 8) for n in LENGTHS]
    texts += [text(24, longest, n) for n in LENGTHS[:-1]]
    texts += [text(24, n, longest) for n in LENGTHS[:-1]]
    texts += [text(24, n, n, d=64) for n in LENGTHS]
    return {t: problem_texts.parse(t) for t in texts}


class WholeCalls:
    """An adapter's cells with whole calls alone."""

    def __init__(self, adapter):
        self.adapter = adapter

    def cells(self, impl: str, problem, inputs) -> list:
        return [c for c in self.adapter.cells(impl, problem, inputs) if "whole" in c.scopes]


def measure_all(budget_s: float, brief: bool, say) -> tuple[list[dict], dict[str, str]]:
    """Rows of whole calls, and the texts of the problems that they are of."""
    from peers import cuda, session

    measure.EXTRA_TURN_S, measure.LEAD_S, measure.MAX_CALLS_A_TURN = TURN_S, LEAD_S, MAX_CALLS
    begun, known = time.monotonic(), peers.adapters()
    adapters = {}
    for impl in (*OURS, *BASELINES):
        if reason := known[impl].available(impl):
            say(f"{impl} left out: {reason}")
        else:
            adapters[impl] = WholeCalls(known[impl])
    rows, texts = [], {}
    no_sensors = cuda.NoSensors()
    for text, problem in problem_list(brief).items():
        left_s = budget_s - (time.monotonic() - begun)
        if left_s < 2:
            say(f"out of time before {text}")
            break
        try:
            found = session.run(
                problem, adapters, schema.make_row, no_sensors,
                wanted=CALLS, rounds=ROUNDS, share=measure.Share(left_s, left_s), seed=0,
            )  # fmt: skip
        except Exception as e:  # a kernel that faulted, out of memory: what came before is kept
            say(f"{text} was given up: {type(e).__name__}: {e}")
            break
        for name, why in found.missing.items():
            say(f"{text}: {name} left out: {why}")
        whole = [row for row in found.rows if row["scope"] == "whole"]
        rows += whole
        if whole:
            texts[text] = text
    return rows, texts


def baseline(rows: list[dict]) -> dict[tuple, tuple[float, str]]:
    """Problem -> (ms, implementation) of the fastest BF16 attention."""
    best: dict[tuple, tuple[float, str]] = {}
    for row in rows:
        at = schema.key(row)[:6]
        if row["impl"] in BASELINES and row["scope"] == "whole":
            best[at] = min(best.get(at, (float("inf"), "")), (row["ms_median"], row["impl"]))
    return best


def ratios(rows: list[dict]) -> dict[tuple, dict[tuple[str, str], float]]:
    """Problem -> (impl, grouping) -> time of BF16 attention / time of ours: above 1 ours is faster."""
    best, found = baseline(rows), {}
    for row in rows:
        at = schema.key(row)[:6]
        if row["impl"] in OURS and row["scope"] == "whole" and at in best:
            cell = (row["impl"], row["grouping"])
            found.setdefault(at, {})[cell] = best[at][0] / row["ms_median"]
    return found


def min_tokens(rows: list[dict], d: int, impl: str, grouping: str) -> int | None:
    """The smallest measured length L such that ours is faster on every measured problem of this
    head_dim with at least L queries and keys; None when it is not on the longest."""
    lengths: dict[int, bool] = {}
    for (_, _, _, s_q, s_kv, dim), cells in ratios(rows).items():
        if dim == d and (impl, grouping) in cells:
            n = min(s_q, s_kv)
            lengths[n] = lengths.get(n, True) and cells[impl, grouping] > 1
    found = None
    for n in sorted(lengths, reverse=True):
        if not lengths[n]:
            break
        found = n
    return found


def table(rows: list[dict]) -> str:
    """Markdown: ratios by problem, then the lengths for src/core/break_even.hpp."""
    columns = [(impl, grouping) for impl in OURS for grouping in GROUPINGS]
    best = baseline(rows)
    lines = [
        "| heads | queries | keys | head_dim | BF16, ms | of | "
        + " | ".join(f"{impl} {grouping}" for impl, grouping in columns) + " |",
        "|" + " --- |" * (6 + len(columns)),
    ]  # fmt: skip
    for at, cells in ratios(rows).items():
        _, heads, _, s_q, s_kv, d = at
        ms, impl = best[at]
        shown = [f"{cells[c]:.2f}" if c in cells else "–" for c in columns]
        lines.append(f"| {heads} | {s_q:,} | {s_kv:,} | {d} | {ms:.3f} | {impl} | {' | '.join(shown)} |")
    lines += ["", "From this many queries and keys on a whole call is faster:", ""]
    lines += ["| head_dim | " + " | ".join(f"{i} {g}" for i, g in columns) + " |"]
    lines += ["|" + " --- |" * (1 + len(columns))]
    for d in sorted({at[5] for at in ratios(rows)}):
        found = [min_tokens(rows, d, *c) for c in columns]
        lines.append(f"| {d} | " + " | ".join("–" if n is None else f"{n:,}" for n in found) + " |")
    return "\n".join(lines)


def rewritten(text: str, paths: list[str]) -> tuple[str, int]:
    """A document with its table made anew from result files (paths in the repository), and how many
    there were."""

    def make(_: str) -> str:
        rows = [row for path in paths for row in schema.load(ROOT / path)["rows"]]
        return "From " + ", ".join(f"`{path}`" for path in paths) + f".\n\n{table(rows)}"

    return marked.rewritten(text, "bench/break_even.py", "table", ("ratios",), make)


def write(document: pathlib.Path, files: list[str]) -> None:
    """ValueError for a document without the mark, and for files outside the repository: they are quoted."""
    resolved = [pathlib.Path(f).resolve() for f in files]
    outside = [str(path) for path in resolved if not path.is_relative_to(ROOT)]
    if outside:
        raise ValueError(f"{outside[0]} is outside of {ROOT}; allowed: committed files, which a reader can look at")
    paths = [str(path.relative_to(ROOT)) for path in resolved]
    text, count = rewritten(document.read_text(encoding="utf-8"), paths)
    if count == 0:
        raise ValueError(f"{document} has no line <!-- bench/break_even.py ratios -->")
    document.write_text(text, encoding="utf-8")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="break_even.py", description="From which length on a whole call beats BF16 attention."
    )
    parser.add_argument(
        "--table", metavar="FILE", nargs="+", help="print the table of result files; no GPU"
    )
    parser.add_argument("--write", metavar="DOCUMENT", type=pathlib.Path, help="put the table of --table there")
    parser.add_argument("--brief", action="store_true", help="20 problems, beside a full run's")
    parser.add_argument("--budget-s", type=float, default=60, help="seconds to measure (default: 60)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench" / "results")
    parser.add_argument("--commit", help="hash to write into the file", default="unknown")
    args = parser.parse_args(argv)
    if args.write and not args.table:
        parser.error("--write needs --table")
    if args.table:
        try:
            if args.write:
                write(args.write, args.table)
            else:
                print(table([row for path in args.table for row in schema.load(path)["rows"]]))
        except (OSError, ValueError) as e:
            print(f"break_even.py: {e}", file=sys.stderr)
            return 2
        return 0

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    date = schema.utc_now()
    if reason := peers.no_hopper():
        say(f"break_even.py: {reason}")
        return 1
    rows, texts = measure_all(args.budget_s, args.brief, say)
    if not rows:
        say("break_even.py: nothing was measured")
        return 1
    import torch
    from peers import cuda

    gpu, sensors = torch.cuda.get_device_name(), cuda.Sensors()
    driver = sensors.driver() or "unknown"
    sensors.close()
    path = verdict.result_path(args.out, gpu, date, False)
    path.parent.mkdir(parents=True, exist_ok=True)
    note = "break-even: whole calls of short problems, few calls of each (bench/break_even.py)"
    schema.write(path, {"gpu": gpu, "driver": driver, "date": date, "commit": args.commit,
                        "note": note, "problems": texts, "rows": rows})  # fmt: skip
    print(table(rows))
    print(f"\n{path}: {len(rows)} rows of {len(texts)} problems")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
