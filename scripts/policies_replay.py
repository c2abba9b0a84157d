#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Captured operands of a whole clip, given to every policy and every grouping (see policies.py).

Every call prepares all keys and values, as a model's call does, so orders and f are those of the
model. Queries are a sample in blocks of 128, so that their scales are the whole call's. The error
is that of the sampled rows against attention in FP64 on the stored inputs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import sys

import numpy as np
from tqdm import tqdm

from make_capture import read
from quality import ROOT

sys.path.insert(0, str(ROOT / "python"))
from vcattn import _capi as capi  # noqa: E402
from vcattn._state import host_buffer  # noqa: E402

QUERY_BLOCK, QUERY_BLOCKS = 128, 4
GROUPINGS = ("identity", "cubes", "kmeans", "kdtree", "vsmooth")
# vc8-paper only where its form is the published one. In vc4-int8qk nearly all error is V's (and P's),
# so it shows what a policy is worth where that is so.
REPLAYED = {
    "vc8": ("none", "every", "quarter", "quarter-only", "spread", "once", "decay", "once-decay"),
    "vc8-paper": ("every", "quarter", "spread"),
    "vc4-int8qk": ("none", "every", "quarter", "spread", "once", "decay"),
}
AFTER = {"reuse": capi.PolicyAfter.REUSE, "identity": capi.PolicyAfter.IDENTITY,
         "decay": capi.PolicyAfter.REFRESH_ON_DECAY}  # fmt: skip
WARM_SHARE = 0.75  # of docs/grouping.md, "Warm start"


def policy_of(text: str, steps: int) -> capi.Policy:
    """The library's policy of a --policy text of `vcattn generate`."""
    words = dict(part.partition("=")[::2] for part in text.split(","))
    policy = capi.Policy(steps=steps, after=AFTER[words.get("after", "decay")])
    policy.window = int(words["window"]) or -1
    policy.refresh = int(words.get("refresh", 1))
    policy.decay = float(words.get("decay", 0))
    policy.share_cfg = "share_cfg" in words
    return policy


def view(array: np.ndarray, dtype: capi.Dtype) -> capi.Tensor:
    strides = [s // array.itemsize for s in array.strides]
    return capi.tensor(array.ctypes.data, dtype, array.shape, strides)


def doubles(bf16: np.ndarray) -> np.ndarray:
    return (bf16.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def exact(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Attention of [B, H, S, D] in FP64."""
    scores = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[3])
    weights = np.exp(scores - scores.max(axis=3, keepdims=True))
    return weights @ v / weights.sum(axis=3, keepdims=True)


class Operands:
    """q (sampled), k, v of one layer and step, all heads, and the exact output of the sampled rows."""

    def __init__(self, path: pathlib.Path) -> None:
        header, data = read(path)
        arrays = {}
        for name in "qkv":
            begin, end = header[name]["data_offsets"]
            arrays[name] = np.frombuffer(data[begin:end], np.uint16).reshape(header[name]["shape"])
        self.grid = [int(n) for n in header["__metadata__"]["grid"].split(",")]
        blocks = -(-arrays["q"].shape[2] // QUERY_BLOCK) - 1  # whole ones
        chosen = [i * blocks // QUERY_BLOCKS for i in range(min(QUERY_BLOCKS, blocks))]
        rows = np.concatenate([np.arange(QUERY_BLOCK) + b * QUERY_BLOCK for b in chosen])
        self.q, self.k, self.v = np.ascontiguousarray(arrays["q"][:, :, rows]), arrays["k"], arrays["v"]
        self.heads = self.q.shape[1]
        self.exact = exact(*map(doubles, (self.q, self.k, self.v)))

    def descriptor(self, recipe: str, grouping: str | None = None) -> capi.AttnDesc:
        number, hadamard = capi.parse_recipe(recipe)
        desc = capi.AttnDesc(recipe=number, hadamard=hadamard)
        desc.q, desc.k, desc.v = (view(x, capi.Dtype.BF16) for x in (self.q, self.k, self.v))
        desc.grouping = capi.parse_grouping(grouping) if grouping else capi.Grouping.DEFAULT
        desc.grid[:] = self.grid
        return desc

    def run(self, desc: capi.AttnDesc, attend: bool = True) -> dict:
        """o, f and regrouped of each head; without `attend` no o."""
        o = np.empty(self.q.shape, np.float32)
        energy = np.full(self.heads, np.nan, np.float32)
        regrouped = np.zeros(self.heads, np.uint8)
        desc.o = view(o, capi.Dtype.FP32)
        desc.energy_removed, desc.regrouped = energy.ctypes.data, regrouped.ctypes.data
        size = capi.workspace(desc)
        memory = host_buffer(size)
        capi.prepare(desc, memory.ctypes.data, size)
        if attend:
            capi.attend(desc, memory.ctypes.data, size)
        return {"o": o, "energy": energy.astype(float), "regrouped": regrouped.astype(bool)}

    def errors(self, o: np.ndarray) -> list[float]:
        """rel_l2 of each head."""
        difference = np.square(o - self.exact).sum(axis=(0, 2, 3))
        return list(np.sqrt(difference / np.square(self.exact).sum(axis=(0, 2, 3))))


class State:
    """The group state of one layer under a policy."""

    def __init__(self, desc: capi.AttnDesc) -> None:
        self.size = capi.group_state_bytes(desc)
        self.buffer = host_buffer(self.size)
        capi.group_state_init(desc, self.buffer.ctypes.data, self.size)

    def copy(self, desc: capi.AttnDesc) -> State:
        other = State(desc)
        blob = capi.group_state_save(self.buffer.ctypes.data, self.size)
        capi.group_state_load(desc, other.buffer.ctypes.data, other.size, blob)
        return other


class Layer:
    """One layer under one policy, call by call; counts what was done about the order of each head."""

    def __init__(self, recipe: str, policy: capi.Policy) -> None:
        self.recipe, self.policy = recipe, policy
        self.states: dict[int, State] = {}
        self.has_order: dict[int, bool] = {}
        self.calls = {"cold": 0, "warm": 0, "kept": 0, "token order": 0}

    def _run(self, x: Operands, state: State, policy: capi.Policy, step: int, attend: bool = True) -> dict:
        desc = x.descriptor(self.recipe)
        number = np.array([step], np.int32)
        desc.state, desc.step = state.buffer.ctypes.data, number.ctypes.data
        desc.policy = capi.ctypes.pointer(policy)
        return x.run(desc, attend)

    def _starts_cold(self, x: Operands, before: State, step: int) -> np.ndarray:
        """Heads whose order of last time would remove less than WARM_SHARE of what it did.

        The library does not tell warm from cold, but its policies compare the same numbers: a copy
        of the state keeps its orders in this call, and in a next one regroups what has decayed.
        """
        copy = before.copy(x.descriptor(self.recipe))
        after = capi.PolicyAfter
        steps = self.policy.steps + 2
        self._run(x, copy, capi.Policy(steps=steps, window=-1, after=after.REUSE), step, attend=False)
        probe = capi.Policy(steps=steps, window=-1, after=after.REFRESH_ON_DECAY, decay=WARM_SHARE)
        return self._run(x, copy, probe, step + 1, attend=False)["regrouped"]

    def call(self, x: Operands, step: int, branch: int) -> dict:
        key = 0 if self.policy.share_cfg else branch
        if key not in self.states:
            self.states[key] = State(x.descriptor(self.recipe))
        before = self.states[key].copy(x.descriptor(self.recipe)) if self.has_order.get(key) else None
        done = self._run(x, self.states[key], self.policy, step)
        regrouped = done["regrouped"]
        # Plain k-means has no warm start.
        cold = regrouped
        if before is not None and regrouped.any() and "paper" not in self.recipe:
            cold = regrouped & self._starts_cold(x, before, step)
        self.calls["cold"] += int(cold.sum())
        self.calls["warm"] += int((regrouped & ~cold).sum())
        in_token_order = self.policy.after == capi.PolicyAfter.IDENTITY and step >= max(self.policy.window, 0)
        self.calls["token order" if in_token_order else "kept"] += int((~regrouped).sum())
        self.has_order[key] = self.has_order.get(key, False) or bool(regrouped.any())
        return done


def over_policies(load, layers: int, steps: int, branches: int, policies: dict[str, tuple[str, str]]) -> dict:
    """{name: f and error of each step, calls}; policies: {name: (recipe, --policy text)}.

    load(layer, step, branch): the operands.
    """
    found = {name: {"energy_removed": [[] for _ in range(steps)], "output_error": [[] for _ in range(steps)],
                    "calls": {}} for name in policies}  # fmt: skip
    for layer in range(layers):
        states = {name: Layer(recipe, policy_of(text, steps)) for name, (recipe, text) in policies.items()}
        for step in range(steps):
            for branch in range(branches):
                x = load(layer, step, branch)
                for name, state in states.items():
                    done = state.call(x, step, branch)
                    found[name]["energy_removed"][step] += list(done["energy"])
                    found[name]["output_error"][step] += x.errors(done["o"])
        for name, state in states.items():
            for kind, count in state.calls.items():
                found[name]["calls"][kind] = found[name]["calls"].get(kind, 0) + count
    return {name: means(entry) for name, entry in found.items()}


def over_groupings(load, layers: int, steps: int) -> dict:
    """{grouping: f and error of vc8 at each step}, each call on its own."""
    found = {g: {"energy_removed": [[] for _ in range(steps)], "output_error": [[] for _ in range(steps)]}
             for g in GROUPINGS}  # fmt: skip
    for layer in range(layers):
        for step in range(steps):
            x = load(layer, step, 0)
            for grouping in GROUPINGS:
                done = x.run(x.descriptor("vc8", grouping))
                found[grouping]["energy_removed"][step] += list(done["energy"])
                found[grouping]["output_error"][step] += x.errors(done["o"])
    return {name: means(entry) for name, entry in found.items()}


def means(entry: dict) -> dict:
    """Means over layers, heads and branches, of each step."""
    for key in ("energy_removed", "output_error"):
        entry[key] = [math.fsum(values) / len(values) for values in entry[key]]
    return entry


def measure(args: argparse.Namespace, records: list[dict], policies: dict, guided: dict) -> dict:
    """replay, guided_replay and groupings of the results, of the records that have captures."""
    os.environ.setdefault("VCATTN_LIBRARY", str(args.vcattn.resolve().parents[1] / "lib" / "libvcattn.so"))
    results: dict = {"replay": {}, "guided_replay": {}, "groupings": {}}
    records = [record for record in records if record["captures"] is not None]
    for record in tqdm(records, desc="replays", disable=None):
        result, folder = record["result"], record["captures"]
        layers, steps = result["model"]["layers"], result["denoising_steps"]
        is_guided = result["guidance"] != 1
        name = f"{record['class']}-{record['seed']}"

        def load(layer: int, step: int, branch: int) -> Operands:
            return Operands(folder / f"layer-{layer}-step-{step}{'-without-class' * branch}.safetensors")

        wanted = {f"vc8@{p}": ("vc8", text) for p, text in guided.items()} if is_guided else {
            f"{recipe}@{p}": (recipe, policies[p]) for recipe, names in REPLAYED.items() for p in names
        }  # fmt: skip
        kind = "guided_replay" if is_guided else "replay"
        results[kind][name] = cached(
            args.work / f"{kind}-{name}.json",
            lambda: over_policies(load, layers, steps, 2 if is_guided else 1, wanted),
        )
        if not is_guided:
            path = args.work / f"groupings-{name}.json"
            results["groupings"][name] = cached(path, lambda: over_groupings(load, layers, steps))
    return results


def cached(path: pathlib.Path, make) -> dict:
    if not path.exists():
        path.write_text(json.dumps(make(), indent=1) + "\n")
    return json.loads(path.read_text())
