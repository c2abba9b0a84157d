# SPDX-License-Identifier: Apache-2.0
"""Reference sampler (MODEL.md sections 4 to 8): clips from seeds, and the golden file of the C++ test."""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from model import VideoDit, to_pixels, unpatchify
from noise import normals, philox_words, time_grid
from pictures import contact_sheet
from weights import file_sha256, load_weights, write_safetensors

HERE = Path(__file__).parent
WEIGHTS = HERE / "model" / "tiny_video_dit.safetensors"
GOLDEN_GRID, GOLDEN_CLASS, GOLDEN_T, GOLDEN_SEED = (3, 2, 7), 1, 0.7, 20240607


def precision(device: torch.device, name: str):
    if name == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return contextlib.nullcontext()


# The numpy generator takes longer than a step on a GPU, and comparisons reuse a few seeds.
cached_normals = functools.lru_cache(maxsize=8)(normals)


@torch.no_grad()
def sample(
    model: VideoDit,
    classes: list[int],
    seeds: list[int],
    steps: int | None = None,
    shift: float | None = None,
    guidance: float | None = None,
    compute: str = "fp32",
    progress: bool = False,
) -> np.ndarray:
    """Clips as uint8 [B, F, Y, X, 3], one for each (class, seed)."""
    config, device = model.config, model.pos_time.device
    steps = steps or config.steps
    guidance = config.guidance if guidance is None else guidance
    grid = time_grid(steps, shift or config.shift)
    shape = (config.tokens, config.patch_elems)
    x = np.stack([cached_normals(seed, shape[0] * shape[1]).reshape(shape) for seed in seeds])
    x = torch.from_numpy(x).to(device)
    y = torch.tensor(classes, device=device)
    null = torch.full_like(y, config.null_class)
    for i in tqdm(range(steps), desc="sample", disable=not progress):
        t = torch.full((len(classes),), grid[i], dtype=torch.float32, device=device)
        with precision(device, compute):
            clean = model(x, t, y, round_qkv=True).float()
            if guidance != 1.0:
                base = model(x, t, null, round_qkv=True).float()
                clean = base + guidance * (clean - base)
        x = clean + float(np.float32(grid[i + 1] / grid[i])) * (x - clean)
    return to_pixels(unpatchify(config, x)).cpu().numpy()


@torch.no_grad()
def golden_tensors(model: VideoDit) -> dict[str, torch.Tensor]:
    config = model.config
    tokens = int(np.prod(GOLDEN_GRID))
    x = torch.from_numpy(normals(GOLDEN_SEED, tokens * config.patch_elems).reshape(1, tokens, -1))
    t, y = torch.tensor([GOLDEN_T]), torch.tensor([GOLDEN_CLASS])
    trace: dict = {}
    out = model(x, t, y, grid=GOLDEN_GRID, trace=trace)
    rounded = model(x, t, y, grid=GOLDEN_GRID, round_qkv=True)
    return {
        "x": x[0],
        "cond": trace["cond"][0],
        "block_mean_abs": torch.stack([z.abs().mean() for z in trace["states"]]),
        "z_final": trace["states"][-1][0].contiguous(),
        "out": out[0].contiguous(),
        "out_bf16_qkv": rounded[0].contiguous(),
        "noise_words": torch.from_numpy(philox_words(GOLDEN_SEED, 0, 4).astype(np.int64).reshape(-1)),
        "time_grid": torch.from_numpy(time_grid(10, config.shift)),
    }


def write_golden(weights: Path, path: Path) -> None:
    meta = {
        "t": f"{GOLDEN_T:g}",
        "class": str(GOLDEN_CLASS),
        "grid": ",".join(map(str, GOLDEN_GRID)),
        "seed": str(GOLDEN_SEED),
        "weights_sha256": file_sha256(weights),
    }
    write_safetensors(golden_tensors(load_weights(weights)), meta, path)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--classes", help="comma-separated names; default: all")
    parser.add_argument("--seeds", default="0", help="comma-separated; default 0")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--shift", type=float)
    parser.add_argument("--guidance", type=float)
    parser.add_argument("--compute", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("samples.png"), help="contact sheet")
    parser.add_argument("--golden", type=Path, help="write the golden file here and do nothing else")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    args = parse(argv)
    if args.golden:
        write_golden(args.weights, args.golden)
        return 0
    model = load_weights(args.weights, args.device)
    names = args.classes.split(",") if args.classes else list(model.config.classes)
    unknown = [n for n in names if n not in model.config.classes]
    if unknown:
        print(f"class: got {unknown[0]!r}, allowed {', '.join(model.config.classes)}", file=sys.stderr)
        return 2
    rows = []
    for name in names:
        for seed in map(int, args.seeds.split(",")):
            index = model.config.classes.index(name)
            clip = sample(
                model, [index], [seed], args.steps, args.shift, args.guidance, args.compute, progress=True
            )
            rows.append((f"{name}, seed {seed}", clip[0]))
    contact_sheet(rows, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
