#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the policies of regrouping on the bundled video DiT: results, plots, tables.

    .venv/bin/python scripts/policies.py [--runs 6] [--guided-runs 4] [--work out/policies]

Three measurements, all from `--vcattn` and the library beside it:

* clips: run i has seed i and the classes of the model in turn; every policy from the same noise,
  against the BF16 clip. Then the same with guidance, one order for both branches against two.
* replay (policies_replay.py): q, k, v captured from the BF16 clip at every step, given to every
  policy in turn. All policies see the same operands, so their errors differ by the policy alone.
* calibrated tensors: what `tests/accuracy` prints of every grouping.

Each run's file is kept under --work and taken from there when it exists, so an interrupted
measurement goes on where it stopped. Writes bench/results/grouping-YYYYMMDD.json and, by
policies_page.py, the plots and tables of docs/grouping.md between its marks.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import re
import subprocess
import sys

from tqdm import tqdm

import policies_page
import policies_replay
import policies_schema
from quality import CLASSES, ROOT

# Ten steps, so a quarter of them is three. `spread` regroups as often as `quarter`: steps 0, 4, 8.
POLICIES = {
    "none": "window=0,after=identity",
    "every": "window=10",
    "quarter": "window=3,after=reuse",
    "quarter-only": "window=3,after=identity",
    "spread": "window=10,refresh=4",
    "once": "window=1,after=reuse",
    "decay": "window=3,after=decay",
    "once-decay": "window=1,after=decay",
}
GUIDED = {"two-orders": "window=3,after=decay", "one-order": "window=3,after=decay,share_cfg"}
# Those of the published recipe are the published comparison.
CLIPS = ("vc8@none", "vc8@every", "vc8@quarter", "vc8@spread", "vc8@once", "vc8@decay",
         "vc8-paper@every", "vc8-paper@quarter", "vc8-paper@spread")  # fmt: skip
GUIDED_CLIPS = ("vc8@two-orders", "vc8@one-order")
GUIDANCE = 2
STEPS = 10
CAPTURED_RUNS = (1, 2)  # their operands are replayed
MEASURES = ("psnr", "ssim", "ssimulacra", "butteraugli", "lpips")


def generate(args: argparse.Namespace, seed: int, guided: bool) -> dict:
    """The result of one seed; operands of the reference are captured on the way where wanted."""
    name = CLASSES[(seed - 1) % len(CLASSES)]
    stem = f"{'guided' if guided else 'clips'}-{name}-{seed}"
    path = args.work / f"{stem}.json"
    captured = seed == CAPTURED_RUNS[0] if guided else seed in CAPTURED_RUNS
    if not path.exists():
        policies = GUIDED if guided else POLICIES
        command = [args.vcattn, "generate", "--class", name, "--seed", str(seed), "--steps", str(STEPS)]
        command += ["--recipes", ",".join(GUIDED_CLIPS if guided else CLIPS)]
        for policy, text in policies.items():
            command += ["--policy", f"{policy}:{text}"]
        if guided:
            command += ["--guidance", str(GUIDANCE)]
        if captured:
            command += ["--capture", args.work / stem,
                        "--capture-steps", ",".join(map(str, range(STEPS)))]  # fmt: skip
        subprocess.run([*command, "--out", args.work / "last-clip", "--json", path, "--quiet"], check=True)
    return {
        "seed": seed,
        "class": name,
        "result": json.loads(path.read_text()),
        "captures": args.work / stem if captured else None,
    }


def kept(record: dict) -> dict:
    """What the results keep of one seed's clips."""
    clips = {}
    for name, clip in record["result"]["runs"][0]["recipes"].items():
        if name == record["result"]["reference"]:
            continue
        clips[name] = {m: clip[m] for m in MEASURES}
        clips[name] |= {
            "energy_removed": [s["energy_removed"] for s in clip["steps"]],
            "regroupings": [s["regroupings"] for s in clip["steps"]],
            "state_error": [s["latent_error"] for s in clip["steps"]],
        }
    return {"seed": record["seed"], "class": record["class"], "clips": clips}


LINE = re.compile(r"^(?P<what>[\w ,/.]+?)((?:  G[ABC] [\d.]+)+)$", flags=re.M)


def calibrated(args: argparse.Namespace) -> dict:
    """What tests/accuracy prints: {line: {family: f}}."""
    path = args.work / "calibrated.txt"
    if not path.exists():
        command = [args.accuracy, "--gtest_filter=GroupingF.*"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        path.write_text(done.stdout)
    lines = {}
    for match in LINE.finditer(path.read_text()):
        values = re.findall(r"(G[ABC]) ([\d.]+)", match.group(2))
        lines[match.group("what").strip()] = {family: float(value) for family, value in values}
    return lines


def measure(args: argparse.Namespace) -> dict:
    args.work.mkdir(parents=True, exist_ok=True)
    seeds = tqdm(range(1, args.runs + 1), desc="clips", disable=None)
    clips = [generate(args, seed, guided=False) for seed in seeds]
    seeds = tqdm(range(1, args.guided_runs + 1), desc="clips with guidance", disable=None)
    guided = [generate(args, seed, guided=True) for seed in seeds]
    first = clips[0]["result"]
    replays = policies_replay.measure(args, clips + guided[:1], POLICIES, GUIDED)
    return {
        "date": datetime.date.today().isoformat(),
        "version": first["version"],
        "spec_version": first["spec_version"],
        "kernel": first["runs"][0]["recipes"][CLIPS[0]]["kernel"],
        "model": first["model"],
        "denoising_steps": first["denoising_steps"],
        "times": [s["t"] for s in first["runs"][0]["recipes"][CLIPS[0]]["steps"]],
        "reference": first["reference"],
        "policies": POLICIES,
        "guided_policies": GUIDED,
        "guidance": GUIDANCE,
        "clips": [kept(record) for record in clips],
        "guided_clips": [kept(record) for record in guided],
        **replays,
        "calibrated": calibrated(args),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vcattn", type=pathlib.Path, default=ROOT / "build" / "bin" / "vcattn")
    parser.add_argument("--accuracy", type=pathlib.Path, help="the accuracy tests; default: of the same build")
    parser.add_argument("--runs", type=int, default=6, help="seeds of the comparison of clips")
    parser.add_argument("--guided-runs", type=int, default=4, help="seeds of the comparison with guidance")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "out" / "policies")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "bench" / "results")
    parser.add_argument("--docs", type=pathlib.Path, default=ROOT / "docs")
    args = parser.parse_args()
    args.accuracy = args.accuracy or args.vcattn.parents[1] / "tests" / "accuracy_grouping_f_test"
    results = measure(args)
    for fault in policies_schema.faults(results):
        raise SystemExit(f"policies: {fault}")
    target = args.results / f"grouping-{results['date'].replace('-', '')}.json"
    target.write_text(json.dumps(results, indent=1) + "\n")
    policies_page.write(results, target.name, args.docs)
    print(f"written: {target}, {args.docs / 'grouping.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
