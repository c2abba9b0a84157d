# SPDX-License-Identifier: Apache-2.0
"""Options of a call that are of the wrong kind or do not fit into a C integer, for q, k, v of shape
[1, 2, 200, 64]: the same for numpy and for torch. Name -> (options, a word of the refusal)."""

import vcattn

GRID = {"grid": (2, 10, 10)}


def with_state(**options):
    return {"state": vcattn.GroupState(), "step": 0, "policy": vcattn.Policy(4)} | options


def rope(axis_dim=(20, 20, 24), **fields):
    return {"rope": vcattn.Rope("half", axis_dim, **(GRID | fields))}


def policy(*fields, **named):
    return lambda: with_state(policy=vcattn.Policy(*fields, **named))


BAD_OPTIONS = {
    "scale is text": (lambda: {"scale": "0.1"}, "scale is not a number"),
    "scale is complex": (lambda: {"scale": 1j}, "scale is not a number"),
    "scale is a list": (lambda: {"scale": [0.1]}, "scale is not a number"),
    "scale beyond a double": (lambda: {"scale": 10**400}, "scale is not a number"),
    "recipe is None": (lambda: {"recipe": None}, "recipe is not a name"),
    "recipe is a number": (lambda: {"recipe": 3}, "recipe is not a name"),
    "recipe is bytes": (lambda: {"recipe": b"vc8"}, "recipe is not a name"),
    "recipe goes on after a zero byte": (lambda: {"recipe": "vc8\0x"}, "recipe is not a name"),
    "grouping is a number": (lambda: {"grouping": 3}, "grouping is not a name"),
    "grouping is a list": (lambda: {"grouping": ["identity"]}, "grouping is not a name"),
    "grouping goes on after a zero byte": (lambda: {"grouping": "identity\0"}, "grouping is not a name"),
    "layout is a list": (lambda: {"layout": ["HND"]}, "layout is unknown"),
    "threads are a float": (lambda: {"num_threads": 2.0}, "num_threads is not an integer"),
    "threads beyond 32 bits": (lambda: {"num_threads": 2**32 + 1}, "num_threads is out of range"),
    "lengths are a number": (lambda: {"kv_lens": 37}, "kv_lens"),
    "lengths are text": (lambda: {"kv_lens": "37"}, "kv_lens"),
    "a length is None": (lambda: {"kv_lens": [None]}, "kv_lens"),
    "a length beyond 32 bits": (lambda: {"kv_lens": [2**40]}, "kv_lens"),
    "a length beyond 64 bits": (lambda: {"kv_lens": [2**70]}, "kv_lens"),
    "lengths are nested": (lambda: {"kv_lens": [[37]]}, "kv_lens"),
    "mask is True": (lambda: {"key_mask": True}, "key_mask"),
    "mask is text": (lambda: {"key_mask": "abc"}, "key_mask"),
    "segments are floats": (lambda: {"segments": [(0.0, 200.0)]}, "begin is not an integer"),
    "a segment beyond 64 bits": (lambda: {"segments": [(2**64, 200)]}, "begin is out of range"),
    "segments are text": (lambda: {"segments": [("0", "200")]}, "begin is not an integer"),
    "segments are a number": (lambda: {"segments": 5}, "segments"),
    "a segment is None": (lambda: {"segments": [None]}, "segments"),
    "a kind is a number": (lambda: {"segments": [(0, 200, 0)]}, "segment kind is unknown"),
    "grid is floats": (lambda: {"grid": (2.0, 10.0, 10.0)}, "grid is not an integer"),
    "grid beyond 64 bits": (lambda: {"grid": (2**64 + 2, 10, 10)}, "grid is out of range"),
    "grid is text": (lambda: {"grid": "abc"}, "grid is not an integer"),
    "grid is a number": (lambda: {"grid": 200}, "grid does not have three"),
    "rope is a dictionary": (lambda: {"rope": {"convention": "half"}}, "a vcattn.Rope"),
    "rope's dims are floats": (lambda: rope((20.0, 20.0, 24.0)), "axis_dim is not an integer"),
    "rope's dims beyond 32 bits": (lambda: rope((2**32 + 20, 20, 24)), "axis_dim is out of range"),
    "rope's base is text": (lambda: rope(theta="x"), "theta is not a number"),
    "policy is a dictionary": (lambda: with_state(policy={"steps": 4}), "a vcattn.Policy"),
    "policy is True": (lambda: with_state(policy=True), "a vcattn.Policy"),
    "steps are a float": (policy(4.0), "steps is not an integer"),
    "steps beyond 32 bits": (policy(2**40), "steps is out of range"),
    "window beyond 32 bits": (policy(4, window=2**32 + 1), "window is out of range"),
    "decay is text": (policy(4, decay="x"), "decay is not a number"),
    "step is a fraction": (lambda: with_state(step=0.5), "step"),
    "step is text": (lambda: with_state(step="0"), "step"),
    "step beyond 32 bits": (lambda: with_state(step=2**40), "step"),
    "two steps": (lambda: with_state(step=[0, 1]), "step"),
    "state is a dictionary": (lambda: with_state(state={}), "state.*GroupState"),
    "state is bytes": (lambda: with_state(state=b"abc"), "state.*GroupState"),
    "state is the class": (lambda: with_state(state=vcattn.GroupState), "state.*GroupState"),
}
