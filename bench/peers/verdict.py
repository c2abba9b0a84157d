# SPDX-License-Identifier: Apache-2.0
"""Whether a run is a full one, and where its file goes."""

from __future__ import annotations

import pathlib
import re

# Without rows of each of these, in both scopes, for every problem, a run is partial.
NEEDED = ("vc8", "vc8-turbo", "fa3-bf16", "fa3-fp8", "sageattention2", "cudnn-bf16")
NEEDED_SCOPES = ("kernel", "whole")
# Claims are made of the first problem; the others may have fewer calls where time is short.
MAIN_CALLS, OTHER_CALLS = 30, 12

FULL_PROBLEMS = (
    "wan22-720p", "hunyuan15-720p", "longcat-480p", "h3-243f", "wan22-720p-ulysses8",
    "b1 hq7 hkv7 sq73774 skv73774 d128 bf16",  # one of 8 Ulysses shards of h3-243f
    "length-1024", "length-2048", "length-4096", "length-8192", "length-16384", "length-32768",
    "length-65536",
)  # fmt: skip


def needs(cell) -> bool:
    """Whether a full run needs all calls of this cell.Cell."""
    return (
        cell.impl in NEEDED
        and cell.grouping == "none"
        and any(scope in NEEDED_SCOPES for scope in cell.scopes)
    )


def why_partial(
    outcomes: dict, wanted_problems: list[str], gpu: str | None, commit: str
) -> list[str]:
    """Reasons why a run is not a full one; [] when it is. `outcomes`: problem name ->
    session.Outcome; `wanted_problems`: names of FULL_PROBLEMS as they are named in this run."""
    reasons = []
    if gpu is None or "H200" not in gpu:
        reasons.append(f"the GPU is {gpu!r}, not an H200")
    if not re.fullmatch(r"[0-9a-f]{7,40}", commit):
        reasons.append(f"the commit is {commit!r}, not the hash of a clean checkout")
    for name in wanted_problems:
        if name not in outcomes:
            reasons.append(f"{name} was not measured")
            continue
        calls = outcomes[name].calls
        least_calls = MAIN_CALLS if name == FULL_PROBLEMS[0] else OTHER_CALLS
        for impl in NEEDED:
            for scope in NEEDED_SCOPES:
                made = calls.get((impl, scope, "none"), 0)
                if made == 0:
                    missing = outcomes[name].missing
                    why = missing.get(impl) or missing.get(f"{impl}/{scope}/none") or "not asked for"
                    reasons.append(f"{name} has no {scope} row of {impl} ({why})")
                elif made < least_calls:
                    reasons.append(f"{name}: {made} calls of {impl}/{scope}, {least_calls} needed")
    return reasons


def gpu_slug(gpu: str | None) -> str:
    """ "h200" of "NVIDIA H200"; "nogpu"."""
    if gpu is None:
        return "nogpu"
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower().replace("nvidia", "").strip()).strip("-")


def result_path(folder: pathlib.Path, gpu: str | None, date: str, full: bool) -> pathlib.Path:
    """FOLDER/h200-YYYYMMDD-N.json with the next free N; partial runs in FOLDER/parts."""
    folder = folder if full else folder / "parts"
    stem = f"{gpu_slug(gpu)}-{date[:10].replace('-', '')}"
    taken = {p.name for p in folder.glob(f"{stem}-*.json")} if folder.is_dir() else set()
    n = 1
    while f"{stem}-{n}.json" in taken:
        n += 1
    return folder / f"{stem}-{n}.json"
