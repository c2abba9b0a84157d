# SPDX-License-Identifier: Apache-2.0
"""`vcattn bench` on the CPU: the result file, the table, refusals, interruption. No test looks at a
time but to see that it is one."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest
from compare_dumps import BINARY, ROOT, vcattn

sys.path.insert(0, str(ROOT / "bench"))
import schema  # noqa: E402

SMALL = "b1 hq2 hkv1 sq200 skv300 d64 bf16"
QUICK = ("--device", "cpu", "--iterations", 2, "--warmup", 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One run that many tests look at: (completed process, JSON)."""
    path = tmp_path_factory.mktemp("bench") / "result.json"
    done = vcattn(
        "bench", *QUICK, "--whole", "--recipes", "vc8,sage2,fp8+had,vc8-hq", "--problems",
        f"{SMALL},b2 hq2 hkv2 sq64 skv64 d32 fp32 len40 fused", "--threads", 2, "--json", path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done, schema.load(path)  # checked against the schema


def test_result_of_a_cpu_run(run):
    _, data = run
    assert data["gpu"] is None and data["driver"] is None
    assert re.fullmatch(r"[0-9a-f]{7}(-dirty)?|unknown", data["commit"])
    assert "CPU run" in data["note"] and "no claim" in data["note"]
    assert data["problems"] == {p: p for p in (SMALL, "b2 hq2 hkv2 sq64 skv64 d32 fp32 len40 fused")}
    age = time.time() - schema.date_of(data["date"]).timestamp()
    assert 0 <= age < 3600


def test_rows(run):
    rows = run[1]["rows"]
    grouped = [("kernel", "none"), ("prep", "none"), ("whole", "none"), ("prep", "warm"),
               ("whole", "warm"), ("prep", "cold"), ("whole", "cold")]  # fmt: skip
    for s_q in (200, 64):
        of = {}
        for row in rows:
            if row["problem"]["s_q"] == s_q:
                of.setdefault(row["impl"], []).append((row["scope"], row["grouping"]))
        assert of == {
            "vc8": grouped, "sage2-ours": grouped[:3], "fp8-ours+had": grouped[:3], "vc8-hq": grouped,
        }  # fmt: skip
    for row in rows:
        assert row["clock_mhz"] is None and row["power_w"] is None
        if row["scope"] == "prep":
            assert row["rel_error"] is None
        else:  # no format is exact, none is as far off as the limit of a wrong output
            assert 1e-4 < row["rel_error"] < 0.2


def test_keys_behind_the_length_are_no_work(run):
    row = next(r for r in run[1]["rows"] if r["problem"]["b"] == 2)
    assert row["problem"]["s_kv"] == 40


def test_table(run):
    text = run[0].stdout
    assert "no claim about any GPU" in text
    assert text.count("implementation ") == 2
    assert f"\n{SMALL}, " in text
    assert len(re.findall(r"^vc8 +whole +warm ", text, re.M)) == 2
    assert "sage2-ours keeps token order here" in text
    assert "a CPU run reads neither" in text  # why clock and power are missing


def test_quiet_says_nothing(tmp_path):
    path = tmp_path / "r.json"
    done = vcattn("bench", *QUICK, "--problems", SMALL, "--quiet", "--json", path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    kernel_only = [(r["impl"], r["scope"]) for r in schema.load(path)["rows"]]
    assert kernel_only == [("vc8", "kernel"), ("vc8-turbo", "kernel"), ("sage2-ours", "kernel")]


def test_without_a_gpu_the_cpu_is_measured_and_said():
    done = vcattn("bench", "--iterations", 1, "--warmup", 0, "--recipes", "sage2", "--problems", "cpu-1024")
    assert done.returncode == 0
    assert "note: the CPU was measured: " in done.stdout
    assert "\ncpu-1024: b1 hq4 hkv4 sq1024 skv1024 d128 bf16" in done.stdout


def test_help_names_every_option():
    text = vcattn("bench", "--help").stdout
    for option in ("--problems", "--recipes", "--whole", "--groupings", "--iterations", "--warmup",
                   "--seconds", "--device", "--threads", "--json", "--list", "--quiet"):  # fmt: skip
        assert option in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--problems", "no-such-model"], ["no-such-model", "allowed", "wan22-720p"]),
        (["--problems", "b1 hq1 hkv1 sq8 skv8 d129 bf16"], ["d129", "1..128"]),
        (["--problems", "b1 hq1 hkv1 sq0 skv8 d64 bf16"], ["no speed", "sq0"]),
        (["--problems", ""], ["empty"]),
        (["--recipes", "vc9"], ["vc9", "allowed"]),
        (["--iterations", "0"], ["--iterations"]),
        (["--iterations", "x"], ["--iterations"]),
        (["--warmup", "-1"], ["--warmup"]),
        (["--seconds", "-1"], ["--seconds"]),
        (["--device", "gpu"], ["cpu, cuda, cuda:N"]),
        (["--device", "cuda:"], ["cpu, cuda, cuda:N"]),
        (["--device", "cuda:99"], ["cannot measure on", "got"]),
        (["--groupings", "warm"], ["--whole"]),
        (["--whole", "--groupings", "hot"], ["hot"]),
        (["--json", "no/such/directory/r.json"], ["no/such/directory", "create the directory"]),
        (["--json", "h200-20261130-1.json"], ["full runs", "bench/results/parts"]),
        (["--problems", "wan22-720p", "--quiet"], ["117.1 TFLOP", "--device cpu"]),
        (["extra"], ["extra"]),
    ],
)
def test_refusals(args, words, tmp_path):
    base = [] if "--device" in args or "wan22-720p" in args else ["--device", "cpu"]
    start = time.monotonic()
    done = vcattn("bench", *base, *args, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    for word in words:
        assert word in done.stderr
    assert time.monotonic() - start < 60  # nothing was measured
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_interrupt(tmp_path, which):
    # 35 calls of 1.4 TFLOP: minutes, whatever the machine.
    process = subprocess.Popen(
        [BINARY, "bench", "--device", "cpu", "--problems", "length-8192", "--json",
         tmp_path / "r.json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(1.5)
    assert process.poll() is None, process.communicate()
    process.send_signal(which)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert out == "" and "interrupted" in err
    assert list(tmp_path.iterdir()) == []


def test_an_older_result_stays_when_a_run_fails(tmp_path):
    path = tmp_path / "r.json"
    path.write_text("old")
    done = vcattn("bench", *QUICK, "--problems", SMALL, "--json", path,
                  env={"VCATTN_CPU_ISA": "avx1024"})  # fmt: skip
    assert done.returncode == 2 and "avx1024" in done.stderr
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_full_disk_is_told():
    done = vcattn("bench", *QUICK, "--problems", SMALL, "--recipes", "sage2", "--quiet", "--json", "/dev/full")
    assert done.returncode == 2 and "/dev/full" in done.stderr


def test_parts_may_have_the_name_of_a_device(tmp_path):
    (tmp_path / "parts").mkdir()
    path = tmp_path / "parts" / "h200-20261130-cpu.json"
    done = vcattn("bench", *QUICK, "--problems", SMALL, "--recipes", "sage2", "--quiet", "--json", path)
    assert done.returncode == 0, done.stderr
    assert json.loads(path.read_text())["rows"][0]["impl"] == "sage2-ours"
