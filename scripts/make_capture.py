#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/dit_capture_l2_s3.safetensors: one head of one layer of the bundled video DiT.

    .venv/bin/python scripts/make_capture.py [--layer 2] [--step 3] [--head 0]

Runs `vcattn generate --capture` and keeps one head, so that the file stays below 4 MiB.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import struct
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]


def read(path: pathlib.Path) -> tuple[dict, bytes]:
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def one_head(header: dict, data: bytes, head: int) -> bytes:
    """The file with `head` alone; heads are the second axis of [1, H, S, D]."""
    kept: dict = {"__metadata__": {**header["__metadata__"], "head": str(head)}}
    body = b""
    for name in "qkv":
        info = header[name]
        batch, heads, tokens, dim = info["shape"]
        begin = info["data_offsets"][0] + head * tokens * dim * 2
        raw = data[begin : begin + tokens * dim * 2]
        kept[name] = {
            "dtype": info["dtype"],
            "shape": [batch, 1, tokens, dim],
            "data_offsets": [len(body), len(body) + len(raw)],
        }
        body += raw
    text = json.dumps(kept, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vcattn", default=ROOT / "build" / "bin" / "vcattn")
    parser.add_argument("--layer", type=int, default=2)
    parser.add_argument("--step", type=int, default=3)
    parser.add_argument("--head", type=int, default=0)
    args = parser.parse_args()
    target = ROOT / "tests" / "golden" / f"dit_capture_l{args.layer}_s{args.step}.safetensors"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [args.vcattn, "generate", "--recipes", "bf16", "--class", "bunny", "--seed", "1",
             "--steps", "10", "--quiet", "--out", f"{folder}/out", "--capture", f"{folder}/capture",
             "--capture-steps", str(args.step)],
            check=True,
        )  # fmt: skip
        name = f"layer-{args.layer}-step-{args.step}.safetensors"
        header, data = read(pathlib.Path(folder) / "capture" / name)
    target.write_bytes(one_head(header, data, args.head))
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
