# SPDX-License-Identifier: Apache-2.0
"""Contact sheets and the loss curve."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw


def contact_sheet(rows: list[tuple[str, np.ndarray]], path: Path, columns: int = 7) -> None:
    """One row per clip (label, uint8 [F, Y, X, 3]); `columns` frames evenly spread over the clip."""
    label_px, gap = 14, 2
    height, width = rows[0][1].shape[1:3]
    sheet = Image.new(
        "RGB", (columns * (width + gap), len(rows) * (height + label_px + gap)), (24, 24, 24)
    )
    draw = ImageDraw.Draw(sheet)
    for r, (label, clip) in enumerate(rows):
        top = r * (height + label_px + gap)
        draw.text((3, top + 1), label, fill=(220, 220, 220))
        for c, frame in enumerate(np.linspace(0, len(clip) - 1, columns).round().astype(int)):
            sheet.paste(Image.fromarray(clip[frame]), (c * (width + gap), top + label_px))
    sheet.save(path, optimize=True)


def loss_curve(log: Path, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with open(log, newline="") as handle:
        rows = list(csv.DictReader(handle))
    steps = [int(r["step"]) for r in rows]
    fig, axis = plt.subplots(figsize=(7, 4), dpi=120)
    for column, label in (("velocity_loss", "weighted (velocity) loss"), ("x0_mse", "MSE of the predicted clip")):
        axis.plot(steps, [float(r[column]) for r in rows], lw=1, label=label)
    axis.set(xlabel="step", ylabel="mean since the previous log line", yscale="log")
    axis.grid(alpha=0.3, which="both")
    axis.legend()
    axis.set_title("tiny_video_dit training")
    fig.tight_layout()
    fig.savefig(path)
    plt.close(fig)
