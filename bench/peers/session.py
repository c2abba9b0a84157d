# SPDX-License-Identifier: Apache-2.0
"""One problem: inputs, cells, error of each, interleaved timing, rows."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

from . import cuda, inputs, measure, verdict
from .reference import Reference


class DeviceLost(RuntimeError):
    """The GPU refuses further work (a kernel of some implementation faulted)."""


@dataclasses.dataclass
class Outcome:
    """rows of one problem; calls: timed calls of each (impl, scope, grouping); missing:
    implementation, or cell of one (cell.name) -> why it has no rows here."""

    rows: list[dict] = dataclasses.field(default_factory=list)
    calls: dict[tuple[str, str, str], int] = dataclasses.field(default_factory=dict)
    missing: dict[str, str] = dataclasses.field(default_factory=dict)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no text'}"


def check_device() -> None:
    """DeviceLost when an earlier kernel left the GPU unusable."""
    try:
        cuda.synchronize()
    except Exception as e:
        raise DeviceLost(_first_line(e)) from e


def build(adapters: dict, problem, given, missing: dict[str, str]) -> list[tuple[object, float | None]]:
    """(cell, error) of every cell that ran once. `missing` gets the reasons of the others: by
    implementation when it refuses the problem, by cell when one call of it fails."""
    reference, ready = Reference(given), []
    for impl, adapter in adapters.items():
        try:
            cells = adapter.cells(impl, problem, given)
        except Exception as e:  # a refusal: shape, memory, a missing feature
            missing[impl] = _first_line(e)
            check_device()
            continue
        for cell in cells:
            try:
                ready.append((cell, _first_call(cell, reference)))
            except Exception as e:
                missing[cell.name] = _first_line(e)
            check_device()
    return ready


def _first_call(cell, reference) -> float | None:
    """Error of one call's output; None for preparation."""
    if cell.before:
        cell.before()
    output = cell.call()
    if cell.decode:
        output = cell.decode(output)
    if output is None:
        return None
    error = reference.error(output)
    if not math.isfinite(error):
        raise ValueError("the output is not finite")
    return error


def run(problem, adapters: dict, make_row: Callable, sensors, *, wanted: int, rounds: int,
        share: measure.Share, seed: int) -> Outcome:  # fmt: skip
    """Times everything within about its share of the time; no rows when that is too little."""
    begun, found = time.monotonic(), Outcome()
    given = inputs.make(problem, seed)
    ready = build(adapters, problem, given, found.missing)
    cells = [cell for cell, _ in ready]
    seconds = [cuda.one_call_s(cell) for cell in cells]
    gpu_s = [gpu for gpu, _ in seconds]
    timer = cuda.Timer(sensors, {c.name: host for c, (_, host) in zip(cells, seconds)})
    left = share.less(time.monotonic() - begun)
    calls = measure.affordable(gpu_s, [verdict.needs(c) for c in cells], left, wanted, rounds)
    if not calls:
        need_s = measure.pass_s(gpu_s, [rounds] * len(cells), rounds)
        why = f"time budget: {need_s:.0f} s needed for one call a round, {max(left.fair_s, left.most_s):.0f} s left"
        found.missing.update((cell.impl, why) for cell in cells)
    else:
        samples = measure.run(cells, gpu_s, calls, rounds, timer)
        for (cell, error), got in zip(ready, samples):
            _add_rows(found, problem, cell, error, got, make_row)
    del ready, cells, given, timer
    cuda.release()
    return found


def _add_rows(found: Outcome, problem, cell, error: float | None, got, make_row: Callable) -> None:
    clock, power = measure.mean(got.clock_mhz), measure.mean(got.power_w)
    for scope in cell.scopes:
        found.calls[cell.impl, scope, cell.grouping] = len(got.ms)
        found.rows.append(
            make_row(
                problem.row(), cell.impl, scope, cell.grouping, got.ms,
                rel_error=None if error is None else float(f"{error:.4g}"),
                clock_mhz=None if clock is None else round(clock),
                power_w=None if power is None else round(power),
            )
        )  # fmt: skip
