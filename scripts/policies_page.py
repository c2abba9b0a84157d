#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables and plots of docs/grouping.md from the results of policies.py.

    .venv/bin/python scripts/policies_page.py bench/results/grouping-YYYYMMDD.json

Tables stand between `<!-- scripts/policies.py NAME -->` and `<!-- end -->`; the text around them is
written by people.
"""

from __future__ import annotations

import json
import math
import pathlib
import re
import statistics
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

from quality import ROOT, mean_and_error  # noqa: E402

PLACE = re.compile(r"(<!-- scripts/policies\.py (\w+) -->\n)(.*?)(<!-- end -->)", flags=re.S)
LABELS = {
    "none": "token order",
    "every": "every step",
    "quarter": "first 25 %, then reuse",
    "quarter-only": "first 25 %, then token order",
    "spread": "evenly spread, as often",
    "once": "first step, then reuse",
    "decay": "first 25 %, then on decay",
    "once-decay": "first step, then on decay",
    "two-orders": "an order for each branch",
    "one-order": "one order for both (`share_cfg`)",
}
BASE = "every"
COLOURS = {"none": "#9ca3af", "every": "#111827", "quarter": "#1d4ed8", "quarter-only": "#93c5fd",
           "spread": "#c2410c", "once": "#7c3aed", "decay": "#15803d", "once-decay": "#0f766e",
           "identity": "#9ca3af", "cubes": "#ca8a04", "kmeans": "#c2410c", "kdtree": "#15803d",
           "vsmooth": "#1d4ed8", "balanced": "#111827"}  # fmt: skip
MARKERS = dict(zip(COLOURS, "osDv^PX<osDv^P"))


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def label(clip: str, recipe: bool = True) -> str:
    name, policy = clip.split("@")
    return (f"`{name}`, " if recipe else "") + LABELS[policy]


# ------------------------------------------------------------------ calibrated
def macs(tokens: int, kind: str, passes: int) -> int | None:
    """Multiply-adds per token at head_dim 128, k = tokens / 128; None where they are not fixed."""
    k = tokens // 128
    sample = min(tokens, max(4096, tokens // 8))
    base = {"identity": 0, "cubes": 0, "kmeans": 5 * k * 128, "kdtree": 8 * 128,
            "vsmooth": 5 * k * 128 * sample // tokens + k * 128}  # fmt: skip
    return None if kind not in base else base[kind] + 3 * 128 * passes


def calibrated_rows(results: dict, tokens: int) -> list[list[str]]:
    rows = []
    passes = [(kind, f"{kind}, passes {n}", n) for kind in ("kdtree", "vsmooth") for n in (0, 2, 4, 8, 16)]
    if f"{tokens} tokens, kdtree, passes 8" not in results["calibrated"]:  # the default number
        passes = [(kind, kind if n == 8 else name, n) for kind, name, n in passes]
    names = [("identity", "identity", None), ("cubes", "cubes", None), ("kmeans", "kmeans", None), *passes,
             ("auto", "auto", None), ("balanced", "balanced", None)]  # fmt: skip
    for kind, name, n in names:
        values = results["calibrated"].get(f"{tokens} tokens, {name}")
        if values is None:
            continue
        count = macs(tokens, "vsmooth", 8) if kind == "auto" else macs(tokens, kind, n or 0)
        text = "auto (vsmooth, 8 passes)" if kind == "auto" else kind if n is None else f"{kind}, {n} passes"
        rows.append([f"**{text}**" if kind == "auto" else text, *(f"{v:.3f}" for v in values.values()),
                     f"{statistics.fmean(values.values()):.3f}", "–" if count is None else f"{count:,}"])  # fmt: skip
    return rows


def calibrated(results: dict, tokens: int) -> str:
    head = [f"{tokens:,} tokens", "GA clusters", "GB manifold", "GC both", "mean", "MAC per token"]
    return table(head, calibrated_rows(results, tokens))


def warm(results: dict) -> str:
    lines = results["calibrated"]
    noises = sorted({m.group(1) for m in map(re.compile(r"noise ([\d.]+), warm").fullmatch, lines) if m}, reverse=True)
    rows = []
    for family in ("GA", "GB", "GC"):
        pairs = [[lines[f"noise {n}, {start}"][family] for start in ("warm", "cold")] for n in noises]
        rows.append([f"{family} warm / cold", *(f"{a:.3f} / {b:.3f}" for a, b in pairs)])
    return table(["noise", *noises], rows)


# -------------------------------------------------------------------- captures
def over_runs(runs: dict, name: str, key: str) -> list[float]:
    """A curve over steps, the mean of the captured runs."""
    return [statistics.fmean(values) for values in zip(*(run[name][key] for run in runs.values()))]


def ratios(runs: dict, name: str, base: str) -> list[float]:
    """Output error over that of `base`, by step; geometric mean of the captured runs."""
    logs = [[math.log(a / b) for a, b in zip(run[name]["output_error"], run[base]["output_error"])]
            for run in runs.values()]  # fmt: skip
    return [math.exp(statistics.fmean(values)) for values in zip(*logs)]


def shown_steps(results: dict) -> list[int]:
    last = results["denoising_steps"] - 1
    return sorted({i * last // 5 for i in range(6)})


def captures(results: dict) -> str:
    steps = shown_steps(results)
    rows = []
    for name in next(iter(results["groupings"].values())):
        f = over_runs(results["groupings"], name, "energy_removed")
        error = over_runs(results["groupings"], name, "output_error")
        rows.append([f"`{name}`", *(f"{f[s]:.3f}, {100 * error[s]:.3f} %" for s in steps)])
    return table(["noise level t", *(f"{results['times'][s]:.2f}" for s in steps)], rows)


def calls_text(runs: dict, name: str) -> str:
    kinds = ("cold", "warm", "kept", "token order")
    sums = [sum(run[name]["calls"][kind] for run in runs.values()) / len(runs) for kind in kinds]
    return " / ".join(f"{n:.0f}" if n == int(n) else f"{n:.1f}" for n in sums)


def policies(results: dict) -> str:
    runs = results["replay"]
    rows = []
    for name in next(iter(runs.values())):
        recipe, policy = name.split("@")
        f = over_runs(runs, name, "energy_removed")
        error = ratios(runs, name, f"{recipe}@{BASE}")
        typical = math.exp(statistics.fmean(map(math.log, error)))
        rows.append([label(name), f"`{results['policies'][policy]}`", calls_text(runs, name),
                     f"{statistics.fmean(f):.3f}", f"{f[-1]:.3f}", f"{typical:.3f}", f"{max(error):.3f}"])  # fmt: skip
    head = ["policy", "`--policy`", "heads cold / warm / kept / token order", "f, mean", "f, last step",
            "output error / every step", "worst step"]  # fmt: skip
    return table(head, rows)


# ----------------------------------------------------------------------- clips
def differences(clips: list[dict], name: str, base: str, key: str) -> list[float]:
    return [run["clips"][name][key] - run["clips"][base][key] for run in clips]


def clip_rows(clips: list[dict], base_of) -> list[list[str]]:
    rows = []
    for name in clips[0]["clips"]:
        values = [run["clips"][name] for run in clips]
        row = [label(name), f"{statistics.fmean(v['psnr'] for v in values):.2f}"]
        base = base_of(name)
        if name == base:
            row += ["–", "–", "–"]
        else:
            gain = differences(clips, name, base, "psnr")
            mean, error = mean_and_error(gain)
            structure, structure_error = mean_and_error(differences(clips, name, base, "ssim"))
            row += [f"{mean:+.2f} ± {error:.2f}", f"{sum(g > 0 for g in gain)} of {len(gain)}",
                    f"{1e4 * structure:+.1f} ± {1e4 * structure_error:.1f}"]  # fmt: skip
        for measure, form in (("butteraugli", "{:.3f}"), ("ssimulacra", "{:.4f}")):
            found = [v[measure] for v in values]
            row.append("–" if None in found else form.format(statistics.fmean(found)))
        last = math.exp(statistics.fmean(math.log(v["state_error"][-1]) for v in values))
        f = statistics.fmean(statistics.fmean(v["energy_removed"]) for v in values)
        row += [f"{last:.1e}", f"{f:.3f}", f"{statistics.fmean(sum(v['regroupings']) for v in values):.1f}"]
        rows.append(row)
    return rows


CLIP_HEAD = ["policy", "PSNR dB", "PSNR − {base}", "wins", "SSIM − {base}, 10⁻⁴", "Butteraugli", "SSIMULACRA",
             "state error, last step", "f", "regroupings"]  # fmt: skip


def clips(results: dict) -> str:
    head = [text.format(base="every step") for text in CLIP_HEAD]
    return table(head, clip_rows(results["clips"], lambda name: f"{name.split('@')[0]}@{BASE}"))


def published(results: dict) -> str:
    rows = []
    for policy, theirs in (("quarter", "−0.5 dB, SSIM and LPIPS better"), ("spread", "−2.6 dB")):
        row = [f"{LABELS[policy]}, against every step", theirs]
        for recipe in ("vc8-paper", "vc8"):
            name, base = f"{recipe}@{policy}", f"{recipe}@{BASE}"
            mean, error = mean_and_error(differences(results["clips"], name, base, "psnr"))
            typical = math.exp(statistics.fmean(map(math.log, ratios(results["replay"], name, base))))
            row.append(f"{mean:+.1f} ± {error:.1f} dB; output error × {typical:.3f}")
        rows.append(row)
    return table(["", "published", "`vc8-paper` here", "`vc8` here"], rows)


def guided(results: dict) -> str:
    head = [text.format(base="two orders") for text in CLIP_HEAD]
    text = table(head, clip_rows(results["guided_clips"], lambda name: f"{name.split('@')[0]}@two-orders"))
    runs, rows = results["guided_replay"], []
    for name in next(iter(runs.values())):
        f = over_runs(runs, name, "energy_removed")
        error = ratios(runs, name, "vc8@two-orders")
        typical = math.exp(statistics.fmean(map(math.log, error)))
        rows.append([label(name), calls_text(runs, name), f"{statistics.fmean(f):.3f}", f"{f[-1]:.3f}",
                     f"{typical:.3f}", f"{max(error):.3f}"])  # fmt: skip
    head = ["replay", "heads cold / warm / kept / token order", "f, mean", "f, last step",
            "output error / two orders", "worst step"]  # fmt: skip
    return f"{text}\n{table(head, rows)}"


def source(results: dict, file: str) -> str:
    model = results["model"]
    runs = ", ".join(results["replay"])
    return (
        f"{results['date']}, specification {results['spec_version']}, {results['kernel']}; bundled DiT of "
        f"{model['tokens']} tokens, {model['layers']} layers of {model['heads']} heads, "
        f"{results['denoising_steps']} steps; {len(results['clips'])} seeds of clips, "
        f"{len(results['guided_clips'])} with guidance {results['guidance']:g}; operands captured from {runs}. "
        f"Raw numbers: [`bench/results/{file}`](../bench/results/{file}).\n"
    )


def sections(results: dict, file: str) -> dict[str, str]:
    return {
        "source": source(results, file),
        "calibrated": calibrated(results, 16384),
        "long": calibrated(results, 76800),
        "warm": warm(results),
        "captures": captures(results),
        "policies": policies(results),
        "clips": clips(results),
        "published": published(results),
        "guided": guided(results),
    }


# ----------------------------------------------------------------------- plots
def curve(axis, x: list, y: list, name: str, text: str) -> None:
    axis.plot(x, y, color=COLOURS[name], marker=MARKERS[name], markersize=4, linewidth=1.4, label=text)


def plot_calibrated(results: dict, path: pathlib.Path) -> None:
    """Families at two lengths; pair passes; warm and cold starts by noise."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained", width_ratios=(5, 4, 4))
    lines = results["calibrated"]
    kinds = ("identity", "cubes", "kmeans", "kdtree", "vsmooth", "balanced")
    names = [(f"{n} tokens", f"{n:,}") for n in (16384, 76800)]
    ticks = []
    for group, (tokens, text) in enumerate(names):
        for i, family in enumerate(("GA", "GB", "GC")):
            x = 3.4 * group + i
            ticks.append((x, f"{family}\n{text}"))
            for place, kind in enumerate(kinds):
                same = (kind, f"{kind}, passes 8", *(["auto"] if kind == "vsmooth" else []))
                values = next((lines[f"{tokens}, {name}"] for name in same if f"{tokens}, {name}" in lines), None)
                if values is not None:  # balanced is of the shorter length only
                    left.bar(x + 0.14 * (place - 2.5), values[family], 0.13, color=COLOURS[kind])
    left.set_xticks(*zip(*ticks), fontsize=7)
    left.set_xlabel("family and tokens; kdtree and vsmooth with 8 passes")
    passes = (0, 2, 4, 8, 16)
    for kind in kinds:
        at = [lines.get(f"16384 tokens, {kind}, passes {n}") or lines[f"16384 tokens, {kind}"] for n in passes]
        moves = kind in ("kdtree", "vsmooth")
        y = [statistics.fmean(values.values()) for values in at]
        middle.plot(passes, y, color=COLOURS[kind], marker=MARKERS[kind] if moves else "", markersize=4,
                    linewidth=1.4, linestyle="-" if moves else "--", label=kind)  # fmt: skip
    middle.set_xticks(passes)
    middle.set_xlabel("pair passes; 16,384 tokens, mean of the families")
    noises = sorted({m.group(1) for m in map(re.compile(r"noise ([\d.]+), warm").fullmatch, lines) if m}, reverse=True)
    for family, colour in (("GA", "#1d4ed8"), ("GB", "#15803d"), ("GC", "#c2410c")):
        for start, style in (("warm", "o-"), ("cold", "x--")):
            y = [lines[f"noise {n}, {start}"][family] for n in noises]
            right.plot(y, style, color=colour, markersize=5, linewidth=1.2, label=f"{family} {start}")
    right.set_xticks(range(len(noises)), noises)
    right.set_xlabel("noise of V, of the calibrated one; a step each")
    right.legend(frameon=False, fontsize=7)
    for axis, text in ((left, "f"), (middle, "f"), (right, "f_g")):
        axis.set_ylabel(f"{text}, share of V's energy removed")
        axis.set_ylim(bottom=0)
        axis.grid(axis="y", alpha=0.3)
    figure.legend(*middle.get_legend_handles_labels(), loc="outside lower left", ncols=6, frameon=False, fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def plot_captures(results: dict, path: pathlib.Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    runs, steps = results["groupings"], list(range(results["denoising_steps"]))
    for name in next(iter(runs.values())):
        curve(left, steps, over_runs(runs, name, "energy_removed"), name, name)
        curve(right, steps, ratios(runs, name, "identity"), name, name)
    left.set_ylabel("f, share of V's energy removed")
    right.set_ylabel("output error / identity, vc8")
    left.set_ylim(bottom=0)
    for axis in (left, right):
        axis.set_xticks(steps, [f"{t:.2f}" for t in results["times"]], fontsize=7)
        axis.set_xlabel("noise level t of the step")
        axis.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def plot_policies(results: dict, path: pathlib.Path) -> None:
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.4), layout="constrained")
    runs, steps = results["replay"], list(range(results["denoising_steps"]))
    for name in next(iter(runs.values())):
        recipe, policy = name.split("@")
        if recipe != "vc8":
            continue
        curve(left, steps, over_runs(runs, name, "energy_removed"), policy, LABELS[policy])
        curve(middle, steps, ratios(runs, name, f"vc8@{BASE}"), policy, LABELS[policy])
    for axis, text in ((left, "f, share of V's energy removed"), (middle, "output error / every step")):
        axis.set_ylabel(text)
        axis.set_xlabel("step")
        axis.set_xticks(steps)
        axis.grid(alpha=0.3)
    left.set_ylim(bottom=0)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=4, frameon=False, fontsize=8)
    clips_ = results["clips"]
    names = [n for n in clips_[0]["clips"] if not n.endswith(f"@{BASE}")]
    for row, name in enumerate(names):
        recipe, policy = name.split("@")
        gain = differences(clips_, name, f"{recipe}@{BASE}", "psnr")
        right.plot(gain, [row] * len(gain), "o", color=COLOURS[policy], alpha=0.6, markersize=5)
        mean, error = mean_and_error(gain)
        right.errorbar(mean, row + 0.25, xerr=error, fmt="D", color="black", markersize=4, capsize=3)
    right.axvline(0, color="black", linewidth=0.8)
    right.set_yticks(range(len(names)), [f"{n.split('@')[0]}, {LABELS[n.split('@')[1]]}" for n in names], fontsize=7)
    right.invert_yaxis()
    right.set_xlabel("PSNR − PSNR of every step, dB (◆ mean ± s.e.)")
    right.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def rewritten(text: str, results: dict, file: str) -> str:
    """A document with the tables between its marks made anew."""
    made = sections(results, file)
    unknown = [m.group(2) for m in PLACE.finditer(text) if m.group(2) not in made]
    if unknown:
        raise SystemExit(f"policies_page: unknown table {unknown[0]!r}; allowed: {', '.join(made)}")
    return PLACE.sub(lambda m: f"{m.group(1)}{made[m.group(2)]}{m.group(4)}", text)


def write(results: dict, file: str, docs: pathlib.Path) -> None:
    page = docs / "grouping.md"
    page.write_text(rewritten(page.read_text(encoding="utf-8"), results, file), encoding="utf-8")
    plot_calibrated(results, docs / "grouping-calibrated.png")
    plot_captures(results, docs / "grouping-captures.png")
    plot_policies(results, docs / "grouping-policies.png")


def main() -> int:
    path = pathlib.Path(sys.argv[1])
    write(json.loads(path.read_text()), path.name, ROOT / "docs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
