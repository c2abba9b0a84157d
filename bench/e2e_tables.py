#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Text and tables of a result file of bench/e2e.py: what README.md and docs/integrations.md quote.

    python bench/e2e_tables.py bench/results/e2e-h200-20261130.json
    python bench/e2e_tables.py FILE.json --write README.md docs/integrations.md

| part    | what                                                                           |
| ------- | ------------------------------------------------------------------------------ |
| machine | GPU, driver, power, date, commit, software, the file                           |
| wan     | Wan2.2-A14B: backends, every configuration, what a forward saves, the clip     |
| others  | the other models: a table, then what is special about each                     |
| summary | one sentence                                                                   |

--write replaces what stands between two lines of a document, here of the part `wan`:

    <!-- bench/e2e_tables.py wan -->
    <!-- end of part -->
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import statistics
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))
import marked  # noqa: E402
from e2e import result  # noqa: E402

TITLES = {"wan2.2-a14b": "Wan2.2-A14B", "hunyuanvideo-1.5": "HunyuanVideo-1.5",
          "longcat-video": "LongCat-Video", "minimax-h3": "MiniMax-H3"}  # fmt: skip
BACKENDS = {"_flash_3": "flash-attention 3 (`_flash_3`)", "_native_cudnn": "cuDNN",
            "_native_flash": "flash-attention 2", "native": "torch's own choice"}  # fmt: skip
HEAD = ["attention", "forward", "attention in it", "step, over the clip", "clip",
        "step, clip against native", "peak memory"]  # fmt: skip
NO_MASK = ", no square mask"


def size(model: dict) -> str:
    return re.sub(r"(\d)x(\d)", r"\1×\2", model["clip"])


def seconds(ms: float | None) -> str:
    return "–" if ms is None else f"{ms / 1000:.2f} s" if ms < 100_000 else f"{ms / 1000:.0f} s"


class Model:
    """One model of a file by configuration: (attention, linears) -> grouping -> row."""

    def __init__(self, model: dict) -> None:
        self.data = model
        self.cells: dict[tuple[str, str], dict[str, dict]] = {}
        for row in model["rows"]:
            self.cells.setdefault((row["attention"], row["linears"]), {})[row["grouping"]] = row
        self.clips = {(c["attention"], c["linears"]): c for c in model["clips"]}
        self.native = next(key[0] for key, rows in self.cells.items() if "none" in rows)

    def forward(self, attention: str, linears: str = "bf16", grouping: str | None = None) -> float | None:
        """ms of a forward; grouping None: the native one, or with a kept order."""
        rows = self.cells.get((attention, linears), {})
        grouping = grouping or ("none" if "none" in rows else "kept")
        return result.grouped_ms(self.data, rows, grouping)

    def attention(self, attention: str, linears: str = "bf16") -> float | None:
        rows = self.cells[attention, linears]
        row = rows.get("none") or rows.get("kept") or rows["cold"]
        return result.attention_ms(self.data, row)

    def cells_of(self, key: tuple[str, str]) -> list[str]:
        """A line of a table behind the configuration's name."""
        attention, linears = key
        rows, clip = self.cells[key], self.clips.get(key)
        forward = seconds(self.forward(*key))
        if "none" not in rows:
            more = [f"{g} {seconds(self.forward(attention, linears, g)).removesuffix(' s')}"
                    for g in ("cold", "warm") if self.forward(attention, linears, g)]  # fmt: skip
            forward += f" ({', '.join(more)})" if more else ""
        ratios, step, whole = "–", "–", "–"
        if clip is not None:
            step = f"{clip['step_ms'] / 1000:.2f} s"
            whole = "–" if clip["clip_s"] is None else f"{clip['clip_s']:.0f} s"
            if clip["step_ratio"] is not None and key != (self.native, "bf16"):
                both = [clip["step_ratio"], clip["clip_ratio"]]
                ratios = ", ".join("–" if r is None else f"{r:.2f}" for r in both)
                ratios = f"**{ratios}**" if "none" not in rows and linears == "bf16" else ratios
            elif key == (self.native, "bf16"):
                ratios = ""
        peaks = [row["peak_gib"] for row in rows.values() if row["peak_gib"]]
        peak = f"{max(peaks):.1f} GiB" if peaks else "–"
        return [forward, seconds(self.attention(*key)), step, whole, ratios, peak]

    def name(self, attention: str) -> str:
        if attention.endswith(NO_MASK):
            return f"`{attention.removesuffix(NO_MASK)}`, mask not squared"
        return f"`{attention}`"

    def stages(self) -> str:
        """ "text encoder (what, 0.09 s), VAE decoder (what, 6.55 s)" """
        found = []
        for key, name in (("text_encoder", "text encoder"), ("vae_decode", "VAE decoder")):
            stage = self.data["stages"].get(key)
            if stage is not None:
                found.append(f"{name} ({stage['what']}: {seconds(stage['ms'])})")
        return ", ".join(found) or "text encoder and VAE decoder not measured"

    def extrapolated(self) -> str:
        """What of the rows follows from forwards of the first blocks, and how far off that is where
        whole ones were timed too."""
        layers = self.data["layers"]
        rows = [row for row in self.data["rows"] if "short_ms" in row]
        if not rows:
            return ""
        counts = sorted({point[0] for row in rows for point in row["short_ms"]} - {layers})
        text = (f"forwards of the first {' and '.join(map(str, counts))} of {layers} blocks were timed, with all weights "
                "resident, and the whole is extrapolated, one more block at a time")  # fmt: skip
        whole = [row for row in rows if row["short_ms"][-1][0] == layers and len(row["short_ms"]) > 2]
        if whole:
            names = [f"{self.name(r['attention'])}{'' if r['grouping'] == 'none' else ' ' + r['grouping']}" for r in whole]
            off = [100 * (result.forward_ms(self.data, r | {"short_ms": r["short_ms"][:-1]}) / r["short_ms"][-1][1] - 1)
                   for r in whole]  # fmt: skip
            text += (f". Whole forwards ({', '.join(names)}) were timed as well and count as they are; extrapolated they "
                     f"would be off by {', '.join(f'{x:+.1f}' for x in off)} %")  # fmt: skip
        return text

    def by_kernel(self, recipe: str) -> str:
        rows = self.cells.get((recipe, "bf16"), {})
        parts = {g: rows[g]["parts_ms"] for g in ("kept", "warm", "cold") if g in rows and rows[g]["parts_ms"]}
        if not parts:
            return ""
        (first, *_) = parts.values()
        group = ", ".join(f"{p['group']:.1f} ({g})" for g, p in parts.items())
        return (f"One `{recipe}` attention call on the GPU, by kernel: attention {first['attention']:.1f} ms, "
                f"preparation {first['prepare']:.1f}, grouping {group}")  # fmt: skip


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


def wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 138, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def bullets(texts: list[str]) -> str:
    return "\n".join(wrapped(f"- {text}.", "  ") for text in texts if text)


def machine(data: dict, path: str) -> str:
    powers = [row["power_w"] for m in data["models"] for row in m["rows"] if row["power_w"]]
    power = f", about {statistics.median(powers):.0f} W" if powers else ""
    software = ", ".join(f"{name} {version}" for name, version in data["software"].items())
    text = (f"Measured on one {data['gpu']} ({data['date'][:10]}, driver {data['driver']}{power}, commit {data['commit']}, "
            f"{software}): [`{path}`](../{path}).")  # fmt: skip
    return wrapped(text)


def wan(models: dict[str, Model]) -> str:
    m = models["wan2.2-a14b"]
    data = m.data
    ran = {b: t for b, t in data["backends"].items() if isinstance(t, (int, float))}
    best, *slower = sorted(ran, key=ran.__getitem__)
    others = "; ".join(f"{BACKENDS.get(b, b)} {ran[b]:.0f}" for b in slower)
    lines = [wrapped(f"**Wan2.2-A14B, {size(data)}, {data['tokens']:,} tokens, {data['steps']} steps** of "
             f"{data['forwards_per_step']} forwards. Best native backend: {BACKENDS.get(best, best)}, {ran[best]:.0f} ms a call"
             + (f" ({others})." if others else ".")), ""]  # fmt: skip
    rows = [[m.name(a), linears.upper(), *m.cells_of((a, linears))] for a, linears in m.cells]
    lines += [table([HEAD[0], "linears", *HEAD[1:]], rows), "", ""]
    counts = result.groupings(data["steps"], data["experts"])
    facts = [m.extrapolated(),
             f"The clip counts {counts['cold']} cold, {counts['warm']} warm and {counts['kept']} kept steps; with it {m.stages()}",
             m.by_kernel("vc8"), m.by_kernel("vc8-turbo")]  # fmt: skip
    saved = m.forward(m.native) - m.forward("vc8")
    inside = m.attention(m.native) - m.attention("vc8")
    facts.append(f"Of the {saved / 1000:.2f} s that a `vc8` forward saves, {inside / 1000:.2f} are in the attention calls, although "
                 "those rotate queries and keys as well; the rest is the model's own rotation, which is gone. A compiled model "
                 "would rotate cheaper on both sides; that was not measured")  # fmt: skip
    return "\n".join(lines) + bullets(facts)


def others(models: dict[str, Model]) -> str:
    rows, facts = [], []
    for name, m in models.items():
        if name == "wan2.2-a14b":
            continue
        data = m.data
        forwards = f"{data['forwards_per_step']} forward" + ("s" if data["forwards_per_step"] > 1 else "")
        about = (f"{TITLES[name]}, {size(data)}, {data['tokens']:,} tokens, {data['steps']} steps of {forwards}"
                 + (f" of batch {data['batch']}" if data["batch"] > 1 else ""))  # fmt: skip
        for i, key in enumerate(m.cells):
            linears = "" if key[1] == "bf16" else f", {key[1].upper()} linears"
            rows.append([about if i == 0 else "", m.name(key[0]) + linears, *m.cells_of(key)])
        own = [m.extrapolated(), m.stages(), m.by_kernel("vc8")]
        bare = m.native + NO_MASK
        if (bare, "bf16") in m.cells:
            mask = (m.forward(m.native) - m.forward(bare)) / 1000
            peak = [max(r["peak_gib"] or 0 for r in m.cells[a, "bf16"].values()) for a in (m.native, bare)]
            ratios = [m.clips[bare, "bf16"]["step_ms"] / m.clips[recipe, "bf16"]["step_ms"]
                      for recipe in ("vc8", "vc8-turbo") if (recipe, "bf16") in m.clips]  # fmt: skip
            own.append(f"The model makes a mask of queries × keys in every layer; that costs {mask:.1f} s of a native forward and "
                       f"{peak[0] - peak[1]:.0f} GiB, and `enable` does away with it. Against a native run without that mask the "
                       f"step is {' and '.join(f'{r:.2f}' for r in ratios)} times as fast with `vc8` and `vc8-turbo`. "
                       "flash-attention 3 takes no mask; native runs give it the valid keys only, as diffusers' "
                       "`_flash_varlen_3` does")  # fmt: skip
        rest = 1 - m.attention(m.native) / m.forward(m.native)
        own.append(f"{100 * rest:.0f} % of a native forward is not attention")
        facts.append(f"{TITLES[name]}: " + ". ".join(text[0].upper() + text[1:] for text in own if text))
    head = ["model", *HEAD]
    return table(head, rows) + "\n\n" + bullets(facts)


def summary(models: dict[str, Model]) -> str:
    m = models["wan2.2-a14b"]
    clip = m.clips["vc8", "bf16"]
    text = (f"a denoising step of Wan2.2-A14B 720p is {clip['step_ratio']:.2f} times as fast with `vc8` as with the best native "
            f"backend in BF16, a whole clip {clip['clip_ratio']:.2f} times")  # fmt: skip
    turbo = m.clips.get(("vc8-turbo", "bf16"))
    more = f"; with `vc8-turbo` {turbo['step_ratio']:.2f} and {turbo['clip_ratio']:.2f}" if turbo else ""
    return wrapped(f"{text}{more}.")


PARTS = ("machine", "wan", "others", "summary")


def make(part: str, data: dict, path: str) -> str:
    models = {m["model"]: Model(m) for m in data["models"]}
    if part == "machine":
        return machine(data, path)
    return {"wan": wan, "others": others, "summary": summary}[part](models)


def rewritten(text: str, data: dict, path: str) -> tuple[str, int]:
    """A document with its parts made anew, and how many there were."""
    return marked.rewritten(
        text, "bench/e2e_tables.py", "part", PARTS, lambda part: make(part, data, path)
    )


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="e2e_tables.py", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--write", nargs="+", type=pathlib.Path, metavar="DOCUMENT", default=[])
    args = parser.parse_args(argv)
    shown = args.file.resolve()
    path = str(shown.relative_to(ROOT)) if shown.is_relative_to(ROOT) else shown.name
    try:
        data = json.loads(args.file.read_text(encoding="utf-8"))
        result.check(data, str(args.file))
        if "wan2.2-a14b" not in [m["model"] for m in data["models"]]:
            raise ValueError(f"{args.file} has no Wan2.2-A14B, which the parts begin with")
        if not args.write:
            for part in PARTS:
                print(f"{make(part, data, path)}\n")
        for document in args.write:
            text, count = rewritten(document.read_text(encoding="utf-8"), data, path)
            if count == 0:
                raise ValueError(f"{document} has no line <!-- bench/e2e_tables.py PART -->")
            document.write_text(text, encoding="utf-8")
            print(f"{document}: {count} parts")
    except (OSError, ValueError) as e:
        print(f"e2e_tables.py: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
