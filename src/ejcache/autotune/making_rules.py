"""Rules made of the records of an operation, and whether its records still bear rules out.

On each device half of the calls are held out. Of the others, among them those that bound a size, a tree is grown: each
cut is the one that leaves the least squared logarithm of the slowdown, and each leaf uses the configuration of the
portfolio with the least. A leaf of many calls is cut further, into rules with one configuration, so that each of them
has its own evidence. Then the rules are asked for the calls that were held out.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.measure.search import portfolio
from ejcache.autotune.records.json_values import canonical_json
from ejcache.autotune.records.record import BY_RULES, Source, decisive
from ejcache.autotune.records.rules import (
    MOST_CONFIGURATIONS,
    WHOLE,
    Condition,
    DeviceRules,
    Features,
    Rule,
    Rules,
    features,
    with_products,
)
from ejcache.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ejcache.autotune.records.record import Record


_MEASURED: Final = frozenset({Source.PINNED, Source.PGLE, Source.TUNED})

_FEWEST: Final = 4
"""Two calls to learn from, and two that are held out."""

_LEAF: Final = 4
_PART: Final = 2
"""At least so many calls to learn from are in each part of a leaf that is cut for its evidence."""

_GAIN: Final = 1e-3
_UNKNOWN: Final = 2.3
"""The logarithm of the slowdown of a configuration without a time."""

_LEAST_ANSWERED: Final = 0.8
"""The share of the calls held out for which rules must answer alone."""

_ROUNDING: Final = 1e-3
_REACHES: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_NOISES: Final = (1e-4, 1e-3, 1e-2, 1e-1)
_TYPE: Final = 2.0
_MOST_POINTS: Final = 300


@dataclass(frozen=True)
class _Sample:
    """What a record says: the features of the call, and its times by the canonical JSON of the configuration."""

    digest: str
    features: Features
    times: Mapping[str, float]

    def slowdown(self, text: str) -> float | None:
        """The time of a configuration ÷ the best time; None if the record has no time of it."""
        time = self.times.get(text, math.inf)
        return None if time == math.inf else time / min(self.times.values())

    def loss(self, text: str) -> float:
        """The logarithm of the slowdown."""
        slowdown = self.slowdown(text)
        return _UNKNOWN if slowdown is None else min(_UNKNOWN, math.log(slowdown))


@dataclass(frozen=True)
class _Point:
    """A call, measured or not, and what is lost with each configuration of the portfolio."""

    features: Features
    losses: tuple[float, ...]
    measured: bool


def made_rules(records: Iterable[Record], operation: str) -> Rules:
    """The rules that the measured records of an operation bear out, of its version that was measured last.

    Raises:
        UsageError: there are fewer than four measured calls on each device.
    """
    measured = [record for record in records if _is_measured(record) and record.key.operation == operation]
    newest = max(measured, key=lambda record: record.created, default=None)
    version = "" if newest is None else newest.key.version
    groups = {place: found for place, found in _grouped(measured, version).items() if len(found) >= _FEWEST}
    if not groups:
        raise UsageError(
            f"rules of {operation} need measured records of at least {_FEWEST} calls on one kind of device"
        )
    parted = {place: _parted(found) for place, found in groups.items()}
    learned = [sample.times for samples, _ in parted.values() for sample in samples]
    texts = portfolio(learned, most=MOST_CONFIGURATIONS)
    devices = []
    for (device, environment), (samples, held_out) in sorted(parted.items()):
        found = DeviceRules(
            device=device,
            environment=dict(environment),
            sizes=_bounds(samples),
            types=_known(samples),
            rules=tuple(_grown(_points(samples, texts))),
            learned=tuple(sorted(sample.digest for sample in samples)),
        )
        devices.append(_judged(found, held_out, texts))
    return Rules(operation, version, tuple(map(json.loads, texts)), tuple(devices))


def problems(rules: Rules, records: Iterable[Record]) -> list[str]:
    """List what in the rules the records contradict, a sentence each."""
    measured = [record for record in records if _is_measured(record) and record.key.operation == rules.operation]
    groups = _grouped(measured, rules.version)
    texts = [canonical_json(item) for item in rules.portfolio]
    found = []
    if len(texts) > MOST_CONFIGURATIONS:
        found.append(f"the portfolio has {len(texts)} configurations, and at most {MOST_CONFIGURATIONS} are allowed")
    for item in rules.devices:
        samples = {sample.digest: sample for sample in groups.get((item.device, _place(item.environment)), ())}
        said = [*item.learned, *item.held_out]
        if missing := sum(digest not in samples for digest in said):
            found.append(f"{item.device}: the records of {missing} of {len(said)} calls are not there")
        if set(item.learned) & set(item.held_out):
            found.append(f"{item.device}: calls of which the rules were learned are not held out")
        held_out = [samples[digest] for digest in item.held_out if digest in samples]
        again = _judged(item, held_out, texts)
        found += [f"{item.device}: {text}" for text in _contradictions(item, again)]
        answered = sum(_answers(again, sample) for sample in held_out)
        if answered < _LEAST_ANSWERED * len(item.held_out) or not held_out:
            found.append(
                f"{item.device}: the rules answer alone for {answered} of {len(item.held_out)} calls held out, "
                f"and at least {_LEAST_ANSWERED:.0%} are needed"
            )
    return found


def _contradictions(said: DeviceRules, found: DeviceRules) -> Iterator[str]:
    for number, (one, other) in enumerate(zip(said.rules, found.rules, strict=True), 1):
        if one.held_out != other.held_out or not _same(one.worst, other.worst):
            yield (
                f"rule {number} is said to be at worst {_text(one.worst)} for {one.held_out} calls held out, "
                f"and is {_text(other.worst)} for {other.held_out}"
            )
    if wrong := sum(not _same(value, found.held_out.get(digest)) for digest, value in said.held_out.items()):
        yield f"{wrong} calls that were held out have other slowdowns than the rules say"


def _same(one: float | None, other: float | None) -> bool:
    return one is other if one is None or other is None else math.isclose(one, other, rel_tol=_ROUNDING)


def _text(slowdown: float | None) -> str:
    return "unknown" if slowdown is None else f"{slowdown:.3f}"


def _is_measured(record: Record) -> bool:
    timed = sum(candidate.seconds is not None for candidate in record.candidates)
    # Where only what rules propose was measured, nobody knows the best time.
    return record.works and record.source in _MEASURED and timed > 1 and not record.measurement.get(BY_RULES)


def _place(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(decisive(environment).items()))


def _grouped(records: Iterable[Record], version: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], list[_Sample]]:
    """The samples of each device and of the decisive part of its environment, of one version."""
    newest: dict[tuple[str, tuple[tuple[str, str], ...], str], Record] = {}
    for record in records:
        key = record.key
        if key.version == version:
            place = (key.device, _place(key.environment), key.call_digest)
            newest[place] = max(newest.get(place, record), record, key=lambda each: each.created)
    groups = defaultdict(list)
    for (device, environment, digest), record in sorted(newest.items(), key=lambda pair: pair[0]):
        times = {item.digest: item.seconds.p50 for item in record.candidates if item.seconds is not None}
        groups[device, environment].append(_Sample(digest, features(record.key.call), times))
    return dict(groups)


def _parted(samples: Sequence[_Sample]) -> tuple[list[_Sample], list[_Sample]]:
    """The samples to learn from, and the half that is held out, none of which bounds a size.

    Those to learn from lie apart: each next one is farthest from those before.
    """
    bounds = [
        most(samples, key=lambda sample: (sample.features.sizes[name], sample.digest)).digest
        for name in _names(samples, "sizes")
        for most in (min, max)
    ]
    learned = [number for number, sample in enumerate(samples) if sample.digest in bounds]
    of_all = [sample.features for sample in samples]
    distances = _distances(of_all, of_all, _base(samples), _names(samples, "types"))
    while len(learned) < math.ceil(len(samples) / 2):
        nearest = distances[:, learned].min(1) if learned else distances.sum(1)
        nearest[learned] = -1
        learned.append(int(nearest.argmax()))
    held_out = [sample for number, sample in enumerate(samples) if number not in learned]
    return [samples[number] for number in sorted(learned)], held_out


def _bounds(samples: Sequence[_Sample]) -> dict[str, tuple[float, float]]:
    sizes = {name: [sample.features.sizes[name] for sample in samples] for name in _base(samples)}
    return {name: (min(values), max(values)) for name, values in sizes.items()}


def _known(samples: Sequence[_Sample]) -> dict[str, tuple[str, ...]]:
    names = _names(samples, "types")
    return {name: tuple(sorted({sample.features.types[name] for sample in samples})) for name in names}


def _judged(rules: DeviceRules, held_out: Iterable[_Sample], texts: Sequence[str]) -> DeviceRules:
    """The rules with what the calls that were held out say of them."""
    slowdowns: dict[str, float | None] = {}
    said: dict[int, list[float | None]] = {number: [] for number in range(len(rules.rules))}
    for sample in held_out:
        rule = rules.rule(sample.features)
        slowdown = sample.slowdown(texts[rule.use])
        slowdowns[sample.digest] = None if slowdown is None else round(slowdown, 4)
        said[rules.rules.index(rule)].append(slowdowns[sample.digest])
    judged = []
    for number, rule in enumerate(rules.rules):
        known = [slowdown for slowdown in said[number] if slowdown is not None]
        sure = bool(known) and len(known) == len(said[number])
        judged.append(replace(rule, held_out=len(said[number]), worst=max(known) if sure else None))
    return replace(rules, rules=tuple(judged), held_out=slowdowns)


def _answers(rules: DeviceRules, sample: _Sample) -> bool:
    return not rules.outside(sample.features) and rules.rule(sample.features).answers_alone


def _points(samples: Sequence[_Sample], texts: Sequence[str]) -> list[_Point]:
    """Predict the slowdowns for the samples' sizes and types, each with each; for some of them if there are many.

    The model, a Gaussian process over the logarithms of the sizes, levels what chance has made of single times, and
    says where between two sizes another configuration becomes better.
    """
    import numpy as np

    known = [sample.features for sample in samples]
    wanted = [*known, *_combined(samples)]
    base, types = _base(samples), _names(samples, "types")
    slow = np.asarray([[sample.loss(text) for text in texts] for sample in samples])
    between = _distances(known, known, base, types)
    reach, noise = min(itertools.product(_REACHES, _NOISES), key=lambda pair: _left_out(between, slow, *pair))
    kernel = np.exp(-between / reach) + noise * np.eye(len(samples))
    mean = slow.mean(0)
    among = np.exp(-_distances(wanted, known, base, types) / reach)
    expected = mean + among @ np.linalg.solve(kernel, slow - mean)
    rows = map(tuple, np.maximum(0, expected).tolist())
    return [_Point(each, row, i < len(known)) for i, (each, row) in enumerate(zip(wanted, rows, strict=True))]


def _combined(samples: Sequence[_Sample]) -> Iterator[Features]:
    """Each size and type of the samples with each other; some of these, if there are many."""
    sizes = {name: sorted({sample.features.sizes[name] for sample in samples}) for name in _base(samples)}
    types = {name: sorted({sample.features.types[name] for sample in samples}) for name in _names(samples, "types")}
    drawn = random.Random(0)  # noqa: S311 (not a secret)
    if math.prod(map(len, sizes.values())) * math.prod(map(len, types.values())) <= _MOST_POINTS:
        pairs = list(itertools.product(itertools.product(*sizes.values()), itertools.product(*types.values())))
    else:
        pairs = [
            (tuple(map(drawn.choice, sizes.values())), tuple(map(drawn.choice, types.values())))
            for _ in range(_MOST_POINTS)
        ]
    for of_sizes, of_types in pairs:
        yield with_products(Features(dict(zip(sizes, of_sizes, strict=True)), dict(zip(types, of_types, strict=True))))


def _left_out(distances: Any, slow: Any, reach: float, noise: float) -> float:
    """The squared error of each sample when the model knows the others alone."""
    import numpy as np

    inverse = np.linalg.inv(np.exp(-distances / reach) + noise * np.eye(len(distances)))
    return float((((inverse @ (slow - slow.mean(0))) / np.diag(inverse)[:, None]) ** 2).sum())


def _distances(one: Sequence[Features], other: Sequence[Features], sizes: Iterable[str], types: Iterable[str]) -> Any:
    """In doublings of sizes; another type is as far as `_TYPE` doublings."""
    import numpy as np

    total = np.zeros((len(one), len(other)))
    for name in sizes:
        left, right = (
            np.asarray([math.log2(max(1.0, each.sizes[name])) for each in all_of]) for all_of in (one, other)
        )
        total += np.abs(left[:, None] - right[None, :])
    for name in types:
        total += _TYPE * np.asarray([[left.types[name] != right.types[name] for right in other] for left in one])
    return total


def _names(samples: Sequence[_Sample], kind: str) -> list[str]:
    """The sizes or types that all samples have."""
    return sorted(set.intersection(*(set(getattr(sample.features, kind)) for sample in samples)))


def _base(samples: Sequence[_Sample]) -> list[str]:
    return [name for name in _names(samples, "sizes") if not name.endswith(WHOLE)]


def _grown(points: Sequence[_Point]) -> Iterator[Rule]:
    """The rules of a tree, so that a rule needs no condition that says that those before it do not hold."""
    use, loss = _best(points)
    cut, one, other = min(
        _cuts(points),
        key=lambda cut: (_best(cut[1])[1] + _best(cut[2])[1], str(cut[0])),
        default=(None, [], []),
    )
    if cut is None or loss - _best(one)[1] - _best(other)[1] < _GAIN * len(points):
        yield from _parts(points, use)
        return
    for rule in _grown(one):
        yield replace(rule, conditions=(cut, *rule.conditions))
    yield from _grown(other)


def _parts(points: Sequence[_Point], use: int) -> Iterator[Rule]:
    """Rules with one configuration: calls for which it is less good are parted from the others."""
    cuts = (cut for cut in _cuts(points) if all(sum(point.measured for point in part) >= _PART for part in cut[1:]))
    cut, one, other = min(
        cuts, key=lambda cut: (_spread(cut[1], use) + _spread(cut[2], use), str(cut[0])), default=(None, [], [])
    )
    if cut is None:
        yield Rule((), use)
        return
    for rule in _parts(one, use):
        yield replace(rule, conditions=(cut, *rule.conditions))
    yield from _parts(other, use)


def _spread(points: Sequence[_Point], use: int) -> float:
    losses = [point.losses[use] for point in points]
    mean = sum(losses) / len(losses)
    return sum((loss - mean) ** 2 for loss in losses)


def _best(points: Sequence[_Point]) -> tuple[int, float]:
    losses = [sum(each) for each in zip(*(point.losses for point in points), strict=True)]
    best = min(range(len(losses)), key=losses.__getitem__)
    return best, losses[best]


def _cuts(points: Sequence[_Point]) -> Iterator[tuple[Condition, list[_Point], list[_Point]]]:
    """Each condition that parts the points, with those that fulfil it and the others."""
    for condition in dict.fromkeys(_conditions(points)):
        one = [point for point in points if condition.holds(point.features)]
        other = [point for point in points if not condition.holds(point.features)]
        if min(len(one), len(other)) >= _LEAF:
            yield condition, one, other


def _conditions(points: Sequence[_Point]) -> Iterator[Condition]:
    first = points[0].features
    # A name with spaces could be read as a part of a condition.
    for name in sorted(name for name in first.sizes if " " not in name):
        for low, high in itertools.pairwise(sorted({point.features.sizes[name] for point in points})):
            yield Condition(name, _between(low, high))
    for name in sorted(name for name in first.types if " " not in name):
        for text in sorted({point.features.types[name] for point in points}):
            yield Condition(name, text)


def _between(low: float, high: float) -> float:
    """A number from `low` to `high`, nearest to both by their ratio; a whole one between whole ones."""
    middle = math.sqrt(low * high) if low > 0 else (low + high) / 2
    return math.floor(middle) if isinstance(low, int) and isinstance(high, int) else max(low, middle)
