# SPDX-License-Identifier: Apache-2.0
"""Instructions of compiled kernels: how many, and how many of which kind in the loop that does the
work. Reads the listing of `cuobjdump -sass`.

The hot loop is the one densest in tensor-core instructions: of the backward branches whose range
holds some and no other such range, the one with most of them per instruction. (The compiler puts rare
paths behind the loops; their way back looks like a loop, but a sparse one.) There may be several
copies, since accumulators rotate between registers; the first counts. Rare paths inside it are counted
like the usual one.
"""

from __future__ import annotations

import collections
import re

FUNCTION = re.compile(r"^\s*Function : (\S+)")
INSTRUCTION = re.compile(
    r"^\s*/\*(?P<at>[0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(?P<opcode>[A-Z][A-Z0-9_]*)(?P<rest>[^;]*);"
)
BRANCH_TARGET = re.compile(r"0x([0-9a-f]+)\s*$")
INSTRUCTION_BYTES = 16

# Kinds by what executes them on sm_90; what is not here is decided by its first letters (kind_of).
KINDS = {
    "fma": {"FFMA", "FMUL", "FADD", "IMAD", "HFMA2", "HADD2", "HMUL2", "DFMA", "DADD", "DMUL"},
    "convert": {"I2FP", "F2FP", "F2IP", "I2F", "F2I", "F2F", "FRND", "I2I"},
    "special": {"MUFU"},
    "control": {"BRA", "BRX", "BSSY", "BSYNC", "BREAK", "CALL", "RET", "EXIT", "WARPGROUP", "WARPSYNC",
                "ELECT", "NOP", "BAR", "FENCE", "SYNCS", "DEPBAR", "NANOSLEEP", "ERRBAR", "MEMBAR",
                "CCTL", "YIELD", "BMOV", "USETMAXREG", "KILL", "BPT", "ACQBULK", "ENDCOLLECTIVE",
                "WARPARRIVE", "WARPSYNCCOLLECTIVE", "UCGABAR_ARV", "UCGABAR_WAIT", "ARRIVES"},
}  # fmt: skip
MEMORY = ("LD", "ST", "ATOM", "RED", "SHFL", "UBLK", "UTMA", "UTMACMDFLUSH", "MATCH")


def kind_of(opcode: str) -> str:
    """tensor, fma, convert, special, control, memory, uniform, or alu: all else."""
    if opcode.endswith("MMA"):
        return "tensor"
    for kind, opcodes in KINDS.items():
        if opcode in opcodes:
            return kind
    if opcode.startswith(MEMORY):
        return "memory"
    return "uniform" if opcode.startswith("U") or opcode in ("R2UR", "S2UR") else "alu"


def functions(listing: str) -> dict[str, list[tuple[int, str, int | None]]]:
    """Mangled name -> (address, opcode, target of a branch) of each instruction."""
    found: dict[str, list[tuple[int, str, int | None]]] = {}
    current: list[tuple[int, str, int | None]] = []
    for line in listing.splitlines():
        if match := FUNCTION.match(line):
            current = found.setdefault(match[1], [])
        elif match := INSTRUCTION.match(line):
            target = BRANCH_TARGET.search(match["rest"]) if match["opcode"] == "BRA" else None
            current.append((int(match["at"], 16), match["opcode"], int(target[1], 16) if target else None))
    return found


def hot_loop(code: list[tuple[int, str, int | None]]) -> list[str]:
    """Opcodes of the hot loop; [] where no loop has tensor instructions."""
    tensor = [at for at, opcode, _ in code if kind_of(opcode) == "tensor"]
    loops = {
        (target, at)
        for at, _, target in code
        if target is not None and target <= at and any(target <= t <= at for t in tensor)
    }
    innermost = [
        (first, last)
        for first, last in loops
        if not any((a, b) != (first, last) and first <= a and b <= last for a, b in loops)
    ]
    if not innermost:
        return []
    first, last = min(
        innermost,
        key=lambda x: (-sum(x[0] <= t <= x[1] for t in tensor) / (x[1] - x[0] + INSTRUCTION_BYTES), x[0]),
    )
    return [opcode for at, opcode, _ in code if first <= at <= last]


def counts(code: list[tuple[int, str, int | None]]) -> dict[str, object]:
    """{"instructions": all but padding, "loop": {"instructions", kind: number}}; no "loop" where
    there is none."""
    found: dict[str, object] = {"instructions": sum(opcode != "NOP" for _, opcode, _ in code)}
    if loop := hot_loop(code):
        kinds = collections.Counter(kind_of(opcode) for opcode in loop)
        found["loop"] = {"instructions": len(loop), **dict(sorted(kinds.items()))}
    return found
