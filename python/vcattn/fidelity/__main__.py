# SPDX-License-Identifier: Apache-2.0
"""``python -m vcattn.fidelity``: see ``--help``. Exit codes: 0 ok, 1 a clip could not be made or
written, 2 usage or bad input, 130 interrupted (start it again to go on)."""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import sys
from typing import Any

from . import read_prompts, run


def _from_file(text: str) -> tuple[Any, Any]:
    """ "file.py:function": a function that returns (pipeline, inputs or None)."""
    file, _, function = text.rpartition(":")
    spec = importlib.util.spec_from_file_location(pathlib.Path(file).stem, file)
    if spec is None or spec.loader is None or not pathlib.Path(file).is_file():
        raise ValueError(f"no file '{file}' (wanted: file.py:function)")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(pathlib.Path(file).resolve().parent))
    spec.loader.exec_module(module)
    made = getattr(module, function, None)
    if not callable(made):
        raise ValueError(f"'{file}' has no function '{function}'")
    result = made()
    if not isinstance(result, tuple) or len(result) != 2:
        raise ValueError(f"{function}() gave {type(result).__name__}; wanted: (pipeline, inputs or None)")
    return result


def _load(model: str) -> tuple[Any, Any]:
    import torch
    from diffusers import DiffusionPipeline

    pipe = DiffusionPipeline.from_pretrained(model, torch_dtype=torch.bfloat16)
    return pipe.to("cuda" if torch.cuda.is_available() else "cpu"), None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m vcattn.fidelity",
        description="Compares clips of one model with different attention.",
    )
    parser.add_argument("model", help="folder or name of a diffusers pipeline, or file.py:function")
    parser.add_argument("--prompts", required=True, help="file with one prompt a line")
    parser.add_argument("--clips", type=int, default=100, help="prompts to use (100)")
    parser.add_argument("--out", required=True, help="folder of the results")
    parser.add_argument(
        "--backends", default="native,vcattn:vc8", help="the reference first (native,vcattn:vc8)"
    )
    parser.add_argument("--call", default="{}", help="JSON: arguments of the pipeline's call")
    parser.add_argument("--enable", default="{}", help="JSON: options of enable(), e.g. min_keys")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first clip (0)")
    parser.add_argument("--fps", type=int, default=16, help="of the written clips (16)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar and no table")
    given = parser.parse_args(arguments)
    try:
        prompts = read_prompts(given.prompts, given.clips)
        is_file = ".py:" in given.model
        pipe, inputs = _from_file(given.model) if is_file else _load(given.model)
        result = run(
            pipe,
            prompts,
            given.out,
            backends=given.backends.split(","),
            call=json.loads(given.call),
            inputs=inputs,
            seed=given.seed,
            fps=given.fps,
            enable_options=json.loads(given.enable),
            progress=not given.quiet,
        )
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"vcattn.fidelity: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:  # ffmpeg's, torch's
        print(f"vcattn.fidelity: {error}; the same command goes on from here", file=sys.stderr)
        return 1
    if not given.quiet:
        for name, scores in result["summary"].items():
            texts = (f"{m} {'-' if v is None else format(v, '.4f')}" for m, v in scores.items())
            print(f"{name}: {', '.join(texts)}")
        print(f"page: {pathlib.Path(given.out) / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
