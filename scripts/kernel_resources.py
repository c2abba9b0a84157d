#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Registers, stack, spills and shared memory of every CUDA kernel, as ptxas reports them, and its
instructions (scripts/sass.py), as cuobjdump lists them.

    scripts/kernel_resources.py             compile the kernels, check the rules, compare the table
    scripts/kernel_resources.py --write     the same, and write docs/kernel-resources.json

Rules, with any toolkit: no kernel's wgmma may be serialised (ptxas C7510 to C7518), and attention
kernels of head_dim 128 may spill nothing and use at most 8 bytes of stack. The table is compared
only with the toolkit that it names, since another one allocates differently, and its instructions
only where scripts/setup.sh --cuda has installed the disassembler, which --write needs. Without nvcc
there is nothing to do: one line says so.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import sass  # noqa: E402

TABLE = ROOT / "docs" / "kernel-resources.json"
MAX_STACK_BYTES = 8
CRITICAL = re.compile(r"^sm90::attention<128\b")

ENTRY = re.compile(r"Compiling entry function '(\S+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(.*)")
STATIC_SMEM = re.compile(r"(\d+) bytes smem")
SERIALISED = re.compile(r".*\bC751[0-8]\b.*")

# Dynamic shared memory is no business of ptxas; the kernel's own configuration says it.
SMEM_PROGRAM = """
#include <cstdio>
#include "kernels/sm90/config.hpp"
int main() {
  using namespace vca::kernels::sm90;
  for (const Form form : kForms)
    for (const int d : {64, 128})
      std::printf("sm90::attention<%d, %d>=%u\\n", d, static_cast<int>(form),
                  config_of(d, form).smem_bytes());
}
"""


def short_name(demangled: str) -> str:
    """'void vca::kernels::prep::_GLOBAL__N__..::run<vca::kernels::prep::KeyTiles>' to
    'prep::run<KeyTiles>'."""
    name = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::", "", demangled)
    name = name.removeprefix("void ").replace("vca::kernels::", "")
    family = name.split("::")[0]
    return name.replace(f"<{family}::", "<")


def demangle(names: list[str]) -> list[str]:
    if not names:
        return []
    done = subprocess.run(["c++filt", "-p"], input="\n".join(names), capture_output=True,
                          text=True, check=True)  # fmt: skip
    return done.stdout.split("\n")[: len(names)]


def parse(log: str) -> tuple[dict[str, dict[str, int]], list[str]]:
    """Resources by mangled kernel name, and the lines that tell of a serialised wgmma."""
    kernels: dict[str, dict[str, int]] = {}
    current: dict[str, int] = {}
    for line in log.splitlines():
        if match := ENTRY.search(line):
            current = kernels.setdefault(match[1], {})
        elif match := FRAME.search(line):
            keys = ("stack_bytes", "spill_store_bytes", "spill_load_bytes")
            # Functions that are called and not inlined have a frame of their own: the worst counts.
            for key, value in zip(keys, match.groups()):
                current[key] = max(current.get(key, 0), int(value))
        elif match := USED.search(line):
            current["registers"] = int(match[1])
            smem = STATIC_SMEM.search(match[2])
            current["static_smem_bytes"] = int(smem[1]) if smem else 0
    return kernels, [line.strip() for line in log.splitlines() if SERIALISED.match(line)]


def broken_rules(kernels: dict[str, dict[str, int]], serialised: list[str]) -> list[str]:
    bad = [f"wgmma is serialised: {line}" for line in serialised]
    for name, r in kernels.items():
        if not CRITICAL.match(name):
            continue
        spills = r["spill_store_bytes"] + r["spill_load_bytes"]
        if spills > 0 or r["stack_bytes"] > MAX_STACK_BYTES:
            bad.append(f"{name}: {spills} bytes of spills, {r['stack_bytes']} bytes of stack; "
                       f"allowed: 0 and {MAX_STACK_BYTES}")  # fmt: skip
    if not any(CRITICAL.match(name) for name in kernels):
        bad.append("no attention kernel of head_dim 128 was compiled")
    return bad


def differences(kernels: dict, committed: dict) -> list[str]:
    bad = [f"{name}: only in the table" for name in committed if name not in kernels]
    for name, now in kernels.items():
        if name not in committed:
            bad.append(f"{name}: not in the table")
        elif now != committed[name]:
            bad.append(f"{name}: {now}, and the table says {committed[name]}")
    return bad


def without_instructions(kernels: dict) -> dict:
    return {name: {k: v for k, v in r.items() if k not in ("instructions", "loop")}
            for name, r in kernels.items()}  # fmt: skip


def find_cuobjdump() -> str | None:
    """The pinned one of scripts/setup.sh --cuda, with nvdisasm beside it."""
    path = ROOT / ".venv" / "cuda-sass" / "nvidia" / "cu13" / "bin" / "cuobjdump"
    return os.environ.get("VCATTN_CUOBJDUMP") or (str(path) if path.is_file() else None)


def disassemble(cuobjdump: str, built: pathlib.Path) -> str:
    done = subprocess.run([cuobjdump, "-sass", built], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"kernel resources: {cuobjdump} failed on {built}\n{done.stderr}")
    return done.stdout


def find_nvcc() -> str | None:
    # The last one is what scripts/setup.sh --cuda installs.
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda",
             ROOT / ".venv" / "cuda-toolkit" / "nvidia" / "cu13"]  # fmt: skip
    places = [str(pathlib.Path(home) / "bin") for home in homes if home]
    return shutil.which("nvcc") or shutil.which("nvcc", path=os.pathsep.join(places))


def toolkit_version(nvcc: str) -> str:
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"\bV(\d+\.\d+\.\d+)", text)[1]


def run(*command: object) -> None:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"kernel resources: {command[0]} failed\n{done.stdout}{done.stderr}")


def compile_kernels(build: pathlib.Path) -> None:
    if not (build / "CMakeCache.txt").is_file():
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        run("cmake", "-S", ROOT, "-B", build, *generator, "-DVCA_CUDA=ON", "-DVCA_BUILD_TOOLS=OFF",
            "-DVCA_BUILD_TESTS=OFF", "-DCMAKE_BUILD_TYPE=Release")  # fmt: skip
    run("cmake", "--build", build, "--target", "vca_cuda", "-j", "2")


def dynamic_smem(build: pathlib.Path) -> dict[str, int]:
    program = build / "smem"
    (build / "smem.cpp").write_text(SMEM_PROGRAM)
    compiler = os.environ.get("CXX", "g++")
    run(compiler, "-std=c++20", f"-I{ROOT / 'src'}", build / "smem.cpp", "-o", program)
    text = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {k: int(v) for k, v in (line.split("=") for line in text.splitlines())}


def measure(
    build: pathlib.Path, cuobjdump: str | None
) -> tuple[dict[str, dict[str, object]], list[str]]:
    """Resources by short name, with instructions where there is a disassembler; serialised lines."""
    kernels: dict[str, dict[str, object]] = {}
    serialised: list[str] = []
    smem = dynamic_smem(build)
    for log in sorted((build / "cuda").glob("src/kernels/*/*.cu.o.log")):
        if not (ROOT / log.relative_to(build / "cuda").with_suffix("").with_suffix("")).is_file():
            continue  # of a source that is gone
        found, lines = parse(log.read_text())
        serialised += lines
        code = sass.functions(disassemble(cuobjdump, log.with_suffix(""))) if cuobjdump else {}
        for mangled, name in zip(found, demangle(list(found))):
            kernels[short_name(name)] = found[mangled]
            if cuobjdump:
                kernels[short_name(name)].update(sass.counts(code[mangled]))
    for name, size in smem.items():
        if name in kernels:
            kernels[name]["dynamic_smem_bytes"] = size
    return dict(sorted(kernels.items())), serialised


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "cuda-objects",
                        help="where to compile; a tree that is configured is used as it is")  # fmt: skip
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.relative_to(ROOT)}")
    args = parser.parse_args()
    nvcc = find_nvcc()
    if nvcc is None:
        print("kernel resources: skipped, no nvcc on this machine")
        return 0
    compile_kernels(args.build)
    toolkit, cuobjdump = toolkit_version(nvcc), find_cuobjdump()
    if args.write and cuobjdump is None:
        print("kernel resources: --write needs cuobjdump, too: scripts/setup.sh --cuda installs it")
        return 1
    kernels, serialised = measure(args.build, cuobjdump)
    bad = broken_rules(kernels, serialised)
    if args.write and not bad:
        table = {"toolkit": toolkit, "arch": "sm_90a", "kernels": kernels}
        TABLE.write_text(json.dumps(table, indent=1) + "\n")
    committed = json.loads(TABLE.read_text())
    if committed["toolkit"] == toolkit:
        table = committed["kernels"]
        changed = differences(kernels, table if cuobjdump else without_instructions(table))
        if changed:
            bad += [*changed, "when that is meant: scripts/kernel_resources.py --write"]
    for line in bad:
        print(f"kernel resources: {line}")
    if committed["toolkit"] != toolkit:
        print(f"kernel resources: toolkit {toolkit}; the table is of {committed['toolkit']}, not compared")
    if not bad:
        what = "with their instructions" if cuobjdump else "instructions not counted, no cuobjdump"
        print(f"kernel resources: {len(kernels)} kernels, toolkit {toolkit}, {what}: as they should be")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
