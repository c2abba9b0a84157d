# SPDX-License-Identifier: Apache-2.0
"""The README's examples do what they show: its C program compiles and runs, its compare command gives a report,
its Python runs."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("VCATTN_BINARY", ROOT / "build/bin/vcattn")).resolve()
BUILD = BINARY.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


def shell_lines(start):
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith(start)]
    assert len(lines) == 1, f"the README has {len(lines)} commands that start with {start!r}"
    return lines[0]


def test_c_example(tmp_path):
    (source,) = blocks("c")
    (tmp_path / "example.c").write_text(source, encoding="utf-8")
    command = shell_lines("cc ").replace("-Iinclude", f"-I{ROOT / 'include'}")
    command = command.replace("-Lbuild/lib", f"-L{BUILD / 'lib'}").replace("rpath,build/lib", f"rpath,{BUILD / 'lib'}")
    if shutil.which("cc") is None:
        command = command.replace("cc ", "gcc ", 1)
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    value = re.fullmatch(r"o\[0\] = (\S+) with vc8\n", done.stdout)
    assert value, done.stdout
    # A convex combination of V, whose values are 0, 1 and 2.
    assert 0.0 <= float(value.group(1)) <= 2.0


def test_compare_example(tmp_path):
    words = shlex.split(shell_lines("build/bin/vcattn compare"))
    words[0] = str(BINARY)
    words[words.index("--report") + 1] = str(tmp_path / "report")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for recipe in words[words.index("--recipes") + 1].split(","):
        assert re.search(rf"^\s*{re.escape(recipe)}\b", done.stdout, flags=re.M), done.stdout
    page = (tmp_path / "report/index.html").read_text(encoding="utf-8")
    assert "<svg" in page and "http://" not in page.replace("http://www.w3.org", "")


def test_python_example(tmp_path):
    (source,) = blocks("python")
    env = {"PYTHONPATH": str(ROOT / "python"), "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "vc8 (auto: the default on cpu) on cpu/" in done.stdout


def test_commands_and_documents_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`?make ([a-z-]+)`?", README):
        assert re.search(rf"^{target}:", makefile, flags=re.M), target
    for path in re.findall(r"`((?:docs|include|examples|tests)/[\w./-]+)`", README):
        assert (ROOT / path).exists(), path
