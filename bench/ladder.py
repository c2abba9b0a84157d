#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Preparing q, k and v of `vc8` with Hadamard and RoPE, fused step by step: a ladder of five rungs.

    VCATTN_LIBRARY=build-cuda/lib/libvcattn.so python bench/ladder.py --out bench/results/parts/ladder-h200-YYYYMMDD.json
    python bench/ladder.py --table FILE.json             # its Markdown table; no GPU

| rung | what is one kernel or compiled graph; the rest is eager torch, an operation at a time          |
| ---- | ---------------------------------------------------------------------------------------------- |
| 0    | nothing                                                                                        |
| 1    | Hadamard and quantiser: INT8 of q and k, E4M3 residuals of v, transposed                       |
| 2    | and means and gather: K mean, its subtraction, rows in the given order, V's range, block means |
| 3    | and RoPE of q and k                                                                            |
| 4    | everything by this library's kernels (vca_attn_prepare)                                        |

Rungs 1 to 3 are what a compiler fuses (torch.compile: Inductor, Triton), not what a hand could. All
of them compute docs/numerics.md B1-B4 and B7 in FP32 between BF16 inputs and 8-bit outputs; the Hadamard
transform is a TF32 matrix product, the fastest single operation that torch has for it. Against rung 0
each rung is checked on two heads: codes within 1, scales within 1e-3. Rungs 0-3 store codes row by row,
rung 4 in the kernel's tiles.

The order is one that the library formed; rung 4 keeps it (after = REUSE) and, beyond what the other
rungs do, measures f of that order. Its time in token order stands beside it.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "python")]

from ladder_table import CODE_TOLERANCE, MOVED_TOLERANCE, SCALE_TOLERANCE, load, table  # noqa: E402

AXIS_DIM, THETA, D, BLOCK = (44, 42, 42), 10000.0, 128, 128

# ------------------------------------------------------------------ the parts, each on [H, N, D]
def rope(x, cos, sin):
    import torch

    a, b = x.float().unflatten(-1, (D // 2, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def gather(x, order):
    return x.gather(1, order[:, :, None].expand(-1, -1, x.shape[-1]))


def int8(x, dims):
    """Codes and scales of groups: `dims` are those that share one."""
    import torch

    amax = x.abs().amax(dims, keepdim=True)
    return (x * (127.0 / amax)).round().clamp(-127, 127).to(torch.int8), amax / 127.0


def quantise_q(x, hadamard):
    """One scale for rows 16w + r and 16w + r + 8."""
    x = (x @ hadamard).unflatten(1, (-1, 2, 8))
    return int8(x, (2, 4))


def quantise_k(x, hadamard):
    """Four scales a block of 128 rows: row n has number (n mod 8) / 2."""
    x = (x @ hadamard).unflatten(1, (-1, 16, 4, 2))
    return int8(x, (2, 4, 5))


def k_mean(x):
    """Of every 16th row (of rows that are rotated already)."""
    return x[:, ::16].float().mean(1, keepdim=True)


def v_scale(v):
    high, low = v.amax(1, keepdim=True).float(), v.amin(1, keepdim=True).float()
    largest = high.abs().maximum(low.abs())
    return high * (1 / 448) - low * (1 / 448) + largest * (2.0**-8 / 448)


def block_means(v, valid):
    """v: gathered rows; `valid` [N, 1]: 0 for the rows that fill up the last block."""
    blocks = (v.float() * valid).unflatten(1, (-1, BLOCK))
    return blocks.sum(2, keepdim=True) / valid.unflatten(0, (-1, BLOCK)).sum(1, keepdim=True)


def quantise_v(v, scale, mean, valid):
    """E4M3 residuals [H, blocks, D, 128], and the means in units of the scale, in BF16."""
    import torch

    inverse = (1.0 / scale)[:, None]
    mean = (mean * inverse).bfloat16()
    rest = v.float().unflatten(1, (-1, BLOCK)) * inverse - mean.float()
    rest = rest * valid.unflatten(0, (-1, BLOCK))
    return rest.to(torch.float8_e4m3fn).transpose(2, 3).contiguous(), mean


# ----------------------------------------------------------------------------------------- rungs
def chain(rung: int, fuse):
    """The function of a rung: inputs -> outputs. `fuse` compiles what becomes one graph."""
    same = lambda f: f  # noqa: E731
    level = lambda least: fuse if rung >= least else same  # noqa: E731

    def prepare_k(k, mean, order, hadamard):
        return quantise_k(gather(k - mean, order), hadamard)

    def prepare_k_rotated(k, mean, order, cos, sin, hadamard):
        rows = rope(gather(k, order), cos[order], sin[order])
        return quantise_k(rows - mean, hadamard)

    def prepare_v(v, scale, order, valid):
        rows = gather(v, order)
        return quantise_v(rows, scale, block_means(rows, valid), valid)

    def k_mean_rotated(k, cos, sin):
        return rope(k[:, ::16], cos[::16], sin[::16]).mean(1, keepdim=True)

    q_fused, kq, vq = level(1)(quantise_q), level(1)(quantise_k), level(1)(quantise_v)
    mean_fused, scale_fused = level(2)(k_mean), level(2)(v_scale)
    k2, v2 = level(2)(prepare_k), level(2)(prepare_v)
    q3 = level(3)(lambda q, cos, sin, hadamard: quantise_q(rope(q, cos, sin), hadamard))
    k3, mean3 = level(3)(prepare_k_rotated), level(3)(k_mean_rotated)

    def run(x):
        order, cos, sin, h, valid = x["order"], x["cos"], x["sin"], x["hadamard"], x["valid"]
        if rung >= 3:
            q = q3(x["q"], cos, sin, h)
            k = k3(x["k"], mean3(x["k"], cos, sin), order, cos, sin, h)
        else:
            q = q_fused(rope(x["q"], cos, sin), h)
            k = rope(x["k"], cos, sin)
            if rung >= 2:
                k = k2(k, mean_fused(k), order, h)
            else:
                k = k - k_mean(k)
                k = gather(k, order)
                k = kq(k, h)
        scale = scale_fused(x["v"])
        if rung >= 2:
            v = v2(x["v"], scale, order, valid)
        else:
            rows = gather(x["v"], order)
            v = vq(rows, scale, block_means(rows, valid), valid)
        return {"q": q, "k": k, "v": v, "s_v": scale}

    return run


def sample(found: dict, heads: list[int]) -> dict:
    """Codes and scales of some heads, on the host, comparable between rungs."""
    import torch

    pick = lambda t: t[heads].cpu()  # noqa: E731
    return {
        "q": pick(found["q"][0]).reshape(len(heads), -1, D).int(),
        "k": pick(found["k"][0]).reshape(len(heads), -1, D).int(),
        "v": monotone(pick(found["v"][0].view(torch.uint8))),
        "mean": pick(found["v"][1]).float().reshape(len(heads), -1, D),
        "q_scale": pick(found["q"][1]).flatten(1), "k_scale": pick(found["k"][1]).flatten(1),
        "s_v": pick(found["s_v"]).flatten(1),
    }  # fmt: skip


def monotone(bytes_):
    """E4M3 bytes as integers in the order of their values, neighbours one apart."""
    code = bytes_.int()
    return (code & 127) * (1 - 2 * (code >> 7))


def compare(got: dict, want: dict) -> dict:
    """Largest distance of codes and of scales (relative), and the share of block means that sums in another
    order rounded to the next BF16 value: their residuals move along, so these are not compared. Raises
    where the results are not the same thing."""
    moved = got["mean"] != want["mean"]  # [heads, blocks, D]
    apart = ((got["mean"] - want["mean"]).abs() / want["mean"].abs().clamp(min=1e-30))[moved]
    codes = {n: int((got[n] - want[n]).abs().max()) for n in ("q", "k")}
    codes["v"] = int(((got["v"] - want["v"]).abs() * ~moved[..., None]).max())
    scales = {n: float(((got[n] - want[n]) / want[n]).abs().max()) for n in ("q_scale", "k_scale", "s_v")}
    found = {"codes": max(codes.values()), "scales": max(scales.values()), "means_moved": float(moved.float().mean())}
    step = float(apart.max()) if len(apart) else 0.0
    ok = found["codes"] <= CODE_TOLERANCE and found["scales"] <= SCALE_TOLERANCE
    if not ok or found["means_moved"] > MOVED_TOLERANCE or step > 2.0**-7:
        raise ValueError(f"not the same result as rung 0: codes {codes}, scales {scales}, {found}, mean step {step}")
    return found


# --------------------------------------------------------------------------------------- inputs
def inputs(heads: int, grid: tuple[int, int, int], device: str, order=None) -> dict:
    """BF16 standard normal q, k, v [H, N, D], FP32 RoPE tables [N, D/2], the order with the places
    that fill up the last block."""
    import torch

    n = math.prod(grid)
    rng = torch.Generator(device).manual_seed(0)
    x = {c: torch.randn(heads, n, D, generator=rng, device=device, dtype=torch.bfloat16) for c in "qkv"}
    at = torch.stack(torch.meshgrid(*(torch.arange(g, dtype=torch.float64) for g in grid), indexing="ij"), -1)
    angles = torch.cat([at.reshape(n, 3)[:, a, None] * THETA ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
                        for a, d in enumerate(AXIS_DIM)], 1)  # fmt: skip
    x["cos"], x["sin"] = angles.cos().float().to(device), angles.sin().float().to(device)
    h = torch.ones(1, 1, device=device)
    while h.shape[0] < D:
        h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)))
    x["hadamard"] = h
    x["valid"] = (torch.arange(-(-n // BLOCK) * BLOCK, device=device) < n).float()[:, None]
    x["order"] = padded(torch.rand(heads, n, generator=rng, device=device).argsort(1) if order is None else order)
    return x


def padded(order):
    """Places past the end repeat the first row of their scale group in the last block (D1)."""
    import torch

    n = order.shape[1]
    last = n // BLOCK * BLOCK
    fill = torch.arange(n, -(-n // BLOCK) * BLOCK, device=order.device) % 8 // 2 * 2 + last
    return torch.cat((order, order[:, fill]), 1)


# ------------------------------------------------------------------------------------- timing
def median_ms(call, device: str, calls: int) -> list[float]:
    """[median, smallest, largest] of so many calls after two untimed ones."""
    import torch

    def now():
        if device == "cpu":
            return time.perf_counter() * 1000
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    times = []
    for i in range(calls + 2):
        start = now()
        call()
        end = now()
        if device != "cpu":
            torch.cuda.synchronize()
        if i >= 2:
            times.append(end - start if device == "cpu" else start.elapsed_time(end))
    return [round(f(times), 3) for f in (statistics.median, min, max)]


def main(argv: list[str]) -> int:
    p = argparse.ArgumentParser(prog="ladder.py", description=__doc__.splitlines()[0])
    p.add_argument("--table", type=pathlib.Path, metavar="FILE", help="print the table of a result file")
    p.add_argument("--out", type=pathlib.Path, help="result file, written anew after every rung")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--heads", type=int, default=40)
    p.add_argument("--grid", type=int, nargs=3, default=(21, 45, 80), help="T H W; their product a multiple of 16")
    p.add_argument("--calls", type=int, default=12)
    p.add_argument("--no-compile", action="store_true", help="the same functions, nothing compiled (tests)")
    p.add_argument("--deadline", type=float, default=100, help="seconds after which no further rung begins")
    p.add_argument("--commit", default="unknown")
    args = p.parse_args(argv)
    if args.table:
        try:
            print(table(load(args.table)))
        except (OSError, ValueError) as e:
            print(f"ladder.py: {e}", file=sys.stderr)
            return 2
        return 0
    if math.prod(args.grid) % 16 or min(args.grid) < 1 or args.heads < 1 or args.calls < 1:
        p.error("the grid's product must be a positive multiple of 16, heads and calls at least 1")
    import ladder_run

    return ladder_run.measure(args)


if __name__ == "__main__":
    sys.modules.setdefault("ladder", sys.modules["__main__"])
    sys.exit(main(sys.argv[1:]))
