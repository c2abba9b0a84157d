# SPDX-License-Identifier: Apache-2.0
"""Which denoising step runs, and which guidance branch: told by the scheduler and the model.

A pipeline calls ``scheduler.set_timesteps`` once per generation and ``scheduler.step`` once per
denoising step; within a step it calls the model once per guidance branch, always in the same order.
"""

from __future__ import annotations

import functools
from typing import Any

import torch


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
    def follow_scheduler(self, scheduler: Any) -> None:
        """Instance attributes in front of the class's methods; ``unfollow`` takes them away."""
        set_timesteps, step = scheduler.set_timesteps, scheduler.step

        # functools.wraps keeps the signature, which pipelines look at.
        @functools.wraps(set_timesteps)
        def told_set_timesteps(*args: Any, **kwargs: Any) -> Any:
            result = set_timesteps(*args, **kwargs)
            self.new_generation(len(scheduler.timesteps))
            return result

        @functools.wraps(step)
        def told_step(*args: Any, **kwargs: Any) -> Any:
            result = step(*args, **kwargs)
            self.advance()
            return result

        scheduler.set_timesteps, scheduler.step = told_set_timesteps, told_step

        def undo() -> None:
            for name in ("set_timesteps", "step"):
                vars(scheduler).pop(name, None)

        self._undo.append(undo)

    def follow_model(self, model: torch.nn.Module) -> None:
        def before_forward(module: torch.nn.Module, args: Any) -> None:
            self.branch = self._calls.get(id(module), 0)
            self._calls[id(module)] = self.branch + 1

        self._undo.append(model.register_forward_pre_hook(before_forward).remove)

    def unfollow(self) -> None:
        for undo in self._undo:
            undo()
        self._undo.clear()
