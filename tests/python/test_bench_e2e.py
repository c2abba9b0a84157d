# SPDX-License-Identifier: Apache-2.0
"""Result files of bench/e2e.py: the check, the arithmetic of a clip, the committed files."""

import copy
import json
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from e2e import result  # noqa: E402

COMMITTED = sorted((ROOT / "bench" / "results").rglob("e2e-*.json"))


def row(attention, grouping, ms, linears="bf16"):
    return {"attention": attention, "linears": linears, "grouping": grouping,
            "forward_ms": [ms + 1.0, ms, ms - 1.0], "attention_ms": [ms / 2] * 3, "parts_ms": None,
            "peak_gib": 70.5, "clock_mhz": 1600, "power_w": 690}  # fmt: skip


@pytest.fixture
def data():
    model = {
        "model": "wan2.2-a14b", "code": "c", "clip": "1280x720, 81 frames", "tokens": 75600,
        "heads": 40, "layers": 40, "steps": 40, "forwards_per_step": 2, "batch": 1, "note": "n",
        "experts": [25, 15], "backends": {"_flash_3": 174.0}, "between_ms": 2.0,
        "rows": [row("_flash_3", "none", 11000.0), row("vc8", "cold", 8400.0),
                 row("vc8", "warm", 8300.0), row("vc8", "kept", 8200.0)],
        "stages": {"text_encoder": {"ms": 100.0, "what": "t"}, "vae_decode": {"ms": 9900.0, "what": "v"}},
        "clips": [],
    }  # fmt: skip
    model["clips"] = result.clips(model)
    return {"gpu": "NVIDIA H200", "driver": "580", "date": "2026-11-30T04:00:00Z",
            "commit": "0123456789ab", "software": {"torch": "2.11.0"}, "models": [model]}  # fmt: skip


def test_each_expert_forms_its_own_order_and_the_window_is_a_quarter():
    assert result.groupings(40, [25, 15]) == {"cold": 2, "warm": 9, "kept": 29}
    assert result.groupings(40, [5, 35]) == {"cold": 2, "warm": 4 + 4, "kept": 30}
    assert result.groupings(4, [4]) == {"cold": 1, "warm": 0, "kept": 3}
    assert result.groupings(50, [50]) == {"cold": 1, "warm": 12, "kept": 37}


def test_clip_is_text_and_all_steps_and_decoder(data):
    native, ours = data["models"][0]["clips"]
    assert (native["step_ms"], native["clip_s"]) == (22002.0, round(10 + 40 * 22.002, 2))
    forward = (2 * 8400 + 9 * 8300 + 29 * 8200) / 40
    assert ours["step_ms"] == round(2 * forward + 2, 1)
    assert ours["clip_s"] == round(10 + 40 * (2 * forward + 2) / 1000, 2)
    assert ours["step_ratio"] == round(22002 / (2 * forward + 2), 3)
    assert ours["clip_ratio"] == round((10 + 40 * 22.002) / (10 + 40 * (2 * forward + 2) / 1000), 3)


def test_clip_without_a_stage_or_a_kept_forward(data):
    model = data["models"][0]
    model["stages"]["vae_decode"]["ms"] = None
    assert [c["clip_s"] for c in result.clips(model)] == [None, None]
    model["rows"] = [r for r in model["rows"] if r["grouping"] != "kept"]
    assert [c["attention"] for c in result.clips(model)] == ["_flash_3"]


def test_groupings_without_a_forward_follow_from_kernel_times(data):
    model = data["models"][0]
    cold, warm, kept = model["rows"][1:]
    for r, group in ((cold, 8.0), (warm, 2.0), (kept, 1.0)):
        r["parts_ms"] = {"attention": 100.0, "prepare": 1.5, "group": group}
    warm["forward_ms"] = warm["attention_ms"] = []
    want = (2 * 8400 + 9 * (8200 + 40 * 1) + 29 * 8200) / 40
    assert result.clips(model)[1]["step_ms"] == round(2 * want + 2, 1)
    kept["forward_ms"] = kept["attention_ms"] = []
    want = (2 * 8400 + 9 * (8400 - 40 * 6) + 29 * (8400 - 40 * 7)) / 40
    assert result.clips(model)[1]["step_ms"] == round(2 * want + 2, 1)
    model["clips"] = result.clips(model)
    assert result.faults(data) == []
    cold["forward_ms"] = cold["attention_ms"] = []  # nothing to derive it from
    assert any("no list of times" in fault for fault in result.faults(data))


def test_written_file_is_read_back(data, tmp_path):
    path = tmp_path / "e2e-x.json"
    result.write(path, data)
    assert json.loads(path.read_text()) == data


def spoil(path, value):
    def change(data):
        *keys, last = path
        at = data
        for key in keys:
            at = at[key]
        at[last] = value

    return change


M = ("models", 0)


@pytest.mark.parametrize("change, fault", [
    (spoil(("date",), "yesterday"), "date"),
    (spoil(("commit",), "main"), "commit"),
    (spoil(("driver",), None), "gpu and driver"),
    (spoil(("models",), []), "at least one model"),
    (spoil((*M, "extra"), 1), "fields"),
    (spoil((*M, "rows", 0, "extra"), 1), "fields"),
    (spoil((*M, "rows", 1, "grouping"), "lukewarm"), "grouping"),
    (spoil((*M, "rows", 0, "forward_ms"), []), "no list of times"),
    (spoil((*M, "rows", 0, "forward_ms"), [1.0, float("nan"), 3.0]), "no list of times"),
    (spoil((*M, "rows", 0, "attention_ms"), [5.0]), "as many"),
    (spoil((*M, "rows", 0, "attention_ms"), [12000.0] * 3), "takes longer"),
    (spoil((*M, "rows", 2, "grouping"), "cold"), "two rows of one"),
    (spoil((*M, "experts"), [40, 15]), "add up"),
    (spoil((*M, "clips", 1, "step_ratio"), 1.6), "do not follow"),
])  # fmt: skip
def test_faults_are_found(data, change, fault):
    assert result.faults(data) == []
    change(data)
    assert any(fault in text for text in result.faults(data)), result.faults(data)
    with pytest.raises(result.ResultError):
        result.check(data)


def test_merge_takes_runs_of_one_machine_and_commit(data):
    other = copy.deepcopy(data)
    other["models"][0]["model"], other["date"] = "longcat-video", "2026-11-30T05:00:00Z"
    merged = result.merge([data, other])
    assert [m["model"] for m in merged["models"]] == ["wan2.2-a14b", "longcat-video"]
    assert merged["date"] == other["date"] and result.faults(merged) == []
    with pytest.raises(result.ResultError, match="twice"):
        result.merge([data, data])
    other["commit"] = "ffffffffffff"
    with pytest.raises(result.ResultError, match="not of one machine"):
        result.merge([data, other])


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_committed_files(path):
    data = json.loads(path.read_text())
    result.check(data, str(path))
    assert data["gpu"] and "H200" in data["gpu"] and "note" not in data
    # A file outside parts/ has all four models with their clips.
    if path.parent.name != "parts":
        assert len(data["models"]) == 4
        assert all(clip["clip_s"] for model in data["models"] for clip in model["clips"])
