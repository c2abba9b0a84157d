# SPDX-License-Identifier: Apache-2.0
"""How far a model's clips move when only its attention changes.

For owners of weights: the same prompts, seeds and steps, once with the reference attention (the
model's own, in BF16) and once with each other, and measures of each clip against the reference:
PSNR, SSIM, LPIPS (package ``lpips``), VBench's subject consistency and imaging quality (package
``vbench``). The published protocol is 100 prompts of MovieGen Bench; give its file as ``prompts``.

    python -m vcattn.fidelity Wan-AI/Wan2.2-T2V-A14B-Diffusers --prompts MovieGenVideoBench.txt \\
        --call '{"height": 720, "width": 1280, "num_frames": 81}' --out out/fidelity

or from Python with any diffusers pipeline:

    from vcattn import fidelity
    result = fidelity.run(pipe, fidelity.read_prompts("prompts.txt"), "out/fidelity",
                          backends=["native", "vcattn:vc8"])

A run that stops goes on where it was when it is started again with the same settings: a clip is
finished when its record and its files under ``clips/`` are there. ``result.json`` and ``index.html`` are written at
the end of every run. Needs torch, diffusers and the ``ffmpeg`` command.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .. import _options
from .._errors import InvalidArgumentError, NonFiniteError, refuse
from . import _metrics
from ._page import page

__all__ = ["read_prompts", "run", "write_video"]

Inputs = Callable[[str, Any], dict]


def read_prompts(path: str | os.PathLike, count: int | None = 100) -> list[str]:
    """The first ``count`` prompts of a UTF-8 file with one prompt a line (None: all)."""
    if count is not None and _options.integer("count", count) < 1:
        raise refuse("count", count, "1 or more, or None for all")
    lines = [line.strip() for line in pathlib.Path(path).read_text("utf-8-sig").splitlines()]
    prompts = [line for line in lines if line][:count]
    if not prompts:
        raise refuse(f"'{path}' has no prompt", "an empty file", "one prompt a line")
    return prompts


@contextlib.contextmanager
def _attention(pipe: Any, name: str, options: dict) -> Iterator[Callable[[], dict[str, int]]]:
    """The pipeline with this attention; gives a function that counts who ran the calls."""
    if name == "native":
        yield dict
        return
    from ..integrations import diffusers as integration

    if name.startswith("vcattn:"):
        integration.enable(pipe, recipe=name.removeprefix("vcattn:"), **options)

        def counts() -> dict[str, int]:
            total: Counter[str] = Counter()
            for layer in integration.report(pipe).values():
                total.update(layer)
            if not total["vcattn"]:
                raise InvalidArgumentError(
                    f"{name} ran no attention call, so there is nothing to compare; got "
                    f"{dict(total)}; hint: min_keys in enable_options, or a longer clip"
                )
            return dict(total)

        try:
            yield counts
        finally:
            integration.disable(pipe)
        return
    models: list[Any] = list(integration._models_of(pipe).values())
    for model in models:
        model.set_attention_backend(name)
    try:
        yield dict
    finally:
        for model in models:
            model.reset_attention_backend()


def _generate(pipe: Any, inputs: Inputs, prompt: str, seed: int, name: str) -> np.ndarray:
    import torch

    generator = torch.Generator().manual_seed(seed)
    frames = np.asarray(pipe(**inputs(prompt, generator), output_type="np").frames[0], np.float32)
    least = _metrics.LEAST_PIXELS
    if frames.ndim != 4 or frames.shape[3] != 3 or not len(frames) or min(frames.shape[1:3]) < least:
        wanted = f"[F, H, W, 3] with F >= 1 and H, W >= {least}"
        raise refuse(f"frames of {name}", f"shape {frames.shape}", wanted)
    bad = int((~np.isfinite(frames)).sum())
    if bad:  # black or wrapped pixels would be measured as if they were a picture
        raise NonFiniteError(
            f"{name} gave frames with {bad} of {frames.size} values that are not finite; got prompt "
            f"{prompt[:60]!r}, seed {seed}; allowed: finite values"
        )
    return _eight_bit(frames)


def _write(path: pathlib.Path, data: bytes) -> None:
    """All or nothing: a run that is killed leaves no half file under the name."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    part.replace(path)


def _eight_bit(frames: Any) -> np.ndarray:
    return np.rint(np.clip(np.asarray(frames, np.float32), 0, 1) * 255).astype(np.uint8)


def write_video(path: str | os.PathLike, frames: np.ndarray, fps: int) -> None:
    """An H.264 clip of frames [F, H, W, 3], uint8 or 0..1, by the ffmpeg command; all or nothing.
    Raises RuntimeError with ffmpeg's own text."""
    path = pathlib.Path(path)
    frames = frames if frames.dtype == np.uint8 else _eight_bit(frames)
    part = path.with_name("part-" + path.name)
    height, width = frames.shape[1:3]
    command = [
        "ffmpeg", "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24",
        "-s", f"{width}x{height}", "-r", str(fps), "-i", "-", "-pix_fmt", "yuv420p",
        "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-crf", "14", "-movflags", "+faststart", str(part),
    ]  # fmt: skip
    done = subprocess.run(command, input=frames.tobytes(), capture_output=True)
    if done.returncode != 0:
        raise RuntimeError(f"ffmpeg failed on '{path}': {done.stderr.decode()[-500:]}")
    part.replace(path)


def _clip(
    pipe: Any, inputs: Inputs, prompt: str, seed: int, index: int, backends: Sequence[str],
    options: dict, out: pathlib.Path, fps: int,
) -> dict:  # fmt: skip
    """Generates one prompt with every attention and compares; writes the clips."""
    entry: dict = {"index": index, "prompt": prompt, "seed": seed, "backends": {}}
    reference = None
    for name in backends:
        folder = out / "clips" / _folder(name)
        folder.mkdir(parents=True, exist_ok=True)
        with _attention(pipe, name, options) as counts:
            frames = _generate(pipe, inputs, prompt, seed, name)
            calls = counts()
        video = folder / f"{index:03d}.mp4"
        write_video(video, frames, fps)
        record: dict = {"file": video.relative_to(out).as_posix()}
        if calls:
            record["calls"] = calls
        if reference is None:
            reference = frames
        else:
            record["measures"] = _metrics.compare(frames, reference)
        entry["backends"][name] = record
    return entry


def _folder(backend: str) -> str:
    return re.sub(r"[^\w.-]", "-", backend, flags=re.ASCII)


def _check(prompts: Any, backends: Any, seed: Any, fps: Any, call: Any, options: Any) -> None:
    """Everything that would stop a run, before its first clip takes minutes."""
    if isinstance(prompts, str) or not isinstance(prompts, Sequence) or not prompts:
        raise refuse("prompts", type(prompts).__name__, "a list with at least one prompt")
    for prompt in prompts:
        if not isinstance(prompt, str):
            raise refuse("a prompt", repr(prompt), "text")
    names = [] if isinstance(backends, str) else list(backends)
    folders = {_folder(name).lower() for name in names if isinstance(name, str)}
    if len(names) < 2 or len(folders) != len(names) or folders & {"", ".", ".."}:
        allowed = "a reference and at least one other, all different, with folder names of their own"
        raise refuse("backends", backends if isinstance(backends, str) else names, allowed)
    last = _options.integer("seed", seed) + len(prompts) - 1
    if seed < 0 or last >= 2**63:
        raise refuse("seed", seed, f"0 .. {2**63 - len(prompts)}")
    if not 0 < _options.number("fps", fps) < float("inf"):
        raise refuse("fps", fps, "a positive number")
    for what, value in (("call", call), ("enable_options", options)):
        if value is not None and not isinstance(value, dict):
            raise refuse(what, type(value).__name__, "a dictionary of keyword arguments")
    try:
        json.dumps(call)
    except (TypeError, ValueError) as error:
        raise refuse("call", str(error), "what JSON can hold", "pass the rest by inputs=") from None


def _summary(clips: list[dict], backends: Sequence[str]) -> dict[str, dict[str, float | None]]:
    summary = {}
    for name in backends[1:]:
        columns: dict[str, list] = {}
        for clip in clips:
            for measure, value in clip["backends"][name]["measures"].items():
                known = columns.setdefault(measure, [])
                if value is not None:
                    known.append(value)
        summary[name] = {
            measure: float(np.mean(known)) if known else None for measure, known in columns.items()
        }
    return summary


def run(
    pipe: Any,
    prompts: Sequence[str],
    out: str | os.PathLike,
    *,
    backends: Sequence[str] = ("native", "vcattn:vc8"),
    call: dict | None = None,
    inputs: Inputs | None = None,
    seed: int = 0,
    fps: int = 16,
    enable_options: dict | None = None,
    progress: bool = True,
) -> dict:
    """Generates, compares, writes; returns what ``result.json`` holds.

    Args:
        pipe: a diffusers pipeline on its device.
        prompts: one clip each; clip i has the seed ``seed + i`` in every backend.
        out: folder of the results; one made with other settings is refused.
        backends: the reference first, then what is compared with it: "native", "vcattn:RECIPE", or
            a name that diffusers' ``set_attention_backend`` takes.
        call: keyword arguments of every call of the pipeline (height, num_frames, ...).
        inputs: instead of ``prompt=``: a function (prompt, generator) -> keyword arguments.
        fps: of the written clips, which are only for looking at (the measures see the frames).
        enable_options: of ``vcattn.integrations.diffusers.enable``.
        progress: a progress bar.

    Raises: InvalidArgumentError for settings that do not fit, before the first clip is made, and for
        frames that are no [F, H, W, 3]; NonFiniteError for frames with NaN or infinities;
        RuntimeError without ffmpeg.
    """
    _check(prompts, backends, seed, fps, call, enable_options)
    if shutil.which("ffmpeg") is None:
        raise RuntimeError("the command ffmpeg is not there; on Debian: apt-get install ffmpeg")
    out, call, options = pathlib.Path(out), dict(call or {}), dict(enable_options or {})
    if inputs is None:

        def inputs(prompt: str, generator: Any) -> dict:
            return {"prompt": prompt, "generator": generator, **call}

    settings = {
        "pipeline": type(pipe).__name__, "backends": list(backends), "call": call, "seed": seed,
        "enable_options": {k: str(v) for k, v in options.items()}, "prompts": list(prompts),
        **_versions(),
    }  # fmt: skip
    _same_settings(out, settings)
    todo = [i for i in range(len(prompts)) if _finished(out, i, backends) is None]
    for index in _bar(todo, len(prompts), progress):
        entry = _clip(
            pipe, inputs, prompts[index], seed + index, index, backends, options, out, fps
        )
        _write(_record(out, index), json.dumps(entry, indent=1).encode())
    clips = [json.loads(_record(out, i).read_text()) for i in range(len(prompts))]
    summary = _summary(clips, backends)
    if _metrics.present()["vbench"]:
        _add_vbench(summary, out, backends, pipe)
    shown = {k: v for k, v in settings.items() if k != "prompts"}
    result = {"reference": backends[0], "settings": shown, "summary": summary, "clips": clips}
    _write(out / "result.json", json.dumps(result, indent=1).encode())
    _write(out / "index.html", page(result).encode())
    return result


def _record(out: pathlib.Path, index: int) -> pathlib.Path:
    return out / "clips" / f"{index:03d}.json"


def _finished(out: pathlib.Path, index: int, backends: Sequence[str]) -> dict | None:
    """The record of a clip whose files are all there; None: it is to be made."""
    try:
        entry = json.loads(_record(out, index).read_text())
        files = [out / entry["backends"][name]["file"] for name in backends]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return entry if all(file.is_file() for file in files) else None


def _versions() -> dict[str, str]:
    import diffusers
    import torch

    from .. import spec_version, version

    library = f"{version()} (specification {spec_version()})"
    return {"vcattn": library, "torch": torch.__version__, "diffusers": diffusers.__version__}


def _same_settings(out: pathlib.Path, settings: dict) -> None:
    file = out / "settings.json"
    text = json.dumps(settings, indent=1, sort_keys=True)
    if file.is_file():
        now = json.loads(text)
        try:
            before = dict(json.loads(file.read_text()))
        except (ValueError, TypeError) as error:
            raise refuse(f"'{file}' is damaged", error, "the file of a run, or another folder") from None
        differs = [key for key in now if before.get(key) != now[key]]
        if differs:
            raise refuse(
                f"'{out}' holds a run with other settings",
                f"differences in {', '.join(differs)}",
                "the same settings, or another folder",
            )
        return
    if any((out / "clips").glob("*.json")):
        raise refuse(f"'{out}' has clips and no settings.json", "clips of unknown settings", "another folder")
    (out / "clips").mkdir(parents=True, exist_ok=True)
    _write(file, text.encode())


def _add_vbench(summary: dict, out: pathlib.Path, backends: Sequence[str], pipe: Any) -> None:
    for name in backends:
        folder = out / "clips" / _folder(name)
        device = str(getattr(pipe, "device", "cpu"))
        scores = _metrics.vbench(folder, folder.name, out / "vbench", device)
        summary.setdefault(name, {}).update(scores)


def _bar(todo: list[int], total: int, progress: bool) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return todo
    bar = tqdm(todo, initial=total - len(todo), total=total, unit="clip", disable=not progress)
    bar.set_description("fidelity")
    return bar
