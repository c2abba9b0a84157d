# SPDX-License-Identifier: Apache-2.0
"""Times of forwards and of the attention calls in them, kernel shares, peak memory."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from peers.cuda import Sensors  # bench/ is on the path

LONG = 1024  # calls with fewer keys are cross attention: part of the rest


class Stopwatch:
    """Pairs of CUDA events, or of clock readings where there is no GPU."""

    def __init__(self, device: str) -> None:
        self.cuda = device.startswith("cuda")
        self.pairs: list[tuple] = []

    def _now(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @contextlib.contextmanager
    def span(self) -> Iterator[None]:
        start = self._now()
        yield
        self.pairs.append((start, self._now()))

    def take(self) -> list[float]:
        """Milliseconds of the spans since the last call."""
        if self.cuda:
            torch.cuda.synchronize()
            times = [a.elapsed_time(b) for a, b in self.pairs]
        else:
            times = [(b - a) * 1000 for a, b in self.pairs]
        self.pairs = []
        return times


def _timed(function: Callable[..., Any], watch: Stopwatch) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with watch.span():
            return function(*args)

    return call


@contextlib.contextmanager
def watch_attention(case: Any, watch: Stopwatch, valid_keys: int | None) -> Iterator[None]:
    """Every self-attention call of the model is a span of `watch`. `valid_keys`: on a native backend
    that takes no mask, keys beyond that are cut off, as the masks of these models leave them out
    (what diffusers' own `_flash_varlen_3` does with a batch of one)."""
    if "plug" in case.pipe.components:
        layers = case.pipe.components["plug"].layers
        own = {layer: vars(layer).get("_process_attn") for layer in layers}
        for layer in layers:
            layer._process_attn = _timed(layer._process_attn, watch)
        try:
            yield
        finally:
            for layer, method in own.items():
                del layer._process_attn
                if method is not None:
                    layer._process_attn = method
        return
    module = sys.modules[type(case.model).__module__]
    original = module.dispatch_attention_fn

    def dispatch(query, key, value, attn_mask=None, **options):
        if key.shape[1] < LONG:
            return original(query, key, value, attn_mask=attn_mask, **options)
        if valid_keys is not None and attn_mask is not None:
            key, value, attn_mask = key[:, :valid_keys], value[:, :valid_keys], None
        with watch.span():
            return original(query, key, value, attn_mask=attn_mask, **options)

    module.dispatch_attention_fn = dispatch
    try:
        yield
    finally:
        module.dispatch_attention_fn = original


@dataclass
class Timed:
    """Forwards of one configuration."""

    forward_ms: list[float] = field(default_factory=list)
    attention_ms: list[float] = field(default_factory=list)
    peak_gib: float | None = None
    clock_mhz: int | None = None
    power_w: int | None = None


def forward(case: Any, device: str, sensors: Sensors | None, into: Timed,
            valid_keys: int | None = None) -> None:  # fmt: skip
    """One timed forward, added to `into`."""
    whole, attention = Stopwatch(device), Stopwatch(device)
    if whole.cuda:
        torch.cuda.reset_peak_memory_stats()
    begun = time.monotonic()
    with torch.no_grad(), watch_attention(case, attention, valid_keys), whole.span():
        case.call()
    into.forward_ms += [round(ms, 2) for ms in whole.take()]
    calls = attention.take()
    if len(calls) != len(getattr(case.model, case.blocks)):
        raise RuntimeError(f"{len(calls)} attention calls in {len(getattr(case.model, case.blocks))} blocks")
    into.attention_ms.append(round(sum(calls), 2))
    if whole.cuda:
        into.peak_gib = round(max(into.peak_gib or 0, torch.cuda.max_memory_allocated() / 2**30), 2)
    if sensors is not None and not sensors.reason:
        clocks, powers = sensors.between(begun + 0.5, time.monotonic())
        if clocks:
            into.clock_mhz = round(sum(clocks) / len(clocks))
            into.power_w = round(sum(powers) / len(powers))


def kernel_ms(call: Callable[[], Any], device: str) -> dict[str, float] | None:
    """Milliseconds of our attention kernel, our preparation and our grouping in one call, from
    torch's profiler; None without a GPU."""
    if not device.startswith("cuda"):
        return None
    from torch.profiler import ProfilerActivity, profile

    with torch.no_grad(), profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    sums = {"attention": 0.0, "prepare": 0.0, "group": 0.0, "rest": 0.0}
    for event in seen.events():
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        name = event.name
        part = "rest"
        if "vca::kernels::group" in name:
            part = "group"
        elif "vca::kernels::prep" in name:
            part = "prepare"
        elif "vca::kernels" in name:
            part = "attention"
        sums[part] += event.time_range.elapsed_us() / 1000
    return {name: round(ms, 3) for name, ms in sums.items()}
