# SPDX-License-Identifier: Apache-2.0
"""Problem texts mean the same to the command and to the Python side of the benchmark."""

import json
import re
import sys

import pytest
from compare_dumps import ROOT, vcattn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(ROOT / "bench"))
import problems  # noqa: E402

NAMED, SETS = problems.shapes()
GOOD = "b1 hq4 hkv2 sq70 skv90 d72 bf16 len81 nhd"


def listed(*texts) -> list[tuple[str, str, str]] | None:
    """Name, canonical text and TFLOP as the command reads them; None when it refuses."""
    done = vcattn("bench", "--list", "--problems=" + ",".join(texts))
    if done.returncode == 2:
        assert done.stdout == "" and "allowed" in done.stderr
        return None
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()[2:]
    return [tuple(re.split(r" {2,}", line.strip())) for line in lines]


def test_every_named_problem_is_read_alike():
    for name, text, teraflop in listed(*NAMED):
        problem = NAMED[name]
        assert text == str(problem) == str(problems.parse(text))
        assert float(teraflop) == pytest.approx(problem.flops() * 1e-12, rel=1e-3)
    assert {row[0] for row in listed(*NAMED)} == set(NAMED)


def test_sets_are_read_alike():
    for name, members in SETS.items():
        assert [row[0] for row in listed(name)] == members == list(problems.select([name]))


def test_list_names_everything():
    text = vcattn("bench", "--list").stdout
    for name in NAMED:
        assert re.search(rf"^{name} ", text, re.M)
    for name, members in SETS.items():
        assert f"{name}: {' '.join(members)}\n" in text


def test_texts_get_their_names_and_come_once():
    words = ["cross", str(NAMED["wan22-720p"]), "wan22-720p", GOOD, "wan22-720p-text", GOOD]
    want = [*SETS["cross"], "wan22-720p", GOOD]
    assert [row[0] for row in listed(*words)] == want == list(problems.select(words))


@pytest.mark.parametrize("word", ["wan22", "WAN22-720P", "b1", "models ", "wan22-720p;"])
def test_unknown_words_are_refused_alike(word):
    assert listed(word) is None
    with pytest.raises(problems.ProblemError):
        problems.select([word])


def test_rows_of_named_problems_differ():
    """A result file has one row for each problem; two names must not share its key."""
    keys = [tuple(p.row().values()) for p in NAMED.values()]
    assert len(set(keys)) == len(keys)


def test_shapes_json_says_what_each_problem_is():
    data = json.loads(problems.SHAPES.read_text())
    assert all(set(entry) == {"problem", "what"} and entry["what"] for entry in data["problems"].values())


def test_model_shapes():
    """Tokens from the models' own geometry: latent frames, rows and columns of patches."""
    assert NAMED["wan22-720p"].s_q == ((81 - 1) // 4 + 1) * (720 // 16) * (1280 // 16)
    assert NAMED["wan22-480p"].s_q == ((81 - 1) // 4 + 1) * (480 // 16) * (832 // 16)
    assert NAMED["longcat-480p"].s_q == ((93 - 1) // 4 + 1) * (480 // 16) * (832 // 16)
    hunyuan = NAMED["hunyuan15-720p"]
    assert hunyuan.s_q == ((121 - 1) // 4 + 1) * (720 // 16) * (1280 // 16) + 1000 + 256 + 729
    assert hunyuan.keys == 111717 and hunyuan.row()["s_kv"] == 111717
    for model in ("wan22-720p", "hunyuan15-720p", "longcat-480p"):
        shard = NAMED[model + "-ulysses8"]
        assert (shard.h_q * 8, shard.s_q) == (NAMED[model].h_q, NAMED[model].s_q)


WORDS = st.sampled_from(
    ["b1", "b0", "b01", "b2147483648", "hq4", "hq6", "hq", "hkv2", "hkv3", "sq70", "sq0", "skv90",
     "skv-1", "d72", "d128", "d129", "bf16", "fp16", "fp32", "BF16", "len81", "len0", "len91", "len",
     "nhd", "fused", "hnd", "", "x"]
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_texts_are_read_alike(data):
    """A good text with some words changed, dropped or doubled."""
    words = GOOD.split(" ")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(words) - 1))
        words[at : at + 1] = data.draw(st.lists(WORDS, max_size=2))
        words = words or ["x"]
    text = " ".join(words)
    if not text.strip():
        return  # an empty option is refused before anybody reads it
    try:
        want = [(str(p), name) for name, p in problems.select([text]).items()]
    except problems.ProblemError:
        want = None
    got = listed(text)
    assert (got is None) == (want is None), text
    if got is not None:
        assert [(row[1], row[0]) for row in got] == want
