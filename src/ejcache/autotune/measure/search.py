"""Decides which configurations of a large space are measured, and when that ends.

The search begins with the default and, where records of the operation exist, with the few configurations that cover
them best; else with a random one. After that, a model of all times says which neighbours of the best ones and
which random configurations may be faster still: a Gaussian process over the axes (Rasmussen and Williams, Gaussian
Processes for Machine Learning, 2006, chapter 2), whose lower confidence bound is the score.

Each record says what it expects of any configuration, and counts the more, the better that agrees with what is measured
here. What they expect together is where the model of this search begins. Some of what is tried is chosen without them,
and most of it when what they say leads no further.
"""

from __future__ import annotations

import json
import math
import random
from typing import TYPE_CHECKING, Any, Final, Protocol

from ejcache.autotune.measure.space import Points
from ejcache.autotune.records.json_values import canonical_json

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    Times = Mapping[str, float]
    """Seconds by the canonical JSON of a configuration; infinite for one that failed."""

    Place = tuple[float, ...]


PORTFOLIO: Final = 5
RANDOM_STARTS: Final = 1
_BATCH: Final = 4
_LEADERS: Final = 6
_NEAR: Final = 80
_MOST_NEAR: Final = 240
"""So many neighbours of one of the best are looked at, and of all of these together."""

_RANDOM: Final = 300
_TRIES: Final = 20
"""So often random configurations are drawn where constraints refuse all."""

_REFUSED: Final = 32
"""So many points that constraints refuse are learnt from in a round. Where they refuse nearly all, more cost time."""

_WORST: Final = 2.3
"""Logarithm of the slowdown from which on it does not matter how slow a configuration is, or why it failed."""

_BOLD: Final = 4.0
_CAUTIOUS: Final = 0.3
"""The boldness for one configuration in two, while nothing better is found: those near the best are tried, too."""

_FEW: Final = 16
"""While so few are measured and there are no records, one in two is cautious as well: a search may end there."""

_INFORMED: Final = 2.0
"""The boldness where records say what to expect."""

_ALONE: Final = 16
"""When so many are measured, some configurations are chosen without records, which may all be of other kinds."""

_MOSTLY_ALONE: Final = 3
"""So many of a batch, and not one, when the batch before has found nothing faster."""

_REACH: Final = 0.4
"""How far a time says something of others, in axes of the space."""

_NARROW: Final = 0.25
"""Records have many times, each of which says less of others."""

_VARIANCE: Final = 0.1
_BELIEF: Final = 5.0
"""The error of a record that is expected, squared, and how many times that expectation is worth."""

_NOISE: Final = 1e-3
_NOISE_OF_RECORDS: Final = 1e-2
_MOST_RECORDS: Final = 32
_MOST_TIMES: Final = 1_000
_GAIN: Final = 0.01
"""A search goes on as long as it finds what is faster by this share."""


class Landscape(Protocol):
    """The configurations, JSON values, that can be measured, and how they lie to each other."""

    def place(self, configuration: Any) -> Place | None:
        """Return the coordinates, between 0 and 1 on each axis; None for a configuration that is not in the space."""

    def near(self, configuration: Any, generator: random.Random, count: int) -> Points:
        """Return up to so many neighbours on one and on two axes, at random."""

    def drawn(self, generator: random.Random, count: int) -> Points:
        """Return so many random points, each once, or all."""

    def text(self, name: Any) -> str | None:
        """Return the canonical JSON of the configuration at a point; None if constraints refuse it."""


def covering(slow: Sequence[Times], most: int) -> list[str]:
    """Return the configurations, as canonical JSON, that together cover the records best, each chosen after the others.

    What is covered is the logarithm of the slowdown, summed over the records: how much slower the best of them is
    than the best configuration that a record has.
    """
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


def slowdowns(times: Times) -> dict[str, float]:
    """Return the logarithm of how much slower each is than the best, of a record with any that works."""
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
        self._places: dict[str, Place | None] = {}
        self._asked: set[str] = set()
        self._out: set[Hashable] = set()
        self._best, self._since = math.inf, 0
        slow = [self._inside(slowdowns(times)) for times in history[:_MOST_RECORDS]]
        self._records = [_Record(times, self._array(times)) for times in slow if len(times) > 1]
        best = self._expected_best(slow)
        self._said = Points(best[: _RANDOM // 2], self._array(best[: _RANDOM // 2]))
        self._near: dict[str, Points] = {}
        queue = [text for start in starts if self._place(text := canonical_json(start)) is not None]
        self._queue = list(dict.fromkeys([*queue, *(self._portfolio(best) if history else self._random_start())]))
        self.starts = tuple(self._queue)

    def ask(self) -> list[Any]:
        """Return the configurations to measure next; empty at the end."""
        left = self._limit - len(self.times)
        if left <= 0 or (self._patience and self.stopped_at is not None):
            return []
        queue = [text for text in self._queue if text not in self.times] or self._promising()
        batch, self._queue = queue[: min(_BATCH, left)], queue[min(_BATCH, left) :]
        self._asked.update(batch)
        return [json.loads(text) for text in batch]

    def tell(self, times: Times) -> None:
        """Learn seconds; infinite for a configuration that failed."""
        for text, seconds in times.items():
            if self._place(text) is None:
                continue
            self.times[text] = seconds
            self._since = 0 if seconds < (1 - _GAIN) * self._best else self._since + 1
            self._best = min(self._best, seconds)
        if self.stopped_at is None and len(self.times) >= self._fewest and self._since >= self._most_idle:
            self.stopped_at = len(self.times)

    def _place(self, text: str) -> Place | None:
        """Return the coordinates of any configuration, as canonical JSON; None if it is not in the space."""
        if text not in self._places:
            self._places[text] = self._space.place(json.loads(text))
        return self._places[text]

    def _array(self, texts: Iterable[str]) -> Any:
        import numpy as np

        places = [self._place(text) or () for text in texts]
        return np.asarray(places, dtype=float).reshape(len(places), len(places[0]) if places else 0)

    def _inside(self, slow: Times) -> dict[str, float]:
        """Return what a record says of the fastest configurations that are in the space."""
        inside = (text for text in slow if self._place(text) is not None)
        return {text: slow[text] for text in sorted(inside, key=slow.__getitem__)[:_MOST_TIMES]}

    def _expected_best(self, slow: Sequence[Times]) -> list[str]:
        """Return the configurations of the records, those first that are fast in their mean."""
        said: dict[str, list[float]] = {}
        for times in slow:
            for text, value in times.items():
                said.setdefault(text, []).append(value)
        return sorted(said, key=lambda text: sum(said[text]) / len(said[text]))[:_MOST_TIMES]

    def _portfolio(self, said: list[str]) -> list[str]:
        """Return the few configurations that cover the records best; what one does not say is what it expects."""
        places = self._array(said)
        filled = [
            dict(zip(said, record.expected(places).tolist(), strict=True)) | dict(record.slow)
            for record in self._records
        ]
        return covering(filled, PORTFOLIO)

    def _random_start(self) -> list[str]:
        for _ in range(_TRIES):
            points = self._space.drawn(self._random, RANDOM_STARTS)
            if found := [text for name in points.names if (text := self._free(name)) is not None]:
                return found
        return []

    def _free(self, name: Hashable) -> str | None:
        """Return the text of the configuration at a point; None if it was asked for before, or if constraints refuse
        it.
        """
        self._out.add(name)
        # What records say has no point of its own: its name is its text.
        text = name if isinstance(name, str) else self._space.text(name)
        if text is None or text in self.times or text in self._asked:
            return None
        return text

    def _promising(self) -> list[str]:
        """Return the configurations that the model thinks best of, one after the other."""
        if not self.times:
            return self._random_start()
        slow = slowdowns(self.times) or dict.fromkeys(self.times, _WORST)
        values = [slow.get(text, _WORST) for text in self.times]
        for _ in range(_TRIES):
            if chosen := self._chosen(self._array(self.times), values, *self._pool()):
                return chosen
        return []

    def _pool(self) -> tuple[list[Hashable], Any]:
        """Return the names and places to choose from: near the leaders, at random, and what records say is best."""
        import numpy as np

        leaders = [text for text in sorted(self.times, key=self.times.__getitem__) if self.times[text] < math.inf]
        near = {leader: self._near[leader] for leader in leaders[:_LEADERS] if leader in self._near}
        # The neighbours of one more of them: a round costs the same in every space.
        if (new := next((each for each in leaders[:_LEADERS] if each not in near), None)) is not None:
            near[new] = self._space.near(json.loads(new), self._random, _NEAR)
        self._near = near
        count = sum(len(points.names) for points in near.values())
        found = [*near.values(), self._space.drawn(self._random, _RANDOM), *([self._said] if self._said.names else [])]
        rows: dict[Hashable, int] = {}
        for row, name in enumerate(name for points in found for name in points.names):
            if name not in self._out and (row >= count or len(rows) < _MOST_NEAR):
                rows.setdefault(name, row)
        return [*rows], np.vstack([points.places for points in found])[[*rows.values()]]

    def _chosen(self, places: Any, slow: Sequence[float], names: Sequence[Hashable], others: Any) -> list[str]:
        """Choose from a pool the texts of those with the lowest confidence bounds, given the slowdowns at some places.

        Each one is chosen as if those before had been measured and were as expected, so that it is not their neighbour.
        """
        import numpy as np

        measured, picked = np.asarray(slow), list[str]()
        models = [_Bounds(places, measured, others, np.zeros(len(others)))]
        if self._records:
            models.append(self._informed(places, measured, others))
        idle = 2 * self._since >= self._most_idle or (not self._records and len(places) < _FEW)
        boldness = (_BOLD, _CAUTIOUS) if idle else (_BOLD,)
        alone = _MOSTLY_ALONE if self._since >= _BATCH else 1
        free, refused = np.ones(len(names), dtype=bool), 0
        while len(picked) < _BATCH and free.any():
            by_itself = not self._records or (len(places) >= _ALONE and len(picked) >= _BATCH - alone)
            bold = boldness[len(picked) % len(boldness)] if by_itself else _INFORMED
            best = int(np.argmin(np.where(free, models[0 if by_itself else -1].lower(bold), np.inf)))
            free[best] = False
            if (text := self._free(names[best])) is not None and text not in picked:
                picked.append(text)
            elif (refused := refused + 1) > _REFUSED:
                continue
            # What constraints refuse is known as well: else its neighbours, which they refuse, too, are asked for next.
            for model in models:
                model.take(best)
        return picked

    def _informed(self, places: Any, measured: Any, others: Any) -> _Bounds:
        """See what records say, each as far as it agrees with what was measured, and how the times differ from that."""
        import numpy as np

        expected, elsewhere = (
            np.asarray([record.expected(each) for record in self._records]) for each in (places, others)
        )
        errors = expected - measured
        errors -= errors.mean(1, keepdims=True)
        weights = (len(places) + _BELIEF) / ((errors * errors).sum(1) + _BELIEF * _VARIANCE)
        weights /= weights.sum()
        return _Bounds(places, measured - weights @ expected, others, weights @ elsewhere)


class _Record:
    """What one record says of each configuration, and expects of others."""

    def __init__(self, slow: Times, places: Any) -> None:
        import numpy as np

        self.slow = slow
        self._places = places
        values = np.asarray([*slow.values()])
        self._mean = float(values.mean())
        kernel = _kernel(places, places, share=_NARROW) + _NOISE_OF_RECORDS * np.eye(len(values))
        self._weights = np.linalg.solve(kernel, values - self._mean)

    def expected(self, places: Any) -> Any:
        """Return the logarithms of the slowdown at some coordinates."""
        import numpy as np

        found = self._mean + _kernel(places, self._places, share=_NARROW) @ self._weights
        return np.clip(found, 0.0, _WORST)


class _Bounds:
    """What a Gaussian process expects of other configurations, and how sure it is of that.

    Args:
        places: where it was measured.
        measured: the logarithms of the slowdown, less what was expected.
        others: the coordinates of the other configurations.
        expected: what the records expect there.
    """

    def __init__(self, places: Any, measured: Any, others: Any, expected: Any) -> None:
        import numpy as np

        root = np.linalg.cholesky(_kernel(places, places) + _NOISE * np.eye(len(places)))
        # The plain mean and spread: it errs towards what is not known yet.
        mean, self._spread = float(measured.mean()), max(float(measured.std()), 0.1)
        self._others = others
        self._cross = np.linalg.solve(root, _kernel(places, others))
        self._expected = mean + expected + self._cross.T @ np.linalg.solve(root, measured - mean)
        self._doubt = 1 - (self._cross * self._cross).sum(0)

    def lower(self, boldness: float) -> Any:
        """Return the lower confidence bound of each."""
        import numpy as np

        return self._expected - boldness * self._spread * np.sqrt(np.maximum(1e-9, self._doubt))

    def take(self, index: int) -> None:
        """Be as sure as if this one had been measured and were as expected."""
        import numpy as np

        between = _kernel(self._others, self._others[index : index + 1])[:, 0] - self._cross.T @ self._cross[:, index]
        row = between / math.sqrt(max(1e-9, float(self._doubt[index])) + _NOISE)
        self._doubt = self._doubt - row * row
        self._cross = np.vstack([self._cross, row])


def _kernel(one: Any, other: Any, *, share: float = 1.0) -> Any:
    import numpy as np

    distance = np.zeros((len(one), len(other)))
    for axis in range(one.shape[1]):
        distance += np.abs(one[:, axis, None] - other[None, :, axis])
    return np.exp(distance / -max(share * _REACH * one.shape[1], 0.2))
