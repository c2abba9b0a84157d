# SPDX-License-Identifier: Apache-2.0
"""vcattn.attention alone: numpy only, or torch where it is installed (--torch, on CUDA if there).

    python examples/attention.py --tiny
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time

import numpy as np

try:
    import vcattn
except ImportError:  # a checkout without an installed package
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
    import vcattn


def main() -> None:
    parser = argparse.ArgumentParser(description="One attention call with each recipe.")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--torch", action="store_true", help="torch tensors in BF16")
    parser.add_argument("--tiny", action="store_true", help="300 tokens")
    given = parser.parse_args()
    tokens = 300 if given.tiny else given.tokens
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.standard_normal((1, given.heads, tokens, 128), dtype=np.float32) for _ in range(3)
    )
    if given.torch:
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        q, k, v = (torch.from_numpy(x).to(device, torch.bfloat16) for x in (q, k, v))
    for recipe in ("vc8", "vc8-turbo", "vc8-paper"):
        begin = time.perf_counter()
        out = vcattn.attention(q, k, v, recipe=recipe)
        first = float(out[0, 0, 0, 0])  # waits for a device
        print(f"o[0] = {first:+.4f} in {time.perf_counter() - begin:.3f} s")
        print(f"  {vcattn.last_receipt()}")


if __name__ == "__main__":
    main()
