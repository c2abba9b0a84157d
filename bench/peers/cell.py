# SPDX-License-Identifier: Apache-2.0
"""What is timed: one call of one implementation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass
class Cell:
    """`call` puts the timed work on the current stream and returns the output as a [B, H, S, D]
    view, or None (prep). `before`, if any, goes on the stream ahead of each call, untimed."""

    impl: str
    scope: str
    call: Callable[[], object]
    grouping: str = "none"
    before: Callable[[], None] | None = None
    # Scopes that the same times stand for: without preparation, `whole` is the kernel's call.
    also: tuple[str, ...] = ()
    # The output in real units, for its error, where `call` returns codes.
    decode: Callable[[object], object] | None = None

    @property
    def name(self) -> str:
        return f"{self.impl}/{self.scope}/{self.grouping}"

    @property
    def scopes(self) -> tuple[str, ...]:
        return (self.scope, *self.also)
