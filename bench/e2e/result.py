# SPDX-License-Identifier: Apache-2.0
"""Result files of bench/e2e.py: what is in them, the arithmetic of a clip, and a check.

    {"gpu", "driver", "date", "commit", "software": {"torch", ...}, "note"?, "models": [MODEL, ...]}

    MODEL  {"model", "code", "clip", "tokens", "heads", "layers", "steps", "forwards_per_step",
            "batch", "note", "experts": [steps of each],
            "backends": {native backend: ms of one attention call, or why it did not run},
            "between_ms": guidance and scheduler of one step,
            "rows": [ROW, ...], "stages": {"text_encoder": STAGE, "vae_decode": STAGE}, "clips": [CLIP, ...]}
    ROW    {"attention", "linears", "grouping", "forward_ms": [...], "attention_ms": [...],
            "parts_ms", "peak_gib", "clock_mhz", "power_w", "short_ms"?}: forwards of one configuration.
            attention: a native backend of diffusers, or a recipe of ours. linears: bf16, fp8.
            grouping: what is done about the order of values in that forward: none (native), cold (a
            new order), warm (the order of the step before is improved), kept (used as it is).
            attention_ms: all self-attention calls of the forward, from the model's q, k, v to o; in
            ours with the rotation of q and k (RoPE), which the native backends leave to the model.
            parts_ms: GPU time of one attention call by kernel: attention, prepare, group (null:
            native, or not profiled).
            short_ms: instead of forward_ms and attention_ms, [[blocks, forward, attention], ...] of
            forwards of the model's first blocks, all weights resident: the whole takes as much more
            per block as the longest took over the shortest, its attention in proportion to blocks.
            A warm or kept row with parts_ms may have neither: the clip then takes the kept one, or
            the cold one, plus the difference in grouping of each layer.
    STAGE  {"ms": null where it was not measured, "what"}
    CLIP   {"attention", "linears", "step_ms", "clip_s", "step_ratio", "clip_ratio"}, computed from the
            rest (`clips`): a step weighted over the clip, text encoder + all steps + VAE decoder, and
            the ratio of the native backend's time to it, both with BF16 linears in the native run.
            clip_s and clip_ratio are null where a stage was not measured.
"""

from __future__ import annotations

import json
import math
import pathlib
import re
import statistics
from typing import Any

import schema

ROOT_KEYS = ("gpu", "driver", "date", "commit", "software", "models")
MODEL_KEYS = ("model", "code", "clip", "tokens", "heads", "layers", "steps", "forwards_per_step",
              "batch", "note", "experts", "backends", "between_ms", "rows", "stages", "clips")  # fmt: skip
ROW_KEYS = ("attention", "linears", "grouping", "forward_ms", "attention_ms", "parts_ms", "peak_gib",
            "clock_mhz", "power_w")  # fmt: skip
OPTIONAL_ROW_KEYS = ("short_ms",)
STAGES = ("text_encoder", "vae_decode")
GROUPINGS = ("none", "cold", "warm", "kept")


class ResultError(ValueError):
    """Every fault of a file, one a line."""


def window(steps: int) -> int:
    """Steps of the default policy's window: the first quarter."""
    return max(1, math.ceil(steps / 4))


def groupings(steps: int, experts: list[int]) -> dict[str, int]:
    """How many steps of a clip form a new order, improve it and keep it, with the default policy:
    a window of a quarter of the steps, and a first order in each expert's first step. Steps after
    the window are taken to keep their order (a head whose removed energy decays regroups)."""
    inside = window(steps)
    counts = {"cold": 0, "warm": 0, "kept": 0}
    begin = 0
    for own in experts:
        for step in range(begin, begin + own):
            counts["cold" if step == begin else "warm" if step < inside else "kept"] += 1
        begin += own
    return counts


def forward_ms(model: dict, row: dict) -> float | None:
    """One forward of a row: the median of what was measured, or extrapolated from shorter ones; None
    where it has neither."""
    if row["forward_ms"]:
        return statistics.median(row["forward_ms"])
    points = row.get("short_ms")
    if not points:
        return None
    (few, less, _), (many, more, _) = points[0], points[-1]
    return more + (model["layers"] - many) * (more - less) / (many - few)


def attention_ms(model: dict, row: dict) -> float | None:
    """The self-attention calls of one forward of a row, likewise."""
    if row["attention_ms"]:
        return statistics.median(row["attention_ms"])
    points = row.get("short_ms")
    return points and points[-1][2] * model["layers"] / points[-1][0]


def grouped_ms(model: dict, rows: dict[str, dict], grouping: str) -> float | None:
    """A forward with that grouping: its row's, or from another one and the kernel times of both."""
    row = rows.get(grouping)
    if row is None:
        return None
    own = forward_ms(model, row)
    if own is not None:
        return own
    for other in (rows.get("kept"), rows.get("cold")):
        known = None if other is None else forward_ms(model, other)
        if known is not None and other["parts_ms"] is not None:
            more = row["parts_ms"]["group"] - other["parts_ms"]["group"]
            return known + model["layers"] * more
    return None


def _step_ms(model: dict, rows: dict[str, dict]) -> float | None:
    """One step, weighted over the clip; None where a row for it is missing."""
    if "none" in rows:
        forward = forward_ms(model, rows["none"])
        if forward is None:
            return None
    else:
        counts = groupings(model["steps"], model["experts"])
        times = {g: grouped_ms(model, rows, g) for g in counts}
        # Where no warm forward is known, a cold one stands in: dearer, so the clip is not flattered.
        times["warm"] = times["warm"] or times["cold"]
        if None in times.values():
            return None
        forward = sum(counts[g] * times[g] for g in counts) / sum(counts.values())
    return model["forwards_per_step"] * forward + model["between_ms"]


def clips(model: dict) -> list[dict]:
    """The clips of a model's rows."""
    cells: dict[tuple, dict[str, dict]] = {}
    for row in model["rows"]:
        cells.setdefault((row["attention"], row["linears"]), {})[row["grouping"]] = row
    stages = [model["stages"].get(name, {}).get("ms") for name in STAGES]
    rest = None if None in stages else sum(stages) / 1000
    found, native = [], None
    for (attention, linears), rows in cells.items():
        step = _step_ms(model, rows)
        if step is None:
            continue
        clip = None if rest is None else rest + model["steps"] * step / 1000
        if native is None and "none" in rows and linears == "bf16":
            native = (step, clip)
        found.append((attention, linears, step, clip))
    return [
        {"attention": attention, "linears": linears, "step_ms": round(step, 1),
         "clip_s": None if clip is None else round(clip, 2),
         "step_ratio": None if native is None else round(native[0] / step, 3),
         "clip_ratio": None if native is None or clip is None else round(native[1] / clip, 3)}
        for attention, linears, step, clip in found
    ]  # fmt: skip


def _numbers(values: Any) -> bool:
    return isinstance(values, list) and len(values) > 0 and all(
        isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x) and x > 0
        for x in values
    )


def _short_faults(row: dict, layers: int, where: str) -> list[str]:
    points = row["short_ms"]
    whole = isinstance(points, list) and len(points) > 1
    if not whole or any(not isinstance(p, list) or len(p) != 3 or not _numbers(p) for p in points):
        return [f"{where}: short_ms is no list of two or more [blocks, forward, attention]"]
    counts = [p[0] for p in points]
    if any(not isinstance(n, int) for n in counts) or counts != sorted(set(counts)) or counts[-1] > layers:
        return [f"{where}: short_ms has {counts} blocks, not rising numbers up to {layers}"]
    if any(attention > forward for _, forward, attention in points):
        return [f"{where}: attention takes longer than the forward that it is part of"]
    if row["forward_ms"] or row["attention_ms"]:
        return [f"{where}: both short_ms and whole forwards"]
    return []


def _shorter_is_longer(model: dict, where: str) -> list[str]:
    found = []
    for j, row in enumerate(model["rows"]):
        times = [point[1] for point in row.get("short_ms", ()) if isinstance(point, list) and len(point) == 3]
        if times != sorted(times):
            found.append(f"{where}.rows[{j}]: more blocks took less time, so nothing can be extrapolated: {times}")
    return found


def _row_faults(row: Any, layers: int, where: str) -> list[str]:
    if not isinstance(row, dict) or set(row) - set(OPTIONAL_ROW_KEYS) != set(ROW_KEYS):
        return [f"{where}: fields {sorted(row) if isinstance(row, dict) else row!r}, not {sorted(ROW_KEYS)}"]
    found = []
    if row["grouping"] not in GROUPINGS or row["linears"] not in ("bf16", "fp8"):
        found.append(f"{where}: grouping {row['grouping']!r}, linears {row['linears']!r}")
    if "short_ms" in row:
        return found + _short_faults(row, layers, where)
    derived = row["forward_ms"] == row["attention_ms"] == [] and row["parts_ms"] is not None
    if derived and row["grouping"] in ("warm", "kept"):
        return found
    if not _numbers(row["forward_ms"]) or not _numbers(row["attention_ms"]):
        found.append(f"{where}: forward_ms or attention_ms is no list of times")
    elif len(row["forward_ms"]) != len(row["attention_ms"]):
        found.append(f"{where}: as many attention_ms as forward_ms")
    elif any(a > f for a, f in zip(row["attention_ms"], row["forward_ms"])):
        found.append(f"{where}: attention takes longer than the forward that it is part of")
    return found


def faults(data: Any) -> list[str]:
    """Everything that is wrong with the content of a file; [] when nothing is."""
    if not isinstance(data, dict) or not set(ROOT_KEYS) <= set(data) <= {*ROOT_KEYS, "note"}:
        return [f"file: not an object with {', '.join(ROOT_KEYS)}"]
    found = []
    if not isinstance(data["date"], str) or not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", data["date"]):
        found.append(f"date {data['date']!r} is not like 2026-11-30T04:32:00Z")
    if not isinstance(data["commit"], str) or not re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?|unknown", data["commit"]):
        found.append(f"commit {data['commit']!r} is no hash")
    if (data["gpu"] is None) != (data["driver"] is None):
        found.append("one of gpu and driver is null; both or neither")
    if not isinstance(data["models"], list) or not data["models"]:
        return found + ["models is no list with at least one model"]
    for i, model in enumerate(data["models"]):
        where = f"models[{i}]"
        if not isinstance(model, dict) or set(model) != set(MODEL_KEYS):
            found.append(f"{where}: fields are not {', '.join(MODEL_KEYS)}")
            continue
        bad = [f for j, row in enumerate(model["rows"]) for f in _row_faults(row, model["layers"], f"{where}.rows[{j}]")]
        keys = [tuple(row.get(k) for k in ("attention", "linears", "grouping")) for row in model["rows"]]
        if len(set(keys)) != len(keys):
            bad.append(f"{where}: two rows of one configuration")
        if sum(model["experts"]) != model["steps"]:
            bad.append(f"{where}: the experts' steps do not add up")
        if data["gpu"] is not None:  # tiny models on a busy CPU may do what they like
            bad += _shorter_is_longer(model, where)
        if not bad and clips(model) != model["clips"]:
            bad.append(f"{where}: clips do not follow from the rows")
        found += bad
    return found


def check(data: Any, name: str = "result") -> None:
    """ResultError with every fault."""
    found = faults(data)
    if found:
        raise ResultError("\n".join(f"{name}: {fault}" for fault in found))


def to_text(data: dict) -> str:
    """JSON with one row, clip or field of a model a line."""

    def plain(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    def listed(values: list, indent: str) -> str:
        rows = ",\n".join(f"{indent} {plain(v)}" for v in values)
        return f"[\n{rows}\n{indent}]" if values else "[]"

    models = []
    for model in data["models"]:
        lines = [
            f"   {plain(k)}: {listed(v, '   ') if k in ('rows', 'clips') else plain(v)}"
            for k, v in model.items()
        ]
        models.append("  {\n" + ",\n".join(lines) + "\n  }")
    head = [f" {plain(k)}: {plain(v)}" for k, v in data.items() if k != "models"]
    body = ' "models": [\n' + ",\n".join(models) + "\n ]"
    return "{\n" + ",\n".join([*head, body]) + "\n}\n"


def write(path: pathlib.Path, data: dict) -> None:
    """Checks, then writes the whole file or nothing."""
    check(data, str(path))
    schema.write_text(path, to_text(data))


def merge(files: list[dict]) -> dict:
    """One file of several runs on the same machine and commit."""
    heads = [{k: f[k] for k in ("gpu", "driver", "commit", "software")} for f in files]
    if any(head != heads[0] for head in heads):
        raise ResultError(f"not of one machine, commit and software: {heads}")
    names = [m["model"] for f in files for m in f["models"]]
    if len(set(names)) != len(names):
        raise ResultError(f"a model twice: {names}")
    notes = [f["note"] for f in files if f.get("note")]
    merged = heads[0] | {"date": max(f["date"] for f in files)}
    if notes:
        merged["note"] = "; ".join(dict.fromkeys(notes))
    return merged | {"models": [m for f in files for m in f["models"]]}
