# SPDX-License-Identifier: Apache-2.0
"""Measures of one clip against another. Clips are uint8 arrays [F, H, W, 3], as they are shown.

PSNR is of the whole clip (one mean square error over all frames), SSIM and LPIPS are means over the
frames. SSIM: Wang, Bovik, Sheikh, Simoncelli 2004 with its constants (Gaussian window of 11, sigma
1.5, K1 = 0.01, K2 = 0.03), on luma (BT.601), valid windows only.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import pathlib

import numpy as np
import torch

LEAST_PIXELS = 11  # each way: SSIM's window
# VBench's names of what it judges without a prompt list of its own.
VBENCH = ("subject_consistency", "imaging_quality")


def psnr(a: np.ndarray, b: np.ndarray) -> float | None:
    """dB; None for equal clips, whose PSNR is infinite."""
    squared = sum(float(((x.astype(np.int32) - y) ** 2).sum()) for x, y in zip(a, b))
    return None if squared == 0 else 10 * math.log10(255.0**2 * a.size / squared)


def _luma(frames: np.ndarray) -> torch.Tensor:
    weights = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)
    return torch.from_numpy(frames).double() @ weights


@functools.cache
def _window() -> torch.Tensor:
    x = torch.arange(11, dtype=torch.float64) - 5
    g = torch.exp(-(x**2) / (2 * 1.5**2))
    return g / g.sum()


def _blur(x: torch.Tensor) -> torch.Tensor:
    g = _window()
    x = torch.nn.functional.conv2d(x[:, None], g.view(1, 1, 11, 1))
    return torch.nn.functional.conv2d(x, g.view(1, 1, 1, 11))[:, 0]


def ssim(a: np.ndarray, b: np.ndarray) -> float:
    """1 for equal clips. Frames must be at least 11 pixels each way."""
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    total = 0.0
    for x, y in zip(a, b):
        p, q = _luma(x[None]), _luma(y[None])
        mean_p, mean_q = _blur(p), _blur(q)
        var_p, var_q = _blur(p * p) - mean_p**2, _blur(q * q) - mean_q**2
        cov = _blur(p * q) - mean_p * mean_q
        score = ((2 * mean_p * mean_q + c1) * (2 * cov + c2)) / (
            (mean_p**2 + mean_q**2 + c1) * (var_p + var_q + c2)
        )
        total += float(score.mean())
    return total / len(a)


@functools.cache
def _lpips_model() -> torch.nn.Module:
    import lpips

    return lpips.LPIPS(net="alex", verbose=False).eval()


def lpips_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Learned perceptual distance of the package ``lpips`` (AlexNet), 0 for equal clips."""
    model, total = _lpips_model(), 0.0
    with torch.no_grad():
        for x, y in zip(a, b):
            p, q = (torch.from_numpy(f).permute(2, 0, 1)[None].float() / 127.5 - 1 for f in (x, y))
            total += float(model(p, q))
    return total / len(a)


def present() -> dict[str, bool]:
    """Which optional packages are installed."""
    return {name: importlib.util.find_spec(name) is not None for name in ("lpips", "vbench")}


def compare(clip: np.ndarray, reference: np.ndarray) -> dict[str, float | None]:
    """The measures of one clip; those of packages that are not installed are left out."""
    if clip.shape != reference.shape:
        raise ValueError(f"clips differ in shape: {clip.shape} and {reference.shape}")
    result = {"psnr": psnr(clip, reference), "ssim": ssim(clip, reference)}
    if present()["lpips"]:
        result["lpips"] = lpips_distance(clip, reference)
    return result


def vbench(folder: pathlib.Path, name: str, out: pathlib.Path, device: str) -> dict[str, float]:
    """VBench's own scores of all clips in a folder (its models are fetched by the package)."""
    import vbench as package
    from vbench import VBench

    info = pathlib.Path(str(package.__file__)).parent / "VBench_full_info.json"
    bench = VBench(torch.device(device), str(info), str(out))
    bench.evaluate(
        videos_path=str(folder), name=name, dimension_list=list(VBENCH), mode="custom_input"
    )
    scores = json.loads((out / f"{name}_eval_results.json").read_text())
    return {dimension: float(scores[dimension][0]) for dimension in VBENCH}
