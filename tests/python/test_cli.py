# SPDX-License-Identifier: Apache-2.0
"""The command as a whole: usage, exit codes, `info` and `selftest`."""

import re
import time

import pytest
from compare_dumps import RECIPES, vcattn


def test_version():
    done = vcattn("--version")
    assert done.returncode == 0
    assert re.fullmatch(r"vcattn \d+\.\d+\.\d+ \(specification \d+\)\n", done.stdout)


@pytest.mark.parametrize("args", [["--help"], ["compare", "--help"], ["info", "--help"],
                                  ["selftest", "--help"], ["generate", "--help"], ["bench", "--help"]])  # fmt: skip
def test_help(args):
    done = vcattn(*args)
    assert done.returncode == 0 and "Usage" in done.stdout and done.stderr == ""


def test_help_names_every_option_of_compare():
    text = vcattn("compare", "--help").stdout
    for option in ("--recipes", "--rows", "--grid", "--layout", "--grouping", "--target",
                   "--threads", "--json", "--report", "--quiet"):  # fmt: skip
        assert option in text


@pytest.mark.parametrize("command", ["compare", "generate", "bench"])
def test_recipe_is_another_name_of_recipes(command):
    assert "--recipes,--recipe" in vcattn(command, "--help").stdout


@pytest.mark.parametrize("args", [[], ["frobnicate"], ["compare"], ["info", "extra"],
                                  ["selftest", "--frobnicate"]])  # fmt: skip
def test_usage_errors(args):
    done = vcattn(*args)
    assert done.returncode == 2 and done.stderr != "" and done.stdout == ""


def test_info():
    done = vcattn("info")
    assert done.returncode == 0 and done.stderr == ""
    text = done.stdout
    assert re.search(r"^vcattn +\d+\.\d+\.\d+$", text, re.M)
    assert re.search(r"^specification +\d+$", text, re.M)
    assert re.search(r"^CPU +\S", text, re.M)
    assert re.search(r"kernel +cpu/\w+", text)
    # Every candidate with its verdict; one of them runs.
    assert len(re.findall(r"^  \S+: chosen$", text, re.M)) == 1
    assert re.search(r"^  cpu/portable: (chosen|could run)$", text, re.M)
    assert re.search(r"^  sm90: refused: \S+", text, re.M)


def test_selftest_passes_quickly():
    start = time.monotonic()
    done = vcattn("selftest")
    assert time.monotonic() - start < 30
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("0 failed\n")
    for recipe in RECIPES:
        assert f"{recipe}: library" in done.stdout
    assert "FAILED" not in done.stderr


def test_quiet_selftest_says_nothing():
    done = vcattn("selftest", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_failed_selftest_exits_1():
    """A unit that cannot exist makes the library refuse every run, which the checks must notice."""
    import os

    done = vcattn("selftest", env={**os.environ, "VCATTN_CPU_ISA": "avx1024"})
    assert done.returncode == 1
    assert "FAILED" in done.stderr and "avx1024" in done.stderr
