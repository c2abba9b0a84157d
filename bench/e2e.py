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
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "python")]
os.environ["HF_HUB_OFFLINE"] = "1"

import schema  # noqa: E402
import torch  # noqa: E402
import vcattn  # noqa: E402
from e2e import models, result, stages, timing  # noqa: E402  (the package beside this file)
from e2e.fp8 import convert  # noqa: E402

MODELS = ("wan2.2-a14b", "hunyuanvideo-1.5", "longcat-video", "minimax-h3")
NATIVE = ("_flash_3", "_native_cudnn", "_native_flash", "native")
RECIPES = ("vc8", "vc8-turbo")
WARM_LAYERS = 2
MIN_KEYS = 1024


class Run:
    """One model's measurements, and the file that they go to."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.device, self.begun = args, args.device, time.monotonic()
        self.sensors = timing.Sensors() if self.device == "cuda" else None
        self.case = self._build()
        case = self.case
        self.timed: dict[tuple, timing.Timed] = {}
        self.parts: dict[tuple, dict] = {}
        self.model = {
            "model": case.name, "code": case.code, "clip": case.clip, "tokens": case.tokens,
            "heads": case.heads, "layers": case.layers, "steps": case.steps,
            "forwards_per_step": case.forwards_per_step, "batch": case.batch, "note": case.note,
            "experts": case.experts, "backends": {}, "between_ms": 0.0, "rows": [], "stages": {},
            "clips": [],
        }  # fmt: skip

    def _build(self) -> models.Case:
        args = self.args
        if args.model == "longcat-video":
            from e2e.longcat import longcat

            return longcat(args.device, args.tiny, str(args.longcat))
        make = {"wan2.2-a14b": models.wan, "hunyuanvideo-1.5": models.hunyuan,
                "minimax-h3": models.minimax_h3}[args.model]  # fmt: skip
        return make(args.device, args.tiny)

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.begun:6.1f} s] {text}", flush=True)

    def late(self) -> bool:
        return time.monotonic() - self.begun > self.args.budget_s

    # ------------------------------------------------------------------ configurations
    def backends(self) -> str:
        """Times one attention call of each native backend; the name of the fastest."""
        if self.args.model == "longcat-video":
            self.model["backends"] = {"flash_attn_interface": "LongCat's own call of flash-attention 3"}
            return "flash-attention-3"
        from diffusers.models.attention_dispatch import AttentionBackendName, dispatch_attention_fn

        case = self.case
        keys = case.valid_keys or case.tokens
        q, k, v = (models.randn(1, n, case.heads, 128, device=self.device)
                   for n in (case.tokens, keys, keys))  # fmt: skip
        times: dict[str, float | str] = {}
        for name in NATIVE:
            if self.args.quick and sum(isinstance(t, float) for t in times.values()) == 2:
                break
            watch = timing.Stopwatch(self.device)
            try:
                if name == "_flash_3":
                    self.case.model.set_attention_backend(name)  # says what is missing
                with torch.no_grad():
                    for _ in range(4):
                        with watch.span():
                            dispatch_attention_fn(q, k, v, backend=AttentionBackendName(name))
                times[name] = round(sorted(watch.take()[1:])[1], 2)
            except Exception as e:  # a backend that this machine does not have
                times[name] = f"{type(e).__name__}: {str(e).splitlines()[0][:120]}"
            self.say(f"{name}: {times[name]} ms a call" if isinstance(times[name], float)
                     else f"{name}: {times[name]}")  # fmt: skip
        ran = {name: t for name, t in times.items() if isinstance(t, float)}
        self.model["backends"] = times
        return min(ran, key=ran.__getitem__)

    def enable(self, recipe: str) -> None:
        if "plug" in self.case.pipe.components:
            self.case.pipe.components["plug"].enable(recipe)
            return
        from vcattn.integrations import diffusers as vc

        vc.enable(self.case.pipe, recipe=recipe, min_keys=MIN_KEYS)

    def disable(self) -> None:
        if "plug" in self.case.pipe.components:
            self.case.pipe.components["plug"].disable()
            return
        from vcattn.integrations import diffusers as vc

        vc.disable(self.case.pipe)

    def native(self, name: str) -> None:
        if "plug" not in self.case.pipe.components:
            self.case.model.set_attention_backend(name)

    # -------------------------------------------------------------------- measurements
    def one(self, attention: str, linears: str, grouping: str, count: int = 1) -> None:
        key = (attention, linears, grouping)
        into = self.timed.setdefault(key, timing.Timed())
        for _ in range(count):
            timing.forward(self.case, self.device, self.sensors, into, self.cut(attention))
        self.say(f"{attention}, {linears} linears, {grouping}: forward {into.forward_ms} ms, "
                 f"attention {into.attention_ms}, {into.clock_mhz} MHz {into.power_w} W, "
                 f"{into.peak_gib} GiB")  # fmt: skip
        self.write()

    def cut(self, attention: str) -> int | None:
        """Where a native backend takes no mask, it gets the valid keys."""
        return None if attention in RECIPES else self.case.valid_keys

    def steps_to_kept(self) -> None:
        """From the second step to behind the policy's window."""
        for _ in range(result.window(self.case.steps)):
            self.case.advance()

    def sequence(self, recipe: str, linears: str, kept: int = 2, profile: bool = True) -> None:
        """Cold, warm and kept forwards of one recipe, after a short warm-up that is profiled too."""
        self.enable(recipe)
        try:
            with self.case.short(WARM_LAYERS):
                for measured in (False, profile):
                    self.case.begin()
                    for grouping in ("cold", "warm", "kept"):
                        if grouping == "kept":
                            self.steps_to_kept()
                        self.short_call(recipe, linears, grouping, measured)
                        self.case.advance()
            self.case.begin()
            self.one(recipe, linears, "cold")
            self.case.advance()
            if not self.args.quick:
                self.one(recipe, linears, "warm")
            self.steps_to_kept()
            for _ in range(kept):
                self.one(recipe, linears, "kept")
                self.case.advance()
            self.say(str(vcattn.last_receipt()))
        finally:
            self.disable()

    def short_call(self, recipe: str, linears: str, grouping: str, measured: bool) -> None:
        if not measured or self.device != "cuda":
            with torch.no_grad():
                self.case.call()
            return
        try:
            parts = timing.kernel_ms(self.case.call, self.device)
        except Exception as e:  # a machine without the profiler's interface
            self.say(f"no profile: {e}")
            return
        layers = min(WARM_LAYERS, self.case.layers)
        if grouping != "cold":  # without a forward of its own it counts by its kernels
            self.timed.setdefault((recipe, linears, grouping), timing.Timed())
        each = {k: round(ms / layers, 3) for k, ms in parts.items() if k != "rest"}
        self.parts[recipe, linears, grouping] = each
        self.say(f"{recipe} {grouping}: {each} ms a call by kernel")

    def warm_native(self, name: str) -> None:
        with self.case.short(WARM_LAYERS):
            for _ in range(2):
                timing.forward(self.case, self.device, None, timing.Timed(), self.cut(name))

    def between(self) -> None:
        self.case.begin()
        watch = timing.Stopwatch(self.device)
        for _ in range(6):
            with watch.span():
                self.case.advance()
        self.model["between_ms"] = round(sorted(watch.take())[2], 2)

    def stages(self) -> None:
        """Text encoder and VAE, when the transformer is gone."""
        self.case = None
        gc.collect()
        for name, measure in stages.STAGES[self.args.model].items():
            if self.device == "cuda":
                torch.cuda.empty_cache()
            try:
                ms, what = measure(self.device, self.args.tiny)
            except Exception as e:  # what this machine cannot build is left out, with the reason
                ms, what = None, f"not measured: {type(e).__name__}: {str(e)[:200]}"
            self.model["stages"][name] = {"ms": ms, "what": what}
            self.say(f"{name}: {ms} ms, {what}")
            gc.collect()
            self.write()

    def everything(self) -> None:
        native = self.backends()
        self.between()
        self.native(native)
        self.warm_native(native)
        for recipe in RECIPES:
            first = recipe == RECIPES[0]
            if first or not self.args.quick:
                self.one(native, "bf16", "none")
            self.sequence(recipe, "bf16", kept=int(first) if self.args.quick else self.args.kept)
            self.native(native)
        if not self.late() and not self.args.quick:
            self.one(native, "bf16", "none")
        if self.args.model == "hunyuanvideo-1.5":
            self.without_square_mask(native)
        if self.args.fp8 and not self.args.quick and not self.late():
            self.say(f"{convert(getattr(self.case.model, self.case.blocks))} linears in FP8")
            self.warm_native(native)
            self.one(native, "fp8", "none")
            self.sequence("vc8", "fp8", kept=1, profile=False)
        self.stages()

    def without_square_mask(self, native: str) -> None:
        """The native backend without the mask of queries x keys that the model makes in each layer:
        what of our gain is that mask."""
        from vcattn.integrations import diffusers as vc

        vc.enable(self.case.pipe, first_steps_bf16=self.case.steps + 1, min_keys=MIN_KEYS)
        self.case.begin()
        try:
            self.one(f"{native}, no square mask", "bf16", "none")
        finally:
            vc.disable(self.case.pipe)

    # -------------------------------------------------------------------------- the file
    def write(self) -> None:
        self.model["rows"] = [
            {"attention": a, "linears": l, "grouping": g, "forward_ms": t.forward_ms,
             "attention_ms": t.attention_ms, "parts_ms": self.parts.get((a, l, g)),
             "peak_gib": t.peak_gib, "clock_mhz": t.clock_mhz, "power_w": t.power_w}
            for (a, l, g), t in self.timed.items()
        ]  # fmt: skip
        self.model["clips"] = result.clips(self.model)
        result.write(self.args.out, header(self) | {"models": [self.model]})


def header(run: Run) -> dict:
    import diffusers
    import transformers

    gpu = torch.cuda.get_device_name() if run.device == "cuda" else None
    driver = run.sensors.driver() if run.sensors is not None else None
    data = {
        "gpu": gpu, "driver": driver or ("unknown" if gpu else None),
        "date": schema.utc_now(), "commit": run.args.commit,
        "software": {"torch": torch.__version__, "diffusers": diffusers.__version__,
                     "transformers": transformers.__version__},
    }  # fmt: skip
    if run.args.tiny:
        data["note"] = "tiny models: the program was tried, the times mean nothing"
    return data


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="e2e.py", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("model", nargs="?", choices=MODELS)
    add("--out", type=pathlib.Path, required=True, help="result file")
    add("--merge", nargs="+", type=pathlib.Path, metavar="FILE", help="put result files together")
    add("--longcat", type=pathlib.Path, metavar="DIR", help="LongCat-Video's repository")
    add("--tiny", action="store_true", help="small models")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    add("--kept", type=int, default=2, help="forwards with a kept order (default: 2)")
    add("--quick", action="store_true", help="one native forward, cold and kept of vc8, cold of vc8-turbo; "
        "the other groupings follow from kernel times; no FP8 linears")
    add("--no-fp8", dest="fp8", action="store_false", help="without FP8 linears")
    add("--budget-s", type=float, default=1e9,
        help="seconds after which the last native forward and FP8 linears are left out")  # fmt: skip
    add("--commit", default="unknown", help="hash to write into the file")
    args = parser.parse_args(argv)
    if (args.model is None) == (args.merge is None):
        parser.error(f"give a model ({', '.join(MODELS)}) or --merge FILES")
    if args.model == "longcat-video" and (args.longcat is None or not args.longcat.is_dir()):
        parser.error("longcat-video needs --longcat DIR, the repository's folder")
    if args.device == "cpu" and args.model and not args.tiny:
        parser.error("full size needs a GPU; --tiny runs on the CPU")
    return args


def main(argv: list[str]) -> int:
    args = parse(argv)
    if args.merge:
        files = [json.loads(path.read_text()) for path in args.merge]
        result.write(args.out, result.merge(files))
        return 0
    run = Run(args)
    run.say(f"{run.model['model']}: {run.model['code']}, {run.model['tokens']} tokens")
    run.everything()
    for clip in run.model["clips"]:
        print(clip)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
