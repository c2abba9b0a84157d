# SPDX-License-Identifier: Apache-2.0
"""Runs the rungs of bench/ladder.py one after another and keeps what came out."""

from __future__ import annotations

import ctypes
import json
import math
import sys
import time

import ladder
import ladder_table
import schema

HADAMARD_ON, KEPT_STEP = 1, 100


class Library:
    """vca_attn_prepare of `vc8` with Hadamard and RoPE of the grid. `kept`: in the order of a state,
    formed by the first call; else in token order."""

    def __init__(self, x: dict, grid, kept: bool):
        import torch
        from vcattn import _capi as capi

        self.capi, self.x, self.kept = capi, x, kept
        heads, n, d = x["q"].shape
        device = x["q"].device
        self.out = torch.empty_like(x["q"])
        desc = self.desc = capi.AttnDesc(device=device.index or 0)
        desc.recipe, desc.hadamard = capi.Recipe.VC8, HADAMARD_ON
        for name, t in (("q", x["q"]), ("k", x["k"]), ("v", x["v"]), ("o", self.out)):
            setattr(desc, name, capi.tensor(t.data_ptr(), capi.Dtype.BF16, (1, *t.shape), (t.numel(), *t.stride())))
        rope = self.rope = capi.Rope(convention=capi.RopeConvention.INTERLEAVED, theta=ladder.THETA)
        rope.axis_dim[:], rope.grid[:] = ladder.AXIS_DIM, grid
        desc.rope = ctypes.pointer(rope)
        desc.grouping = capi.Grouping.DEFAULT if kept else capi.Grouping.IDENTITY
        self.stream = torch.cuda.current_stream().cuda_stream
        if kept:
            self.step = torch.zeros(1, dtype=torch.int32, device=device)
            desc.step = self.step.data_ptr()
            self.policy = capi.Policy(steps=40, window=1, after=capi.PolicyAfter.REUSE)
            desc.policy = ctypes.pointer(self.policy)
            size = capi.group_state_bytes(desc)
            self.state = torch.zeros(size, dtype=torch.uint8, device=device)
            desc.state = self.state.data_ptr()
            capi.group_state_init(desc, desc.state, size, self.stream)
        self.bytes = capi.workspace(desc)
        self.workspace = torch.empty(self.bytes, dtype=torch.uint8, device=device)
        self()  # a cold order, where there is one
        torch.cuda.synchronize()
        if kept:
            self.step.fill_(39)

    def __call__(self):
        self.capi.prepare(self.desc, self.workspace.data_ptr(), self.bytes, self.stream)

    def order(self):
        """[H, N] tokens of the places: the ranks at the end of the state."""
        import torch

        heads, n, _ = self.x["q"].shape
        places = heads * -(-n // ladder.BLOCK) * ladder.BLOCK
        ranks = self.state[-4 * places :].view(torch.int32).view(heads, -1)[:, :n].long()
        if not torch.equal(ranks.sort(1).values, torch.arange(n, device=ranks.device).expand(heads, n)):
            raise ValueError("no permutation at the end of the group state")
        return ranks

    def sample(self, heads: list[int], want: dict) -> dict:
        """Codes and scales out of the workspace (src/kernels/prep/README.md), for ladder.compare."""
        import torch

        h, n, d = self.x["q"].shape
        blocks = -(-n // 128)
        bytes_ = self.workspace
        tile = 128 * d
        row, chunk = torch.arange(128)[:, None], torch.arange(8)[None, :]

        def rows(tiles):  # [..., 128 * rows of 128 bytes], out of the swizzle
            tiles = tiles.cpu().view(*tiles.shape[:-1], -1, 8, 16)
            r = torch.arange(tiles.shape[-3])[:, None]
            return tiles[..., r, chunk ^ (r % 8), :].flatten(-2)

        # The descriptors come first; how long they are follows from where the first tile stands.
        first = want["q"][0, :128].clamp(-127, 127)
        start = None
        if heads[0] == 0:
            for at in range(0, 1 << 18, 1024):
                codes = rows(bytes_[at : at + tile]).view(torch.int8).int()
                if (codes[: len(first)] - first).abs().max() <= 1:
                    start = at
                    break
        if start is None:
            raise ValueError("the first query tile was not found in the workspace")

        def take(size):
            nonlocal start
            at, start = start, start + -(-size // 1024) * 1024
            return bytes_[at : at + size]

        q = take(h * blocks * tile).view(h, blocks, tile)[heads]
        k = take(h * blocks * tile).view(h, blocks, tile)[heads]
        v = take(h * blocks * (d + 8) * 128).view(h, blocks, -1)[heads]
        means = take(h * -(-blocks // 8) * d * 32).view(h, -1, d, 2, 16)[heads].cpu()
        q_unit = take(h * blocks * 256).view(torch.float32).view(h, -1)[heads].cpu()
        k_scale = take(h * blocks * 16).view(torch.float32).view(h, -1)[heads].cpu()
        s_v = take(h * d * 4).view(torch.float32).view(h, -1)[heads].cpu()
        key = torch.arange(128)
        column = (key & ~15) + 4 * ((key >> 1) & 3) + 2 * ((key >> 3) & 1) + (key & 1)
        half = torch.arange(2)[None, :] ^ (torch.arange(d)[:, None] // 4 % 2)
        means = means[:, :, torch.arange(d)[:, None], half].flatten(-2).view(torch.float32)  # [.., d, 8]
        means = means[..., [b // 2 + 4 * (b % 2) for b in range(8)]].transpose(2, 3).flatten(1, 2)[:, :blocks]
        # c = 8 log2(e) / sqrt(d), and 1/d of the unscaled transform (B5).
        unit = 8 / math.log(2) / math.sqrt(d) / d
        return {
            "q": rows(q).view(torch.int8).int().reshape(len(heads), -1, d)[:, :n],
            "k": rows(k).view(torch.int8).int().reshape(len(heads), -1, d),
            "v": ladder.monotone(rows(v)[..., :d, :][..., column]), "mean": means,
            "q_scale": q_unit[:, : n // 2] / unit, "k_scale": k_scale, "s_v": s_v,
        }  # fmt: skip


def measure(args) -> int:
    """All rungs; the file holds those that are done. 1 when one of them failed or is missing."""
    import torch
    import torch._inductor.config

    begun, on_gpu = time.monotonic(), args.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        print("ladder.py: no CUDA device (--device cpu --no-compile tries the functions)", file=sys.stderr)
        return 1
    torch.set_float32_matmul_precision("high")  # TF32
    # Else Inductor subtracts the block means as they are before they are rounded to BF16: another result.
    torch._inductor.config.emulate_precision_casts = True
    say = lambda text: print(f"[{time.monotonic() - begun:5.1f} s] {text}", flush=True)  # noqa: E731
    data = {
        "gpu": torch.cuda.get_device_name() if on_gpu else "CPU", "driver": schema.driver() if on_gpu else "none",
        "date": schema.utc_now(),
        "commit": args.commit, "software": {"torch": torch.__version__},
        "problem": {"heads": args.heads, "grid": list(args.grid), "tokens": math.prod(args.grid), "d": ladder.D},
        "compiled": not args.no_compile, "order": "random", "rungs": [], "token_order_ms": None, "faults": {},
    }  # fmt: skip

    def save():
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            schema.write_text(args.out, json.dumps(data, indent=1) + "\n")

    heads = sorted({0, args.heads - 1})
    x = ladder.inputs(args.heads, tuple(args.grid), args.device)
    ours = None
    if on_gpu:
        try:
            ours = Library(x, args.grid, kept=True)
            x["order"] = ladder.padded(ours.order())
            data["order"] = "formed by the library"
        except Exception as e:
            data["faults"]["4"] = f"{type(e).__name__}: {e}"
            say(f"library: {data['faults']['4']}")
    say("inputs")

    def add(rung: int, call, sampled):
        """`sampled(result of a call)` -> what is compared with rung 0."""
        if time.monotonic() - begun > args.deadline:
            data["faults"][str(rung)] = "out of time"
            return None
        try:
            before = 0
            if on_gpu:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            result = call()
            if on_gpu:
                torch.cuda.synchronize()
            got = sampled(result)
            result = None
            say(f"rung {rung}: ran once")
            ms = ladder.median_ms(call, args.device, args.calls)
            peak = (torch.cuda.max_memory_allocated() - before) / 1e9 if on_gpu else 0.0
            row = {"rung": rung, "name": ladder_table.NAMES[rung], "ms": ms, "calls": args.calls, "extra_gb": round(peak, 2)}
            data["rungs"].append(row)
            save()
            row["check"] = ladder.compare(got, want or got)
        except Exception as e:
            data["faults"][str(rung)] = f"{type(e).__name__}: {str(e)[:600]}"
            say(f"rung {rung}: {data['faults'][str(rung)]}")
            got = None
        else:
            say(f"rung {rung}, {row['name']}: {ms[0]} ms, against rung 0 {row['check']}")
        save()
        return got

    want = None
    want = add(0, lambda: ladder.chain(0, None)(x), lambda r: ladder.sample(r, heads))
    if ours is not None and want is not None:
        add(4, ours, lambda _: ours.sample(heads, want))
        row = data["rungs"][-1]
        if row["rung"] == 4:
            row["extra_gb"] = round(ours.bytes / 1e9, 2)
        ours = None
        try:
            data["token_order_ms"] = ladder.median_ms(Library(x, args.grid, kept=False), "cuda", args.calls)
            say(f"the library in token order: {data['token_order_ms'][0]} ms")
        except Exception as e:
            say(f"token order: {e}")
        save()
    fuse = (lambda f: f) if args.no_compile else lambda f: torch.compile(f, fullgraph=True, dynamic=False)
    for rung in (1, 2, 3):
        run = ladder.chain(rung, fuse)
        add(rung, lambda run=run: run(x), lambda r: ladder.sample(r, heads))
        if on_gpu:
            torch._dynamo.reset()
    data["rungs"].sort(key=lambda r: r["rung"])
    save()
    print(ladder_table.table(data))
    return 1 if data["faults"] else 0
