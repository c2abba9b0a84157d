# SPDX-License-Identifier: Apache-2.0
"""Result files of the device tests are what tests/device/README.md says, and what the library claims
about itself on a device is no more than they show."""

import copy
import json
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEVICE = ROOT / "tests" / "device"
sys.path.insert(0, str(DEVICE))
import collect  # noqa: E402

RESULTS = sorted((DEVICE / "results").glob("*.json"))

RUN = {"cases": 3, "passed": 2, "failed": 0, "skipped": 1, "exit": 0, "seconds": 1.5}
GOOD = {
    "gpu": "NVIDIA H200", "gpus": 1, "driver": "580.0", "date": "2026-11-30T01:02:03Z",
    "commit": "0123abc", "clock_mhz": {"median": 1600, "min": 400, "max": 1980},
    "power_w": {"median": 500.5, "min": 80, "max": 690},
    "programs": {"device_capi_test": RUN},
    "sanitizers": {"memcheck": {**RUN, "errors": 0}},
}  # fmt: skip
NAME = "h200-20261130-1.json"


@pytest.mark.parametrize("path", RESULTS, ids=lambda p: p.name)
def test_committed_results_are_valid(path):
    assert collect.problems(json.loads(path.read_text()), path.name) == []


def test_the_library_claims_no_more_than_the_results_show():
    source = (ROOT / "src" / "gpu" / "cuda" / "backend.cpp").read_text()
    (claim,) = re.findall(r'kEvidence = "(\w+)"', source)
    shown = [json.loads(path.read_text()) for path in RESULTS]
    ran = any(r["programs"].get("device_capi_test", {}).get("exit") == 0 for r in shown)
    assert claim in (("measured", "compiled") if ran else ("compiled",))


def test_a_good_result_has_no_problem():
    assert collect.problems(GOOD, NAME) == []
    assert collect.all_passed(GOOD)


def changed(*path_and_value):
    *path, last, value = path_and_value
    result = copy.deepcopy(GOOD)
    at = result
    for key in path:
        at = at[key]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return result


@pytest.mark.parametrize(
    "change",
    [
        ("driver", None),
        ("more", 1),
        ("gpus", "1"),
        ("date", "2026-11-30 01:02:03"),
        ("date", "2026-11-29T01:02:03Z"),  # not the name's
        ("commit", "main"),
        ("clock_mhz", "min", 1700),
        ("programs", "device_capi_test", "cases", 4),
        ("programs", "device_capi_test", "errors", 0),
        ("programs", "another", RUN),
        ("sanitizers", "memcheck", "errors", 2),
        ("sanitizers", "memcheck", "errors", None),
        ("programs", "device_capi_test", {**RUN, "failed": 1, "skipped": 0}),
        ("programs", "device_capi_test", {**RUN, "passed": 0, "cases": 1}),
    ],
    ids=str,
)
def test_each_fault_is_seen(change):
    assert collect.problems(changed(*change), NAME) != []


def test_a_failed_test_is_a_valid_result_that_did_not_pass():
    run = {**RUN, "failed": 1, "cases": 4, "exit": 1}
    result = changed("programs", "device_capi_test", run)
    assert collect.problems(result, NAME) == []
    assert not collect.all_passed(result)


def test_lines_of_the_programs_are_counted():
    text = """NVIDIA H200, driver API 13000
vc8        b1 hq1 hkv1 sq128 skv128 d128 std2.0: 0 of 16384 differ, max 0.00e+00 of the row equal
vc8        b1 hq1 hkv1 sq200 skv1300 d64 std2.0: 3 of 9 differ, max 1.00e-03 of the row DIFFERENT
HND b1: equal
graph replay: equal
text b2: an input was written
zero rows, output type 0: 0 wrong
zero rows, output type 1: 7 wrong
wgmma s8                     8192 values, 0 differ
wgmma e4m3                   8192 values, 12 differ
note: ex2.approx, which no kernel uses: 11718 of 16129 differ from the table
F2IP: 0 of 2112 differ
text b2: 4 values DIFFER
HND b2: q tile of sub 0 head 0 item 1: 3 of 128 bytes differ, first at 5: 01 and 02
differences
"""
    counts = collect.counts_of_lines(text)
    assert counts == {"cases": 12, "passed": 6, "failed": 6, "skipped": 0}


def test_summaries_are_counted():
    text = """FAILED video: run 3 differs
cases: 32 run, 0 failures
policies: 0 failures
group_test: FAILED
"""
    assert collect.counts_of_lines(text) == {"cases": 34, "passed": 33, "failed": 1, "skipped": 0}


def test_lines_of_googletest_serve_without_a_report(tmp_path):
    """The program was ended in its third test: no report, and that test has failed."""
    text = """[ RUN      ] A.b
[       OK ] A.b (3 ms)
[ RUN      ] A.c
[  SKIPPED ] A.c (0 ms)
[ RUN      ] A.d
"""
    (tmp_path / "device_capi_test.log").write_text(text)
    (tmp_path / "device_capi_test.rc").write_text("137 90.0\n")
    run = {"cases": 3, "passed": 1, "failed": 1, "skipped": 1, "exit": 137, "seconds": 90.0}
    assert collect.one_run(tmp_path, "device_capi_test") == run
    (tmp_path / "device_capi_test.json").write_text('{"testsuites": [')
    assert collect.one_run(tmp_path, "device_capi_test") == run


def test_parts_of_a_program_are_summed(tmp_path):
    for part, rc, seconds, lines in (("vc8", 0, 3.5, "a: equal\nb: equal\n"), ("fp8", 1, 2.0, "c: 3 wrong\n")):
        (tmp_path / f"device_sm90_attention_test.{part}.log").write_text(lines)
        (tmp_path / f"device_sm90_attention_test.{part}.rc").write_text(f"{rc} {seconds}\n")
    assert collect.one_run(tmp_path, "device_sm90_attention_test") == {
        "cases": 3, "passed": 2, "failed": 1, "skipped": 0, "exit": 1, "seconds": 3.5}  # fmt: skip
    assert collect.one_run(tmp_path, "device_capi_test") is None


def test_names_of_result_files_count_up(tmp_path):
    path = collect.free_path(tmp_path, "2026-11-30T01:02:03Z")
    assert path.name == "h200-20261130-1.json"
    path.touch()
    assert collect.free_path(tmp_path, "2026-11-30T01:02:03Z").name == "h200-20261130-2.json"
    assert collect.problems(GOOD, "h200-20261130.json") == []
    assert collect.problems(GOOD, "h200-20261201-1.json") != []


def test_no_samples_are_reported(tmp_path):
    assert collect.samples(tmp_path) == ([], []) and collect.summary([]) == {}
    assert collect.problems(changed("clock_mhz", {}), NAME) == ["clock_mhz: {}"]


def test_reports_of_googletest_are_counted():
    def case(status, result, **more):
        return {"status": status, "result": result, **more}

    report = {"testsuites": [{"testsuite": [
        case("RUN", "COMPLETED"), case("RUN", "SKIPPED"), case("NOTRUN", "SUPPRESSED"),
        case("RUN", "COMPLETED", failures=[{}])]}]}  # fmt: skip
    assert collect.counts_of_gtest(report) == {
        "cases": 3, "passed": 1, "failed": 1, "skipped": 1}  # fmt: skip


def test_summaries_and_what_was_left_out_are_counted():
    """device_group_test tells of its cases one by one only when they fail."""
    text = "policies: 6 run, 0 failures\nFAILED length: order\ncases: 30 run, 1 failures\nnote: 9 cases left out\n"  # fmt: skip
    assert collect.counts_of_lines(text) == {
        "cases": 45, "passed": 35, "failed": 1, "skipped": 9}  # fmt: skip
    nothing = collect.counts_of_lines("policies: 0 run, 0 failures\nnote: 50 cases left out\n")
    assert nothing == {"cases": 50, "passed": 0, "failed": 0, "skipped": 50}


def write_logs(logs, sanitizer_text):
    (logs / "clock_power.csv").write_text("1200, 300.5\n[N/A], 1\n1980, 690.1\n")
    (logs / "device_prep_test.log").write_text("a: equal\nall equal\n")
    (logs / "device_prep_test.rc").write_text("0 2.5\n")
    (logs / "sanitizer_memcheck.capi.log").write_text(sanitizer_text)
    (logs / "sanitizer_memcheck.capi.rc").write_text("0 9.0\n")
    (logs / "sanitizer_memcheck.capi.json").write_text(json.dumps(
        {"testsuites": [{"testsuite": [{"status": "RUN", "result": "COMPLETED"}]}]}))  # fmt: skip
    (logs / "sanitizer_memcheck.prep.log").write_text(
        "a: equal\nnote: 3 cases left out\nall equal\n========= ERROR SUMMARY: 0 errors\n")  # fmt: skip
    (logs / "sanitizer_memcheck.prep.rc").write_text("0 5.0\n")


@pytest.mark.parametrize("text, errors", [
    ("========= ERROR SUMMARY: 0 errors", 0), ("", None),
    ("========= ERROR SUMMARY: 7 errors\n========= ERROR SUMMARY: 5 errors were not printed.", 7)])  # fmt: skip
def test_logs_become_a_result(text, errors, tmp_path, monkeypatch):
    """A sanitizer that printed no summary, for one program of two, did not check all: that is no pass."""
    write_logs(tmp_path, text)
    monkeypatch.setattr(collect, "smi", lambda what: ["NVIDIA H200"])
    result = collect.collect(tmp_path, "0123abc")
    assert result["clock_mhz"] == {"median": 1590, "min": 1200, "max": 1980}
    assert result["programs"]["device_prep_test"]["passed"] == 1
    assert result["sanitizers"]["memcheck"]["errors"] == errors
    assert result["sanitizers"]["memcheck"]["cases"] == 5
    assert result["sanitizers"]["memcheck"]["skipped"] == 3
    name = f"h200-{result['date'][:10].replace('-', '')}.json"
    assert (collect.problems(result, name) == []) == (errors == 0)
