"""Which configurations of a large space are measured, and when that ends.

The search begins with the default and, where records of the operation exist, with the few configurations that cover
them best; else with some random ones. After that, a model of all times says which neighbours of the best ones and
which random configurations may be faster still: a Gaussian process over the axes (Rasmussen and Williams, Gaussian
Processes for Machine Learning, 2006, chapter 2), whose lower confidence bound is the score. What records say of other
devices and shapes is where the model begins, and counts less the more has been measured here.
"""

from __future__ import annotations

import json
import math
import random
from typing import TYPE_CHECKING, Any, Final, Protocol

from ejcache.autotune.records.json_values import canonical_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Times = Mapping[str, float]
    """Seconds by the canonical JSON of a configuration; infinite for one that failed."""


PORTFOLIO: Final = 8
RANDOM_STARTS: Final = 4
_BATCH: Final = 4
_LEADERS: Final = 6
_RANDOM: Final = 300
_WORST: Final = 2.3
"""Logarithm of the slowdown from which on it does not matter how slow a configuration is, or why it failed."""

_BOLDNESS: Final = 4.0
_CAUTION: Final = 0.3
"""The boldness for one configuration in two, while nothing better is found: those near the best are tried, too."""

_REACH: Final = 0.4
"""How far a time says something of others, in axes of the space."""

_NARROW: Final = 0.25
"""Records have many times, each of which says less of others."""

_NOISE: Final = 1e-3
_HISTORY: Final = 1_000
_FORGOTTEN: Final = 40
_GAIN: Final = 0.01
"""A search goes on as long as it finds what is faster by this share."""


class Landscape(Protocol):
    """The configurations, JSON values, that can be measured, and how they lie to each other."""

    def place(self, configuration: Any) -> tuple[float, ...] | None:
        """The coordinates, between 0 and 1 on each axis; None for a configuration that is not in the space."""

    def near(self, configuration: Any) -> list[Any]:
        """Neighbours on one and on two axes."""

    def drawn(self, generator: random.Random, count: int) -> list[Any]:
        """Up to so many random configurations, some of them twice."""


def portfolio(history: Sequence[Times], *, most: int = PORTFOLIO) -> list[str]:
    """The configurations, as canonical JSON, that together cover the records best, each chosen after the others.

    What is covered is the logarithm of the slowdown, summed over the records: how much slower the best of them is
    than the best configuration that a record has.
    """
    slow = [found for times in history if (found := _slowdowns(times))]
    left = sorted({text for times in slow for text in times})
    now = [_WORST] * len(slow)
    chosen: list[str] = []
    while left and len(chosen) < most:
        gains = {
            text: sum(max(0.0, held - times.get(text, _WORST)) for held, times in zip(now, slow, strict=True))
            for text in left
        }
        best = max(left, key=gains.__getitem__)
        if gains[best] <= 0:
            break
        chosen.append(best)
        left.remove(best)
        now = [min(held, times.get(best, _WORST)) for held, times in zip(now, slow, strict=True)]
    return chosen


def _slowdowns(times: Times) -> dict[str, float]:
    best = min(times.values(), default=math.inf)
    if not 0 < best < math.inf:
        return {}
    return {text: min(_WORST, math.log(seconds / best)) for text, seconds in times.items() if seconds > 0}


class Search:
    """Asks for the times of some configurations, learns them, and asks for more.

    Args:
        space: the configurations.
        starts: configurations to measure first: the default, and what is probably good.
        limit: at most so many are measured.
        history: the times in records of the operation: other shapes, devices and environments.
        seed: of the random ones.
        enough: so many without records, or half as many with them, tell something of a space.
        patience: end when it has stopped to improve: when the last half of `enough` were no better.

    Attributes:
        times: what was measured.
        starts: the configurations, as canonical JSON, with which it begins.
        stopped_at: after how many the search ended, or would have ended; None if it has not stopped to improve.
    """

    def __init__(
        self,
        space: Landscape,
        *,
        starts: Iterable[Any],
        limit: int,
        history: Sequence[Times] = (),
        seed: int = 0,
        enough: int = 64,
        patience: bool = True,
    ) -> None:
        self.times: dict[str, float] = {}
        self.stopped_at: int | None = None
        self._space = space
        self._limit = limit
        self._patience = patience
        self._fewest = enough // 2 if history else enough
        self._most_idle = max(1, enough // 2)
        self._random = random.Random(seed)  # noqa: S311 (not a secret)
        self._places: dict[str, tuple[float, ...]] = {}
        self._configurations: dict[str, Any] = {}
        self._asked: set[str] = set()
        self._best, self._since = math.inf, 0
        queue = [text for start in starts if (text := self._known(start)) is not None]
        if history:
            queue += [text for text in portfolio(history) if self._known_text(text) is not None]
        else:
            queue += self._draw(RANDOM_STARTS)
        self._queue = list(dict.fromkeys(queue))
        self.starts = tuple(self._queue)
        self._model = _History(history, self)

    def ask(self) -> list[Any]:
        """The configurations to measure next; empty at the end."""
        left = self._limit - len(self.times)
        if left <= 0 or (self._patience and self.stopped_at is not None):
            return []
        queue = [text for text in self._queue if text not in self.times] or self._promising()
        batch, self._queue = queue[: min(_BATCH, left)], queue[min(_BATCH, left) :]
        self._asked.update(batch)
        return [self._configurations[text] for text in batch]

    def tell(self, times: Times) -> None:
        """Learn seconds; infinite for a configuration that failed."""
        for text, seconds in times.items():
            if self._known_text(text) is None:
                continue
            self.times[text] = seconds
            self._since += 1
            if seconds < (1 - _GAIN) * self._best:
                self._since = 0
            self._best = min(self._best, seconds)
        if self.stopped_at is None and len(self.times) >= self._fewest and self._since >= self._most_idle:
            self.stopped_at = len(self.times)

    def place(self, text: str) -> tuple[float, ...]:
        """The coordinates of a configuration that the search knows."""
        return self._places[text]

    def place_of(self, text: str) -> tuple[float, ...] | None:
        """The coordinates of any configuration, as canonical JSON; None if it is not in the space."""
        return self._places[text] if self._known_text(text) is not None else None

    def _known(self, configuration: Any) -> str | None:
        text = canonical_json(configuration)
        if text not in self._places:
            place = self._space.place(configuration)
            if place is None:
                return None
            self._places[text], self._configurations[text] = place, configuration
        return text

    def _known_text(self, text: str) -> str | None:
        return text if text in self._places else self._known(json.loads(text))

    def _draw(self, count: int) -> list[str]:
        found = [self._known(item) for item in self._space.drawn(self._random, count)]
        return [text for text in found if text is not None]

    def _promising(self) -> list[str]:
        """The configurations that the model thinks best of, one after the other."""
        leaders = sorted(self.times, key=self.times.__getitem__)[:_LEADERS]
        pool = dict.fromkeys(self._draw(_RANDOM))
        for leader in leaders:
            if self.times[leader] < math.inf:
                near = (self._known(item) for item in self._space.near(self._configurations[leader]))
                pool |= dict.fromkeys(text for text in near if text is not None)
        pool |= dict.fromkeys(self._model.best)
        open_to_try = [text for text in pool if text not in self.times and text not in self._asked]
        if not open_to_try or not self.times:
            return open_to_try[:_BATCH]
        known = [*self.times]
        slow = _slowdowns(self.times) or dict.fromkeys(known, _WORST)
        weight = max(0.0, 1 - (len(known) - len(self.starts)) / _FORGOTTEN)
        slowdowns = [slow.get(text, _WORST) for text in known]
        idle = 2 * self._since >= self._most_idle
        return self._model.chosen(known, slowdowns, open_to_try, weight=weight, cautious=idle)


class _History:
    """What records say of each configuration, and a model of what was measured beside that."""

    def __init__(self, history: Sequence[Times], search: Search) -> None:
        import numpy as np

        self._search = search
        said: dict[str, list[float]] = {}
        for times in history:
            for text, slow in _slowdowns(times).items():
                if search.place_of(text) is not None:
                    said.setdefault(text, []).append(slow)
        means = {text: sum(values) / len(values) for text, values in said.items()}
        ranked = sorted(means, key=means.__getitem__)[:_HISTORY]
        self.best = ranked[: _RANDOM // 2]
        self._expected: dict[str, float] = {}
        self._points = self._weights = None
        if ranked:
            values = np.asarray([means[text] for text in ranked])
            self._mean = float(values.mean())
            self._points = self._places(ranked)
            noise = np.asarray([0.05 / len(said[text]) for text in ranked])
            kernel = _kernel(self._points, self._points, share=_NARROW)
            self._weights = np.linalg.solve(kernel + np.diag(noise), values - self._mean)

    def chosen(
        self, known: Sequence[str], slow: Sequence[float], among: Sequence[str], *, weight: float, cautious: bool
    ) -> list[str]:
        """Choose from `among` those with the lowest confidence bounds, given the slowdowns of the known."""
        import numpy as np

        prior = weight * self._prior([*known, *among])
        measured, expected = np.asarray(slow) - prior[: len(known)], prior[len(known) :]
        mean, spread = float(measured.mean()), max(float(measured.std()), 0.1)
        points, others = self._places(known), self._places(among)
        doubtful = 1 - 0.6 * weight if self._points is not None else 1.0
        picked: list[int] = []
        for number in range(min(_BATCH, len(among))):
            root = np.linalg.cholesky(_kernel(points, points) + _NOISE * np.eye(len(points)))
            cross = np.linalg.solve(root, _kernel(points, others))
            found = mean + cross.T @ np.linalg.solve(root, measured - mean)
            doubt = spread * np.sqrt(np.maximum(1e-9, 1 - (cross * cross).sum(0)))
            score = found + expected - doubtful * (_CAUTION if cautious and number % 2 else _BOLDNESS) * doubt
            score[picked] = math.inf
            best = int(np.argmin(score))
            picked.append(best)
            # As if it had been measured, so that the next one is not its neighbour.
            points, measured = np.vstack([points, others[best]]), np.append(measured, found[best])
        return [among[index] for index in picked]

    def _prior(self, texts: Sequence[str]) -> Any:
        import numpy as np

        if self._points is None:
            return np.zeros(len(texts))
        if missing := [text for text in texts if text not in self._expected]:
            kernel = _kernel(self._places(missing), self._points, share=_NARROW)
            self._expected |= dict(zip(missing, (self._mean + kernel @ self._weights).tolist(), strict=True))
        return np.asarray([self._expected[text] for text in texts])

    def _places(self, texts: Sequence[str]) -> Any:
        import numpy as np

        return np.asarray([self._search.place(text) for text in texts], dtype=float).reshape(len(texts), -1)


def _kernel(one: Any, other: Any, *, share: float = 1.0) -> Any:
    import numpy as np

    distance = np.zeros((len(one), len(other)))
    for axis in range(one.shape[1]):
        distance += np.abs(one[:, axis, None] - other[None, :, axis])
    return np.exp(-distance / max(share * _REACH * one.shape[1], 0.2))
