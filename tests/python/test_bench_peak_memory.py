# SPDX-License-Identifier: Apache-2.0
"""bench/peak_memory.py without a GPU: its arithmetic, the check of a result file, the committed files, the page that quotes them."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import peak_memory  # noqa: E402

COMMITTED = sorted((ROOT / "bench" / "results").rglob("memory-*.json"))
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def row(call, tokens, off=0.0):
    total = round((peak_memory.computed(call, tokens) + off) * 40 * tokens)
    return {"call": call, "tokens": tokens, "held_bytes": 768 * 40 * tokens if total > 768 * 40 * tokens else 1000,
            "call_bytes": total - (768 * 40 * tokens if total > 768 * 40 * tokens else 1000), "outside_bytes": 0}  # fmt: skip


@pytest.fixture
def data():
    rows = [row(call, n) for n in peak_memory.TOKENS for call in peak_memory.COMPUTED]
    return {"gpu": "NVIDIA H200", "driver": "580.1", "date": "2026-11-30T12:30:00Z", "commit": "0123456789ab",
            "software": {"torch": "2.11.0"}, "heads": 40, "d": 128, "rows": rows, "skipped": {}}  # fmt: skip


def test_bytes_a_token_and_head_are_of_what_is_held_and_what_the_call_takes():
    made = {"tokens": 1000, "held_bytes": 40_000 * 768, "call_bytes": 40_000 * 655}
    assert peak_memory.each(made) == 1423


class Memory:
    """An allocator: `take` is a call that holds `kept` bytes and takes `more` for a while."""

    def __init__(self, now):
        self.now = self.top = now
        self.other = 500

    def begin(self):
        self.top = self.now
        return self.now

    def peak(self):
        return self.top

    def outside(self):
        return self.other

    def take(self, kept, more, other=0):
        self.top = max(self.top, self.now + kept + more)
        self.now += kept
        self.other += other


def test_a_call_counts_from_what_was_allocated_ahead_of_it():
    memory = Memory(1300)
    memory.take(0, 9000)  # a peak before the call
    got = peak_memory.peak_of(lambda: memory.take(256, 399), 768, memory)
    assert got == {"held_bytes": 768, "call_bytes": 655, "outside_bytes": 0}
    assert peak_memory.peak_of(lambda: memory.take(1, 0, other=64), 768, memory)["outside_bytes"] == 64


def test_a_whole_file_has_no_faults_and_a_table_of_both_columns(data):
    assert peak_memory.faults(data) == []
    lines = peak_memory.table(data).splitlines()
    assert len(lines) == 2 + len(peak_memory.COMPUTED)
    assert "| vc8, token order | 1423.0 | 1423 | 1423.0 | 1423 |" in lines
    assert "| SageAttention2 | 1922.0 | 1922 | 1666.0 | 1666 |" in lines


@pytest.mark.parametrize("off, fine", [(2.5, True), (-2.5, True), (4, False), (-4, False)])
def test_a_figure_that_is_not_the_computed_one_is_a_fault(data, off, fine):
    data["rows"][0] = row("vc8, token order", 75600, off)
    assert (peak_memory.faults(data) == []) == fine


def test_missing_rows_are_faults_unless_the_reason_stands_there(data):
    data["rows"] = [r for r in data["rows"] if not r["call"].startswith("Sage")]
    assert len(peak_memory.faults(data)) == 4
    data["skipped"] = dict.fromkeys((c for c in peak_memory.COMPUTED if c.startswith("Sage")), "no module")
    assert peak_memory.faults(data) == []
    assert "| SageAttention2 | – | 1922 | – | 1666 |" in peak_memory.table(data)


def test_broken_files(data):
    assert "unknown row" in peak_memory.faults(data | {"rows": [*data["rows"], {"call": "x", "tokens": 1}]})[0]
    assert "heads and d" in peak_memory.faults(data | {"heads": 8})[0]
    assert "keys" in peak_memory.faults({"rows": []})[0]
    data["rows"][0]["call_bytes"] = 0
    assert "more than 0" in peak_memory.faults(data)[0]


def test_the_computed_figures_are_those_of_the_page():
    most = re.search(r"\*\*most at once, one call\*\* \| \*\*(\d+)\*\* \| \*\*(\d+)\*\* \| \*\*(\d+)\*\* \([^)]*\); (\d+) where", PAGE)
    plain, grouped, sage, whole = map(int, most.groups())
    computed = peak_memory.COMPUTED
    assert computed["vc8, token order"] == (plain, plain)
    assert computed["vc8, grouped, cold"] == computed["vc8, grouped, warm"] == (grouped, grouped)
    assert computed["SageAttention2"] == (whole, sage)
    split = re.search(r"then `attend`\*\* \| \*\*(\d+)\*\*, then (\d+)", PAGE)
    assert computed["vc8, prepare"][0] == int(split[1])
    assert computed["vc8, attend without q, k, v"][0] == int(split[2])
    assert "An LSE adds 8" in PAGE
    for call in computed:
        if call.startswith("vc8") and call.endswith(", LSE"):
            assert computed[call][0] == computed[call.removesuffix(", LSE")][0] + 8


@pytest.mark.parametrize("path", COMMITTED, ids=lambda p: p.name)
def test_committed_files(path):
    assert peak_memory.faults(json.loads(path.read_text())) == []
    done = subprocess.run([sys.executable, ROOT / "bench" / "peak_memory.py", "--table", path], capture_output=True, text=True)
    assert done.returncode == 0 and "| vc8, token order |" in done.stdout


def test_the_measured_figures_of_the_page_are_those_of_its_file():
    (name,) = re.findall(r"`(bench/results/parts/memory-[\w-]+\.json)`", PAGE)
    data = json.loads((ROOT / name).read_text())
    assert f"driver {data['driver']}, {data['date'][:10]}, commit\n{data['commit']}, " in PAGE
    have = {(row["call"], row["tokens"]): peak_memory.each(row) for row in data["rows"]}
    at = lambda call, n=75600: f"{have[call, n]:.1f}"  # noqa: E731
    plain, sage = "vc8, token order", peak_memory.SAGE
    cold, warm = at("vc8, grouped, cold"), at("vc8, grouped, warm")
    assert f"| {at(plain)} | {cold} cold, {warm} warm | {at(sage)}; {at(sage, 75648)} at 75,648" in PAGE
    assert f"| {at('vc8, prepare')}, then {at('vc8, attend without q, k, v')} |" in PAGE
    ours, theirs = (have[f"{call}, LSE", 75600] - have[call, 75600] for call in (plain, sage))
    assert f"measured {ours:.1f} and {theirs:.1f}.\n" in PAGE
    assert all(row["outside_bytes"] <= 0 for row in data["rows"])


def test_without_a_gpu_it_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "peak_memory.py", "--out", tmp_path],
        capture_output=True, text=True, env={"CUDA_VISIBLE_DEVICES": "", "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 1 and done.stderr.startswith("peak_memory.py: ")
