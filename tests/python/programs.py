# SPDX-License-Identifier: Apache-2.0
"""Running programs in tests."""

import subprocess


def run(*command, timeout=500, **options) -> subprocess.CompletedProcess:
    """The finished process with its text; arguments of any kind."""
    return subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          timeout=timeout, **options)  # fmt: skip


def output_of(*command, **options) -> str:
    """What a program that must succeed printed."""
    done = run(*command, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout
