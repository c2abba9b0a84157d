# SPDX-License-Identifier: Apache-2.0
"""One rank of test_context_parallel.py: the Wan transformer split over the ranks, on the CPU.

usage: context_parallel.py RANK STORE_FILE ring|ulysses OUT_FILE
"""

import os
import sys

from conftest import ROOT

sys.path.insert(0, str(ROOT / "examples"))

import diffusers  # noqa: E402
import tiny_pipelines as tiny  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from vcattn.integrations import diffusers as vc  # noqa: E402

RANKS = 2


def main() -> None:
    rank, store, kind, out = sys.argv[1:]
    torch.set_num_threads(1)
    # diffusers numbers the ranks over the accelerators, of which a CPU machine has none.
    torch.accelerator.device_count = lambda: RANKS
    diffusers.utils.logging.set_verbosity_error()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=RANKS)
    generator = torch.Generator().manual_seed(3)
    inputs = {
        "hidden_states": torch.randn(1, 16, 3, 16, 12, generator=generator),
        "timestep": torch.tensor([500]),
        "encoder_hidden_states": torch.randn(1, 24, 32, generator=generator),
    }
    results = {}
    for recipe in ("exact", "vc8"):
        model = tiny.wan().transformer
        with torch.no_grad():
            alone = model(**inputs, return_dict=False)[0]
            vc.enable(model, recipe=recipe, min_keys=100)
            model.enable_parallelism(
                config=diffusers.ContextParallelConfig(**{f"{kind}_degree": RANKS})
            )
            split = model(**inputs, return_dict=False)[0]
        results[recipe] = {"alone": alone, "split": split, "report": vc.report(model)}
    if rank == "0":
        torch.save(results, out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # Not through the interpreter's end: a thread of gloo that still holds a finished exchange drops its tensors there and
    # aborts when it asks for the lock of an interpreter that is going (torch 2.x, pytorch/pytorch#179291). An exception in
    # main() does not come this far.
    sys.stderr.flush()
    os._exit(0)
