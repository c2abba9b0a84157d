# SPDX-License-Identifier: Apache-2.0
"""What scripts/kernel_resources.py reads from ptxas and holds against rules and table. That the
kernels of this tree pass: test_cuda_build.py."""

import importlib.util
import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "kernel_resources.py"
spec = importlib.util.spec_from_file_location("kernel_resources", SCRIPT)
resources = importlib.util.module_from_spec(spec)
spec.loader.exec_module(resources)

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{name}' for 'sm_90a'
ptxas info    : Function properties for {name}
    {stack} bytes stack frame, {spill} bytes spill stores, 4 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 16 bytes smem
"""
MANGLED = (
    "_ZN3vca7kernels4sm9041_GLOBAL__N__c5196cc0_9_launch_cu_edaa20ad9attention"
    "ILi128ELi1EEEvNS0_15AttentionParamsE"
)


def test_parse_reads_every_number():
    kernels, serialised = resources.parse(LOG.format(name="k", stack=24, spill=12))
    assert kernels == {
        "k": {
            "stack_bytes": 24,
            "spill_store_bytes": 12,
            "spill_load_bytes": 4,
            "registers": 168,
            "static_smem_bytes": 16,
        }
    }
    assert serialised == []


def test_names_do_not_depend_on_the_build():
    (name,) = resources.demangle([MANGLED])
    assert resources.short_name(name) == "sm90::attention<128, 1>"
    long = "void vca::kernels::prep::(anonymous namespace)::run<vca::kernels::prep::KeyTiles>"
    assert resources.short_name(long) == "prep::run<KeyTiles>"


@pytest.mark.parametrize("code", ["C7510", "C7514", "C7518"])
def test_serialised_wgmma_breaks_the_rules(code):
    line = f"ptxas info    : ({code}) Potential Performance Loss: wgmma.mma_async instructions are"
    kernels, serialised = resources.parse(LOG.format(name="k", stack=0, spill=0) + line)
    assert serialised == [line]
    assert any(code in text for text in resources.broken_rules(kernels, serialised))


def limits(**change):
    kernel = {"stack_bytes": 0, "spill_store_bytes": 0, "spill_load_bytes": 0}
    return resources.broken_rules({"sm90::attention<128, 0>": {**kernel, **change}}, [])


def test_stack_and_spills_break_the_rules():
    assert limits() == []
    assert limits(stack_bytes=8) == []
    assert limits(stack_bytes=16) != []
    assert limits(spill_store_bytes=4) != []
    assert limits(spill_load_bytes=4) != []
    assert resources.broken_rules({}, []) != []


def test_differences_from_the_table():
    table = {"a": {"registers": 1}, "b": {"registers": 2}}
    assert resources.differences(table, table) == []
    assert len(resources.differences({"a": {"registers": 3}, "c": {}}, table)) == 3


def test_the_committed_table_keeps_the_rules():
    table = json.loads(resources.TABLE.read_text())
    assert resources.broken_rules(table["kernels"], []) == []


def test_the_committed_table_counts_the_instructions():
    """QK and PV of a block of 128 keys at least: head_dim / 32 products each way plus 4, head_dim 128 or 64."""
    for name, kernel in json.loads(resources.TABLE.read_text())["kernels"].items():
        assert kernel["instructions"] > 0, name
        if name.startswith("sm90::attention"):
            head_dim = 128 if "<128" in name else 64
            assert kernel["loop"]["tensor"] >= head_dim // 32 + 4, name


def test_instructions_are_left_out_of_the_comparison_where_nothing_counts_them():
    table = {"a": {"registers": 1, "instructions": 5, "loop": {"instructions": 3}}}
    assert resources.without_instructions(table) == {"a": {"registers": 1}}
    changed = {"a": {**table["a"], "instructions": 6}}
    assert resources.differences(changed, table) != []
