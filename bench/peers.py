#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ours and its peers side by side on one GPU, in one run.

    VCATTN_LIBRARY=build-cuda/lib/libvcattn.so python bench/peers.py            # the full run
    python bench/peers.py --problems wan22-720p --impls vc8,fa3-bf16 --quick
    python bench/peers.py --list                                                # who can run, why not

Every problem: standard normal inputs; each implementation once for its error against FP64 on sampled
rows; then all of them in turns (peers/measure.py), single calls timed by CUDA events on the device,
after a warm-up, with SM clock and power sampled meanwhile: 30 or more of each cell that a full run
needs (verdict.NEEDED), up to 9 of the others. Rows as in schema.py:

    kernel   attention on operands that are already quantised
    prep     quantising them
    whole    BF16 in, BF16 out

--brief keeps the first problem as it is and asks for 15 calls of the others, where implementations
that a full run does not need are few. With a key length, the peers get the valid keys alone. A full run goes to OUT/h200-YYYYMMDD-N.json;
one that lacks a needed implementation, a problem, calls, a clean commit or the H200 goes to
OUT/parts/, and the program says why.
Exit codes: 0 file written, 1 nothing could be measured, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench")]

import peers  # noqa: E402  (the package beside this file, not this file)
import problems as problem_texts  # noqa: E402  (bench/ is no installed package)
import schema  # noqa: E402
from peers import measure, probe, verdict  # noqa: E402

QUICK_CALLS, QUICK_ROUNDS = 6, 2
# --brief: calls of what a full run needs after the first problem, and what else is measured there.
BRIEF_CALLS = 15
BRIEF_IMPLS = (*verdict.NEEDED, "cudnn-fp8", "fa4-bf16")
# Time at the end of a budget for the last turn's overshoot and the file.
RESERVE_S = 8.0


def parse(argv: list[str]) -> argparse.Namespace:
    """Checked arguments; exits with 2 and a text on wrong ones."""
    parser = argparse.ArgumentParser(
        prog="peers.py", description="Times ours and its peers side by side on one GPU."
    )
    add = parser.add_argument
    add(
        "--problems",
        metavar="A,B",
        help="names, sets or texts of bench/shapes.json (default: the full run's)",
    )
    add("--impls", metavar="A,B", help="implementations (default: all)")
    add("--skip", metavar="A,B", default="", help="implementations to leave out")
    add("--budget-s", type=float, default=540, help="seconds that the whole run may take (default: 540)")
    add(
        "--calls",
        type=int,
        default=measure.WANTED_CALLS,
        help="timed calls of each that a full run needs (default: 30); others get up to 9",
    )
    add(
        "--brief",
        action="store_true",
        help="a full run in 5 minutes: fewer calls and implementations after the first problem",
    )
    add("--quick", action="store_true", help="few calls of each: a look, never a full run")
    add("--seed", type=int, default=0, help="of the random inputs (default: 0)")
    add("--out", type=pathlib.Path, default=ROOT / "bench" / "results", help="folder of the result file")
    add("--commit", help="hash to write into the file (default: the checkout's)")
    add(
        "--no-probe", action="store_true", help="do not try each implementation in its own process first"
    )
    add("--list", action="store_true", help="say which implementations can run, and stop")
    add("--quiet", action="store_true", help="no progress and no table")
    add("--probe", metavar="IMPL", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    known = list(peers.adapters())

    def impls(text: str, option: str) -> list[str]:
        found = [word for word in text.split(",") if word]
        unknown = [word for word in found if word not in known]
        if unknown:
            parser.error(f"{option}: unknown {', '.join(unknown)}; allowed: {', '.join(known)}")
        return found

    wanted = impls(args.impls, "--impls") if args.impls is not None else known
    skipped = set(impls(args.skip, "--skip"))
    args.impls = [impl for impl in known if impl in wanted and impl not in skipped]
    if not args.impls:
        parser.error("no implementation is left; give --impls, or fewer --skip")
    if args.probe is not None:
        impls(args.probe, "--probe")
    for option, value, low in (("--budget-s", args.budget_s, 10), ("--calls", args.calls, 3)):
        if not low <= value <= 1e6:
            parser.error(f"{option} {value:g}; allowed: {low} to 1000000")
    names = verdict.FULL_PROBLEMS if args.problems is None else args.problems.split(",")
    try:
        args.problems = problem_texts.select([name.strip() for name in names])
    except problem_texts.ProblemError as e:
        parser.error(f"--problems: {e}")
    for name, problem in args.problems.items():
        if problem.s_q == 0 or problem.keys == 0:
            parser.error(f"--problems: {name} has no queries or no keys to time")
        if problem.dtype != "bf16":
            parser.error(f"--problems: {name} is {problem.dtype}; only bf16 is comparable here")
    return args


def commit_of_checkout() -> str:
    """Hash of the checkout, "-dirty" when files differ, "unknown" outside of one."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + (
            "-dirty" if git("status", "--porcelain") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def usable(args: argparse.Namespace, say) -> tuple[dict, dict[str, str]]:
    """(impl -> adapter) of those that can run, and why the others cannot."""
    adapters = peers.adapters()
    reasons = {impl: reason for impl in args.impls if (reason := adapters[impl].available(impl))}
    left = [impl for impl in args.impls if impl not in reasons]
    if left and not args.no_probe:
        say(f"trying {len(left)} implementations on {probe.PROBLEM}")
        reasons.update(probe.run_all(left, __file__))
    return {impl: adapters[impl] for impl in left if impl not in reasons}, reasons


def table(name: str, problem, outcome) -> str:
    """One problem's rows as text."""
    names = ("ms", "min", "max", "TFLOP/s", "error", "MHz", "W", "calls")
    widths = (10, 10, 10, 8, 8, 5, 4, 5)
    head = f"{'':16} {'scope':7} {'group':5} " + " ".join(f"{n:>{w}}" for n, w in zip(names, widths))
    lines = [f"{name}: {problem}", head]
    for row in outcome.rows:
        calls = outcome.calls[row["impl"], row["scope"], row["grouping"]]
        error, clock, power = (
            "-" if row[k] is None else f"{row[k]:.4g}" for k in ("rel_error", "clock_mhz", "power_w")
        )
        lines.append(
            f"{row['impl']:16} {row['scope']:7} {row['grouping']:5} {row['ms_median']:10.3f} {row['ms_min']:10.3f} "
            f"{row['ms_max']:10.3f} {row['tflops']:8.1f} {error:>8} {clock:>5} {power:>4} {calls:5}"
        )
    lines += [f"{impl:16} left out: {why}" for impl, why in outcome.missing.items()]
    return "\n".join(lines)


def measure_all(args: argparse.Namespace, adapters: dict, sensors, begun: float, say, show) -> dict:
    """Problem name -> session.Outcome, within the budget, problem by problem."""
    from peers import session

    outcomes = {}
    names, chosen = list(args.problems), list(args.problems.values())
    calls, rounds = (QUICK_CALLS, QUICK_ROUNDS) if args.quick else (args.calls, measure.ROUNDS)
    brief = [args.brief and at > 0 for at in range(len(names))]
    wanted = [min(calls, BRIEF_CALLS) if less else calls for less in brief]
    wanted = [n + -n % rounds for n in wanted]
    costs = [measure.cost(p, n, less) for p, n, less in zip(chosen, wanted, brief)]
    for at, (name, problem) in enumerate(zip(names, chosen)):
        left_s = args.budget_s - RESERVE_S - (time.monotonic() - begun)
        share = measure.shares(costs, left_s, at)
        say(f"{name}: about {share.fair_s:.0f} s of the {left_s:.0f} s left")
        here = {i: a for i, a in adapters.items() if not brief[at] or i in BRIEF_IMPLS}
        try:
            outcomes[name] = session.run(
                problem, here, schema.make_row, sensors,
                wanted=wanted[at], rounds=rounds, share=share, seed=args.seed,
            )  # fmt: skip
        except Exception as e:  # out of memory, a kernel that faulted: what came before is kept
            print(f"peers.py: {name} was given up: {type(e).__name__}: {e}", file=sys.stderr)
            try:
                session.check_device()
                continue
            except session.DeviceLost as lost:
                print(f"peers.py: the GPU takes no more work: {lost}", file=sys.stderr)
                break
        show(table(name, problem, outcomes[name]))
    return outcomes


def write(
    args: argparse.Namespace,
    outcomes: dict,
    missing: dict[str, str],
    gpu: str,
    driver: str | None,
    date: str,
) -> int:
    """Decides between a full and a partial run and writes the file."""
    for outcome in outcomes.values():
        outcome.missing = {**missing, **outcome.missing}
    rows = [row for outcome in outcomes.values() for row in outcome.rows]
    if not rows:
        print("peers.py: nothing was measured", file=sys.stderr)
        for impl, why in {
            **missing,
            **{i: w for o in outcomes.values() for i, w in o.missing.items()},
        }.items():
            print(f"  {impl}: {why}", file=sys.stderr)
        return 1
    commit = args.commit or commit_of_checkout()
    data = {
        "gpu": gpu, "driver": driver or "unknown", "date": date, "commit": commit,
        "problems": {name: str(p) for name, p in args.problems.items() if name in outcomes},
        "rows": rows,
    }  # fmt: skip
    full_names = list(problem_texts.select(list(verdict.FULL_PROBLEMS)))
    reasons = verdict.why_partial(outcomes, full_names, gpu, commit)
    if not reasons:
        reasons = schema.faults(data, full=True)
    if reasons:
        shown = reasons[:6] + ([f"and {len(reasons) - 6} more"] if len(reasons) > 6 else [])
        rest = {key: data[key] for key in ("problems", "rows")}
        data = {
            **{k: v for k, v in data.items() if k not in rest},
            "note": "partial: " + "; ".join(shown),
            **rest,
        }
        print("peers.py: a partial run:\n  " + "\n  ".join(reasons), file=sys.stderr)
    path = verdict.result_path(args.out, gpu, date, not reasons)
    path.parent.mkdir(parents=True, exist_ok=True)
    schema.write(path, data)
    print(f"{path}: {'partial' if reasons else 'full'} run, {len(rows)} rows")
    return 0


def main(argv: list[str]) -> int:
    begun, date = time.monotonic(), schema.utc_now()
    args = parse(argv)
    if args.probe is not None:
        problem = problem_texts.parse(probe.PROBLEM)
        reason = probe.run_one(args.probe, peers.adapters()[args.probe], problem)
        print(reason)
        return 1 if reason else 0
    silent = args.quiet
    say = (
        (lambda text: None)
        if silent
        else (
            lambda text: print(
                f"[{time.monotonic() - begun:5.0f} s] {text}", file=sys.stderr, flush=True
            )
        )
    )
    show = (lambda text: None) if silent else (lambda text: print(text + "\n", flush=True))
    adapters, missing = usable(args, say)
    if args.list:
        for impl in args.impls:
            print(f"{impl:16} {missing.get(impl) or 'can run'}")
        return 0
    if not adapters:
        return write(args, {}, missing, "", None, date)
    for impl, why in missing.items():
        say(f"{impl} left out: {why}")
    import torch
    from peers import cuda

    gpu, sensors = torch.cuda.get_device_name(), cuda.Sensors()
    if sensors.reason:
        say(f"no clock and power: {sensors.reason}")
    outcomes = measure_all(args, adapters, sensors, begun, say, show)
    driver = sensors.driver()
    sensors.close()
    return write(args, outcomes, missing, gpu, driver, date)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("peers.py: interrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
