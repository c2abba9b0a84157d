# SPDX-License-Identifier: Apache-2.0
"""The wheel: one for every Python, complete in a fresh environment that knows no checkout."""

import pathlib
import re
import sys
import zipfile

import pytest
from programs import output_of, run

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build" / "lib" / "libvcattn.so"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> pathlib.Path:
    where = tmp_path_factory.mktemp("dist")
    output_of(ROOT / "scripts" / "make_wheel.sh", LIBRARY, where)
    (made,) = where.iterdir()
    return made


def test_name_says_any_python_and_the_oldest_glibc(wheel):
    version = re.search(r"^  VERSION ([0-9.]+)$", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]
    assert re.fullmatch(
        rf"vcattn-{re.escape(version)}-py3-none-manylinux_2_\d+_x86_64\.whl", wheel.name
    )


def test_holds_the_package_the_library_and_its_openmp(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    sources = (ROOT / "python" / "vcattn").rglob("*.py")
    for source in sources:
        assert source.relative_to(ROOT / "python").as_posix() in names
    assert {"vcattn/libvcattn.so", "vcattn/py.typed", "vcattn/LICENSE"} <= set(names)
    assert any(re.match(r"vcattn\.libs/libgomp", name) for name in names)
    assert not [name for name in names if "__pycache__" in name or "test" in name]


CODE = """
import sys, zlib
import numpy as np
import vcattn
from vcattn import _capi
x = np.random.default_rng(0).standard_normal((1, 2, 300, 64), dtype=np.float32)
print(_capi.library_path())
print(zlib.crc32(vcattn.attention(x, x, x).tobytes()))
print(vcattn.version(), "torch" in sys.modules)
"""


def test_works_in_a_fresh_environment_as_in_the_checkout(wheel, tmp_path):
    output_of(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    output_of(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel, "numpy==2.2.6")
    env = {"PATH": "/usr/bin:/bin"}
    installed = output_of(python, "-c", CODE, env=env, cwd=tmp_path).splitlines()
    checkout = output_of(
        sys.executable, "-c", CODE, env=env | {"PYTHONPATH": str(ROOT / "python")}, cwd=tmp_path
    ).splitlines()
    assert pathlib.Path(installed[0]).is_relative_to((tmp_path / "venv").resolve())
    assert pathlib.Path(checkout[0]) == LIBRARY
    assert installed[1:] == checkout[1:]


def test_packing_without_a_library_says_what_to_do(wheel, tmp_path):
    # The tools are there: the wheel of this module was made with them.
    python = ROOT / ".venv" / "wheel-tools" / "bin" / "python"
    done = run(
        python, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path,
        ROOT / "python",
        env={"PATH": "/usr/bin:/bin", "VCATTN_LIBRARY": str(tmp_path / "none.so")},
    )  # fmt: skip
    assert done.returncode != 0 and "make build" in done.stdout + done.stderr
