# SPDX-License-Identifier: Apache-2.0
"""The ctypes layer against the header: layout, constants, prototypes, search order, errors."""

import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from vcattn import _capi as capi
from vcattn import _errors as errors
from vcattn import _structs as structs

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = ROOT / "include" / "vca" / "vca.h"


def header_text() -> str:
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)


@pytest.fixture(scope="module")
def compiler_says(tmp_path_factory) -> dict[str, int]:
    """Sizes, offsets and constants of the header as the C compiler sees them."""
    constants = {
        f"{prefix}{member.name}" for prefix, enum in structs.ENUMS.items() for member in enum
    } | {"VCA_DEVICE_CPU", "VCA_CHECK_FINITE"} | set(re.findall(r"\bVCA_ERR_\w+", header_text()))
    lines = [f'P("{name}", {name})' for name in sorted(constants)]
    for name, cls in structs.STRUCTS.items():
        lines.append(f'P("{name}", sizeof({name}))')
        for field, _ in cls._fields_:
            lines.append(f'P("{name}.{field}", offsetof({name}, {field}))')
            lines.append(f'P("{name}.{field}:", sizeof((({name}*)0)->{field}))')
    where = tmp_path_factory.mktemp("layout")
    source = where / "layout.c"
    source.write_text(
        "#include <stdio.h>\n#include <vca/vca.h>\n"
        '#define P(name, value) printf("%s %lld\\n", name, (long long)(value));\n'
        "int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n"
    )
    program = where / "layout"
    command = ["cc", "-std=c99", f"-I{HEADER.parents[1]}", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    out = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in (line.split() for line in out.splitlines())}


def test_struct_layout_is_the_headers(compiler_says):
    for name, cls in structs.STRUCTS.items():
        assert ctypes.sizeof(cls) == compiler_says[name], name
        for field, kind in cls._fields_:
            assert getattr(cls, field).offset == compiler_says[f"{name}.{field}"], (name, field)
            assert ctypes.sizeof(kind) == compiler_says[f"{name}.{field}:"], (name, field)


def test_every_struct_and_field_of_the_header_is_known():
    text = header_text()
    bodies = dict(
        (name, body) for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.S)
    )
    assert bodies.keys() == structs.STRUCTS.keys()
    for name, body in bodies.items():
        # "int64_t grid[3]", "vca_tensor q", "const float* cos": the last word is the field.
        declared = re.findall(r"(\w+)(?:\[\d+\])?;", body)
        assert declared == [field for field, _ in structs.STRUCTS[name]._fields_], name


def test_constants_are_the_headers(compiler_says):
    for prefix, enum in structs.ENUMS.items():
        for member in enum:
            assert compiler_says[f"{prefix}{member.name}"] == member.value
    assert compiler_says["VCA_DEVICE_CPU"] == capi.DEVICE_CPU
    assert compiler_says["VCA_CHECK_FINITE"] == capi.CHECK_FINITE
    by_number = {v: k for k, v in compiler_says.items() if k.startswith("VCA_ERR_")}
    assert by_number.keys() == errors.BY_STATUS.keys()
    for number, name in by_number.items():
        words = name.removeprefix("VCA_ERR_").title().replace("_", "")
        assert errors.BY_STATUS[number].__name__ == f"{words}Error"


def test_every_enumerator_of_the_header_is_known():
    text = header_text()
    for prefix, enum in structs.ENUMS.items():
        if enum is structs.Dtype:
            declared = re.search(r"typedef enum vca_dtype \{(.*?)\}", text, re.S).group(1)
            names = re.findall(r"VCA_(\w+) =", declared)
        else:
            names = re.findall(rf"\b{prefix}(\w+) = \d", text)
        assert names == [member.name for member in enum]


def test_every_function_of_the_header_has_a_prototype():
    declared = re.findall(r"VCA_API [\w\s*]+?\*?\s*(vca_\w+)\(([^)]*)\)", header_text())
    assert {name for name, _ in declared} == capi.PROTOTYPES.keys()
    for name, arguments in declared:
        count = 0 if arguments.strip() == "void" else arguments.count(",") + 1
        assert len(capi.PROTOTYPES[name][1]) == count, name


def test_names_round_trip():
    for recipe in capi.Recipe:
        assert capi.parse_recipe(capi.recipe_name(recipe)) == (recipe, 0)
    assert capi.parse_recipe("vc8+had") == (capi.Recipe.VC8, 1)
    for grouping in capi.Grouping:
        assert capi.parse_grouping(capi.grouping_name(grouping)) == grouping
    for target in capi.Target:
        assert capi.parse_target(capi.target_name(target)) == target
    assert capi.recipe_name(1000) is None
    assert capi.grouping_name(1000) is None
    assert capi.target_name(1000) is None


# --------------------------------------------------------------------- a problem
def described(q, k, v, o, **fields) -> capi.AttnDesc:
    desc = capi.AttnDesc(**fields)
    for name, array in zip("qkvo", (q, k, v, o)):
        strides = [stride // 4 for stride in array.strides]
        view = capi.tensor(array.ctypes.data, capi.Dtype.FP32, array.shape, strides)
        setattr(desc, name, view)
    return desc


def arrays(shape=(1, 2, 200, 64), seed=0):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for _ in range(3))
    return q, k, v, np.empty_like(q)


def aligned(size: int) -> tuple[np.ndarray, int]:
    memory = np.zeros(size + 64, np.uint8)
    return memory, (memory.ctypes.data + 63) // 64 * 64


def test_prepare_and_attend_equal_run_and_near_exact():
    q, k, v, o = arrays()
    desc = described(q, k, v, o, recipe=capi.Recipe.VC8)
    size = capi.workspace(desc)
    assert size == capi.query(desc).workspace_bytes > 0
    memory, address = aligned(size)
    capi.prepare(desc, address, size)
    capi.attend(desc, address, size)
    split = o.copy()
    o[:] = np.nan
    capi.run(desc)
    np.testing.assert_array_equal(o, split)
    o[:] = np.nan
    capi.run(desc, address, size)
    np.testing.assert_array_equal(o, split)
    scores = np.einsum("bhqd,bhkd->bhqk", q, k, dtype=np.float64) / 8
    p = np.exp(scores - scores.max(-1, keepdims=True))
    exact = np.einsum("bhqk,bhkd->bhqd", p / p.sum(-1, keepdims=True), v)
    # One E4M3 rounding of P, the coarsest step, is off by 2^-4 at most; errors of many keys average.
    assert np.linalg.norm(o - exact) < 2**-4 * np.linalg.norm(exact)


def test_reference_gives_the_backends_bits():
    q, k, v, o = arrays()
    desc = described(q, k, v, o, recipe=capi.Recipe.VC8)
    capi.run(desc)
    n_valid, n_blocks = capi.ref_blocks(desc, 0)
    assert (n_valid, n_blocks) == (200, 2)
    rows = np.empty((3, 64), np.float32)
    codes = np.empty((3, 128 * n_blocks), np.uint8)
    io = capi.RefIo(o=rows.ctypes.data, codes=codes.ctypes.data)
    capi.ref_attn(desc, capi.Target.CPU, 0, 1, 17, 3, io)
    np.testing.assert_array_equal(rows, o[0, 1, 17:20])
    assert codes.max() <= 0x7E and codes.any()


def test_group_state_round_trip():
    q, k, v, o = arrays()
    step = np.zeros(1, np.int32)
    desc = described(q, k, v, o)
    size = capi.group_state_bytes(desc)
    memory, address = aligned(size)
    capi.group_state_init(desc, address, size)
    desc.state, desc.step = address, step.ctypes.data
    regrouped = np.zeros((1, 2), np.uint8)
    desc.regrouped = regrouped.ctypes.data
    capi.run(desc)
    assert regrouped.all()
    saved = capi.group_state_save(address, size)
    step[0] = 1
    capi.run(desc)
    assert not regrouped.any()
    capi.group_state_reset(address, size)
    capi.run(desc)
    assert regrouped.all()
    capi.group_state_load(desc, address, size, saved)
    capi.run(desc)
    assert not regrouped.any()
    with pytest.raises(errors.StateError):
        capi.group_state_load(desc, address, size, saved[:-1])


def test_errors_carry_the_librarys_text_and_type():
    q, k, v, o = arrays()
    desc = described(q, k, v, o, has_scale=7)
    with pytest.raises(errors.InvalidArgumentError, match="has_scale.*got 7|7.*has_scale") as caught:
        capi.query(desc)
    assert isinstance(caught.value, ValueError) and caught.value.status == 1
    with pytest.raises(errors.UnsupportedError) as caught:
        capi.run(described(q, k, v, o, device=0))
    assert isinstance(caught.value, NotImplementedError)
    q[0, 0, 5, 3] = np.nan
    with pytest.raises(errors.NonFiniteError, match=r"q"):
        capi.run(described(q, k, v, o, flags=capi.CHECK_FINITE))
    memory, address = aligned(64)
    with pytest.raises(errors.WorkspaceError):
        capi.attend(described(*arrays()), address, 64)
    with pytest.raises(ValueError, match="4 sizes"):
        capi.tensor(0, capi.Dtype.FP32, (1, 2, 3), (1, 2, 3))


def test_explain_lists_candidates():
    text = capi.explain(described(*arrays()))
    assert re.search(r"^cpu/\w+: chosen", text, re.M), text
    assert re.search(r"refused", text), text


# ------------------------------------------------------------------ search order
def python(code: str, path: pathlib.Path, **environment) -> subprocess.CompletedProcess:
    env = {k: v for k, v in os.environ.items() if k != "VCATTN_LIBRARY"}
    env |= {"PYTHONPATH": str(path), **environment}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120
    )


WHERE = "from vcattn import _capi as c; print(c.library_path()); print(c.version())"


def test_search_order_variable_package_checkout(tmp_path):
    built = ROOT / "build" / "lib" / "libvcattn.so"
    from_checkout = python(WHERE, ROOT / "python")
    assert from_checkout.stdout.splitlines()[0] == str(built), from_checkout.stderr

    # A copy of the package elsewhere finds nothing until a library lies in it.
    package = tmp_path / "a" / "vcattn"
    shutil.copytree(ROOT / "python" / "vcattn", package)
    alone = python(WHERE, package.parent)
    assert alone.returncode != 0
    assert "LibraryNotFoundError" in alone.stderr and "VCATTN_LIBRARY" in alone.stderr
    shutil.copy(built, package / "libvcattn.so")
    inside = python(WHERE, package.parent)
    assert inside.stdout.splitlines()[0] == str(package / "libvcattn.so"), inside.stderr

    # The variable comes first, and what it names must be there: no silent second choice.
    named = python(WHERE, package.parent, VCATTN_LIBRARY=str(built))
    assert named.stdout.splitlines()[0] == str(built), named.stderr
    missing = python(WHERE, package.parent, VCATTN_LIBRARY=str(tmp_path / "none.so"))
    assert missing.returncode != 0 and "none.so" in missing.stderr


def test_a_foreign_file_is_refused_with_its_name(tmp_path):
    foreign = tmp_path / "libother.so"
    foreign.write_bytes(b"not a library")
    refused = python(WHERE, ROOT / "python", VCATTN_LIBRARY=str(foreign))
    assert refused.returncode != 0
    assert "LibraryNotFoundError" in refused.stderr and "libother.so" in refused.stderr


def test_import_needs_neither_library_nor_numpy_nor_torch():
    code = (
        "import sys; sys.modules['numpy'] = sys.modules['torch'] = None; import vcattn; "
        "from vcattn import _capi; print(vcattn.VcattnError.__name__)"
    )
    done = python(code, ROOT / "python", VCATTN_LIBRARY="/nowhere")
    assert done.stdout.strip() == "VcattnError", done.stderr
