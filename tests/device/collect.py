#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a result file of what run.sh left in its logs, and checks result files.

    collect.py --logs DIR --out DIR --commit ID     writes OUT/h200-YYYYMMDD-N.json, the next free N
    collect.py --check FILE...                      says what is wrong with result files

Exit code 1 where anything failed or is wrong. The standard library alone: it runs where the GPU is.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import re
import statistics
import subprocess
import sys

PROGRAMS = ("device_conformance", "device_prep_test", "device_sm90_attention_test",
            "device_capi_test", "device_group_test")  # fmt: skip
TOOLS = ("memcheck", "initcheck", "synccheck", "racecheck")
COUNTS = ("cases", "passed", "failed", "skipped")

# What a line of a program without GoogleTest says about one case.
NUMBER_WRONG = re.compile(r"\b(\d+)(?: of \d+)?(?: bytes| values)? (?:differ\b|wrong$)")
EQUAL = re.compile(r": equal$")
LEFT_OUT = re.compile(r"^note: (\d+) cases left out$")
FAILED = re.compile(r"DIFFER|was written|wrote ")
NO_CASE = ("all equal", "differences")
# A summary of cases that are told one by one only when they fail.
SUMMARY = re.compile(r"^(\w+): (?:(\d+) run, )?(\d+) failures$")
# GoogleTest's own lines, for a program that ended before it wrote its report.
GTEST_LINE = re.compile(r"^\[ +(OK|SKIPPED|FAILED) +\] \S+ \(\d+ ms\)$", re.MULTILINE)
GTEST_RUN = re.compile(r"^\[ RUN +\]", re.MULTILINE)
SANITIZER_ERRORS = re.compile(
    r"(?:ERROR SUMMARY: (\d+) errors?$|RACECHECK SUMMARY: (\d+) hazard)", re.MULTILINE)  # fmt: skip


def counts_of_lines(text: str) -> dict[str, int]:
    failed = passed = skipped = 0
    for line in text.splitlines():
        if left_out := LEFT_OUT.match(line):
            skipped += int(left_out[1])
        if line in NO_CASE or line.startswith("note: "):
            continue
        if line.startswith("FAILED "):
            failed += 1
            continue
        if summary := SUMMARY.match(line):
            passed += max(0, int(summary[2] or 1) - int(summary[3]))
            continue
        number = NUMBER_WRONG.search(line)
        if FAILED.search(line) or (number and int(number[1]) > 0):
            failed += 1
        elif EQUAL.search(line) or number:
            passed += 1
    cases = passed + failed + skipped
    return {"cases": cases, "passed": passed, "failed": failed, "skipped": skipped}


def counts_of_gtest_lines(text: str) -> dict[str, int]:
    """Without a report: what the lines say; a test that began and did not end has failed."""
    ended = GTEST_LINE.findall(text)
    passed, skipped = ended.count("OK"), ended.count("SKIPPED")
    cases = len(GTEST_RUN.findall(text))
    return {"cases": cases, "passed": passed, "failed": cases - passed - skipped, "skipped": skipped}


def counts_of_gtest(report: dict) -> dict[str, int]:
    counts = dict.fromkeys(COUNTS, 0)
    for suite in report["testsuites"]:
        for case in suite["testsuite"]:
            if case["status"] != "RUN":
                continue
            result = ("failed" if case.get("failures")
                      else "skipped" if case["result"] == "SKIPPED" else "passed")  # fmt: skip
            counts[result] += 1
            counts["cases"] += 1
    return counts


def one_run(logs: pathlib.Path, name: str) -> dict | None:
    """Counts, exit code and seconds of one program; None when it did not run. A program that ran in
    parts (NAME.PART) has their sums, the largest exit code and the longest time."""
    parts = sorted(p.name.removesuffix(".rc") for p in logs.glob(f"{name}.*rc"))
    runs = [one_part(logs, part) for part in parts]
    if not runs:
        return None
    return {
        **{key: sum(run[key] for run in runs) for key in COUNTS},
        "exit": max(run["exit"] for run in runs),
        "seconds": max(run["seconds"] for run in runs),
    }


def one_part(logs: pathlib.Path, name: str) -> dict:
    rc, seconds = (logs / f"{name}.rc").read_text().split()
    text = (logs / f"{name}.log").read_text(errors="replace")
    try:
        counts = counts_of_gtest(json.loads((logs / f"{name}.json").read_text()))
    except (OSError, ValueError, KeyError):  # no such program, or it was ended before its report
        counts = counts_of_gtest_lines(text) if GTEST_RUN.search(text) else counts_of_lines(text)
    return {**counts, "exit": int(rc), "seconds": float(seconds)}


def sanitizer_run(logs: pathlib.Path, tool: str) -> dict | None:
    run = one_run(logs, f"sanitizer_{tool}")
    if run is None:
        return None
    errors: int | None = 0
    for log in logs.glob(f"sanitizer_{tool}.*log"):  # a summary of every part, or none at all
        found = SANITIZER_ERRORS.findall(log.read_text(errors="replace"))
        errors = errors + sum(int(a or b) for a, b in found) if found and errors is not None else None
    return {**run, "errors": errors}


def samples(logs: pathlib.Path) -> tuple[list[float], list[float]]:
    clocks, powers = [], []
    path = logs / "clock_power.csv"
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            clock, power = (float(x) for x in line.split(","))
        except ValueError:
            continue
        clocks.append(clock)
        powers.append(power)
    return clocks, powers


def smi(what: str) -> list[str]:
    done = subprocess.run(["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    return [line.strip() for line in done.stdout.splitlines()]


def summary(values: list[float]) -> dict[str, float]:
    """{} without samples, which problems() reports."""
    if not values:
        return {}
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def collect(logs: pathlib.Path, commit: str) -> dict:
    clocks, powers = samples(logs)
    programs = {name: one_run(logs, name) for name in PROGRAMS}
    sanitizers = {tool: sanitizer_run(logs, tool) for tool in TOOLS}
    return {
        "gpu": smi("name")[0],
        "gpus": len(smi("name")),
        "driver": smi("driver_version")[0],
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit,
        "clock_mhz": summary(clocks),
        "power_w": summary(powers),
        "programs": {k: v for k, v in programs.items() if v is not None},
        "sanitizers": {k: v for k, v in sanitizers.items() if v is not None},
    }


def problems(result: object, name: str) -> list[str]:
    """What is wrong with a result file as such; a failed test is not."""
    if not isinstance(result, dict):
        return ["not an object"]
    bad = []
    keys = {"gpu": str, "gpus": int, "driver": str, "date": str, "commit": str, "clock_mhz": dict,
            "power_w": dict, "programs": dict, "sanitizers": dict}  # fmt: skip
    for key, kind in keys.items():
        if not isinstance(result.get(key), kind):
            bad.append(f"{key}: missing or no {kind.__name__}")
    bad += [f"{key}: unknown" for key in result if key not in keys]
    if bad:
        return bad
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", result["date"]):
        bad.append(f"date: {result['date']!r} is not UTC to the second")
    elif not re.fullmatch(rf"h200-{result['date'][:10].replace('-', '')}(-\d+)?\.json", name):
        bad.append(f"name: {name!r} is not the date's")
    if not re.fullmatch(r"[0-9a-f]{7,40}", result["commit"]):
        bad.append(f"commit: {result['commit']!r}")
    for key in ("clock_mhz", "power_w"):
        s = result[key]
        if set(s) != {"median", "min", "max"} or not 0 < s["min"] <= s["median"] <= s["max"]:
            bad.append(f"{key}: {s}")
    if set(result["programs"]) - set(PROGRAMS) or set(result["sanitizers"]) - set(TOOLS):
        bad.append("programs, sanitizers: an unknown name")
    if not result["programs"] and not result["sanitizers"]:
        bad.append("nothing ran")
    for group in ("programs", "sanitizers"):
        fields = {*COUNTS, "exit", "seconds"} | ({"errors"} if group == "sanitizers" else set())
        for run_name, run in result[group].items():
            if set(run) != fields:
                bad.append(f"{run_name}: fields {sorted(run)}")
            elif run["cases"] != run["passed"] + run["failed"] + run["skipped"]:
                bad.append(f"{run_name}: cases are not the sum of passed, failed and skipped")
            elif run["exit"] == 0 and (run["failed"] > 0 or run["passed"] == 0 or
                                       run.get("errors", 0) != 0):  # fmt: skip
                bad.append(f"{run_name}: exit 0 with {run}")
    return bad


def all_passed(result: dict) -> bool:
    runs = [*result["programs"].values(), *result["sanitizers"].values()]
    return bool(runs) and all(run["exit"] == 0 for run in runs)


def free_path(folder: pathlib.Path, date: str) -> pathlib.Path:
    """FOLDER/h200-YYYYMMDD-N.json with the next free N."""
    stem = f"h200-{date[:10].replace('-', '')}"
    n = 1
    while (folder / f"{stem}-{n}.json").exists():
        n += 1
    return folder / f"{stem}-{n}.json"


def check(paths: list[pathlib.Path]) -> int:
    wrong = 0
    for path in paths:
        for line in problems(json.loads(path.read_text()), path.name):
            print(f"{path}: {line}")
            wrong = 1
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", nargs="+", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--logs", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--commit")
    args = parser.parse_args()
    if args.check:
        return check(args.check)
    if not (args.logs and args.out and args.commit):
        parser.error("--logs, --out and --commit, or --check")
    result = collect(args.logs, args.commit)
    path = free_path(args.out, result["date"])
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    bad = problems(result, path.name)
    for line in bad:
        print(f"{path}: {line}")
    print(f"{path}: " + ("all passed" if all_passed(result) and not bad else "NOT all passed"))
    return 0 if all_passed(result) and not bad else 1


if __name__ == "__main__":
    sys.exit(main())
