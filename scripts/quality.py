#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Repeats the demonstration over many seeds: results, table, plot, page.

    .venv/bin/python scripts/quality.py [--runs 20] [--recipes ...] [--work out/quality]
    .venv/bin/python scripts/quality.py --four-bit [--runs 10]     the NVFP4 recipes, a page of their own

Run i uses seed i and the classes of the bundled model in turn. Every run's JSON is kept under --work
and taken from there when it exists, so an interrupted measurement goes on where it stopped. Writes
bench/results/quality-YYYYMMDD.json, docs/quality-seeds.png and the tables of docs/quality-seeds.md
(quality-4bit-... with --four-bit) between its markers; the text around them is written by people.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import pathlib
import statistics
import subprocess
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from tqdm import tqdm  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
RECIPES = (
    "fp8,sage2,sage2+had,vc8-paper,vc8,vc8+had,vc8-turbo,vc8-hq,vc8-hq+had"
)
FOUR_BIT = "sage3,sage3+had,vc4-paper,vc4,vc4-int8qk,vc4-int8qk+had"
CLASSES = ("bunny", "cars", "bottles", "nasa", "shapes")
MEASURES = {
    "psnr": ("PSNR dB", 2),
    "ssim": ("SSIM", 4),
    "ssimulacra2": ("SSIMULACRA 2", 1),
    "ssimulacra": ("SSIMULACRA", 4),
    "butteraugli": ("Butteraugli", 3),
    "vif": ("VIF", 4),
}
BEGIN, END = "<!-- begin: written by scripts/quality.py -->", "<!-- end -->"


def measure(args: argparse.Namespace) -> list[dict]:
    """One record per run: seed, class and every recipe's numbers."""
    args.work.mkdir(parents=True, exist_ok=True)
    records = []
    for seed in tqdm(range(1, args.runs + 1), desc="seeds", disable=None):
        name = CLASSES[(seed - 1) % len(CLASSES)]
        path = args.work / f"{name}-{seed}.json"
        if not path.exists():
            command = [args.vcattn, "generate", "--class", name, "--seed", str(seed)]
            command += ["--recipes", args.recipes, "--out", args.work / "clips", "--json", path]
            subprocess.run([*command, "--quiet"], check=True)
        result = json.loads(path.read_text())
        records.append({"seed": seed, "class": name, "result": result})
    return records


def summarise(records: list[dict], baseline: str) -> dict:
    """The committed results: settings once, then measures by run and recipe."""
    first = records[0]["result"]
    recipes = [r for r in first["runs"][0]["recipes"] if r != first["reference"]]
    runs = []
    for record in records:
        values = record["result"]["runs"][0]["recipes"]
        assert all(r in values for r in recipes), f"run {record['seed']} lacks recipes"
        runs.append(
            {
                "seed": record["seed"],
                "class": record["class"],
                "recipes": {
                    recipe: {
                        **{m: values[recipe][m] for m in MEASURES},
                        "latent_error": values[recipe]["latent_error"],
                        "latent_error_first_step": values[recipe]["steps"][0]["latent_error"],
                        "energy_removed": values[recipe]["energy_removed"],
                        "regroupings": values[recipe]["regroupings"],
                    }
                    for recipe in recipes
                },
            }
        )
    return {
        "date": datetime.date.today().isoformat(),
        "version": first["version"],
        "spec_version": first["spec_version"],
        "kernel": first["runs"][0]["recipes"][recipes[0]]["kernel"],
        "model": first["model"],
        "denoising_steps": first["denoising_steps"],
        "guidance": first["guidance"],
        "reference": first["reference"],
        "runs": runs,
        "baseline": baseline,
        "summary": {recipe: summary_of(runs, recipe, baseline) for recipe in recipes},
    }


def mean_and_error(values: list[float]) -> tuple[float, float]:
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    return statistics.fmean(values), spread / math.sqrt(len(values))


def summary_of(runs: list[dict], recipe: str, baseline: str) -> dict:
    summary: dict = {}
    for key in MEASURES:
        values = [run["recipes"][recipe][key] for run in runs]
        values = [v for v in values if v is not None]
        summary[key] = statistics.fmean(values) if values else None
    psnr = [run["recipes"][recipe]["psnr"] for run in runs]
    base = [run["recipes"][baseline]["psnr"] for run in runs]
    gain = [a - b for a, b in zip(psnr, base) if a is not None and b is not None]
    summary["psnr_standard_error"] = mean_and_error([p for p in psnr if p is not None])[1]
    mean, error = mean_and_error(gain)
    summary[f"gain_over_{baseline}"] = {"mean": mean, "standard_error": error,
                                        "wins": sum(g > 0 for g in gain), "runs": len(gain)}  # fmt: skip
    logs = [
        math.log(run["recipes"][recipe]["latent_error_first_step"])
        - math.log(run["recipes"][baseline]["latent_error_first_step"])
        for run in runs
    ]
    mean, error = mean_and_error(logs)
    # The least noisy figure: before the sampler amplifies anything.
    summary[f"first_step_error_over_{baseline}"] = {
        "ratio": math.exp(mean), "standard_error": math.expm1(error), "wins": sum(v < 0 for v in logs)
    }  # fmt: skip
    # Geometric, because errors of single runs spread over a factor of ten.
    for key in ("latent_error", "latent_error_first_step"):
        logs = [math.log(run["recipes"][recipe][key]) for run in runs]
        summary[key] = math.exp(statistics.fmean(logs))
    energy = [run["recipes"][recipe]["energy_removed"] for run in runs]
    summary["energy_removed"] = None if None in energy else statistics.fmean(energy)
    return summary


def table(results: dict) -> str:
    baseline = results["baseline"]
    columns = [m for m in MEASURES if any(s[m] is not None for s in results["summary"].values())]
    head = ["recipe", *(MEASURES[m][0] for m in columns), f"PSNR − {baseline}", "wins",
            f"step-1 error / {baseline}", "state error, step 1", "last step",
            "V energy removed"]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    for recipe, summary in results["summary"].items():
        gain = summary[f"gain_over_{baseline}"]
        own = recipe == baseline
        row = [f"`{recipe}`"]
        row += [f"{summary[m]:.{MEASURES[m][1]}f}" for m in columns]
        row += ["–" if own else f"{gain['mean']:+.2f} ± {gain['standard_error']:.2f}"]
        row += ["–" if own else f"{gain['wins']} of {gain['runs']}"]
        first = summary[f"first_step_error_over_{baseline}"]
        row += ["–" if own else f"{first['ratio']:.2f} ± {100 * first['standard_error']:.0f} %"]
        row += [f"{summary[k]:.1e}" for k in ("latent_error_first_step", "latent_error")]
        energy = summary["energy_removed"]
        row += ["–" if energy is None else f"{100 * energy:.0f} %"]
        lines.append("| " + " | ".join(row) + " |")
    lines += ["", "PSNR in dB of each run:", ""]
    recipes = list(results["summary"])
    lines += ["| seed | class | " + " | ".join(f"`{r}`" for r in recipes) + " |"]
    lines += ["| ---: | --- |" + " ---: |" * len(recipes)]
    for run in results["runs"]:
        psnr = [f"{run['recipes'][r]['psnr']:.1f}" for r in recipes]
        lines.append(f"| {run['seed']} | {run['class']} | " + " | ".join(psnr) + " |")
    return "\n".join(lines)


def plot(results: dict, path: pathlib.Path) -> None:
    recipes = list(results["summary"])
    figure, axis = plt.subplots(figsize=(8, 0.55 * len(recipes) + 1.4), layout="constrained")
    colours = dict(zip(CLASSES, ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#8a8a8a")))
    for row, recipe in enumerate(recipes):
        for run in results["runs"]:
            axis.plot(run["recipes"][recipe]["psnr"], row, "o", alpha=0.55, markersize=5,
                      color=colours[run["class"]])  # fmt: skip
        summary = results["summary"][recipe]
        axis.errorbar(summary["psnr"], row + 0.28, xerr=summary["psnr_standard_error"], fmt="D",
                      color="black", markersize=4, capsize=3)  # fmt: skip
    for name, colour in colours.items():
        axis.plot([], [], "o", color=colour, label=name)
    axis.errorbar([], [], xerr=[], fmt="D", color="black", markersize=4, label="mean ± s.e.")
    axis.set_yticks(range(len(recipes)), recipes)
    axis.invert_yaxis()
    axis.set_xlabel("PSNR against the BF16 clip, dB")
    axis.grid(axis="x", alpha=0.3)
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def update_page(text: str, path: pathlib.Path) -> None:
    page = path.read_text() if path.exists() else f"# Quality over seeds\n\n{BEGIN}\n{END}\n"
    before, rest = page.split(BEGIN)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vcattn", default=ROOT / "build" / "bin" / "vcattn")
    parser.add_argument("--runs", type=int, default=20, help="runs; 8 or more for a result to keep")
    parser.add_argument("--four-bit", action="store_true", help="NVFP4 recipes against sage3")
    parser.add_argument("--recipes", help="comma-separated; default: " + RECIPES)
    parser.add_argument("--work", type=pathlib.Path, help="default: out/quality, out/quality-4bit")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "bench" / "results")
    parser.add_argument("--docs", type=pathlib.Path, default=ROOT / "docs")
    args = parser.parse_args()
    baseline, kind, page = ("sage3", "quality-4bit", "quality-4bit") if args.four_bit else (
        "sage2", "quality", "quality-seeds")  # fmt: skip
    args.recipes = args.recipes or (FOUR_BIT if args.four_bit else RECIPES)
    args.work = args.work or ROOT / "out" / kind
    if baseline not in args.recipes.split(","):
        parser.error(f"--recipes must hold {baseline}, which the others are compared with")
    results = summarise(measure(args), baseline)
    for folder in (args.results, args.docs):
        folder.mkdir(parents=True, exist_ok=True)
    target = args.results / f"{kind}-{results['date'].replace('-', '')}.json"
    target.write_text(json.dumps(results, indent=1) + "\n")
    plot(results, args.docs / f"{page}.png")
    model = results["model"]
    intro = (
        f"{len(results['runs'])} runs, {results['date']}, specification {results['spec_version']}, "
        f"{results['kernel']}; {model['tokens']} tokens, {model['layers']} layers of "
        f"{model['heads']} heads, {results['denoising_steps']} steps. Raw numbers: "
        f"[`bench/results/{target.name}`](../bench/results/{target.name})."
    )
    text = f"{intro}\n\n![PSNR by recipe]({page}.png)\n\n{table(results)}"
    update_page(text, args.docs / f"{page}.md")
    print(table(results))
    print(f"\nwritten: {target}, {args.docs / page}.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
