# SPDX-License-Identifier: Apache-2.0
"""Training windows: four real clips and one procedural class, cached as uint8 frames."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from config import Config

CLIPS = Path(__file__).parent / "clips"
CACHE_VERSION = 4
SHAPE_WINDOWS = 49


@dataclass(frozen=True)
class Source:
    """Windows of `frames` frames, `stride` apart, starting anywhere in one of the ranges (inclusive)."""

    cls: str
    file: str
    stride: int
    starts: tuple[tuple[int, int], ...]


# Chosen by eye so that something moves in every window and no window crosses a cut.
SOURCES = (
    Source("bunny", "bigbuckbunny.mp4", 2, ((0, 76),)),
    Source("cars", "car-detection.mp4", 1, ((60, 76), (192, 208), (318, 321))),
    Source("bottles", "bottle-detection.mp4", 2, ((176, 200), (345, 365), (478, 500), (925, 945))),
    Source("nasa", "nasa_13013.mp4", 2, ((112, 146),)),
)


def _decode_opencv(path: Path, size: tuple[int, int]) -> np.ndarray:
    import cv2

    capture, frames = cv2.VideoCapture(str(path)), []
    while True:
        ok, frame = capture.read()
        if not ok:
            return np.stack(frames)
        frame = cv2.resize(frame, size, interpolation=cv2.INTER_AREA)
        frames.append(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB))


def _decode_pyav(path: Path, size: tuple[int, int]) -> np.ndarray:
    import av

    with av.open(str(path)) as container:
        frames = [f.to_image().resize(size, Image.BOX) for f in container.decode(video=0)]
    return np.stack([np.asarray(f.convert("RGB")) for f in frames])


def _decode_ffmpeg(path: Path, size: tuple[int, int]) -> np.ndarray:
    scale = f"scale={size[0]}:{size[1]}:flags=area"
    command = ["ffmpeg", "-v", "error", "-i", str(path), "-vf", scale, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(command, check=True, capture_output=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, size[1], size[0], 3)


def decode(path: Path, size: tuple[int, int]) -> np.ndarray:
    """All frames of a clip as uint8 [n, height, width, 3], area-resampled to size (width, height)."""
    if not path.is_file():
        raise FileNotFoundError(f"clip {path} is missing; it is part of examples/tiny_video_dit/clips")
    for decoder in (_decode_opencv, _decode_pyav):
        try:
            return decoder(path, size)
        except ImportError:
            continue
    if shutil.which("ffmpeg"):
        return _decode_ffmpeg(path, size)
    raise RuntimeError("no video decoder: install opencv-python-headless, PyAV or the ffmpeg command")


def _texture(height: int, width: int) -> np.ndarray:
    """A ground of a few plane waves on two colours."""
    rng = np.random.default_rng(11)
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    field = np.zeros((height, width))
    for _ in range(6):
        fy, fx = rng.integers(-4, 5, size=2)
        field += np.sin(2 * np.pi * (fy * y / height + fx * x / width) + rng.uniform(0, 2 * np.pi))
    field = 0.5 + 0.5 * np.tanh(field)
    low, high = rng.uniform(20, 110, size=3), rng.uniform(90, 190, size=3)
    return (low + field[..., None] * (high - low)).astype(np.uint8)


def _bounce(start: float, speed: float, low: float, high: float, steps: int) -> np.ndarray:
    """Positions of a point that moves at constant speed between two walls."""
    span = high - low
    phase = (start - low + speed * np.arange(steps)) % (2 * span)
    return low + np.minimum(phase, 2 * span - phase)


# Sizes, places and speeds in units of the clip's height and width; turns in radians a frame.
SHAPES = (
    {
        "corners": 48, "inner": 1.0, "radius": 0.19, "at": (0.20, 0.35),
        "speed": (0.012, 0.010), "turn": 0.0, "rgb": (236, 64, 52),
    },
    {
        "corners": 4, "inner": 1.0, "radius": 0.20, "at": (0.75, 0.60),
        "speed": (-0.011, 0.014), "turn": 0.07, "rgb": (46, 196, 108),
    },
    {
        "corners": 10, "inner": 0.45, "radius": 0.24, "at": (0.50, 0.75),
        "speed": (0.013, -0.012), "turn": -0.09, "rgb": (250, 204, 46),
    },
)


def shapes_clip(config: Config, frames: int) -> np.ndarray:
    """The procedural clip: a disc, a square and a star drift, bounce and rotate over a texture."""
    factor = 3  # supersampling, box-filtered down: the only anti-aliasing
    height, width = config.height, config.width
    ground = Image.fromarray(_texture(height, width))
    ground = ground.resize((width * factor, height * factor), Image.BILINEAR)
    clip = np.empty((frames, height, width, 3), np.uint8)
    canvases = [ground.copy() for _ in range(frames)]
    for shape in SHAPES:
        radius = shape["radius"] * height
        xs, ys = (
            _bounce(at * size, speed * size, radius, size - radius, frames)
            for at, speed, size in zip(shape["at"], shape["speed"], (width, height))
        )
        corner = np.arange(shape["corners"])
        reach = radius * np.where(corner % 2 == 1, shape["inner"], 1.0)
        for f, canvas in enumerate(canvases):
            angle = shape["turn"] * f + 2 * np.pi * corner / len(corner)
            points = np.stack([xs[f] + reach * np.cos(angle), ys[f] + reach * np.sin(angle)], 1)
            outline = [tuple(p) for p in points * factor]
            ImageDraw.Draw(canvas).polygon(outline, fill=shape["rgb"], outline=(16, 16, 16))
    for f, canvas in enumerate(canvases):
        clip[f] = np.asarray(canvas.resize((width, height), Image.BOX))
    return clip


class Windows:
    """All training windows: frames [n, Y, X, 3] and, per class, the first frame and stride of each."""

    def __init__(self, config: Config, frames: np.ndarray, table: list[dict]):
        self.config, self.frames = config, frames
        self.starts, self.strides = [], []
        for name in config.classes:
            rows = [r for r in table if r["cls"] == name]
            starts = [r["base"] + i for r in rows for i in range(r["count"])]
            strides = [r["stride"] for r in rows for _ in range(r["count"])]
            self.starts.append(np.array(starts, np.int64))
            self.strides.append(np.array(strides, np.int64))

    def indices(self, cls: int, window: np.ndarray) -> np.ndarray:
        """Frame indices [len(window), F] of windows of one class."""
        step = np.arange(self.config.frames)
        return self.starts[cls][window][:, None] + self.strides[cls][window][:, None] * step

    def draw(self, rng: np.random.Generator, count: int, weights=None) -> tuple[np.ndarray, np.ndarray]:
        """Random windows: (frame indices [count, F], classes [count]); weights: share of each class."""
        classes = rng.choice(len(self.config.classes), size=count, p=weights)
        rows = [self.indices(c, rng.integers(0, len(self.starts[c]), size=1))[0] for c in classes]
        return np.stack(rows), classes


def build(config: Config, progress=lambda items, **_: items) -> tuple[np.ndarray, list[dict]]:
    size, span = (config.width, config.height), config.frames - 1
    frames, table, total = [], [], 0
    for source in progress(SOURCES, desc="decode"):
        clip = decode(CLIPS / source.file, size)
        for first, last in source.starts:
            part = clip[first : last + span * source.stride + 1]
            count = len(part) - span * source.stride
            if count < 1:
                raise ValueError(f"{source.file}: {len(clip)} frames, window at {first} does not fit")
            table.append({"cls": source.cls, "base": total, "count": count, "stride": source.stride})
            frames.append(part)
            total += len(part)
    frames.append(shapes_clip(config, span + SHAPE_WINDOWS))
    table.append({"cls": "shapes", "base": total, "count": SHAPE_WINDOWS, "stride": 1})
    return np.concatenate(frames), table


def load(config: Config, cache: Path, progress=lambda items, **_: items) -> Windows:
    """The windows, from the cache file if it fits this configuration, else decoded and cached."""
    shape = [config.frames, config.height, config.width]
    key = json.dumps([CACHE_VERSION, *shape, SHAPE_WINDOWS, str(SOURCES)])
    if cache.is_file():
        with np.load(cache) as stored:
            if str(stored["key"]) == key:
                return Windows(config, stored["frames"], json.loads(str(stored["table"])))
    frames, table = build(config, progress)
    cache.parent.mkdir(parents=True, exist_ok=True)
    aside = cache.with_name(cache.name + ".part.npz")
    np.savez(aside, frames=frames, table=json.dumps(table), key=key)
    os.replace(aside, cache)
    return Windows(config, frames, table)
