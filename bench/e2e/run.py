# SPDX-License-Identifier: Apache-2.0
"""One model's measurements: what runs in which order, and the record that fills up meanwhile."""

from __future__ import annotations

import argparse
import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import vcattn

from . import models, result, stages, timing
from .fp8 import convert

NATIVE = ("_flash_3", "_native_cudnn", "_native_flash", "native")
RECIPES = ("vc8", "vc8-turbo")
WARM_LAYERS = 2
SHORT = (2, 12)  # blocks of the forwards that --quick times
MIN_KEYS = 1024


class Run:
    """args: bench/e2e.py's. save(): called after every part, when `model` has something new."""

    def __init__(self, name: str, args: argparse.Namespace, sensors: Any, save: Callable[[], None]) -> None:
        self.name, self.args, self.device = name, args, args.device
        self.begun, self.sensors, self.save = time.monotonic(), sensors, save
        self.case = case = self._build()
        self.blocks = getattr(case.model, case.blocks)
        self.timed: dict[tuple, timing.Timed] = {}
        self.short: dict[tuple, list[list]] = {}
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
        if self.name == "longcat-video":
            from .longcat import longcat

            return longcat(args.device, args.tiny, str(args.longcat))
        make = {"wan2.2-a14b": models.wan, "hunyuanvideo-1.5": models.hunyuan,
                "minimax-h3": models.minimax_h3}[self.name]  # fmt: skip
        return make(args.device, args.tiny)

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.begun:6.1f} s] {text}", flush=True)

    def left(self) -> float:
        """Seconds until --deadline."""
        return self.args.deadline - time.time()

    # ------------------------------------------------------------------ configurations
    def backends(self) -> str:
        """Times one attention call of each native backend; the name of the fastest."""
        if self.name == "longcat-video":
            self.model["backends"] = {"flash_attn_interface": "LongCat's own call of flash-attention 3"}
            return "flash-attention-3"
        from diffusers.models.attention_dispatch import AttentionBackendName, dispatch_attention_fn

        case = self.case
        keys = case.valid_keys or case.tokens
        q, k, v = (models.randn(1, n, case.heads, 128, device=self.device)
                   for n in (case.tokens, keys, keys))  # fmt: skip
        times: dict[str, float | str] = {}
        for name in NATIVE:
            few = self.args.quick or self.args.lean
            if few and sum(isinstance(t, float) for t in times.values()) == 2:
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

    @contextlib.contextmanager
    def enabled(self, recipe: str) -> Iterator[None]:
        plug = self.case.pipe.components.get("plug")
        if plug is not None:
            plug.enable(recipe)
        else:
            from vcattn.integrations import diffusers as vc

            vc.enable(self.case.pipe, recipe=recipe, min_keys=MIN_KEYS)
        try:
            yield
        finally:
            plug.disable() if plug is not None else vc.disable(self.case.pipe)

    def native(self, name: str) -> None:
        if "plug" not in self.case.pipe.components:
            self.case.model.set_attention_backend(name)

    # -------------------------------------------------------------------- measurements
    def one(self, attention: str, linears: str, grouping: str, count: int = 1) -> None:
        """Whole forwards of one configuration."""
        into = self.timed.setdefault((attention, linears, grouping), timing.Timed())
        for _ in range(count):
            timing.forward(self.case, self.device, self.sensors, into, self.cut(attention))
        self.say(f"{attention}, {linears} linears, {grouping}: forward {into.forward_ms} ms, "
                 f"attention {into.attention_ms}, {into.clock_mhz} MHz {into.power_w} W, "
                 f"{into.peak_gib} GiB")  # fmt: skip
        self.write()

    def first(self, attention: str, grouping: str, blocks: int) -> None:
        """A forward of the first blocks: the whole follows from two of different length."""
        blocks = min(blocks, self.case.layers)
        seen = self.short.setdefault((attention, "bf16", grouping), [])
        if blocks in [point[0] for point in seen]:
            return
        into = timing.Timed()
        whole = contextlib.nullcontext() if blocks == self.case.layers else self.case.short(blocks)
        with whole:
            timing.forward(self.case, self.device, self.sensors, into, self.cut(attention))
        seen.append([blocks, into.forward_ms[0], into.attention_ms[0]])
        seen.sort()
        about = self.timed.setdefault((attention, "bf16", grouping), timing.Timed())
        about.peak_gib = max(about.peak_gib or 0, into.peak_gib or 0) or None
        if blocks == seen[-1][0]:
            about.clock_mhz, about.power_w = into.clock_mhz, into.power_w
        self.say(f"{attention}, {grouping}, {blocks} of {self.case.layers} blocks: {seen[-1][1:]} ms, "
                 f"{into.clock_mhz} MHz {into.power_w} W, {into.peak_gib} GiB")  # fmt: skip
        self.write()

    def cut(self, attention: str) -> int | None:
        """Where a native backend takes no mask, it gets the valid keys."""
        return None if attention in RECIPES else self.case.valid_keys

    def steps_to_kept(self) -> None:
        """From the second step to behind the policy's window."""
        for _ in range(result.window(self.case.steps)):
            self.case.advance()

    def sequence(self, recipe: str, linears: str, kept: int, profile: bool = True, warm: bool = True) -> None:
        """Cold, warm and kept forwards of one recipe, after a short warm-up that is profiled too."""
        with self.enabled(recipe):
            self.by_kernel(recipe, linears, profile)
            self.case.begin()
            self.one(recipe, linears, "cold")
            self.case.advance()
            if warm:
                self.one(recipe, linears, "warm")
            self.steps_to_kept()
            for _ in range(kept):
                self.one(recipe, linears, "kept")
                self.case.advance()
            self.say(str(vcattn.last_receipt()))

    def by_kernel(self, recipe: str, linears: str, profile: bool) -> None:
        """GPU time by kernel in the first blocks, which warms up as well."""
        with self.case.short(WARM_LAYERS):
            for measured in (False, profile):
                self.case.begin()
                for grouping in ("cold", "warm", "kept"):
                    if grouping == "kept":
                        self.steps_to_kept()
                    self.short_call(recipe, linears, grouping, measured)
                    self.case.advance()

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
        """Text encoder and VAE decoder."""
        for name, measure in stages.STAGES[self.name].items():
            gc.collect()
            if self.device == "cuda":
                torch.cuda.empty_cache()
            try:
                ms, what = measure(self.device, self.args.tiny)
            except Exception as e:  # what this machine cannot build is left out, with the reason
                ms, what = None, f"not measured: {type(e).__name__}: {str(e)[:200]}"
            self.model["stages"][name] = {"ms": ms, "what": what}
            self.say(f"{name}: {ms} ms, {what}")
            self.write()

    def drop(self) -> None:
        """Gives the transformer back."""
        self.case = self.blocks = None
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()

    # ------------------------------------------------------------------------- the order
    def everything(self) -> None:
        native = self.backends()
        self.between()
        self.native(native)
        self.warm_native(native)
        if self.args.quick:
            self.quickly(native)
            self.drop()
            return
        lean = self.args.lean
        for recipe in RECIPES:
            first = recipe == RECIPES[0]
            if first or not lean:
                self.one(native, "bf16", "none")
            self.sequence(recipe, "bf16", kept=self.args.kept, warm=not lean)
            self.native(native)
        if self.name == "hunyuanvideo-1.5":
            self.without_square_mask(native)
        elif self.left() > 60:
            self.one(native, "bf16", "none")
        if self.args.fp8 and self.left() > 60:
            self.say(f"{convert(self.blocks)} linears in FP8")
            self.warm_native(native)
            self.one(native, "fp8", "none")
            self.sequence("vc8", "fp8", kept=1, profile=False)
        self.drop()
        self.stages()

    def quickly(self, native: str) -> None:
        """Forwards of the first blocks, from which the whole follows; then the stages, beside the
        transformer; then whole forwards as far as --deadline lets them."""
        for blocks in SHORT:
            self.first(native, "none", blocks)
        for recipe in RECIPES:
            with self.enabled(recipe):
                self.by_kernel(recipe, "bf16", profile=True)
                for blocks in SHORT:
                    self.case.begin()
                    for grouping in ("cold", "kept"):
                        if grouping == "kept":
                            self.case.advance()
                            self.steps_to_kept()
                        self.first(recipe, grouping, blocks)
                self.say(str(vcattn.last_receipt()))
            self.native(native)
        self.stages()
        for attention, grouping in ((native, "none"), (RECIPES[0], "cold")):
            (row,) = [r for r in self.model["rows"] if (r["attention"], r["grouping"]) == (attention, grouping)]
            if self.left() < 1.15 * result.forward_ms(self.model, row) / 1000 + 2:
                self.say(f"{attention}, {grouping}: no time left for a whole forward")
                continue
            with contextlib.nullcontext() if attention == native else self.enabled(attention):
                self.case.begin()
                self.first(attention, grouping, self.case.layers)

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

    # -------------------------------------------------------------------------- the record
    def write(self) -> None:
        rows = []
        for key, t in self.timed.items():
            attention, linears, grouping = key
            row = {"attention": attention, "linears": linears, "grouping": grouping,
                   "forward_ms": t.forward_ms, "attention_ms": t.attention_ms,
                   "parts_ms": self.parts.get(key), "peak_gib": t.peak_gib,
                   "clock_mhz": t.clock_mhz, "power_w": t.power_w}  # fmt: skip
            points = self.short.get(key, [])
            if len(points) > 1:
                row["short_ms"] = points
            by_kernels = row["parts_ms"] is not None and grouping in ("warm", "kept")
            if t.forward_ms or len(points) > 1 or by_kernels:  # nothing follows from one length yet
                rows.append(row)
        self.model["rows"] = rows
        self.model["clips"] = result.clips(self.model)
        self.save()
