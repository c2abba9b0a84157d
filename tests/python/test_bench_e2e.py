# SPDX-License-Identifier: Apache-2.0
"""Result files of bench/e2e.py: the check, the arithmetic of a clip, the committed files, what documents quote."""

import copy
import json
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import e2e_tables  # noqa: E402
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


def test_whole_forwards_follow_from_the_first_blocks(data):
    model = data["models"][0]
    for r, per_block in zip(model["rows"], (275.0, 210.0, 207.5, 205.0)):
        r["forward_ms"] = r["attention_ms"] = []
        r["short_ms"] = [[2, 50 + 2 * per_block, 300.0], [12, 50 + 12 * per_block, 1200.0]]
    native, ours = result.clips(model)
    assert native["step_ms"] == 2 * (50 + 40 * 275) + 2
    assert ours["step_ms"] == round(2 * (50 + 40 * (2 * 210 + 9 * 207.5 + 29 * 205) / 40) + 2, 1)
    assert result.attention_ms(model, model["rows"][0]) == 1200 * 40 / 12
    # A whole forward among them counts as it is.
    model["rows"][0]["short_ms"].append([40, 11000.0, 4100.0])
    assert result.forward_ms(model, model["rows"][0]) == 11000
    model["clips"] = result.clips(model)
    assert result.faults(data) == []


@pytest.mark.parametrize("points, fault", [
    ([[2, 600.0, 300.0]], "two or more"),
    ([[2, 600.0, 300.0], [12, 2500.0]], "two or more"),
    ([[12, 600.0, 300.0], [2, 2500.0, 1200.0]], "rising"),
    ([[2, 600.0, 300.0], [41, 2500.0, 1200.0]], "rising"),
    ([[2, 600.0, 700.0], [12, 2500.0, 1200.0]], "takes longer"),
    ([[2, 600.0, 300.0], [12, 500.0, 400.0]], "took less time"),
])  # fmt: skip
def test_faults_of_short_forwards_are_found(data, points, fault):
    row = data["models"][0]["rows"][0]
    row["short_ms"] = points
    assert any("both" in text or fault in text for text in result.faults(data))
    row["forward_ms"] = row["attention_ms"] = []
    assert any(fault in text for text in result.faults(data)), result.faults(data)


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


# ------------------------------------------------------------------- what documents quote of it
def test_parts_name_every_configuration_and_its_gain(data):
    other = copy.deepcopy(data["models"][0])
    other["model"], other["steps"], other["experts"] = "minimax-h3", 50, [50]
    for r in other["rows"]:
        r["short_ms"] = [[2, 600.0, 300.0], [12, 2500.0 if r["grouping"] == "none" else 2000.0, 1200.0]]
        r["forward_ms"] = r["attention_ms"] = []
    other["clips"] = result.clips(other)
    data["models"].append(other)
    assert result.faults(data) == []
    wan = e2e_tables.make("wan", data, "f.json")
    ratio = data["models"][0]["clips"][1]["step_ratio"]
    assert re.search(rf"^\| `vc8` \| BF16 \| 8\.20 s \(cold 8\.40, warm 8\.30\) .*\*\*{ratio:.2f}, ", wan, re.M), wan
    assert "flash-attention 3 (`_flash_3`), 174 ms" in wan.replace("\n", " ")
    others = e2e_tables.make("others", data, "f.json")
    assert re.search(r"^\| MiniMax-H3, .* \| `_flash_3` \| 7\.82 s \|", others, re.M), others
    assert "first 2 and 12 of 40 blocks" in others.replace("\n  ", " ")
    assert f"{ratio:.2f} times as fast" in e2e_tables.make("summary", data, "f.json")
    assert "0123456789ab" in e2e_tables.make("machine", data, "f.json")


def test_only_the_marked_parts_of_a_document_change(data, tmp_path, capsys):
    file, document = tmp_path / "e2e-x.json", tmp_path / "page.md"
    result.write(file, data)
    frame = "before\n<!-- bench/e2e_tables.py summary -->\n{}<!-- end of part -->\nafter\n"
    document.write_text(frame.format("old\n"))
    assert e2e_tables.main([str(file), "--write", str(document)]) == 0
    want = frame.format(e2e_tables.make("summary", data, "f.json") + "\n")
    assert document.read_text() == want
    for text, fault in (("nothing\n", "has no line"), (frame.replace("summary", "sum").format(""), "no part 'sum'")):
        document.write_text(text)
        assert e2e_tables.main([str(file), "--write", str(document)]) == 2
        assert fault in capsys.readouterr().err and document.read_text() == text


@pytest.mark.parametrize("document", ["README.md", "docs/integrations.md"])
def test_documents_quote_the_newest_file(document):
    # Files of all four models stand before those in parts/.
    newest = max(COMMITTED, key=lambda path: (path.parent.name != "parts", path.name))
    text = (ROOT / document).read_text(encoding="utf-8")
    data = json.loads(newest.read_text())
    again, count = e2e_tables.rewritten(text, data, str(newest.relative_to(ROOT)))
    assert count and again == text, f"python bench/e2e_tables.py {newest.relative_to(ROOT)} --write {document}"


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_committed_files(path):
    data = json.loads(path.read_text())
    result.check(data, str(path))
    assert data["gpu"] and "H200" in data["gpu"] and "note" not in data
    # A file outside parts/ has all four models with their clips.
    if path.parent.name != "parts":
        assert len(data["models"]) == 4
        assert all(clip["clip_s"] for model in data["models"] for clip in model["clips"])
