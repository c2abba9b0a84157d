# SPDX-License-Identifier: Apache-2.0
"""One adapter for each implementation that bench/peers.py can time.

| file          | implementations                                              |
| ------------- | ------------------------------------------------------------ |
| ours.py       | vc8, vc8-turbo, vc8-paper, vc8-exp, sage2-ours, fp8-ours     |
| torch_sdpa.py | cudnn-bf16, flash2-bf16 (backends of torch's SDPA)           |
| fa3.py        | fa3-bf16, fa3-fp8 (`flash_attn_interface`)                   |
| fa4.py        | fa4-bf16 (`flash_attn.cute`)                                 |
| sage2.py      | sageattention2 (`sageattention`)                             |
| cudnn_fp8.py  | cudnn-fp8 (`cudnn`, the cuDNN frontend)                      |

An adapter is a module with

    IMPLS                      names of the implementations, in the order of measuring
    available(impl) -> str     "" when it can be asked for cells, else the reason why not
    cells(impl, problem, inputs) -> list[cell.Cell]

Nothing here imports torch or a peer before `available` is called, so that the plan, the schema and
the order of measuring are tested without a GPU.
"""

from __future__ import annotations

import importlib

_MODULES = ("ours", "fa3", "sage2", "torch_sdpa", "cudnn_fp8", "fa4")


def adapters() -> dict[str, object]:
    """impl -> its adapter, in the order of measuring."""
    found = {}
    for name in _MODULES:
        module = importlib.import_module(f"{__name__}.{name}")
        found.update((impl, module) for impl in module.IMPLS)
    return found


def import_reason(*modules: str) -> str:
    """ "" when all of these can be imported, else what the import said."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as e:  # a peer's extension may fail with anything
            return f"import {name}: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else e!r}"
    return ""


def no_hopper() -> str:
    """ "" on a GPU of compute capability 9.0, for which the peers here are built."""
    if reason := import_reason("torch"):
        return reason
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device"
    have = torch.cuda.get_device_capability()
    return "" if have == (9, 0) else f"needs compute capability 9.0, this GPU has {have[0]}.{have[1]}"
