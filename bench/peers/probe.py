# SPDX-License-Identifier: Apache-2.0
"""A first call of every implementation on a small problem, each in a process of its own: one that
crashes, hangs or computes something else is left out, and the run does not go down with it."""

from __future__ import annotations

import subprocess
import sys

# Not a multiple of any tile.
PROBLEM = "b1 hq2 hkv2 sq1000 skv1100 d128 bf16"
LIMIT_S = 150
# Far above the error of any 8-bit attention on normal data, far below that of a wrong result (1).
WRONG = 0.3


def run_one(impl: str, adapter, problem) -> str:
    """ "" when the implementation works here, else the reason. Runs in the process of its own."""
    from . import inputs, session

    if reason := adapter.available(impl):
        return reason
    missing: dict[str, str] = {}
    ready = session.build({impl: adapter}, problem, inputs.make(problem), missing)
    if not ready:
        return next(iter(missing.values()), "it has nothing to time here")
    for cell, error in ready:
        if error is not None and not error <= WRONG:
            return f"{cell.name}: relative error {error:.3g} on {problem}; at most {WRONG} is credible"
    return ""


def run_all(impls: list[str], program: str, limit_s: float = LIMIT_S) -> dict[str, str]:
    """impl -> reason, for those that cannot run. `program --probe IMPL` prints the reason and exits
    with 1."""
    started = {
        impl: subprocess.Popen(
            [sys.executable, program, "--probe", impl],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for impl in impls
    }  # fmt: skip
    reasons = {}
    for impl, process in started.items():
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            reasons[impl] = f"no answer within {limit_s:g} s"
            continue
        if process.returncode != 0:
            lines = (out.strip() or err.strip()).splitlines()
            reasons[impl] = lines[-1] if lines else f"ended with code {process.returncode}"
    return reasons
