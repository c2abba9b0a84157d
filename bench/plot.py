#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Charts of a result file: speed by length, speed by model shape, ratio to the BF16 baseline.

    .venv/bin/python bench/plot.py bench/results/h200-20261130-1.json --out docs/images
    .venv/bin/python bench/plot.py FILE.json --format png --problems models

Takes any file that bench/schema.py accepts, full run or partial, and draws what is in it; a chart
that has nothing to show is left out and said. Writes STEM-length, STEM-shapes and STEM-ratio.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import problems as problem_texts  # noqa: E402
import schema  # noqa: E402
from rows import BASELINES, best_rows, impl_order, problem_key, problem_names  # noqa: E402

SCOPES = (("kernel", "kernel only"), ("whole", "whole call"))
# Ours strong, peers paler and dashed; told apart without colour by marker and order, too.
OUR_COLOURS = {"vc8-turbo": "#c2410c", "vc8": "#1d4ed8", "vc8-paper": "#7c3aed", "vc8-exp": "#0f766e",
               "sage2-ours": "#64748b", "fp8-ours": "#94a3b8"}  # fmt: skip
PEER_COLOURS = {"fa3-fp8": "#ca8a04", "sageattention2": "#15803d", "cudnn-fp8": "#be185d",
                "fa3-bf16": "#111827", "fa4-bf16": "#4b5563", "cudnn-bf16": "#9ca3af",
                "flash2-bf16": "#cbd5e1"}  # fmt: skip
MARKERS = "osD^vP*Xhp<>d"


def scope_title(data: dict, scope: str) -> str:
    """What a panel shows, with the grouping of our whole calls where there is one."""
    title = dict(SCOPES)[scope]
    grouped = {row["grouping"] for row in best_rows(data, scope).values()} - {"none"}
    return title + (f" (ours: {' or '.join(sorted(grouped))} grouping)" if grouped else "")


def length_lines(data: dict, scope: str) -> dict[str, list[tuple[int, float]]]:
    """impl -> (length, TFLOP/s), of the heads that have most lengths of self-attention; {} when no
    heads have two."""
    by_heads: dict[tuple, set[int]] = {}
    rows = best_rows(data, scope)
    for (b, h_q, h_kv, s_q, s_kv, d), _ in rows:
        if s_q == s_kv:
            by_heads.setdefault((b, h_q, h_kv, d), set()).add(s_q)
    by_heads = {heads: lengths for heads, lengths in by_heads.items() if len(lengths) > 1}
    if not by_heads:
        return {}
    heads = max(by_heads, key=lambda h: (len(by_heads[h]), h))
    lines: dict[str, list[tuple[int, float]]] = {}
    for impl in impl_order(data):
        points = sorted(
            (key[3], row["tflops"]) for (key, name), row in rows.items()
            if name == impl and key[3] == key[4] and (key[0], key[1], key[2], key[5]) == heads
        )  # fmt: skip
        if points:
            lines[impl] = points
    return lines


def shape_bars(data: dict, scope: str) -> dict[str, dict[str, float]]:
    """problem -> impl -> TFLOP/s, without the length sweep where there is anything else."""
    names, bars = problem_names(data), {}
    for (key, impl), row in best_rows(data, scope).items():
        bars.setdefault(names[key], {})[impl] = row["tflops"]
    sweep = problem_texts.shapes()[1]["lengths"]
    return {name: impls for name, impls in bars.items() if name not in sweep} or bars


def ratios(data: dict, scope: str) -> tuple[str | None, dict[str, dict[str, float]]]:
    """The baseline, and problem -> impl -> how many times faster than it; problems without it are
    left out."""
    rows = best_rows(data, scope)
    baseline = next((b for b in BASELINES if any(impl == b for _, impl in rows)), None)
    names, out = problem_names(data), {}
    for (key, impl), row in rows.items():
        if baseline is None or (key, baseline) not in rows or impl == baseline:
            continue
        times = rows[key, baseline]["ms_median"] / row["ms_median"]
        out.setdefault(names[key], {})[impl] = times
    return baseline, out


def style(impl: str, order: list[str]) -> dict:
    """How a line is drawn."""
    ours = impl not in PEER_COLOURS
    return {
        "color": OUR_COLOURS.get(impl) or PEER_COLOURS.get(impl) or "#334155",
        "linestyle": "-" if ours else "--",
        "linewidth": 2.2 if ours else 1.4,
        "marker": MARKERS[order.index(impl) % len(MARKERS)],
        "markersize": 5,
    }


def subtitle(data: dict) -> str:
    """What the figures were made with."""
    where = "CPU run" if data["gpu"] is None else f"{data['gpu']}, driver {data['driver']}"
    return f"{where}, {data['date'][:10]}, commit {data['commit']}"


def draw_lengths(data: dict):
    """Figure of TFLOP/s by length, or None."""
    parts = [(scope_title(data, scope), length_lines(data, scope)) for scope, _ in SCOPES]
    parts = [(title, lines) for title, lines in parts if lines]
    if not parts:
        return None
    order = impl_order(data)
    figure, axes = plt.subplots(1, len(parts), figsize=(6.2 * len(parts), 4.4), sharey=True, squeeze=False)
    for axis, (title, lines) in zip(axes[0], parts):
        for impl, points in lines.items():
            axis.plot(*zip(*points), label=impl, **style(impl, order))
        lengths = sorted({n for points in lines.values() for n, _ in points})
        axis.set_xscale("log", base=2)
        for short, n in zip(lengths[:-1], lengths[1:]):
            if n < 1.3 * short:  # no room for both labels
                lengths.remove(n)
        axis.set_xticks(lengths, [f"{n:,}" for n in lengths], rotation=40, ha="right", fontsize=8)
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.set_xlabel("tokens")
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.25)
    axes[0][0].set_ylabel("TFLOP/s")
    finish(figure, "Speed by length", data)
    return figure


def draw_bars(data: dict, parts: list[tuple[str, dict]], title: str, ylabel: str, line: float | None):
    """Grouped bars, one row of the figure for each scope; None without bars."""
    parts = [(name, bars) for name, bars in parts if bars]
    if not parts:
        return None
    order = impl_order(data)
    groups = max(len(bars) for _, bars in parts)
    width = max(6.5, min(24.0, 1.2 + groups * 0.26 * (len(order) + 1)))
    figure, axes = plt.subplots(len(parts), 1, figsize=(width, 3.6 * len(parts)), squeeze=False)
    for axis, (name, bars) in zip(axes[:, 0], parts):
        for at, problem in enumerate(bars):
            present = [impl for impl in order if impl in bars[problem]]
            for i, impl in enumerate(present):
                x = at + (i - (len(present) - 1) / 2) * 0.85 / len(order)
                colour = style(impl, order)["color"]
                label = impl if impl not in axis.get_legend_handles_labels()[1] else None
                axis.bar(x, bars[problem][impl], 0.78 / len(order), color=colour, label=label,
                         hatch="" if impl not in PEER_COLOURS else "///", edgecolor="white", linewidth=0.4)  # fmt: skip
        if line is not None:
            axis.axhline(line, color="#111827", linewidth=1)
        axis.set_xticks(range(len(bars)), list(bars), rotation=18, ha="right", fontsize=8)
        axis.set_ylabel(ylabel)
        axis.set_title(name, fontsize=10)
        axis.grid(axis="y", alpha=0.25)
        axis.set_axisbelow(True)
    finish(figure, title, data)
    return figure


def finish(figure, title: str, data: dict) -> None:
    """Title, setting, one legend for all panels."""
    handles: dict[str, object] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="center left", bbox_to_anchor=(1.0, 0.5),
                  fontsize=8, frameon=False)  # fmt: skip
    figure.suptitle(f"{title}\n{subtitle(data)}", fontsize=10)
    figure.tight_layout()


def figures(data: dict) -> dict[str, object]:
    """Chart name -> figure; None where the file has nothing for it."""
    baseline = ratios(data, "kernel")[0] or ratios(data, "whole")[0]
    scopes = [(scope_title(data, scope), scope) for scope, _ in SCOPES]
    return {
        "length": draw_lengths(data),
        "shapes": draw_bars(
            data, [(t, shape_bars(data, s)) for t, s in scopes], "Speed by shape", "TFLOP/s", None
        ),
        "ratio": draw_bars(
            data, [(t, ratios(data, s)[1]) for t, s in scopes], f"Times faster than {baseline}",
            f"{baseline} = 1", 1.0,
        ),
    }  # fmt: skip


def only(data: dict, wanted: list[str]) -> dict:
    """The file's rows of some problems (names, sets, texts)."""
    keys = {tuple(p.row().values()) for p in problem_texts.select(wanted).values()}
    return {**data, "rows": [row for row in data["rows"] if problem_key(row) in keys]}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="plot.py", description="Charts of a benchmark's result file.")
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, help="folder (default: the file's)")
    parser.add_argument("--format", choices=("svg", "png"), default="svg")
    parser.add_argument("--problems", metavar="A,B", help="these alone: names, sets or texts")
    args = parser.parse_args(argv)
    try:
        data = schema.load(args.file)
        if args.problems is not None:
            data = only(data, args.problems.split(","))
    except (OSError, schema.SchemaError, problem_texts.ProblemError) as e:
        print(f"plot.py: {e}", file=sys.stderr)
        return 2
    out = args.out or args.file.parent
    out.mkdir(parents=True, exist_ok=True)
    plt.rcParams["svg.hashsalt"] = "vcattn"  # the same file from the same figures
    drawn = 0
    for name, figure in figures(data).items():
        path = out / f"{args.file.stem}-{name}.{args.format}"
        if figure is None:
            print(f"{name}: nothing to show in {args.file.name}")
            continue
        metadata = {"Date": None} if args.format == "svg" else {}
        figure.savefig(path, bbox_inches="tight", dpi=150, metadata=metadata)
        plt.close(figure)
        print(path)
        drawn += 1
    return 0 if drawn else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
