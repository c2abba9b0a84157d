# SPDX-License-Identifier: Apache-2.0
"""The Python examples run with --tiny and say what ran."""

import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT

EXAMPLES = {
    "attention.py": ["--tiny"],
    "attention.py --torch": ["--tiny", "--torch"],
    "wan22.py": ["--tiny"],
    "hunyuan_video15.py": ["--tiny", "--recipe", "vc8-hq"],
    "minimax_h3.py": ["--tiny"],
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name, tmp_path):
    clip = tmp_path / "clip.mp4"
    command = [sys.executable, str(ROOT / "examples" / name.split()[0]), *EXAMPLES[name]]
    is_clip = name.split()[0] in ("wan22.py", "hunyuan_video15.py")
    if is_clip:
        command += ["--out", str(clip)]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "(asked for) on cpu/" in done.stdout
    if "attention" not in name:
        assert re.search(r"^  \S+: vcattn \d+$", done.stdout, re.M), done.stdout
    assert clip.exists() == is_clip and (not is_clip or clip.stat().st_size > 1000)


def test_every_example_is_tested():
    scripts = {p.name for p in (ROOT / "examples").glob("*.py")}
    helpers = {"tiny_pipelines.py", "pipeline_example.py"}
    assert scripts - helpers == {name.split()[0] for name in EXAMPLES}
