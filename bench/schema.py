# SPDX-License-Identifier: Apache-2.0
"""The result files of the benchmark: what is in them, and a check that it is.

    python bench/schema.py bench/results/h200-20261130-1.json ...

    {"gpu", "driver", "date", "commit", "note"?, "problems"?,
     "rows": [{"problem": {"b", "h_q", "h_kv", "s_q", "s_kv", "d"},
               "impl", "scope", "grouping", "ms_median", "ms_min", "ms_max", "tflops",
               "rel_error", "clock_mhz", "power_w"}]}

- problem.s_kv: keys attended to (a key length counts, padding does not). `problems`, optional:
  name -> problem text (bench/problems.py) of everything that was measured.
- scope: kernel (attention on prepared operands), prep (preparing them), whole (both, one call).
  An implementation without preparation has equal work in kernel and whole; both rows stand there.
- grouping: what was done to order the values inside this row: none, warm (the order of the
  step before improved), cold (formed anew). Kernel rows: none.
- ms: of single calls after a warm-up, as many as peers/verdict.py asks of a full run; tflops = 4 b h_q s_q s_kv d / ms_median. In prep
  rows that is the attention's work over the time of preparing: the bound that it sets for the call.
- rel_error: sqrt(sum |o - o*|^2 / sum |o*|^2) over sampled rows against FP64 on the stored inputs;
  null: not checked. clock_mhz, power_w: mean while this row was measured; null: not read.
- h200-YYYYMMDD-N.json is one full run: for every problem kernel and whole rows, of ours and of
  peers. What is less goes to bench/results/parts/. A run without a GPU has gpu and driver null.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

if __package__:
    from . import problems as _problems
else:  # as a program, or with bench/ on the path
    import problems as _problems

OURS = ("vc8", "vc8-turbo", "vc8-paper", "vc8-exp", "sage2-ours", "fp8-ours")
PEERS = ("fa3-bf16", "fa3-fp8", "fa4-bf16", "sageattention2", "cudnn-bf16", "cudnn-fp8", "flash2-bf16")
# Further implementations of ours, in partial files only; "+had" may follow any of ours.
OURS_PARTIAL = ("exact-ours", "bf16-ours", "fp4-ours", "sage3-ours", "vc8-hq", "vc8-fp8qk",
                "vc8-fp8qk-paper", "vc4", "vc4-paper", "vc4-int8qk")  # fmt: skip
SCOPES = ("kernel", "whole", "prep")
GROUPINGS = ("none", "warm", "cold")

_ROOT_KEYS, _ROOT_OPTIONAL = ("gpu", "driver", "date", "commit", "rows"), ("note", "problems")
_PROBLEM_KEYS = ("b", "h_q", "h_kv", "s_q", "s_kv", "d")
_ROW_KEYS = ("problem", "impl", "scope", "grouping", "ms_median", "ms_min", "ms_max", "tflops",
             "rel_error", "clock_mhz", "power_w")  # fmt: skip
_FULL_NAME = re.compile(r"h200-(\d{8})-([1-9]\d*)\.json", re.ASCII)
# tflops may be printed with four digits.
_TFLOPS_ROUNDING = 5e-4


class SchemaError(ValueError):
    """Every fault of a result file, one a line."""


def flops(problem: dict) -> int:
    """Operations of a row's problem."""
    return 4 * math.prod(problem[k] for k in ("b", "h_q", "s_q", "s_kv", "d"))


def tflops(problem: dict, ms: float) -> float:
    """TFLOP/s of a row's problem done in `ms` milliseconds."""
    return flops(problem) / ms * 1e-9


def key(row: dict) -> tuple:
    """What no two rows of a file share."""
    return (*(row["problem"][k] for k in _PROBLEM_KEYS), row["impl"], row["scope"], row["grouping"])


def make_row(problem: dict, impl: str, scope: str, grouping: str, ms: list[float], *,
             rel_error: float | None = None, clock_mhz: float | None = None,
             power_w: float | None = None) -> dict:  # fmt: skip
    """A row from the times of single calls; the median of an even number is the mean of the middle
    two."""
    times = sorted(ms)
    n = len(times)
    median = (times[(n - 1) // 2] + times[n // 2]) / 2
    median, low, high = (float(f"{x:.6g}") for x in (median, times[0], times[-1]))
    return {
        "problem": dict(problem),
        "impl": impl,
        "scope": scope,
        "grouping": grouping,
        "ms_median": median,
        "ms_min": low,
        "ms_max": high,
        "tflops": float(f"{tflops(problem, median):.6g}"),
        "rel_error": rel_error,
        "clock_mhz": clock_mhz,
        "power_w": power_w,
    }


def utc_now() -> str:
    """`date` of a file written now."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def driver() -> str:
    """`driver` of a file written now, as nvidia-smi says it; "unknown" where it does not. For programs without
    peers/cuda.py's Sensors, whose thread samples all the while."""
    try:
        return subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=10, check=True,
        ).stdout.split()[0]  # fmt: skip
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def _is_number(x) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)


def _is_ours(impl: str, partial: bool) -> bool:
    if impl in OURS:
        return True
    return partial and impl.removesuffix("+had") in (*OURS, *OURS_PARTIAL)


def _keys(data, allowed: tuple, optional: tuple, where: str) -> list[str]:
    if not isinstance(data, dict):
        return [f"{where}: not an object"]
    faults = [f"{where}: {k!r} is missing" for k in allowed if k not in data]
    return faults + [f"{where}: {k!r} is unknown" for k in data if k not in (*allowed, *optional)]


def _row_faults(row, where: str, partial: bool) -> list[str]:
    faults = _keys(row, _ROW_KEYS, (), where)
    if faults:
        return faults
    problem = row["problem"]
    faults = _keys(problem, _PROBLEM_KEYS, (), f"{where}.problem")
    if faults:
        return faults
    bad = [k for k in _PROBLEM_KEYS if not isinstance(problem[k], int) or problem[k] is True or problem[k] < 1]
    faults += [f"{where}.problem.{k}: {problem[k]!r} is no integer >= 1" for k in bad]
    if not bad and problem["h_q"] % problem["h_kv"]:
        faults.append(f"{where}.problem: h_q is no multiple of h_kv")
    impl = row["impl"]
    if not isinstance(impl, str) or not (impl in PEERS or _is_ours(impl, partial)):
        faults.append(f"{where}: impl {impl!r} is not one of {', '.join((*OURS, *PEERS))}")
    for name, allowed in (("scope", SCOPES), ("grouping", GROUPINGS)):
        if row[name] not in allowed:
            faults.append(f"{where}: {name} {row[name]!r} is not one of {', '.join(allowed)}")
    if row["scope"] == "kernel" and row["grouping"] != "none":
        faults.append(f"{where}: a kernel row has grouping {row['grouping']!r}, not 'none'")
    times = [row[k] for k in ("ms_min", "ms_median", "ms_max")]
    if not all(_is_number(t) and t > 0 for t in times):
        faults.append(f"{where}: ms_min, ms_median, ms_max {times} are not numbers > 0")
    elif not times[0] <= times[1] <= times[2]:
        faults.append(f"{where}: ms_min <= ms_median <= ms_max does not hold for {times}")
    elif not bad:
        want = tflops(problem, row["ms_median"])
        if not _is_number(row["tflops"]) or abs(row["tflops"] - want) > _TFLOPS_ROUNDING * want:
            faults.append(f"{where}: tflops {row['tflops']!r}, ms_median gives {want:.6g}")
    for name in ("rel_error", "clock_mhz", "power_w"):
        if row[name] is not None and not (_is_number(row[name]) and row[name] >= 0):
            faults.append(f"{where}: {name} {row[name]!r} is neither null nor a number >= 0")
    return faults


def date_of(text) -> datetime.datetime | None:
    """The moment that a file's `date` says; None when it is not in the form of the schema."""
    if not isinstance(text, str) or not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", text, re.ASCII):
        return None
    try:
        return datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        return None


def _root_faults(data: dict) -> list[str]:
    faults = []
    for name in ("gpu", "driver"):
        if data[name] is not None and (not isinstance(data[name], str) or not data[name]):
            faults.append(f"{name} {data[name]!r} is neither null nor a text")
    if (data["gpu"] is None) != (data["driver"] is None):
        faults.append("one of gpu and driver is null; both or neither")
    if date_of(data["date"]) is None:
        faults.append(f"date {data['date']!r} is not like 2026-11-29T19:32:00Z (UTC, to the second)")
    if not isinstance(data["commit"], str) or not re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?|unknown", data["commit"]):
        faults.append(f"commit {data['commit']!r} is no hash of 7 to 40 digits")
    if "note" in data and not isinstance(data["note"], str):
        faults.append("note is no text")
    if not isinstance(data["rows"], list) or not data["rows"]:
        faults.append("rows is no list with at least one row")
    texts = data.get("problems", {})
    if not isinstance(texts, dict):
        return faults + ["problems is no object of name -> problem text"]
    for name, text in texts.items():
        try:
            _problems.parse(text if isinstance(text, str) else "")
        except _problems.ProblemError as e:
            faults.append(f"problems.{name}: {e}")
    return faults


def _full_faults(data: dict) -> list[str]:
    faults = []
    if data["gpu"] is None or "H200" not in data["gpu"]:
        faults.append(f"gpu {data['gpu']!r} is no H200")
    if not re.fullmatch(r"[0-9a-f]{7,40}", data["commit"]):
        faults.append(f"commit {data['commit']!r}: a full run comes from a commit, nothing else")
    seen: dict[tuple, set] = {}
    for row in data["rows"]:
        who = "peers" if row["impl"] in PEERS else "ours"
        seen.setdefault(key(row)[: len(_PROBLEM_KEYS)], set()).add((who, row["scope"]))
    for problem, have in seen.items():
        text = " ".join(f"{k}={n}" for k, n in zip(_PROBLEM_KEYS, problem))
        for who in ("ours", "peers"):
            for scope in ("kernel", "whole"):
                if (who, scope) not in have:
                    faults.append(f"not a full run: {text} has no {scope} row of {who}")
    return faults


def faults(data, *, full: bool) -> list[str]:
    """Everything that is wrong with the content of a result file; [] when nothing is. `full`: it
    must be a full run on an H200."""
    found = _keys(data, _ROOT_KEYS, _ROOT_OPTIONAL, "file")
    if found:
        return found
    found = _root_faults(data)
    if not isinstance(data["rows"], list):
        return found
    row_faults = []
    for i, row in enumerate(data["rows"]):
        row_faults += _row_faults(row, f"rows[{i}]", partial=not full)
    if row_faults:
        return found + row_faults
    seen: dict[tuple, int] = {}
    for i, row in enumerate(data["rows"]):
        first = seen.setdefault(key(row), i)
        if first != i:
            found.append(f"rows[{i}]: the same problem, impl, scope and grouping as rows[{first}]")
    texts = data.get("problems")
    if texts is not None and not any(f.startswith("problems") for f in found):
        known = [_problems.parse(t).row() for t in texts.values()]
        found += [f"rows[{i}]: its problem is not in problems" for i, row in enumerate(data["rows"])
                  if row["problem"] not in known]  # fmt: skip
    return found + (_full_faults(data) if full and not found else [])


def is_full_name(path) -> bool:
    """Whether a file of this name has to be a full run."""
    return pathlib.Path(path).name.startswith("h200-") and pathlib.Path(path).parent.name != "parts"


def check(data, path=None, *, full: bool | None = None) -> None:
    """SchemaError with every fault. `full` follows from the name when a path is given."""
    name = "result" if path is None else str(path)
    if full is None:
        full = path is not None and is_full_name(path)
    found = faults(data, full=full)
    if path is not None and full:
        match = _FULL_NAME.fullmatch(pathlib.Path(path).name)
        date = data.get("date") if isinstance(data, dict) else None
        if match is None:
            found.append("the name of a full run is h200-YYYYMMDD-N.json")
        elif isinstance(date, str) and date[:10].replace("-", "") != match[1]:
            found.append(f"the name says {match[1]}, date {date}")
    if found:
        raise SchemaError("\n".join(f"{name}: {fault}" for fault in found))


def load(path, *, full: bool | None = None) -> dict:
    """A checked result file."""
    try:
        data = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except ValueError as e:
        raise SchemaError(f"{path}: no JSON: {e}") from e
    check(data, path, full=full)
    return data


def to_text(data: dict) -> str:
    """JSON with one row a line."""
    head = {k: v for k, v in data.items() if k != "rows"}
    lines = [f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}," for k, v in head.items()]
    rows = ",\n".join("    " + json.dumps(row, ensure_ascii=False, allow_nan=False) for row in data["rows"])
    return "\n".join(["{", *lines, '  "rows": [', rows, "  ]", "}"]) + "\n"


def write_text(path, text: str) -> None:
    """Writes the whole file or nothing."""
    path = pathlib.Path(path)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, suffix=".part",
                                     delete=False, encoding="utf-8") as part:  # fmt: skip
        try:
            part.write(text)
            part.flush()
            os.fsync(part.fileno())
            os.chmod(part.name, 0o644)
            os.replace(part.name, path)
        except BaseException:
            os.unlink(part.name)
            raise


def write(path, data: dict, *, full: bool | None = None) -> None:
    """Checks, then writes the whole file or nothing."""
    check(data, pathlib.Path(path), full=full)
    write_text(path, to_text(data))


def main(paths: list[str]) -> int:
    if not paths:
        print("usage: schema.py FILE.json ...", file=sys.stderr)
        return 2
    failed = False
    for path in paths:
        try:
            data = load(path)
        except (SchemaError, OSError) as e:
            failed = True
            print(e, file=sys.stderr)
        else:
            kind = "full run" if is_full_name(path) else "partial run"
            print(f"{path}: {kind}, {len(data['rows'])} rows")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
