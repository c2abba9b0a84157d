# SPDX-License-Identifier: Apache-2.0
"""An installed tree serves a stranger's build: CMake package, pkg-config file, C99 and C++20."""

import pathlib
import shutil

import pytest
from programs import output_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"

C_SOURCE = """
#include <stdio.h>
#include <vca/vca.h>
int main(void) { return puts(vca_version()) < 0; }
"""

CMAKE_LISTS = """
cmake_minimum_required(VERSION 3.25)
project(consumer C CXX)
find_package(vcattn {version} REQUIRED)
add_executable(consumer consumer.c)
target_link_libraries(consumer PRIVATE vcattn::vcattn)
"""


@pytest.fixture(scope="module")
def prefix(tmp_path_factory) -> pathlib.Path:
    where = tmp_path_factory.mktemp("prefix")
    output_of("cmake", "--install", BUILD, "--prefix", where)
    return where


@pytest.fixture(scope="module")
def version() -> str:
    cache = (BUILD / "CMakeCache.txt").read_text()
    return cache.split("CMAKE_PROJECT_VERSION:STATIC=")[1].split("\n")[0]


def test_cmake_package(prefix, version, tmp_path):
    (tmp_path / "consumer.c").write_text(C_SOURCE)
    (tmp_path / "CMakeLists.txt").write_text(CMAKE_LISTS.format(version=version))
    output_of("cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={prefix}")
    output_of("cmake", "--build", tmp_path / "b")
    assert output_of(tmp_path / "b" / "consumer").strip() == version


def test_pkg_config(prefix, version, tmp_path):
    pc_file = next(prefix.rglob("vcattn.pc"))
    env = {"PATH": "/usr/bin:/bin", "PKG_CONFIG_PATH": str(pc_file.parent)}
    assert output_of("pkg-config", "--modversion", "vcattn", env=env).strip() == version
    flags = output_of("pkg-config", "--cflags", "--libs", "vcattn", env=env).split()
    source = tmp_path / "consumer.c"
    source.write_text(C_SOURCE)
    program = tmp_path / "consumer"
    output_of("cc", "-std=c99", "-Wall", "-Werror", "-pedantic", source, "-o", program, *flags)
    library = next(prefix.rglob("libvcattn.so")).parent
    assert output_of(program, env={"LD_LIBRARY_PATH": str(library)}).strip() == version


@pytest.mark.parametrize("header", ["vca.h", "vca.hpp"])
def test_header_stands_alone(prefix, header, tmp_path):
    # Included first and alone: a header that leans on another include fails here.
    source = tmp_path / "alone.cpp"
    source.write_text(f"#include <vca/{header}>\n")
    output_of("c++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
        "-I", prefix / "include", source)


def test_command_is_installed_and_runs_from_the_prefix(prefix, version):
    command = prefix / "bin" / "vcattn"
    if not shutil.which("ldd"):
        pytest.skip("no ldd")
    assert version in output_of(command, "--version")
    # Nothing in it may point back to the build tree.
    assert str(BUILD) not in output_of("ldd", command)
