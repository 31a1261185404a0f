"""A step of a Trainer that reads `size` arrays of 4 MB of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

import ejcache


class Trainer:
    """Holds its parameters, as programs do."""

    def __init__(self, size: int) -> None:
        self.parameters = [np.full((1024, 1024), number, np.float32) for number in range(size)]
        self.step = ejcache.ejit(self._step)

    def _step(self, x: Any) -> Any:
        for each in self.parameters:
            x = (x @ each) / 1024
        return x


def calls(size: int) -> list[Any]:
    """One step."""
    trainer = Trainer(size)
    return [lambda: trainer.step(np.ones((1, 1024), np.float32))]
