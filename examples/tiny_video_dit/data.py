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
CACHE_VERSION = 3
SHAPE_CLIPS = 40


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
    command = ["ffmpeg", "-v", "error", "-i", str(path), "-vf", f"scale={size[0]}:{size[1]}:flags=area"]
    command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
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


def _texture(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A periodic texture, so that it can drift without an edge: a few plane waves on two colours."""
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


def shapes_clip(config: Config, index: int) -> np.ndarray:
    """A procedural clip: coloured shapes drift, bounce and rotate over a drifting texture."""
    factor = 3  # supersampling, box-filtered down: the only anti-aliasing
    height, width = config.height, config.width
    texture = _texture(np.random.default_rng([11, index % 4]), height, width)
    rng = np.random.default_rng([12, index])
    drift = rng.integers(-2, 3, size=2)
    palette = [(236, 64, 52), (250, 204, 46), (46, 196, 108), (52, 120, 240), (240, 240, 240), (190, 70, 220)]
    colours = rng.permutation(len(palette))
    shapes = []
    for k in range(3):
        radius = height * rng.uniform(0.13, 0.21)
        heading, speed = rng.uniform(0, 2 * np.pi), width * rng.uniform(0.012, 0.022)
        xs = _bounce(rng.uniform(radius, width - radius), speed * np.cos(heading), radius, width - radius, config.frames)
        ys = _bounce(rng.uniform(radius, height - radius), speed * np.sin(heading), radius, height - radius, config.frames)
        turn = rng.uniform(0, np.pi) + rng.choice([-1, 1]) * rng.uniform(0.06, 0.14) * np.arange(config.frames)
        shapes.append((k, radius, xs, ys, turn, palette[colours[k]]))
    clip = np.empty((config.frames, height, width, 3), np.uint8)
    for f in range(config.frames):
        ground = Image.fromarray(np.roll(texture, tuple(drift * f), axis=(0, 1)))
        canvas = ground.resize((width * factor, height * factor), Image.BILINEAR)
        draw = ImageDraw.Draw(canvas)
        for kind, radius, xs, ys, turn, colour in shapes:
            corners = {0: 48, 1: 4, 2: 10}[kind]  # disc, square, five-pointed star
            angle = turn[f] + 2 * np.pi * np.arange(corners) / corners
            reach = radius * np.where((kind == 2) & (np.arange(corners) % 2 == 1), 0.45, 1.0)
            points = np.stack([xs[f] + reach * np.cos(angle), ys[f] + reach * np.sin(angle)], 1)
            draw.polygon([tuple(p) for p in points * factor], fill=colour, outline=(16, 16, 16))
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

    def draw(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Random windows, classes evenly: (frame indices [count, F], classes [count])."""
        classes = rng.integers(0, len(self.config.classes), size=count)
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
    for index in progress(range(SHAPE_CLIPS), desc="shapes"):
        frames.append(shapes_clip(config, index))
        table.append({"cls": "shapes", "base": total, "count": 1, "stride": 1})
        total += config.frames
    return np.concatenate(frames), table


def load(config: Config, cache: Path, progress=lambda items, **_: items) -> Windows:
    """The windows, from the cache file if it fits this configuration, else decoded and cached."""
    key = json.dumps([CACHE_VERSION, config.frames, config.height, config.width, SHAPE_CLIPS, str(SOURCES)])
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
