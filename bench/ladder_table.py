# SPDX-License-Identifier: Apache-2.0
"""Result files of bench/ladder.py: what they hold, whether one is whole and right, its table.

    gpu, driver, date, commit, software      as in bench/schema.py
    problem          heads, grid [T, H, W], tokens, d
    compiled         false: nothing was compiled (a trial on a CPU)
    order            where the order of the keys came from
    rungs            each: rung 0-4, name, ms [median, smallest, largest], calls, extra_gb: memory beside the
                     inputs (torch's peak; the workspace of rung 4), check: against rung 0, codes (largest
                     distance), scales (largest relative distance), means_moved (share of block means that
                     another order of sums rounded to the next BF16 value)
    token_order_ms   rung 4 without an order, [median, smallest, largest]
    faults           rung -> why it has no time, or, for a rung with one, in what its result is not rung 0's
"""

from __future__ import annotations

import json
import math
import pathlib
import re

NAMES = ("every operation on its own", "quantiser + Hadamard fused", "means + gather as well",
         "RoPE as well", "this library's kernels")  # fmt: skip
# Of a published chain of the same parts: each step's speed-up over the rung before, and of all.
PUBLISHED, PUBLISHED_ALL = (1.59, 1.43, 1.94, 1.97), 8.74
# FP32 sums of 128 values in another order differ by about 2^-22 of the largest value, a BF16 mean in a
# thousand then rounds the other way at most; small means, relative to their values, more often.
CODE_TOLERANCE, SCALE_TOLERANCE, MOVED_TOLERANCE = 1, 1e-3, 1e-2

_KEYS = {"gpu", "driver", "date", "commit", "software", "problem", "compiled", "order", "rungs",
         "token_order_ms", "faults"}  # fmt: skip


def differs(data: dict, r: dict) -> bool:
    """Whether a rung was timed, checked, and found to compute something else: the table says so."""
    return "check" not in r and "not the same result" in data["faults"].get(str(r["rung"]), "")


def _rung_faults(r: dict) -> list[str]:
    at, found = f"rung {r['rung']}", []
    if r["name"] != NAMES[r["rung"]]:
        found.append(f"{at}: its name is {NAMES[r['rung']]!r}, not {r['name']!r}")
    median, low, high = r["ms"]
    if not 0 < low <= median <= high:
        found.append(f"{at}: ms is [median, smallest, largest], not {r['ms']}")
    if r["calls"] < 10:
        found.append(f"{at}: {r['calls']} calls, a median is of 10 calls or more")
    check = r.get("check")
    if check is None:
        found.append(f"{at}: was not checked")
    elif (check["codes"] > CODE_TOLERANCE or not check["scales"] <= SCALE_TOLERANCE
          or not check["means_moved"] <= MOVED_TOLERANCE):  # fmt: skip
        found.append(f"{at}: not the same result as rung 0: {check}")
    return found


def faults(data) -> list[str]:
    """Everything wrong with a file that a document may quote; [] when nothing is."""
    if not isinstance(data, dict) or set(data) != _KEYS:
        keys = sorted(set(data) ^ _KEYS) if isinstance(data, dict) else "no object"
        return [f"keys: missing or unknown: {keys}"]
    found = []
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", str(data["date"])):
        found.append(f"date: {data['date']!r} is not YYYY-MM-DDThh:mm:ssZ")
    if math.prod(data["problem"]["grid"]) != data["problem"]["tokens"]:
        found.append("problem: tokens are not the product of the grid")
    if not data["compiled"]:
        found.append("compiled: a trial run")
    said = {str(r.get("rung")) for r in data["rungs"] if differs(data, r)}
    found += [f"rung {rung} failed: {why}" for rung, why in data["faults"].items() if rung not in said]
    if [r.get("rung") for r in data["rungs"]] != list(range(len(NAMES))):
        return [*found, f"rungs 0 to {len(NAMES) - 1} are needed, in this order"]
    for r in data["rungs"]:
        found += [f for f in _rung_faults(r) if not (differs(data, r) and f.endswith("was not checked"))]
    if any(differs(data, r) for r in data["rungs"] if r["rung"] in (0, len(NAMES) - 1)):
        found.append("rungs 0 and 4 must be the same result")
    return found


def load(path) -> dict:
    """A checked file; ValueError with every fault."""
    data = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    if found := faults(data):
        raise ValueError("\n".join(f"{path}: {fault}" for fault in found))
    return data


def table(data: dict) -> str:
    """Markdown: rungs, times, factors, the published ones beside, memory."""
    by = {r["rung"]: r for r in data["rungs"]}
    lines = ["| rung | ms | × the rung before | published | memory beside the inputs, GB |", "| --- | --- | --- | --- | --- |"]
    for i, r in sorted(by.items()):
        step = f"{by[i - 1]['ms'][0] / r['ms'][0]:.2f}" if i - 1 in by else "–"
        published = f"{PUBLISHED[i - 1]:.2f}" if i else "–"
        mark = " (*)" if differs(data, r) else ""
        lines.append(f"| {i}: {NAMES[i]}{mark} | {r['ms'][0]:.2f} | {step} | {published} | {r['extra_gb']:.1f} |")
    if 0 in by and 4 in by:
        lines.append(f"| all | | **{by[0]['ms'][0] / by[4]['ms'][0]:.2f}** | {PUBLISHED_ALL:.2f} | |")
    return "\n".join(lines)
