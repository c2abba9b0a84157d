# SPDX-License-Identifier: Apache-2.0
"""The CUDA side without a GPU: the kernels and every device program compile for sm_90a, match the
committed resource table, and the build refuses kernels that spill or serialise wgmma."""

import itertools
import json
import os
import pathlib
import re
import shutil
import struct
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
sys.path.insert(0, str(ROOT / "bench"))
import kernel_resources  # noqa: E402
import programs  # noqa: E402
import schema  # noqa: E402

RULES = ROOT / "tests" / "kernels" / "build_rules"
TREE = ROOT / "build" / "cuda-tests"
BUILD_TIMEOUT_S = 3000

pytestmark = pytest.mark.skipif(
    kernel_resources.find_nvcc() is None, reason="no nvcc: run scripts/setup.sh --cuda"
)


def run(*command, timeout=BUILD_TIMEOUT_S, **options):
    return programs.run(*command, timeout=timeout, cwd=ROOT, **options)


def ok(done):
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def build(target):
    return run("cmake", "--build", TREE, "--target", target, "-j", os.cpu_count() or 2)


@pytest.fixture(scope="module")
def tree():
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    ok(run("cmake", "-S", ROOT, "-B", TREE, *generator, "-DVCA_CUDA=ON", "-DVCA_BUILD_TOOLS=OFF",
           "-DCMAKE_BUILD_TYPE=Release"))  # fmt: skip
    return TREE


def test_kernels_as_the_table_says(tree):
    text = ok(run(sys.executable, ROOT / "scripts" / "kernel_resources.py", "--build", tree))
    assert "with their instructions: as they should be" in text


def test_the_kernels_are_of_sm_90a(tree):
    ok(build("vca_cuda"))
    logs = list((tree / "cuda" / "src").glob("kernels/*/*.cu.o.log"))
    assert logs
    for log in logs:
        entries = re.findall(r"Compiling entry function '\S+' for '(\w+)'", log.read_text())
        assert entries and set(entries) == {"sm_90a"}, log


def test_every_device_program_compiles(tree):
    ok(build("device_tests"))
    names = [source.stem for source in (ROOT / "tests" / "device").glob("*.cu")]
    assert names
    for name in [*names, "capi_test", "conformance"]:
        assert (tree / "device" / f"device_{name}").is_file()


def test_the_device_path_on_an_emulated_device(tree):
    """The C ABI's device tests, small problems: runtime and kernels emulated, two devices."""
    ok(build("emulated_capi_test"))
    text = ok(run(tree / "tests" / "emulated_capi_test", timeout=1200))
    assert re.search(r"\[  PASSED  \] [1-9]\d* tests", text), text[-4000:]


def test_python_keeps_an_order_on_an_emulated_device(tree):
    ok(build("emulated_library"))
    environment = os.environ | {
        "VCATTN_LIBRARY": str(tree / "tests" / "libvcattn_emulated.so"),
        "PYTHONPATH": str(ROOT / "python"),
    }
    text = ok(run(sys.executable, ROOT / "tests" / "python" / "emulated_state.py", env=environment))
    assert text.split() == ["kept"]


def test_memory_of_a_call_is_what_the_architecture_page_says(tree):
    """Workspaces to half a byte a token and head, and the sums of the table; how SageAttention2's are derived:
    tests/kernels/prep_peak_test.cpp."""
    ok(build("emulated_library"))
    environment = os.environ | {
        "VCATTN_LIBRARY": str(tree / "tests" / "libvcattn_emulated.so"),
        "PYTHONPATH": str(ROOT / "python"),
    }
    text = ok(run(sys.executable, ROOT / "tests" / "python" / "emulated_memory.py", env=environment))
    plain, grouped, with_lse, state = (float(x) for x in text.split())
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = {}
    lines = page[page.index("Memory, bytes a token and head") :].splitlines()[2:]
    for line in itertools.takewhile(lambda line: line.startswith("|"), lines):
        name, *cells = (c.strip() for c in line.strip("| ").split(" | "))
        table[name.strip("*")] = [[int(n) for n in re.findall(r"\d+", c)] for c in cells]
    asked = table["workspace"][0] + table["workspace"][1]
    assert [abs(a - b) < 0.5 for a, b in zip(asked, (plain, grouped))] == [True, True], (asked, text)
    assert abs(with_lse - plain - 4) < 0.1 and abs(state - 4) < 0.1, text
    qkv, o, codes = table["q, k, v"][0][0], table["o"][0][0], sum(table["codes of Q, K, V"][0])
    (rest,) = table["scales, means"][0]
    assert asked == [codes + rest, codes + rest] and plain == grouped, text
    most, split = table["most at once, one call"], next(v for k, v in table.items() if k.startswith("`prepare`"))
    for column, kept in ((0, 0), (1, 4)):
        held = asked[column] + kept
        assert most[column] == [qkv + held + o] and split[column] == [qkv + held, held + o]
        assert most[column][0] < min(n for n in most[2] if n > qkv)
    padded, transposed = next(v for k, v in table.items() if k.startswith("V zero-padded"))[2][-2:]
    held = qkv + sum(table["codes of Q, K, V"][2]) + table["scales, means"][2][0] + o + transposed
    assert [n for n in most[2] if n > qkv] == [held + padded, held]


def capture(path, values, step):
    """A capture of `values` [1, heads, tokens, head_dim] (BF16 bits) as `vcattn generate` writes them, v alone."""
    about = {"grid": f"4,13,{values.shape[2] // 52}", "layer": "2", "step": str(step)}
    info = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [0, values.nbytes]}
    header = json.dumps({"__metadata__": about, "v": info}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + values.tobytes())
    return path


def test_f_of_captured_values_on_an_emulated_device(tree, tmp_path):
    """tests/device/captured_f.py on 1,040 tokens of the committed capture, and then on others that make an
    order decay."""
    ok(build("emulated_library"))
    raw = (ROOT / "tests" / "golden" / "dit_capture_l2_s3.safetensors").read_bytes()
    v = np.frombuffer(raw[-4186 * 128 * 2 :], np.uint16).reshape(1, 2, 2093, 128)  # halves as heads
    files = [capture(tmp_path / "a", v[:, :, :1040], 3), capture(tmp_path / "b", v[:, ::-1, 1040:2080], 4),
             capture(tmp_path / "c", v[:, :, :1040], 5)]  # fmt: skip
    environment = os.environ | {
        "VCATTN_LIBRARY": str(tree / "tests" / "libvcattn_emulated.so"),
        "PYTHONPATH": str(ROOT / "python"),
    }
    program = [sys.executable, ROOT / "tests" / "device" / "captured_f.py", "--emulated"]
    text = ok(run(*program, *files, env=environment))
    assert text.splitlines()[-1] == "captured f: 21 calls, 0 failures"
    f = dict(re.findall(r"layer 2, (step \d, [a-z: ]+): f ([\d.]+) ", text))
    assert float(f["step 4, policy: every step"]) > 1.2 * float(f["step 4, policy: reuse"])
    # Regrouped in step 5 because of step 4: two more passes.
    assert float(f["step 5, policy: on decay"]) > float(f["step 5, policy: reuse"])


def test_the_benchmark_on_an_emulated_device(tree, tmp_path):
    """`vcattn bench` in the form for a GPU machine: events, streams and device memory emulated."""
    ok(build("emulated_bench"))
    path = tmp_path / "result.json"
    command = [tree / "tests" / "emulated_bench", "bench", "--problems",
               "b1 hq2 hkv1 sq130 skv260 d64 bf16 len200,b1 hq1 hkv1 sq150 skv150 d128 bf16 fused",
               "--whole", "--iterations", 3, "--warmup", 1, "--seconds", 0, "--json", path]  # fmt: skip
    text = ok(run(*command, timeout=600))
    assert text.startswith("emulated device, driver ")
    data = schema.load(path)
    assert data["gpu"] == "emulated device"
    assert "no clock and power: " in data["note"]  # there is no such driver, and it says so
    for s_q in (130, 150):
        of = {(r["impl"], r["scope"]) for r in data["rows"] if r["problem"]["s_q"] == s_q}
        assert {(i, s) for i in ("vc8", "vc8-turbo") for s in ("kernel", "prep", "whole")} <= of
    # The calls ran: their outputs are the answers.
    assert all(0 < r["rel_error"] < 0.2 for r in data["rows"] if r["scope"] != "prep")
    assert all(r["clock_mhz"] is None for r in data["rows"])
    done = run(*command[:2], "--device", "cuda:7", timeout=60)
    assert done.returncode == 2 and "no CUDA device 7" in done.stderr


def test_a_build_with_kernels_without_a_gpu(tree):
    """What a call on a device says where there is none: the same program as in the other build."""
    ok(build("core_device_test"))
    text = ok(run(tree / "tests" / "core_device_test", timeout=300))
    assert re.search(r"\[  PASSED  \] [1-9]\d* tests", text), text


def compiled(source, tmp_path):
    """run_nvcc.cmake as the build calls it: (process, object, log)."""
    target, log = tmp_path / "kernel.o", tmp_path / "kernel.log"
    done = run(
        "cmake", f"-DLOG={log}", f"-DOBJECT={target}", "-P", ROOT / "cmake" / "run_nvcc.cmake", "--",
        kernel_resources.find_nvcc(), "-std=c++20", "-O3", "-fmad=false",
        "--expt-relaxed-constexpr", "-gencode", "arch=compute_90a,code=sm_90a", "-Xptxas",
        "-v,--warn-on-spills", f"-I{ROOT / 'src'}", "-c", source, "-o", target, timeout=300,
    )  # fmt: skip
    return done, target, log


def test_a_good_kernel_builds(tmp_path):
    done, target, log = compiled(RULES / "good.cu", tmp_path)
    ok(done)
    assert target.is_file()
    kernels, serialised = kernel_resources.parse(log.read_text())
    assert len(kernels) == 1 and serialised == []


@pytest.mark.parametrize(
    "name, said",
    [("spills", "a kernel spills"), ("serialised_wgmma", "wgmma is serialised")],
)
def test_a_bad_kernel_does_not_build(name, said, tmp_path):
    done, target, log = compiled(RULES / f"{name}.cu", tmp_path)
    assert done.returncode != 0
    assert said in " ".join(done.stderr.split())
    assert not target.exists()
    kernels, serialised = kernel_resources.parse(log.read_text())
    spilled = [k for k in kernels.values() if k["spill_store_bytes"] > 0]
    assert (len(spilled), len(serialised)) == ((1, 0) if name == "spills" else (0, 1))
