# SPDX-License-Identifier: Apache-2.0
"""scripts/sass.py on a listing of the disassembler's form: kinds, padding, and which loop is the hot
one."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import sass  # noqa: E402


def listing(name: str, *lines: str) -> str:
    text = [f"\t\tFunction : {name}", '\t.headerflags\t@"EF_CUDA_SM90"']
    for i, line in enumerate(lines):
        text.append(f"        /*{16 * i:04x}*/                   {line} ;   /* 0x00000a00ff017b82 */")
        text.append("                                            /* 0x000fe20000000800 */")
    return "\n".join(text) + "\n"


# Loops at 0x20 (spin on a barrier), 0x40 (the work), and a rare path at 0xb0 that goes back to 0x90.
KERNEL = listing(
    "_Z1k",
    "LDC R1, c[0x0][0x28]",
    "ISETP.NE.AND P0, PT, R2, RZ, PT",
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R3",
    "@!P1 BRA 0x20",
    "QGMMA.64x128x32.F32.E4M3.E4M3 R24, gdesc[UR8], R24, gsb0",
    "FFMA R1, R2, R3, R4",
    "@P0 BRA 0xb0",
    "I2FP.F32.S32 R5, R6",
    "@UP0 UIADD3 UR4, UR4, 0x1, URZ",
    "IGMMA.64x128x32.S8.S8 R24, gdesc[UR8], R24, gsb0",
    "@P2 BRA 0x40",
    "FMNMX R1, R2, R3, PT",
    "IGMMA.64x128x32.S8.S8 R24, gdesc[UR8], R24, gsb0",
    "STG.E [R2.64], R4",
    "MUFU.RCP R1, R2",
    "BRA 0x90",
    "EXIT",
    "BRA 0x110",
    "NOP",
    "NOP",
)


def test_instructions_are_counted_without_padding():
    (code,) = sass.functions(KERNEL).values()
    assert len(code) == 20 and sass.counts(code)["instructions"] == 18


def test_the_hot_loop_is_the_densest_in_tensor_instructions():
    (code,) = sass.functions(KERNEL).values()
    assert sass.counts(code)["loop"] == {
        "instructions": 7, "control": 2, "convert": 1, "fma": 1, "tensor": 2, "uniform": 1,
    }  # fmt: skip


def test_a_kernel_without_tensor_instructions_has_no_hot_loop():
    code = sass.functions(listing("_Z1p", "FADD R1, R1, R2", "@P0 BRA 0x0", "EXIT"))["_Z1p"]
    assert sass.counts(code) == {"instructions": 3}


def test_kinds():
    kinds = {
        "tensor": ("IGMMA", "QGMMA", "HGMMA", "IMMA"),
        "fma": ("FFMA", "IMAD"),
        "convert": ("F2FP", "I2FP", "F2IP"),
        "special": ("MUFU",),
        "control": ("BRA", "SYNCS", "BAR", "USETMAXREG"),
        "memory": ("LDG", "STS", "SHFL", "UBLKCP", "ATOMG", "RED"),
        "uniform": ("UIADD3", "R2UR"),
        "alu": ("LOP3", "ISETP", "FMNMX", "VIMNMX3", "PRMT"),
    }
    for kind, opcodes in kinds.items():
        assert {sass.kind_of(opcode) for opcode in opcodes} == {kind}


def test_functions_are_kept_apart():
    found = sass.functions(listing("_Z1a", "EXIT") + listing("_Z1b", "NOP", "EXIT"))
    assert {name: len(code) for name, code in found.items()} == {"_Z1a": 1, "_Z1b": 2}
