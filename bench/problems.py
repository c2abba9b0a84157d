# SPDX-License-Identifier: Apache-2.0
"""Attention problems as text, the same text as in `vcattn bench` and in the C++ tests
(src/core/problem_text.hpp; tests/python/test_bench_problems.py holds the two readers together).

    b1 hq40 hkv40 sq75600 skv75600 d128 bf16 [len111717] [nhd | fused]

`len`: only the first so many keys of every batch are attended to. Memory: [B, H, S, D] without a
word, `nhd` is [B, S, H, D], `fused` makes q, k and v views of one [B, S, 3, H, D] buffer. Named
problems and sets of them stand in shapes.json.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re

SHAPES = pathlib.Path(__file__).with_name("shapes.json")
FORM = "b1 hq40 hkv40 sq75600 skv75600 d128 bf16 [len111717] [nhd | fused]"
_FIELDS = (("b", "b"), ("hq", "h_q"), ("hkv", "h_kv"), ("sq", "s_q"), ("skv", "s_kv"), ("d", "d"))
_DTYPES = ("bf16", "fp16", "fp32")
_MAX = 2**31 - 1


class ProblemError(ValueError):
    """A text that is no problem: says what, got, allowed."""

    def __init__(self, what: str, got: str, allowed: str):
        super().__init__(f"{what}; got {got}; allowed: {allowed}")


@dataclasses.dataclass(frozen=True)
class Problem:
    """Sizes of one attention call; `kv_len` None: all keys."""

    b: int
    h_q: int
    h_kv: int
    s_q: int
    s_kv: int
    d: int
    dtype: str = "bf16"
    kv_len: int | None = None
    layout: str = "hnd"

    def __str__(self) -> str:
        words = [f"{word}{getattr(self, field)}" for word, field in _FIELDS] + [self.dtype]
        if self.kv_len is not None:
            words.append(f"len{self.kv_len}")
        if self.layout != "hnd":
            words.append(self.layout)
        return " ".join(words)

    @property
    def keys(self) -> int:
        """Keys attended to, of each batch."""
        return self.s_kv if self.kv_len is None else self.kv_len

    def flops(self) -> int:
        """Two matrix products over the keys attended to, 2 operations for each multiply-add."""
        return 4 * self.b * self.h_q * self.s_q * self.keys * self.d

    def row(self) -> dict[str, int]:
        """`problem` of a result row; its s_kv counts the keys attended to, so that TFLOP/s
        follows from the row alone. The whole text stands in the file's `problems`."""
        return {
            "b": self.b,
            "h_q": self.h_q,
            "h_kv": self.h_kv,
            "s_q": self.s_q,
            "s_kv": self.keys,
            "d": self.d,
        }


def _number(text: str, word: str, low: int, high: int) -> int:
    allowed = f"{word}N with N in {low}..{high}, no leading zeros"
    match = re.fullmatch(word + r"(0|[1-9][0-9]{0,9})", text, re.ASCII)
    if match is None or not low <= int(match[1]) <= high:
        raise ProblemError(f"{word!r} of a problem", repr(text), allowed)
    return int(match[1])


def parse(text: str) -> Problem:
    """The problem that `text` describes; ProblemError when it is not exactly in the form above."""
    words = text.split(" ")
    if len(words) < len(_FIELDS) + 1:
        raise ProblemError("a problem has words missing", repr(text), FORM)
    sizes = {}
    for (word, field), got in zip(_FIELDS, words):
        low, high = {"b": (1, _MAX), "d": (1, 128)}.get(word, (0 if word[0] == "s" else 1, _MAX))
        sizes[field] = _number(got, word, low, high)
    if sizes["h_q"] % sizes["h_kv"] != 0:
        raise ProblemError("hq is no multiple of hkv", repr(text), "query heads that share key heads")
    dtype, rest = words[len(_FIELDS)], words[len(_FIELDS) + 1 :]
    if dtype not in _DTYPES:
        raise ProblemError("type of a problem", repr(dtype), ", ".join(_DTYPES))
    kv_len, layout = None, "hnd"
    if rest and rest[0].startswith("len"):
        kv_len = _number(rest.pop(0), "len", 0, sizes["s_kv"])
    if rest and rest[0] in ("nhd", "fused"):
        layout = rest.pop(0)
    if rest:
        raise ProblemError("a problem has a word that does not belong there", repr(rest[0]), FORM)
    if layout == "fused" and (sizes["h_q"], sizes["s_q"]) != (sizes["h_kv"], sizes["s_kv"]):
        raise ProblemError("fused q, k and v differ in shape", repr(text), "hq = hkv and sq = skv")
    return Problem(**sizes, dtype=dtype, kv_len=kv_len, layout=layout)


def shapes() -> tuple[dict[str, Problem], dict[str, list[str]]]:
    """Named problems and named sets of shapes.json."""
    data = json.loads(SHAPES.read_text())
    problems = {name: parse(entry["problem"]) for name, entry in data["problems"].items()}
    for name, members in data["sets"].items():
        unknown = [m for m in members if m not in problems]
        if name in problems or unknown:
            raise ProblemError(f"set {name!r} of shapes.json", repr(unknown), "names of problems")
    return problems, data["sets"]


def select(wanted: list[str]) -> dict[str, Problem]:
    """Problems by name, set or text, in the order given, each once; the key is the name, or the
    text where there is no name. A text that a name has gets that name."""
    named, sets = shapes()
    names = {problem: name for name, problem in named.items()}
    chosen: dict[str, Problem] = {}
    for word in wanted:
        if word in sets:
            chosen.update((name, named[name]) for name in sets[word])
        elif word in named:
            chosen[word] = named[word]
        elif " " in word:
            problem = parse(word)
            chosen[names.get(problem, str(problem))] = problem
        else:
            raise ProblemError("unknown problem", repr(word), ", ".join([*sets, *named]) + f", or {FORM}")
    return chosen
