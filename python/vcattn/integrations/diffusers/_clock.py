# SPDX-License-Identifier: Apache-2.0
"""Which denoising step runs, and which guidance branch: told by the scheduler and the model.

A pipeline calls ``scheduler.set_timesteps`` once per generation and ``scheduler.step`` once per
denoising step; within a step it calls the model once per guidance branch, always in the same order.

While it is followed, a scheduler has a class of its own that stands in for its class and tells the
clock. A copy or a pickle of it has the original class and tells nobody. A pipeline that gets another
scheduler has that one followed from the next forward pass on.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch

# More calls of a model within one step than this are no guidance branches: nobody tells the steps.
MAX_BRANCHES = 8


def stand_in(base: type, methods: dict[str, Any], original: type) -> type:
    """A subclass of ``base`` that looks like ``original``. Copies of an object that has it have
    ``original`` again, without the attributes that begin with _vcattn."""

    def reduce(self: Any, protocol: Any) -> Any:
        state = {k: v for k, v in vars(self).items() if not k.startswith("_vcattn")}
        return object.__new__, (original,), state

    looks = {name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")}
    own = {"__reduce_ex__": reduce, "_vcattn_original": original}
    return type(base)(original.__name__, (base,), methods | looks | own)


class Clock:
    """step: the current one, None as long as nobody told; branch: calls of the model before this
    one within the step."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.steps = 1
        self.branch = 0
        self.generation = 0
        self._calls: dict[int, int] = {}
        self._tensors: dict[torch.device, torch.Tensor] = {}
        self._undo: list[Any] = []
        self._pipeline: Any = None  # a weak reference
        self._scheduler: Any = None
        self._leave: Any = None  # gives the scheduler its class back

    @property
    def running(self) -> bool:
        """Whether a step of a generation is under way, as far as anybody told."""
        return self.step is not None and self.step < self.steps and self.branch < MAX_BRANCHES

    def new_generation(self, steps: int) -> None:
        self.step, self.steps = 0, max(1, steps)
        self.generation += 1
        self._restart()

    def advance(self) -> None:
        if self.step is not None:
            self.step += 1
            self._restart()

    def _restart(self) -> None:
        self.branch = 0
        self._calls.clear()
        self._tensors.clear()

    def step_tensor(self, device: torch.device) -> torch.Tensor:
        """The step as one int32 on the device, made once per step and not once per layer."""
        if device not in self._tensors:
            step = self.step or 0
            self._tensors[device] = torch.full((1,), step, dtype=torch.int32, device=device)
        return self._tensors[device]

    # ------------------------------------------------------------- who tells it
    def follow_pipeline(self, pipeline: Any) -> None:
        self._pipeline = weakref.ref(pipeline)
        self._follow(pipeline.scheduler)

    def _follow(self, scheduler: Any) -> None:
        if self._leave is not None:
            self._leave()
        self._scheduler, self._leave = scheduler, None
        if hasattr(scheduler, "set_timesteps") and hasattr(scheduler, "step"):
            self._leave = _tell(scheduler, self)

    def _look(self) -> None:
        """Whether the pipeline has the scheduler that is followed; a new one has begun already."""
        pipeline = None if self._pipeline is None else self._pipeline()
        scheduler = getattr(pipeline, "scheduler", None)
        if pipeline is not None and scheduler is not self._scheduler:
            self._follow(scheduler)
            timesteps = getattr(scheduler, "timesteps", None)
            self.new_generation(1 if timesteps is None else len(timesteps))

    def follow_model(self, model: torch.nn.Module) -> None:
        def before_forward(module: torch.nn.Module, args: Any) -> None:
            if not torch.compiler.is_compiling():
                self._look()
            self.branch = self._calls.get(id(module), 0)
            self._calls[id(module)] = self.branch + 1

        self._undo.append(model.register_forward_pre_hook(before_forward).remove)

    def unfollow(self) -> None:
        for undo in self._undo:
            undo()
        self._undo.clear()
        self._follow(None)
        self._pipeline = None


def _tell(scheduler: Any, clock: Clock) -> Any:
    """The scheduler tells the clock too from now on; returns what ends it."""
    own = vars(scheduler)
    if "_vcattn_clocks" not in own:
        # One that was made by a stand-in's from_config has that class without telling anybody.
        original = getattr(type(scheduler), "_vcattn_original", type(scheduler))
        scheduler.__class__ = _telling(original)
        own["_vcattn_clocks"] = []
    reference = weakref.ref(clock)
    own["_vcattn_clocks"].append(reference)

    def leave() -> None:
        own["_vcattn_clocks"].remove(reference)
        if not own["_vcattn_clocks"]:
            del own["_vcattn_clocks"]
            scheduler.__class__ = type(scheduler)._vcattn_original

    return leave


def _telling(original: Any) -> type:
    def clocks(scheduler: Any) -> list[Clock]:
        found = (reference() for reference in vars(scheduler).get("_vcattn_clocks", ()))
        return [clock for clock in found if clock is not None]

    # functools.wraps keeps the signature, which pipelines look at.
    @functools.wraps(original.set_timesteps)
    def set_timesteps(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original.set_timesteps(self, *args, **kwargs)
        for clock in clocks(self):
            clock.new_generation(len(self.timesteps))
        return result

    @functools.wraps(original.step)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original.step(self, *args, **kwargs)
        for clock in clocks(self):
            clock.advance()
        return result

    return stand_in(original, {"set_timesteps": set_timesteps, "step": step}, original)
