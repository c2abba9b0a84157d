# SPDX-License-Identifier: Apache-2.0
"""What a file bench/results/grouping-YYYYMMDD.json of policies.py must hold."""

from __future__ import annotations

import math
import re

KEYS = {"date", "version", "spec_version", "kernel", "model", "denoising_steps", "times", "reference",
        "policies", "guided_policies", "guidance", "clips", "guided_clips", "replay", "guided_replay",
        "groupings", "calibrated"}  # fmt: skip
CALLS = ("cold", "warm", "kept", "token order")
# Regroupings of every head, steps apart, that follow from the policy alone (10 steps).
FIXED = {"none": 0, "every": 10, "quarter": 3, "quarter-only": 3, "spread": 3, "once": 1}


def faults(results: dict) -> list[str]:
    """One line for everything that is not as it should be; empty for good results."""
    if not isinstance(results, dict) or set(results) != KEYS:
        wrong = KEYS ^ set(results) if isinstance(results, dict) else KEYS
        return [f"keys missing or unknown: {', '.join(sorted(map(str, wrong)))}"]
    found = []
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", results["date"]):
        found.append(f"date {results['date']!r} is not YYYY-MM-DD")
    if not isinstance(results["spec_version"], int) or results["spec_version"] < 1:
        found.append(f"spec_version {results['spec_version']!r}")
    if len(results["times"]) != results["denoising_steps"]:
        found.append("times: not one of each step")
    heads = results["model"]["layers"] * results["model"]["heads"]
    for kind, policies, branches in (("clips", "policies", 1), ("guided_clips", "guided_policies", 2)):
        for run in results[kind]:
            for name, clip in run["clips"].items():
                where = f"{kind}, seed {run['seed']}, {name}"
                found += clip_faults(where, clip, results, results[policies], name, heads * branches)
    for kind, branches in (("replay", 1), ("guided_replay", 2)):
        for run_name, run in results[kind].items():
            for name, entry in run.items():
                calls = heads * branches * results["denoising_steps"]
                found += replay_faults(f"{kind}, {run_name}, {name}", entry, results, name, heads, calls)
    for run_name, run in results["groupings"].items():
        for name, entry in run.items():
            found += curve_faults(f"groupings, {run_name}, {name}", entry, results["denoising_steps"])
    for line, row in results["calibrated"].items():
        if set(row) != {"GA", "GB", "GC"} or not all(0 < v < 1 for v in row.values()):
            found.append(f"calibrated, {line}: {row}")
    for kind in ("clips", "guided_clips", "replay", "guided_replay", "groupings", "calibrated"):
        if not results[kind]:
            found.append(f"{kind} is empty")
    return found


def is_share(value: object) -> bool:
    return isinstance(value, float) and 0 <= value < 1


def is_positive(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value) and value > 0


def curve_faults(where: str, entry: dict, steps: int) -> list[str]:
    found = []
    for key, good in (("energy_removed", is_share), ("output_error", is_positive)):
        if len(entry[key]) != steps or not all(map(good, entry[key])):
            found.append(f"{where}: {key} {entry[key]}")
    return found


def clip_faults(where: str, clip: dict, results: dict, policies: dict, name: str, heads: int) -> list[str]:
    found = []
    policy, steps = name.split("@")[1], results["denoising_steps"]
    if policy not in policies:
        found.append(f"{where}: unknown policy")
    if not is_positive(clip["psnr"]) or not (is_positive(clip["ssim"]) and clip["ssim"] <= 1):
        found.append(f"{where}: psnr {clip['psnr']}, ssim {clip['ssim']}")
    for key, good in (("energy_removed", is_share), ("state_error", is_positive),
                      ("regroupings", lambda n: isinstance(n, int) and 0 <= n <= heads)):  # fmt: skip
        if len(clip[key]) != steps or not all(map(good, clip[key])):
            found.append(f"{where}: {key} {clip[key]}")
    if policy in FIXED and steps == 10 and sum(clip["regroupings"]) != FIXED[policy] * heads:
        found.append(f"{where}: {sum(clip['regroupings'])} regroupings of {heads} heads")
    return found


def replay_faults(where: str, entry: dict, results: dict, name: str, heads: int, calls: int) -> list[str]:
    found = curve_faults(where, entry, results["denoising_steps"])
    if set(entry["calls"]) != set(CALLS) or sum(entry["calls"].values()) != calls:
        return [*found, f"{where}: calls {entry['calls']}, not {calls} in all"]
    policy = name.split("@")[1]
    regrouped = entry["calls"]["cold"] + entry["calls"]["warm"]
    if policy in FIXED and results["denoising_steps"] == 10 and regrouped != FIXED[policy] * heads:
        found.append(f"{where}: {regrouped} regroupings of {heads} heads")
    return found
