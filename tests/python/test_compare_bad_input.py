# SPDX-License-Identifier: Apache-2.0
"""What `vcattn compare` must refuse: exit code 2, a message with what, got and allowed, no file."""

import copy
import json
import os
import resource
import signal
import subprocess
import time

import numpy as np
import pytest
from compare_dumps import BINARY, assert_refused, dump, random_qkv, raw, vcattn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

GOOD = {
    name: {"dtype": "F32", "shape": [1, 1, 2, 4], "data_offsets": [32 * i, 32 * i + 32]}
    for i, name in enumerate("qkv")
}
DATA = bytes(96)


def changed(name: str, **fields) -> dict:
    header = copy.deepcopy(GOOD)
    header[name].update(fields)
    return header


def refuse(tmp_path, content: bytes, *words, args=()):
    path = tmp_path / "t.safetensors"
    path.write_bytes(content)
    before = path.read_bytes()
    done = vcattn("compare", path, "--json", tmp_path / "o.json", "--report", tmp_path / "r", *args)
    assert_refused(done, *words)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.safetensors"]
    assert path.read_bytes() == before


def test_the_good_file_is_good(tmp_path):
    path = tmp_path / "t.safetensors"
    path.write_bytes(raw(GOOD, DATA))
    assert vcattn("compare", path, "--quiet").returncode == 0


FILES = {
    "empty": (b"", "ends inside its header", "allowed"),
    "truncated length": (b"\x08\0\0", "ends inside its header", "3 bytes"),
    "truncated header": (raw(GOOD, b"", 5000), "ends inside its header", "5000"),
    "truncated data": (raw(GOOD, DATA[:-1]), "out of range"),
    "oversized header": (raw(GOOD, DATA, 100_000_001), "header is too long", "100000001"),
    "header length of all ones": (b"\xff" * 200, "header is too long"),
    "not JSON": (raw(b"{'q': 1}", DATA), "not JSON", "got", "allowed"),
    "JSON of another kind": (raw([1, 2], DATA), "not a JSON object"),
    "not UTF-8": (raw(b'{"\xff":0}', DATA), "not JSON"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(100), "header is too long"),
    "duplicate tensor": (
        raw(b'{"q":{},"q":{}}', DATA), "a key twice", '"q"',
    ),
    "rest after the tensors": (raw(GOOD, DATA + b"x"), "bytes after the last tensor"),
    "overlapping": (raw(changed("k", data_offsets=[16, 48]), DATA), "overlaps"),
    "a hole": (raw(changed("v", data_offsets=[68, 100]), DATA + bytes(4)), "hole"),
    "end beyond the file": (raw(changed("v", data_offsets=[64, 2**40]), DATA), "out of range"),
    "begin after end": (raw(changed("v", data_offsets=[96, 64]), DATA), "out of range"),
    "negative offset": (raw(changed("q", data_offsets=[-32, 32]), DATA), "whole number"),
    "negative shape": (raw(changed("q", shape=[1, 1, -2, 4]), DATA), "whole number", "-2"),
    "fractional shape": (raw(changed("q", shape=[1, 1, 2.0, 4]), DATA), "whole number"),
    "overflowing shape": (
        raw(changed("q", shape=[2**31, 2**31, 2**31, 4]), DATA), "overflows",
    ),
    "overflow hidden by a zero": (
        raw(changed("q", shape=[0, 2**62, 2**62, 4], data_offsets=[0, 0]), DATA), "overflows",
    ),
    "shape and bytes differ": (raw(changed("q", shape=[1, 1, 2, 3]), DATA), "do not fit the shape"),
    "unknown dtype": (raw(changed("q", dtype="F31"), DATA), "unknown dtype", "F31"),
    "missing field": (
        raw({"q": {"dtype": "F32", "shape": [0]}}, b""), "has no data_offsets",
    ),
    "no tensors": (raw({}), "tensor q is missing", "no tensor at all"),
    "metadata only": (raw({"__metadata__": {"a": "b"}}), "tensor q is missing"),
    "bad metadata": (raw({"__metadata__": {"a": 1}}), "not a string"),
    "nested lists": (raw(b"[" * 200_000 + b"]" * 200_000), "nested too deeply", "allowed"),
    "nested lists as a tensor": (
        raw(b'{"q":' + b"[" * 200_000 + b"]" * 200_000 + b"}"), "nested too deeply",
    ),
    "nested lists as metadata": (
        raw(b'{"__metadata__":{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}}"), "nested too deeply",
    ),
    "nested objects": (raw(b'{"q":' * 200_000 + b"1" + b"}" * 200_000), "nested too deeply"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_bad_files(tmp_path, name):
    content, *words = FILES[name]
    refuse(tmp_path, content, *words)


def test_missing_file_and_directory(tmp_path):
    assert_refused(vcattn("compare", tmp_path / "absent"), "No such file")
    assert_refused(vcattn("compare", tmp_path), "a directory", "allowed")


def tensors_file(tmp_path, tensors, dtype="F32") -> bytes:
    path = dump(tmp_path / "t.safetensors", tensors, dtype)
    content = path.read_bytes()
    path.unlink()
    return content


@pytest.mark.parametrize("name", list("qkv"))
def test_missing_tensor(tmp_path, name):
    tensors = random_qkv(s_q=2, s_kv=2)
    tensors["other"] = tensors.pop(name)
    refuse(tmp_path, tensors_file(tmp_path, tensors), f"tensor {name} is missing", "other", "allowed")


def test_names_in_messages_are_cut_and_without_control_characters(tmp_path):
    tensors = random_qkv(s_q=2, s_kv=2)
    tensors["\x1b[2Jq\n" + "x" * 100_000] = tensors.pop("q")
    content = tensors_file(tmp_path, tensors)
    refuse(tmp_path, content, "tensor q is missing", "allowed")
    done = vcattn("compare", tmp_path / "t.safetensors", "--recipes", "\x1b[2J" + "x" * 100_000)
    for err in (vcattn("compare", tmp_path / "t.safetensors").stderr, done.stderr):
        assert "\x1b" not in err and len(err) < 1000


@pytest.mark.parametrize("dtype", ["F64", "I32"])
def test_wrong_dtype(tmp_path, dtype):
    content = tensors_file(tmp_path, random_qkv(s_q=2, s_kv=2), dtype)
    refuse(tmp_path, content, "unsupported dtype", dtype, "BF16, F16, F32")


def test_mixed_dtypes(tmp_path):
    header = changed("q", dtype="BF16", shape=[1, 1, 4, 4])
    refuse(tmp_path, raw(header, DATA), "different dtypes", "BF16, F32, F32")


def shapes(q, k, v) -> dict:
    return {"q": np.zeros(q), "k": np.zeros(k), "v": np.zeros(v)}


SHAPES = {
    "three dimensions": (shapes((2, 3, 8), (2, 3, 8), (2, 3, 8)), "four dimensions"),
    "five dimensions": (shapes((1,) * 5, (1,) * 5, (1,) * 5), "four dimensions"),
    "head_dim 0": (shapes((1, 1, 3, 0), (1, 1, 3, 0), (1, 1, 3, 0)), "1 to 128"),
    "head_dim 129": (shapes((1, 1, 3, 129), (1, 1, 3, 129), (1, 1, 3, 129)), "1 to 128"),
    "head_dim of k": (shapes((1, 1, 3, 8), (1, 1, 3, 9), (1, 1, 3, 9)), "head dimensions"),
    "head_dim of v": (shapes((1, 1, 3, 8), (1, 1, 3, 8), (1, 1, 3, 4)), "k and v"),
    "tokens of v": (shapes((1, 1, 3, 8), (1, 1, 3, 8), (1, 1, 4, 8)), "k and v"),
    "heads of v": (shapes((1, 2, 3, 8), (1, 2, 3, 8), (1, 1, 3, 8)), "k and v"),
    "batches": (shapes((2, 1, 3, 8), (1, 1, 3, 8), (1, 1, 3, 8)), "batch sizes"),
    "3 query heads on 2": (shapes((1, 3, 3, 8), (1, 2, 3, 8), (1, 2, 3, 8)), "multiple"),
    "1 query head on 2": (shapes((1, 1, 3, 8), (1, 2, 3, 8), (1, 2, 3, 8)), "multiple"),
    "no heads": (shapes((1, 0, 3, 8), (1, 0, 3, 8), (1, 0, 3, 8)), "multiple"),
    "no key heads": (shapes((1, 2, 3, 8), (1, 0, 3, 8), (1, 0, 3, 8)), "multiple"),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(tmp_path, name):
    tensors, *words = SHAPES[name]
    refuse(tmp_path, tensors_file(tmp_path, tensors), *words, "got", "allowed")


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("name,value", [("q", np.nan), ("k", np.inf), ("v", -np.inf)])
def test_not_finite_names_the_first_index(tmp_path, dtype, name, value):
    tensors = random_qkv(s_q=70, s_kv=70, heads=2, kv_heads=2, batch=2)
    tensors[name][1, 0, 33, 5] = value
    tensors[name][1, 1, 2, 0] = np.nan
    content = tensors_file(tmp_path, tensors, dtype)
    kind = "NaN" if np.isnan(value) else "Inf"
    refuse(tmp_path, content, f"tensor {name} is not finite", f"{kind} at [1, 0, 33, 5]")


def test_not_finite_index_is_in_the_layout_of_the_file(tmp_path):
    tensors = {n: np.zeros((1, 5, 2, 8)) for n in "qkv"}
    tensors["v"][0, 4, 1, 7] = np.inf
    content = tensors_file(tmp_path, tensors)
    refuse(tmp_path, content, "[0, 4, 1, 7] of [B, S, H, D]", args=("--layout", "NHD"))


OPTIONS = {
    "unknown recipe": (["--recipes", "vc9"], "vc9", "vc8-hq"),
    "recipe with a capital": (["--recipes", "VC8"], "VC8"),
    "no recipe": (["--recipes", ""], "--recipes is empty"),
    "unknown suffix": (["--recipes", "vc8+hat"], "vc8+hat"),
    "unknown grouping": (["--grouping", "kmean"], "kmean", "kmeans"),
    "unknown target": (["--target", "sm91"], "sm91", "sm90"),
    "unknown layout": (["--layout", "hnd"], "hnd", "NHD"),
    "negative rows": (["--rows", "-1"], "--rows"),
    "rows that are no number": (["--rows", "many"], "--rows", "many"),
    "negative threads": (["--threads", "-1"], "--threads"),
    "grid of two": (["--grid", "1,2"], "--grid"),
    "grid with a zero": (["--grid", "0,1,2"], "--grid"),
    "grid of other tokens": (["--grid", "3,5,7"], "--grid does not fit", "130 tokens"),
    "overflowing grid": (["--grid", "2147483647,2147483647,2147483647"], "--grid does not fit"),
    "cubes without a grid": (["--grouping", "cubes"], "needs the shape", "--grid"),
    "unknown option": (["--frobnicate"], "--frobnicate"),
    "second file": (["again"], "again"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(tmp_path, name):
    args, *words = OPTIONS[name]
    refuse(tmp_path, tensors_file(tmp_path, random_qkv()), *words, args=args)


# ---- output that cannot be written ----


@pytest.fixture
def good(tmp_path):
    return dump(tmp_path / "t.safetensors", random_qkv(s_q=4))


def test_output_directory_missing(good, tmp_path):
    assert_refused(vcattn("compare", good, "--json", tmp_path / "no" / "o.json"), "No such file")


def test_output_is_a_directory(good, tmp_path):
    assert_refused(vcattn("compare", good, "--json", tmp_path), "a directory")


def test_report_is_a_file(good, tmp_path):
    (tmp_path / "r").write_text("mine")
    assert_refused(vcattn("compare", good, "--report", tmp_path / "r"), "cannot create")
    assert (tmp_path / "r").read_text() == "mine"


def test_output_would_overwrite_the_input(good):
    before = good.read_bytes()
    assert_refused(vcattn("compare", good, "--json", good), "overwrite the input")
    assert good.read_bytes() == before


@pytest.mark.parametrize("option", ["--json", "--report"])
def test_empty_output_name_is_not_no_output(good, tmp_path, option):
    assert_refused(vcattn("compare", good, option, ""), f"{option} is empty", "got", "allowed", "hint")


def test_report_would_overwrite_the_input(tmp_path):
    path = dump(tmp_path / "index.html", random_qkv(s_q=4))
    before = path.read_bytes()
    assert_refused(vcattn("compare", path, "--report", tmp_path), "--report would overwrite")
    assert path.read_bytes() == before


def test_json_and_report_in_one_file(good, tmp_path):
    done = vcattn("compare", good, "--report", tmp_path / "r", "--json", tmp_path / "r/index.html")
    assert_refused(done, "one file", "allowed")
    assert list(tmp_path.iterdir()) == [good]


def test_json_into_a_named_pipe(good, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    try:
        done = vcattn("compare", good, "--recipes", "vc8", "--json", pipe, "--quiet", timeout=60)
        assert done.returncode == 0, done.stderr
        assert "vc8" in json.loads(reader.communicate(timeout=20)[0])["recipes"]
    finally:
        reader.kill()


def test_input_that_shrinks_while_it_is_read(tmp_path):
    path = dump(tmp_path / "t.safetensors", random_qkv(s_q=5000, s_kv=5000, d=128, heads=4,
                                                       kv_heads=4))  # fmt: skip
    process = subprocess.Popen(
        [BINARY, "compare", path, "--rows", "0", "--json", tmp_path / "o.json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(1.5)
    assert process.poll() is None, process.communicate()
    os.truncate(path, 4096)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2, (process.returncode, err)
    assert out == "" and "can no longer be read" in err and "hint" in err
    assert list(tmp_path.iterdir()) == [path]


def test_full_disk(good, tmp_path):
    assert_refused(vcattn("compare", good, "--json", "/dev/full"), "No space left on device")
    report = tmp_path / "new" / "report"
    done = vcattn("compare", good, "--json", "/dev/full", "--report", report)
    assert_refused(done, "No space left on device")
    assert not (tmp_path / "new").exists()


def limited(bytes_of_a_file):
    """A limit on the size of written files fails as a full disk does, in the middle of a write; it
    works as root and needs no file system of its own."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_of_a_file, bytes_of_a_file))


@pytest.mark.parametrize("option,target", [("--json", "o.json"), ("--report", "r")])
def test_disk_full_in_the_middle(good, tmp_path, option, target):
    done = vcattn("compare", good, option, tmp_path / target, preexec_fn=limited(100))
    assert_refused(done, "cannot write", "hint")
    left = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert left == [good]


def test_disk_full_keeps_the_old_result(good, tmp_path):
    (tmp_path / "o.json").write_text("old")
    done = vcattn("compare", good, "--json", tmp_path / "o.json", preexec_fn=limited(100))
    assert_refused(done, "cannot write")
    assert (tmp_path / "o.json").read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["o.json", "t.safetensors"]


def test_full_standard_output(good):
    with open("/dev/full", "w") as full:
        done = subprocess.run([BINARY, "compare", good], stdout=full, stderr=subprocess.PIPE,
                              text=True, timeout=60)  # fmt: skip
    assert done.returncode == 2 and "standard output" in done.stderr


def test_unwritable_directory(good, tmp_path):
    place = tmp_path / "locked"
    place.mkdir(mode=0o500)
    # Root may write anywhere but where the kernel itself says no.
    target = place / "o.json" if os.geteuid() != 0 else "/proc/vcattn.json"
    assert_refused(vcattn("compare", good, "--json", target), "cannot create", "got", "hint")


# ---- Ctrl-C ----


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_interrupt(tmp_path, which):
    # Some 10^11 multiply-adds: minutes, whatever the machine.
    path = dump(tmp_path / "t.safetensors", random_qkv(s_q=9000, s_kv=9000, d=128, heads=4,
                                                       kv_heads=4))  # fmt: skip
    process = subprocess.Popen(
        [BINARY, "compare", path, "--rows", "0", "--json", tmp_path / "o.json", "--report",
         tmp_path / "r"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(1.5)
    assert process.poll() is None, process.communicate()
    process.send_signal(which)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert out == "" and "interrupted" in err
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]


# ---- generated files ----


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_bytes_never_crash(tmp_path_factory, data):
    """A good file with some bytes changed or cut: refused or read, never a signal or another code."""
    content = bytearray(raw(GOOD, DATA))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))] if data.draw(
        st.booleans()) else content  # fmt: skip
    path = tmp_path_factory.mktemp("damaged") / "t.safetensors"
    path.write_bytes(content)
    done = vcattn("compare", path, "--recipes", "vc8", "--quiet")
    assert done.returncode in (0, 2), (done.returncode, done.stderr)
    assert (done.returncode == 2) == bool(done.stderr)
