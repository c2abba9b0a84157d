# SPDX-License-Identifier: Apache-2.0
"""Error of an output against FP64 attention on the stored inputs, on sampled rows over all keys."""

from __future__ import annotations

import math

HEADS = 4
ROWS = 32


def sample(count: int, wanted: int) -> list[int]:
    """`wanted` indices spread over 0..count-1, first and last among them; all when there are fewer."""
    if count <= wanted:
        return list(range(count))
    return [round(i * (count - 1) / (wanted - 1)) for i in range(wanted)]


class Reference:
    """Rows of FP64 attention for HEADS heads and ROWS queries of the last batch."""

    def __init__(self, inputs):
        import torch

        q, k, v = inputs.q, inputs.k_valid, inputs.v_valid
        self.batch = q.shape[0] - 1
        self.rows = torch.tensor(sample(q.shape[2], ROWS), device=q.device)
        group = q.shape[1] // k.shape[1]
        self.heads, self.exact = sample(q.shape[1], HEADS), []
        for h in self.heads:
            head = (self.batch, h // group)
            scores = q[self.batch, h, self.rows].double() @ k[head].double().T / math.sqrt(q.shape[-1])
            self.exact.append(torch.softmax(scores, -1) @ v[head].double())

    def error(self, output) -> float:
        """sqrt(sum |o - o*|^2 / sum |o*|^2); inf when the output is not finite."""
        wrong = right = 0.0
        for h, exact in zip(self.heads, self.exact):
            got = output[self.batch, h, self.rows].double()
            wrong += float(((got - exact) ** 2).sum())
            right += float((exact**2).sum())
        error = math.sqrt(wrong / right)
        return error if math.isfinite(error) else math.inf
