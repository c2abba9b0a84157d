#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The CPU backend against FP32 attention with OpenBLAS: runs attention_bench and keeps the ratios.

    scripts/bench_cpu.py [--program build/bin/attention_bench] [--repetitions 5]

Writes bench/results/cpu-YYYYMMDD.json: CPU model, instruction sets, load of the machine, the least CPU
time of each case and its ratio to the BLAS. CPU time of one thread, not the clock: what else runs then
costs cache and frequency only. Not part of the tests: a shared machine cannot be held to a time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
BASELINE = "fp32_blas"


def cpu_facts() -> dict:
    text = pathlib.Path("/proc/cpuinfo").read_text()
    facts = {}
    for line in text.split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        facts[key.strip()] = value.strip()
    wanted = ("avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni")
    return {
        "model": facts["model name"],
        "family_model_stepping": [int(facts[k]) for k in ("cpu family", "model", "stepping")],
        "instruction_sets": [f for f in wanted if f in facts["flags"].split()],
        "processors": os.cpu_count(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default=ROOT / "build" / "bin" / "attention_bench")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--filter", default=".")
    args = parser.parse_args()
    command = [args.program, f"--benchmark_repetitions={args.repetitions}", "--benchmark_format=json",
               "--benchmark_min_time=0.01", f"--benchmark_filter={args.filter}"]  # fmt: skip
    load_before = os.getloadavg()[0]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    runs = [r for r in json.loads(done.stdout)["benchmarks"] if r["run_type"] == "iteration"]
    times: dict[str, list[float]] = {}
    for run in runs:
        if run.get("error_occurred"):
            raise SystemExit(f"{run['name']}: {run['error_message']}")
        assert run["time_unit"] == "ns"
        times.setdefault(run["name"], []).append(run["cpu_time"] * 1e-9)
    baseline = min(times[BASELINE])
    result = {
        "date": datetime.date.today().isoformat(),
        "problem": {"B": 1, "H": 2, "S": 8192, "head_dim": 128, "dtype": "FP32", "threads": 1},
        "cpu": cpu_facts(),
        "blas": next(r["label"] for r in runs if r["name"] == BASELINE),
        "measure": f"CPU time of the process, least of {args.repetitions} repetitions, seconds",
        "load_average": [round(load_before, 1), round(os.getloadavg()[0], 1)],
        "cases": {
            name: {
                "seconds": round(min(t), 4),
                "spread": round(max(t) / min(t) - 1, 3),
                "speed_over_blas": round(baseline / min(t), 3),
            }
            for name, t in times.items()
        },
    }
    path = ROOT / "bench" / "results" / f"cpu-{result['date'].replace('-', '')}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    for name, case in result["cases"].items():
        print(f"{name:28} {case['seconds']:8.3f} s  {case['speed_over_blas']:.2f}")
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
