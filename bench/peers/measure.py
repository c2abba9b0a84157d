# SPDX-License-Identifier: Apache-2.0
"""Interleaved timing. Who runs when is plain arithmetic here; what touches the GPU is in cuda.py.

A problem's cells take turns, so that heat, clocks and neighbours meet all of them alike:

    round 0    A A A A   B B B B   C C C C
    round 1    C C C C   B B B B   A A A A       (there and back: neighbours change)
    round 2    A A A A   B B B B   C C C C

Each turn begins with untimed calls (the chip settles into this cell's power), then timed ones.
"""

from __future__ import annotations

import dataclasses
import math

ROUNDS = 3
WANTED_CALLS = 30
# A turn is at least this long, so that a few samples of clock and power fall into it.
TURN_S = 0.06
# Untimed calls at the beginning of a turn: at least this long, at least one.
LEAD_S = 0.02
# More would overflow the queue that a turn fills ahead of the GPU (cuda.Timer).
MAX_CALLS_A_TURN = 100


@dataclasses.dataclass
class Samples:
    """What was measured of one cell."""

    ms: list[float] = dataclasses.field(default_factory=list)
    clock_mhz: list[float] = dataclasses.field(default_factory=list)
    power_w: list[float] = dataclasses.field(default_factory=list)


def mean(values: list[float]) -> float | None:
    """None when there are none."""
    return sum(values) / len(values) if values else None


def turns(cells: int, rounds: int) -> list[int]:
    """Indices of the cells in the order of their turns."""
    order = list(range(cells))
    return [i for r in range(rounds) for i in (order if r % 2 == 0 else reversed(order))]


def lead_calls(call_s: float) -> int:
    """Untimed calls at the beginning of a turn."""
    return min(max(1, math.ceil(LEAD_S / call_s)), MAX_CALLS_A_TURN)


def calls_a_turn(call_s: float, calls: int, rounds: int) -> int:
    """Timed calls of a turn: a cell's `calls` spread over the rounds, more of short ones."""
    return min(max(math.ceil(calls / rounds), math.ceil(TURN_S / call_s)), MAX_CALLS_A_TURN)


def pass_s(call_s: list[float], calls: int, rounds: int) -> float:
    """Seconds that all rounds of a problem take, from the seconds of one call of each cell."""
    return rounds * sum(t * (calls_a_turn(t, calls, rounds) + lead_calls(t)) for t in call_s)


def affordable(call_s: list[float], share_s: float, wanted: int, rounds: int) -> int:
    """The largest number of calls for each cell, `wanted` at most, whose rounds fit into `share_s`
    seconds; 0 when not even one call a round does."""
    for calls in range(wanted - wanted % rounds, 0, -rounds):
        if pass_s(call_s, calls, rounds) <= share_s:
            return calls
    return 0


def shares(costs: list[float], seconds: float, at: int) -> float:
    """What problem `at` may take of the `seconds` that are left for it and those after it, in
    proportion to their costs. What one saves, the later ones get."""
    total = sum(costs[at:])
    return max(0.0, seconds) * costs[at] / total


# What the cells of one problem add up to, in calls at 600 TFLOP/s, and seconds to make tensors,
# warm up and build kernels. Only the ratio between problems matters.
_CALLS_AT_600 = 14
_FIXED_S = 2.0


def cost(problem, wanted: int = WANTED_CALLS) -> float:
    """Weight of a problem in a time budget, in about seconds."""
    return _FIXED_S + wanted * _CALLS_AT_600 * problem.flops() / 600e12


def run(cells, calls_s: list[float], calls: int, rounds: int, turn) -> list[Samples]:
    """All turns; `turn(cell, lead, timed) -> (ms, clock_mhz, power_w)`, each a list."""
    found = [Samples() for _ in cells]
    for i in turns(len(cells), rounds):
        lead, timed = lead_calls(calls_s[i]), calls_a_turn(calls_s[i], calls, rounds)
        ms, clock, power = turn(cells[i], lead, timed)
        found[i].ms += ms
        found[i].clock_mhz += clock
        found[i].power_w += power
    return found
