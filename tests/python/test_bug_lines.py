# SPDX-License-Identifier: Apache-2.0
"""docs/bug-lines.md: every line is there once, with tests that exist and carry its number, or with
the reason why there is none."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "bug-lines.md").read_text()

# The log's numbers; the gaps were never given or are not about attention libraries.
LINES = [f"B{n:02}" for n in range(1, 40) if n not in (3, 11, 25, 32, 35, 36)]

GTEST = re.compile(r"\bTEST(?:_P|_F)?\(\s*(\w+),\s*(\w+)\s*\)")


def tables():
    """(rows of the first table, rows of the second) as lists of cells."""
    found, rows = [], []
    for line in [*TEXT.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            found.append(rows[2:])
            rows = []
    return found


TESTED, EMPTY = tables()
WHY_EMPTY = {line: row[1] for row in EMPTY for line in row[0].split(", ")}


def existing_tests() -> set[str]:
    names = set()
    for path in [*(ROOT / "tests" / "core").glob("*.cpp"), *(ROOT / "tests" / "device").glob("*.cpp")]:
        names |= {f"{suite}.{name}" for suite, name in GTEST.findall(path.read_text())}
    for path in (ROOT / "tests").glob("*/test_*.py"):
        names |= {f"{path.name}::{name}" for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)}
    return names


EXISTING = existing_tests()


def test_every_line_is_there_once():
    there = [row[0] for row in TESTED]
    assert there == sorted(set(there))
    only_empty = [line for line, where in WHY_EMPTY.items() if where == "both"]
    assert sorted([*there, *only_empty]) == LINES


@pytest.mark.parametrize("row", TESTED, ids=lambda row: row[0])
def test_the_tests_of_a_line_exist_and_carry_its_number(row):
    line, _, cpu, device = row
    assert "](https://" in row[1]
    for where, cell in (("CPU", cpu), ("device", device)):
        names = re.findall(r"`([^`]+)`", cell)
        if not names:
            assert cell == "–" and WHY_EMPTY.get(line) == where
        for name in names:
            assert name in EXISTING, name
            assert line in name, name


def test_every_numbered_test_is_listed():
    """Of the C++ tests: the table is what a reader looks at."""
    listed = set(re.findall(r"`([^`]+)`", TEXT))
    numbered = {name for name in EXISTING if re.search(r"B\d\d", name) and "::" not in name}
    assert numbered - listed == set()
