# SPDX-License-Identifier: Apache-2.0
"""How good are the samples: PSNR to the nearest training window, and how much the number of steps matters."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import data
from pictures import contact_sheet
from sample import WEIGHTS, sample
from weights import load_weights


def psnr(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(-10 * torch.log10((a.float() - b.float()).square().mean() / 255**2 + 1e-12))


def nearest(windows: data.Windows, frames: torch.Tensor, cls: int, clip: torch.Tensor) -> float:
    """PSNR of a clip to the training window of its class that is nearest."""
    every = windows.indices(cls, np.arange(len(windows.starts[cls])))
    return max(psnr(frames[torch.from_numpy(row).to(frames.device)], clip) for row in every)


def motion(clip: torch.Tensor) -> float:
    """Mean absolute difference of successive frames, in grey levels."""
    return float((clip[1:].float() - clip[:-1].float()).abs().mean())


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--cache", type=Path, required=True, help="the frames.npz that train.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for evaluation.json and sheets")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", default="8,10,12,30")
    parser.add_argument("--shifts", default="2,4,8")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    args = parse(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    model = load_weights(args.weights, args.device)
    config = model.config
    windows = data.load(config, args.cache)
    frames = torch.from_numpy(windows.frames).to(args.device)
    seeds = list(range(args.seeds))
    step_counts = [int(s) for s in args.steps.split(",")]
    results, sheets = [], {}
    for shift in map(float, args.shifts.split(",")):
        for cls, name in enumerate(tqdm(config.classes, desc=f"shift {shift:g}")):
            clips = {}
            for steps in step_counts:
                made = sample(model, [cls] * len(seeds), seeds, steps, shift, compute="bf16")
                clips[steps] = torch.from_numpy(made).to(args.device)
                rows = sheets.setdefault((shift, steps), [])
                rows += [(f"{name}, seed {s}, {steps} steps", made[s]) for s in seeds[:3]]
            for steps in step_counts:
                results.append(
                    {
                        "class": name,
                        "shift": shift,
                        "steps": steps,
                        "nearest_psnr": [round(nearest(windows, frames, cls, c), 2) for c in clips[steps]],
                        "motion": [round(motion(c), 2) for c in clips[steps]],
                        "psnr_to_most_steps": [
                            round(psnr(a, b), 2) for a, b in zip(clips[steps], clips[max(step_counts)])
                        ],
                    }
                )
    (args.out / "evaluation.json").write_text(json.dumps(results, indent=1) + "\n")
    for shift in map(float, args.shifts.split(",")):
        for steps in step_counts:
            chosen = [r for r in results if r["shift"] == shift and r["steps"] == steps]
            cells = " ".join(
                f"{r['class']} {np.mean(r['nearest_psnr']):.1f}/{np.mean(r['psnr_to_most_steps']):.1f}"
                for r in chosen
            )
            print(f"shift {shift:g} steps {steps}: nearest / to most steps, dB: {cells}")
    for (shift, steps), rows in sheets.items():
        if shift == config.shift and steps in (10, max(step_counts)):
            contact_sheet(rows, args.out / f"sheet_{steps}_steps.png")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
