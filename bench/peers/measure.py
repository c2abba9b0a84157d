# SPDX-License-Identifier: Apache-2.0
"""Interleaved timing. Who runs when is plain arithmetic here; what touches the GPU is in cuda.py.

A problem's cells take turns, so that heat, clocks and neighbours meet all of them alike:

    round 0    A A A A   B B B B   C C C C
    round 1    C C C C   B B B B   A A A A       (there and back: neighbours change)
    round 2    A A A A   B B B B   C C C C

Each turn begins with untimed calls (the chip settles into this cell's power), then timed ones.

Not all cells need as many calls: those that a full run is judged by (verdict.NEEDED) get all that are
wanted, the others up to EXTRA_CALLS, fewer when the time is short. What a turn costs is spent on them
last.
"""

from __future__ import annotations

import dataclasses
import math

ROUNDS = 3
WANTED_CALLS = 30
# Of a cell that a full run does not need: enough for a median, not for a claim.
EXTRA_CALLS = 9
# A turn is at least this long, so that a few samples of clock and power fall into it; shorter where
# a cell has few calls anyway.
TURN_S, EXTRA_TURN_S = 0.06, 0.02
# Untimed calls at the beginning of a turn: at least this long, at least one.
LEAD_S = 0.02
# More would overflow the queue that a turn fills ahead of the GPU (cuda.Timer), or take long to fill.
MAX_CALLS_A_TURN = 60


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
    least_s = TURN_S if calls > EXTRA_CALLS else EXTRA_TURN_S
    return min(max(math.ceil(calls / rounds), math.ceil(least_s / call_s)), MAX_CALLS_A_TURN)


def pass_s(call_s: list[float], calls: list[int], rounds: int) -> float:
    """Seconds that all rounds of a problem take, from the seconds of one call of each cell."""
    return rounds * sum(
        t * (calls_a_turn(t, n, rounds) + lead_calls(t)) for t, n in zip(call_s, calls)
    )


def affordable(
    call_s: list[float], needed: list[bool], share: Share, wanted: int, rounds: int
) -> list[int]:
    """Calls of each cell, multiples of `rounds`: `wanted` of the needed cells and EXTRA_CALLS (or
    `wanted`, if that is less) of the others when their rounds fit into `share.fair_s` seconds; else
    fewer of the others; down to one a round of those it may be `share.most_s`. Then fewer of all. []
    when not even one call a round fits."""
    most = wanted - wanted % rounds
    extra = min(most, EXTRA_CALLS - EXTRA_CALLS % rounds)
    plans = [(most, n, share.fair_s) for n in range(extra, rounds, -rounds)]
    plans += [(n, rounds, max(share.fair_s, share.most_s)) for n in range(most, 0, -rounds)]
    for full, less, limit_s in plans:
        calls = [full if need else less for need in needed]
        if pass_s(call_s, calls, rounds) <= limit_s:
            return calls
    return []


@dataclasses.dataclass
class Share:
    """Seconds of a problem: `fair_s` in proportion to its cost, `most_s` when its needed cells do not
    fit otherwise."""

    fair_s: float
    most_s: float

    def less(self, seconds: float) -> Share:
        """What is left of it after so many seconds."""
        return Share(self.fair_s - seconds, self.most_s - seconds)


def shares(costs: list[float], seconds: float, at: int) -> Share:
    """What problem `at` may take of the `seconds` that are left for it and those after it. What one
    saves, the later ones get; one that takes more than its part leaves the later ones their costs."""
    seconds = max(0.0, seconds)
    return Share(seconds * costs[at] / sum(costs[at:]), seconds - sum(costs[at + 1 :]))


# One call of every needed cell and of every other one, in calls at 600 TFLOP/s; first calls and the
# ones ahead of a turn; seconds to make tensors, to build kernels and for turns that are longer than
# their calls. Only the ratio between problems matters.
_NEEDED_AT_600, _EXTRA_AT_600, _BRIEF_EXTRA_AT_600 = 6.5, 11.0, 5.0
_UNTIMED_CALLS = 5
_FIXED_S, _BRIEF_FIXED_S = 10.0, 5.0


def cost(problem, wanted: int = WANTED_CALLS, brief: bool = False) -> float:
    """Weight of a problem in a time budget, in about seconds. `brief`: with few of the implementations
    that a full run does not need, and the fewest calls of them."""
    extra, at_600, fixed_s = min(wanted, EXTRA_CALLS), _EXTRA_AT_600, _FIXED_S
    if brief:
        extra, at_600, fixed_s = ROUNDS, _BRIEF_EXTRA_AT_600, _BRIEF_FIXED_S
    calls = _NEEDED_AT_600 * (wanted + _UNTIMED_CALLS) + at_600 * (extra + _UNTIMED_CALLS)
    return fixed_s + calls * problem.flops() / 600e12


def run(cells, calls_s: list[float], calls: list[int], rounds: int, turn) -> list[Samples]:
    """All turns; `turn(cell, lead, timed) -> (ms, clock_mhz, power_w)`, each a list."""
    found = [Samples() for _ in cells]
    for i in turns(len(cells), rounds):
        lead, timed = lead_calls(calls_s[i]), calls_a_turn(calls_s[i], calls[i], rounds)
        ms, clock, power = turn(cells[i], lead, timed)
        found[i].ms += ms
        found[i].clock_mhz += clock
        found[i].power_w += power
    return found
