#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Denoising steps and whole clips of the real video models on one GPU, random weights, full size.

    VCATTN_LIBRARY=build-cuda/lib/libvcattn.so python bench/e2e.py wan2.2-a14b --out e2e-wan.json
    python bench/e2e.py longcat-video --longcat DIR --out e2e-longcat.json
    python bench/e2e.py --merge e2e-*.json --out bench/results/e2e-h200-20261130.json

Needs torch, diffusers and transformers beside the vcattn library; downloads nothing. For every
model: the best of diffusers' native backends at the model's shape, then forwards of that and of our
recipes in turns, with a cold, a warm and a kept order of values; GPU time by kernel; peak memory;
text encoder and VAE decoder; the clip that follows. The file is written after every part, so a run
that is cut short leaves what it had. Format: bench/e2e/result.py. `--tiny` runs the same program on
small models, on the CPU too: its times mean nothing.

Exit codes: 0 file written, 1 a needed part failed, 2 usage.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pathlib
import sys
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "python")]
os.environ["HF_HUB_OFFLINE"] = "1"

import schema  # noqa: E402
import torch  # noqa: E402
from e2e import result, timing  # noqa: E402  (the package beside this file)
from e2e.run import Run  # noqa: E402

MODELS = ("wan2.2-a14b", "hunyuanvideo-1.5", "longcat-video", "minimax-h3")


def header(args: argparse.Namespace, sensors: timing.Sensors | None) -> dict:
    import diffusers
    import transformers

    gpu = torch.cuda.get_device_name() if args.device == "cuda" else None
    driver = sensors.driver() if sensors is not None else None
    data = {
        "gpu": gpu, "driver": driver or ("unknown" if gpu else None),
        "date": schema.utc_now(), "commit": args.commit,
        "software": {"torch": torch.__version__, "diffusers": diffusers.__version__,
                     "transformers": transformers.__version__},
    }  # fmt: skip
    if args.tiny:
        data["note"] = "tiny models: the program was tried, the times mean nothing"
    return data


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="e2e.py", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    add("--out", type=pathlib.Path, required=True, help="result file")
    add("--merge", nargs="+", type=pathlib.Path, metavar="FILE", help="put result files together")
    add("--longcat", type=pathlib.Path, metavar="DIR", help="LongCat-Video's repository")
    add("--tiny", action="store_true", help="small models")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    add("--kept", type=int, default=2, help="forwards with a kept order (default: 2)")
    add("--lean", action="store_true", help="native forwards only before vc8 and at the end, two "
        "native backends; warm forwards in BF16 follow from kernel times")
    add("--quick", action="store_true", help="forwards of the first blocks, the whole extrapolated; whole "
        "ones where time is left; no FP8 linears")
    add("--no-fp8", dest="fp8", action="store_false", help="without FP8 linears")
    add("--deadline", type=float, default=float("inf"), metavar="EPOCH",
        help="seconds since 1970: near it the last native forward, FP8 linears and --quick's whole forwards are left out")
    add("--commit", default="unknown", help="hash to write into the file")
    args = parser.parse_args(argv)
    if (not args.models) == (args.merge is None):
        parser.error(f"give a model ({', '.join(MODELS)}) or --merge FILES")
    for name in args.models:
        if name not in MODELS:
            parser.error(f"unknown model '{name}'; allowed: {', '.join(MODELS)}")
    if len(set(args.models)) != len(args.models):
        parser.error(f"a model twice: {', '.join(args.models)}")
    if "longcat-video" in args.models and (args.longcat is None or not args.longcat.is_dir()):
        parser.error("longcat-video needs --longcat DIR, the repository's folder")
    if args.device == "cpu" and args.models and not args.tiny:
        parser.error("full size needs a GPU; --tiny runs on the CPU")
    return args


def main(argv: list[str]) -> int:
    args = parse(argv)
    if args.merge:
        files = [json.loads(path.read_text()) for path in args.merge]
        result.write(args.out, result.merge(files))
        return 0
    sensors = timing.Sensors() if args.device == "cuda" else None
    done: list[dict] = []
    failed = 0
    for name in args.models:
        run = None

        def save() -> None:
            result.write(args.out, header(args, sensors) | {"models": [*done, run.model]})

        try:
            run = Run(name, args, sensors, save)
            run.say(f"{name}: {run.model['code']}, {run.model['tokens']} tokens")
            run.everything()
        except Exception:  # the models after it have a file to come to
            traceback.print_exc()
            failed += 1
        if run is not None and run.model["rows"]:
            done.append(run.model)
            for clip in run.model["clips"]:
                print(clip, flush=True)
        run = None
        gc.collect()
        if args.device == "cuda":
            torch.cuda.empty_cache()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
