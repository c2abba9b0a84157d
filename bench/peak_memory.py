#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peak device memory of one whole call, ours and SageAttention2, beside the figures of docs/architecture.md.

    VCATTN_LIBRARY=build-cuda/lib/libvcattn.so python bench/peak_memory.py --out bench/results
    python bench/peak_memory.py --table bench/results/memory-h200-YYYYMMDD.json      # its table; no GPU

40 heads of 75,600 tokens and of 75,648 (a multiple of 128), head_dim 128, BF16, [B, H, S, D]. Each call is made as its
users make it (`vcattn.attention`, `sageattn`), once unmeasured (kernels load, Triton compiles), then once more from an
empty cache of torch's allocator:

    held     what the call is given: q, k, v, and the group state where it is not the first step
    call     torch.cuda.max_memory_allocated of the call over what was allocated ahead of it: the output and all that it
             takes meanwhile. Our workspace is a torch tensor, so it is seen as SageAttention2's copies are. What stays
             from the unmeasured call (cuBLAS's workspace) is in neither
    outside  by how much device memory that is not the allocator's has grown when the call is over

Bytes a token and head = (held + call) / (heads * tokens). torch rounds each allocation up, by 1 MiB at most where it is
large: 0.35 bytes a token and head at these shapes; so measured and computed agree within TOLERANCE.
Exit codes: 0 all measured and as computed, 1 not, 2 usage.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "python")]

import schema  # noqa: E402

HEADS, D, TOKENS = 40, 128, (75600, 75648)
SAGE = "SageAttention2"
# Bytes a token and head of the page, at tokens that are (not) a multiple of 128.
COMPUTED = {
    "vc8, token order": (1423, 1423),
    "vc8, token order, LSE": (1431, 1431),
    "vc8, grouped, cold": (1427, 1427),
    "vc8, grouped, warm": (1427, 1427),
    "vc8, grouped, cold, LSE": (1435, 1435),
    "vc8, grouped, warm, LSE": (1435, 1435),
    "vc8, prepare": (1167, 1167),
    "vc8, attend without q, k, v": (655, 655),
    SAGE: (1666, 1922),
    SAGE + ", LSE": (1670, 1926),
}
# The computed figures are rounded sums of rounded lines (1 byte); SageAttention2 holds 8 large tensors at its peak.
TOLERANCE = 1 + 8 * 2**20 / (HEADS * TOKENS[0])
ROW_KEYS = ("call", "tokens", "held_bytes", "call_bytes", "outside_bytes")
ROOT_KEYS = ("gpu", "driver", "date", "commit", "software", "heads", "d", "rows", "skipped")


def computed(call: str, tokens: int) -> int:
    return COMPUTED[call][tokens % 128 != 0]


def each(row: dict) -> float:
    """Bytes a token and head, at the peak."""
    return (row["held_bytes"] + row["call_bytes"]) / (HEADS * row["tokens"])


# ------------------------------------------------------------------ result files
def faults(data: dict) -> list[str]:
    """What is wrong with a result file; none: fit to be quoted."""
    if set(data) != set(ROOT_KEYS):
        return [f"keys {sorted(data)}; allowed: {sorted(ROOT_KEYS)}"]
    found = []
    if (data["heads"], data["d"]) != (HEADS, D):
        found.append(f"heads and d {data['heads']}, {data['d']}; allowed: {HEADS}, {D}")
    have = {(row.get("call"), row.get("tokens")): row for row in data["rows"]}
    for row in data["rows"]:
        where = f"{row.get('call')} of {row.get('tokens')}"
        if set(row) != set(ROW_KEYS) or row["call"] not in COMPUTED or row["tokens"] not in TOKENS:
            found.append(f"{where}: unknown row or keys")
        elif min(row["held_bytes"], row["call_bytes"]) <= 0:
            found.append(f"{where}: held {row['held_bytes']}, call {row['call_bytes']}; allowed: more than 0")
        elif abs(each(row) - computed(row["call"], row["tokens"])) > TOLERANCE:
            want = computed(row["call"], row["tokens"])
            found.append(f"{where}: {each(row):.1f} bytes a token and head; computed: {want} +- {TOLERANCE:.1f}")
    for call in COMPUTED:
        if call not in data["skipped"]:
            found += [f"{call} of {n} is missing" for n in TOKENS if (call, n) not in have]
    return found


def table(data: dict) -> str:
    """Markdown: bytes a token and head, measured and computed."""
    lines = [
        "| | " + " | ".join(f"{n:,}: measured | computed" for n in TOKENS) + " |",
        "| --- |" + " ---: | ---: |" * len(TOKENS),
    ]
    have = {(row["call"], row["tokens"]): row for row in data["rows"]}
    for call in COMPUTED:
        cells = []
        for n in TOKENS:
            row = have.get((call, n))
            cells += ["–" if row is None else f"{each(row):.1f}", str(computed(call, n))]
        lines.append(f"| {call} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


# ------------------------------------------------------------------ measuring
class Gpu:
    """What `peak_of` asks about memory, of the current CUDA device."""

    def __init__(self):
        import torch

        self.cuda = torch.cuda

    def begin(self) -> int:
        self.cuda.synchronize()
        self.cuda.empty_cache()
        self.cuda.reset_peak_memory_stats()
        return self.cuda.memory_allocated()

    def peak(self) -> int:
        self.cuda.synchronize()
        return self.cuda.max_memory_allocated()

    def outside(self) -> int:
        free, total = self.cuda.mem_get_info()
        return total - free - self.cuda.memory_reserved()


def peak_of(call, held: int, memory) -> dict:
    """The three figures of one call; what it returns lives until they are taken."""
    before = memory.begin()
    outside = memory.outside()
    result = call()
    figures = {"held_bytes": held, "call_bytes": memory.peak() - before}
    figures["outside_bytes"] = memory.outside() - outside
    del result
    return figures


def rows_of(tokens: int, add, sage: bool) -> None:
    """`add(call, name, held)` for every call of a shape; without a name it is the unmeasured one ahead."""
    import torch
    import vcattn

    given = [torch.randn(1, HEADS, tokens, D, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    qkv = sum(x.nbytes for x in given)
    policy = vcattn.Policy(steps=40)

    def ours(lse: bool, **options):
        return vcattn.attention(*given, recipe="vc8", return_lse=lse, **options)

    def theirs(lse: bool):
        from sageattention import sageattn

        return sageattn(*given, tensor_layout="HND", return_lse=lse)

    for lse in (False, True):
        last = ", LSE" if lse else ""
        for measured in (False, True):
            add(lambda: ours(lse, grouping="identity"), measured and "vc8, token order" + last, qkv)  # noqa: B023
            state = vcattn.GroupState()  # empty: the first call takes its memory

            def step(n: int):
                return ours(lse, state=state, step=n, policy=policy)  # noqa: B023

            add(lambda: step(0), measured and "vc8, grouped, cold" + last, qkv)  # noqa: B023
            add(lambda: step(1), measured and "vc8, grouped, warm" + last, qkv + state.nbytes)  # noqa: B023
            state.clear()
            if sage:
                add(lambda: theirs(lse), measured and SAGE + last, qkv)  # noqa: B023
    kept = []
    add(lambda: kept.append(vcattn.prepare(*given, recipe="vc8", grouping="identity")), "vc8, prepare", qkv)
    given.clear()
    add(kept[0].attend, "vc8, attend without q, k, v", kept[0].nbytes)


def measure(args) -> dict:
    import torch

    from peers import sage2

    data = {
        "gpu": torch.cuda.get_device_name(), "driver": schema.driver(), "date": schema.utc_now(), "commit": args.commit,
        "software": {"torch": torch.__version__}, "heads": HEADS, "d": D, "rows": [], "skipped": {},
    }  # fmt: skip
    reason = sage2.available(sage2.IMPLS[0])
    if reason:
        data["skipped"] = {call: reason for call in COMPUTED if call.startswith(SAGE)}
    memory = Gpu()
    for tokens in TOKENS:

        def add(call, name, held):
            figures = peak_of(call, held, memory)
            if name:
                data["rows"].append({"call": name, "tokens": tokens, **figures})  # noqa: B023

        rows_of(tokens, add, not reason)
    return data


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="peak_memory.py", description="Peak device memory of whole calls.")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench" / "results", help="folder of the result file")
    parser.add_argument("--commit", default="unknown", help="hash to write into the file")
    parser.add_argument("--table", type=pathlib.Path, metavar="FILE", help="print the table of a result file, and stop")
    args = parser.parse_args(argv)
    if args.table:
        data = json.loads(args.table.read_text())
    else:
        try:
            import torch
        except ImportError as e:
            print(f"peak_memory.py: {e}", file=sys.stderr)
            return 1
        if not torch.cuda.is_available():
            print("peak_memory.py: no CUDA device (--table FILE prints a result)", file=sys.stderr)
            return 1
        data = measure(args)
        args.out.mkdir(parents=True, exist_ok=True)
        gpu = "h200" if "H200" in data["gpu"] else "gpu"
        path = args.out / f"memory-{gpu}-{data['date'][:10].replace('-', '')}.json"
        schema.write_text(path, json.dumps(data, indent=1) + "\n")
        print(path)
    print(table(data))
    print(f"outside of torch's allocator: {max((r['outside_bytes'] for r in data['rows']), default=0):,} bytes at most")
    for call, why in data["skipped"].items():
        print(f"skipped: {call}: {why}")
    found = faults(data)
    for fault in found:
        print(f"fault: {fault}")
    return 1 if found or data["skipped"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
