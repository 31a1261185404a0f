"""Which configurations of a large space are measured, and when that ends.

The search begins with the default and, where records of the operation exist, with the few configurations that cover
them best; else with a random one. After that, a model of all times says which neighbours of the best ones and
which random configurations may be faster still: a Gaussian process over the axes (Rasmussen and Williams, Gaussian
Processes for Machine Learning, 2006, chapter 2), whose lower confidence bound is the score.

Each record says what it expects of any configuration, and counts the more, the better that agrees with what is measured
here. What they expect together is where the model of this search begins. Some of what is tried is chosen without them,
and most of it when what they say leads no further.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from ejcache.autotune.measure.points import Points
from ejcache.autotune.records.json_values import canonical_json

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

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
_BLOCK: Final = 128
_SHORT: Final = 64
"""So many are judged at once, and so many of all that a model judged are compared for a choice."""

_TRIES: Final = 20
"""So often random configurations are drawn where constraints refuse all."""

_WORST: Final = 2.3
"""Logarithm of the slowdown from which on it does not matter how slow a configuration is, or why it failed."""

_BOLDNESS: Final = 4.0
_CAUTION: Final = 0.3
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
        self._places: dict[str, Place] = {}
        self._near: dict[str, Points] = {}
        self._asked: set[str] = set()
        self._out: set[Hashable] = set()
        self._best, self._since = math.inf, 0
        self._is_cold = not history
        self._model = _Model(history, self)
        queue = [text for start in starts if (text := self._known(start)) is not None]
        queue += self._model.portfolio() if history else self._random_starts()
        self._queue = list(dict.fromkeys(queue))
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
            if self._known_text(text) is None:
                continue
            self.times[text] = seconds
            self._since += 1
            if seconds < (1 - _GAIN) * self._best:
                self._since = 0
            self._best = min(self._best, seconds)
        if self.stopped_at is None and len(self.times) >= self._fewest and self._since >= self._most_idle:
            self.stopped_at = len(self.times)

    def place_of(self, text: str) -> Place | None:
        """Return the coordinates of any configuration, as canonical JSON; None if it is not in the space."""
        return self._places[text] if self._known_text(text) is not None else None

    def _known(self, configuration: Any) -> str | None:
        text = canonical_json(configuration)
        if text not in self._places:
            place = self._space.place(configuration)
            if place is None:
                return None
            self._places[text] = place
        return text

    def _known_text(self, text: str) -> str | None:
        return text if text in self._places else self._known(json.loads(text))

    def _random_starts(self) -> list[str]:
        draws = (self._space.drawn(self._random, RANDOM_STARTS) for _ in range(_TRIES))
        found = (
            text
            for points in draws
            for name, place in zip(points.names, points.places.tolist(), strict=True)
            if name not in self._out and (text := self._text_at(name, place)) is not None
        )
        return list(itertools.islice(found, RANDOM_STARTS))

    def _text_at(self, name: Hashable, place: Sequence[float]) -> str | None:
        """Return the text of the configuration at a point; None if it was asked for before, or if constraints refuse
        it.
        """
        self._out.add(name)
        text = str(name) if name in self._places else self._space.text(name)
        if text is None or text in self.times or text in self._asked:
            return None
        self._places.setdefault(text, tuple(place))
        return text

    def _promising(self) -> list[str]:
        """Return the configurations that the model thinks best of, one after the other."""
        leaders = sorted(self.times, key=self.times.__getitem__)[:_LEADERS]
        self._near = self._neighbours([leader for leader in leaders if self.times[leader] < math.inf])
        known = [*self.times]
        slow = slowdowns(self.times) or dict.fromkeys(known, _WORST)
        if not known:
            return self._random_starts()
        for _ in range(_TRIES):
            pool = self._pool()
            chosen = self._model.chosen(
                _array([self._places[text] for text in known]),
                [slow.get(text, _WORST) for text in known],
                pool,
                self._text_at,
                cautious=2 * self._since >= self._most_idle or (self._is_cold and len(known) < _FEW),
                alone=_MOSTLY_ALONE if self._since >= _BATCH else 1,
            )
            if chosen:
                return chosen
        return []

    def _pool(self) -> Points:
        """Return the points to choose from: neighbours of the leaders, random ones, and what records say is best."""
        import numpy as np

        near = [*self._near.values()]
        count = sum(len(points.names) for points in near)
        drawn = self._space.drawn(self._random, _RANDOM)
        found = [*near, drawn, *([self._model.best] if self._model.best.names else [])]
        rows: dict[Hashable, int] = {}
        for row, name in enumerate(itertools.chain.from_iterable(points.names for points in found)):
            if name not in self._out and (row >= count or len(rows) < _MOST_NEAR):
                rows.setdefault(name, row)
        return Points([*rows], np.vstack([points.places for points in found])[[*rows.values()]])

    def _neighbours(self, leaders: Sequence[str]) -> dict[str, Points]:
        """Return the neighbours of the leaders, found for one more of them: a round costs the same in every space."""
        found = {leader: self._near[leader] for leader in leaders if leader in self._near}
        for leader in leaders:
            if leader not in found:
                found[leader] = self._space.near(json.loads(leader), self._random, _NEAR)
                break
        return found


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


class _Model:
    """What to expect of configurations, given records and what was measured."""

    def __init__(self, history: Sequence[Times], search: Search) -> None:
        self._search = search
        self._records: list[_Record] = []
        said: dict[str, list[float]] = {}
        for times in history[:_MOST_RECORDS]:
            slow = {text: value for text, value in slowdowns(times).items() if search.place_of(text) is not None}
            fastest = sorted(slow, key=slow.__getitem__)[:_MOST_TIMES]
            if len(fastest) > 1:
                places = _array([search.place_of(text) for text in fastest])
                self._records.append(_Record({text: slow[text] for text in fastest}, places))
            for text in fastest:
                said.setdefault(text, []).append(slow[text])
        means = {text: sum(values) / len(values) for text, values in said.items()}
        self._said = sorted(means, key=means.__getitem__)[:_MOST_TIMES]
        best = self._said[: _RANDOM // 2]
        self.best = Points(best, _array([search.place_of(text) for text in best]))

    def portfolio(self) -> list[str]:
        """Return the few configurations that cover the records best; what one does not say is what it expects."""
        if not self._said:
            return []
        places = _array([self._search.place_of(text) for text in self._said])
        filled = [
            dict(zip(self._said, record.expected(places).tolist(), strict=True)) | dict(record.slow)
            for record in self._records
        ]
        return covering(filled, PORTFOLIO)

    def chosen(
        self,
        places: Any,
        slow: Sequence[float],
        pool: Points,
        text_at: Callable[[Hashable, Sequence[float]], str | None],
        *,
        cautious: bool,
        alone: int,
    ) -> list[str]:
        """Choose from a pool the texts of those with the lowest confidence bounds, given the slowdowns at some places.

        So many, `alone`, are chosen without records. `text_at` is asked of one after the other, until so many are
        allowed as are wanted.
        """
        import numpy as np

        if not pool.names:
            return []
        measured, count, others = np.asarray(slow), len(places), pool.places
        own = _Fit(places, measured)
        boldness = (_BOLDNESS, _CAUTION) if cautious else (_BOLDNESS,)
        views = [_View(own, others, np.zeros(len(others)), boldness)]
        if self._records:
            views.append(self._informed(places, measured, others))
        orders = [order for view in views for order in view.orders()]
        for start in range(0, len(others), _SHORT):
            # What is chosen has a low bound from the beginning: each choice raises bounds of others.
            short = sorted({index for order in orders for index in order[start : start + _SHORT]})
            models = [view.bounds(short) for view in views]
            seen: list[int] = []
            picked: list[str] = []
            while len(picked) < _BATCH and len(seen) < len(short):
                by_itself = not self._records or (count >= _ALONE and len(picked) >= _BATCH - alone)
                how = boldness[len(picked) % len(boldness)] if by_itself else _INFORMED
                score = models[0 if by_itself else -1].bound(how)
                score[seen] = math.inf
                seen.append(int(score.argmin()))
                text = text_at(pool.names[short[seen[-1]]], others[short[seen[-1]]].tolist())
                if text is None or text in picked:
                    continue
                picked.append(text)
                for model in models:
                    model.take(seen[-1])
            if picked:
                return picked
        return []

    def _informed(self, places: Any, measured: Any, others: Any) -> _View:
        """See what records say, each as far as it agrees with what was measured, and how the times differ from that."""
        import numpy as np

        expected, elsewhere = (
            np.asarray([record.expected(each) for record in self._records]) for each in (places, others)
        )
        errors = expected - measured
        errors -= errors.mean(1, keepdims=True)
        weights = (len(places) + _BELIEF) / ((errors * errors).sum(1) + _BELIEF * _VARIANCE)
        weights /= weights.sum()
        return _View(_Fit(places, measured - weights @ expected), others, weights @ elsewhere, (_INFORMED,))


class _Fit:
    """A Gaussian process through what was measured.

    Args:
        places: where it was measured.
        measured: the logarithms of the slowdown, less what was expected.
    """

    def __init__(self, places: Any, measured: Any) -> None:
        import numpy as np

        count = len(places)
        self.places = places
        self.root = np.linalg.cholesky(_kernel(places, places) + _NOISE * np.eye(count))
        # The plain mean and spread: it errs towards what is not known yet.
        self.mean = float(measured.mean())
        self.rest = np.linalg.solve(self.root, measured - self.mean)
        self.spread = max(float(measured.std()), 0.1)


@dataclass(frozen=True)
class _View:
    """Configurations as a fit sees them.

    Attributes:
        fit: of what was measured.
        others: the coordinates of the configurations.
        expected: what the records expect there.
        boldness: how bold the choice among them may be.
    """

    fit: _Fit
    others: Any
    expected: Any
    boldness: tuple[float, ...]

    def bounds(self, which: Any) -> _Bounds:
        """Return the bounds of some of them."""
        return _Bounds(self.fit, self.others[which], self.expected[which])

    def orders(self) -> list[list[int]]:
        """Return those with the lowest bounds first, for each boldness; block by block, so that many need no more
        memory.
        """
        import numpy as np

        starts = range(0, len(self.others), _BLOCK)
        scores = np.hstack([
            [bounds.bound(boldness) for boldness in self.boldness]
            for bounds in (self.bounds(slice(start, start + _BLOCK)) for start in starts)
        ])  # fmt: skip
        return [score.argsort().tolist() for score in scores]


class _Bounds:
    """What a fit expects of other configurations, and how sure it is of that."""

    def __init__(self, fit: _Fit, others: Any, expected: Any) -> None:
        import numpy as np

        self._fit, self._others = fit, others
        self._cross = np.linalg.solve(fit.root, _kernel(fit.places, others))
        self._expected = fit.mean + expected + self._cross.T @ fit.rest
        self._doubt = 1 - (self._cross * self._cross).sum(0)

    def bound(self, boldness: float) -> Any:
        """Return the lower confidence bound of each."""
        import numpy as np

        return self._expected - boldness * self._fit.spread * np.sqrt(np.maximum(1e-9, self._doubt))

    def take(self, index: int) -> None:
        """Be as sure as if one had been measured and were as expected, so that the next one is not its neighbour."""
        import numpy as np

        between = _kernel(self._others, self._others[index : index + 1])[:, 0] - self._cross.T @ self._cross[:, index]
        row = between / math.sqrt(max(1e-9, float(self._doubt[index])) + _NOISE)
        self._doubt = self._doubt - row * row
        self._cross = np.vstack([self._cross, row])


def _array(places: Sequence[Place | None]) -> Any:
    import numpy as np

    return np.asarray(places, dtype=float).reshape(len(places), len(places[0] or ()) if places else 0)


def _kernel(one: Any, other: Any, *, share: float = 1.0) -> Any:
    import numpy as np

    distance, step = np.zeros((len(one), len(other))), np.empty((len(one), len(other)))
    for axis in range(one.shape[1]):
        np.subtract(one[:, axis, None], other[None, :, axis], out=step)
        distance += np.abs(step, out=step)
    distance /= -max(share * _REACH * one.shape[1], 0.2)
    return np.exp(distance, out=distance)
