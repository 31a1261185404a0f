"""What direct mode did with each call, and with each function: for `ejcache why FUNCTION`, for counters, and for tests.

A log of this user on this host holds the last verdicts. Each line is a JSON object.
"""

from __future__ import annotations

import collections
import json
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ejcache.cache.counters import Verdict
from ejcache.cache.run_counts import AppendedLog, announce_verdict
from ejcache.keys.key import listed_name
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


__all__ = [
    "DirectHistory",
    "DirectLog",
    "Verdict",
    "VerdictRecord",
    "direct_log",
    "last_verdicts",
    "read_verdicts",
    "record_verdict",
]


class VerdictRecord(NamedTuple):
    """One call of a function whose executable was not known to the process yet.

    Attributes:
        function: module and qualified name.
        verdict: what direct mode did.
        sentence: why, for a person.
        url: the cache.
        time: seconds since the epoch.
    """

    function: str
    verdict: Verdict
    sentence: str
    url: str = ""
    time: float = 0.0


_LOG: Final = AppendedLog("direct", limit=1_000_000)
_KEPT: Final = 10_000
_last: Final[collections.deque[VerdictRecord]] = collections.deque(maxlen=_KEPT)


def record_verdict(function: str, verdict: Verdict, sentence: str, *, url: str) -> None:
    """Remember a verdict in this process, for `ejcache why`, and for the `ejcache run` that started this process.

    What cannot be written is not remembered there.
    """
    record = VerdictRecord(function, verdict, sentence, url, time.time())
    _last.append(record)
    announce_verdict(function, verdict, sentence)
    _LOG.append(json.dumps(record._asdict(), separators=(",", ":")).encode())


def last_verdicts() -> list[VerdictRecord]:
    """The verdicts of this process, the earliest first."""
    return list(_last)


def read_verdicts() -> Iterator[VerdictRecord]:
    """The verdicts in the log of this user on this host, the latest first; damaged lines are skipped."""
    for line in _LOG.lines():
        with suppress(ValueError, TypeError, RecursionError):
            fields: dict[str, Any] = json.loads(line)
            record = VerdictRecord(**{**fields, "verdict": Verdict(fields["verdict"])})
            if all(isinstance(text, str) for text in (record.function, record.sentence, record.url)):
                yield record


_BECAUSE: Final = frozenset({"missed", "refused", "plain"})
"""Verdicts whose sentence is the reason; that of another verdict says what happened."""


class DirectHistory(NamedTuple):
    """What direct mode did with a function in one cache, as far as this host remembers.

    Attributes:
        function: module and qualified name.
        verdict: the last one: `hit`, `checked`, `wrong`, `unproven`, `missed`, `refused` or `plain`.
        sentence: why, for a person.
        url: the cache.
        time: of the last verdict, in seconds since the epoch.
        counts: how often each verdict was given.
    """

    function: str
    verdict: str
    sentence: str
    url: str
    time: float
    counts: Mapping[str, int]

    @property
    def title(self) -> str:
        """The sentence about a function that was not missed."""
        return f"{self.function} in direct mode: {self.words}"

    @property
    def words(self) -> str:
        """`refused because step → cfg.log is an _io.TextIOWrapper`: the last verdict with its reason."""
        if not self.sentence:
            return self.verdict
        return f"{self.verdict}{' because' if self.verdict in _BECAUSE else ':'} {self.sentence}"

    @property
    def counted(self) -> str:
        """`3 hit, 1 refused`: how often each verdict was given."""
        return ", ".join(f"{number:,} {verdict}" for verdict, number in self.counts.items())

    def to_dict(self) -> dict[str, Any]:
        """Stable snake_case fields, for machines."""
        return {**self._asdict(), "counts": dict(self.counts)}


def direct_log(what: str | None, is_within: Callable[[str, float], bool]) -> DirectLog:
    """What `ejcache why` asks of direct mode; see `ejcache.misses.explanation`."""
    return DirectLog((each for each in read_verdicts() if is_within(each.url, each.time)), what)


class DirectLog:
    """The verdicts that this host remembers, and which of them a person asks for.

    Args:
        verdicts: the latest first.
        what: a function by its qualified name, the end of one, or its last component, with or without `jit_`; None for
            all functions. A key, or what else names no function here, leaves the choice to `of_program`.
    """

    def __init__(self, verdicts: Iterable[VerdictRecord], what: str | None = None) -> None:
        every = list(verdicts)
        self._named = [verdict for verdict in every if what is None or _is_named(verdict.function, what)]
        self._pool = self._named or every

    def named(self) -> list[DirectHistory]:
        """The functions that are asked for, those first that were called last."""
        return _histories(self._named)

    def programs(self) -> list[str]:
        """The names that JAX gives to the modules of these functions."""
        return list(dict.fromkeys(f"jit_{_program(verdict.function)}" for verdict in self._named))

    def of_program(self, name: str, url: str) -> tuple[DirectHistory, ...]:
        """The functions whose modules have that name, in that cache."""
        wanted = name.removeprefix("jit_")
        return tuple(_histories(each for each in self._pool if each.url == url and _program(each.function) == wanted))


def _is_named(function: str, what: str) -> bool:
    return any(function == name or function.endswith(f".{name}") for name in (what, what.removeprefix("jit_")))


def _program(function: str) -> str:
    return listed_name(function.rpartition(".")[2])


def _histories(verdicts: Iterable[VerdictRecord]) -> list[DirectHistory]:
    last: dict[tuple[str, str], VerdictRecord] = {}
    counts: dict[tuple[str, str], Counter[str]] = {}
    for verdict in verdicts:
        place = verdict.function, verdict.url
        last.setdefault(place, verdict)
        counts.setdefault(place, Counter())[str(verdict.verdict)] += 1
    return [
        DirectHistory(function, str(given.verdict), given.sentence, url, given.time, _in_order(counts[function, url]))
        for (function, url), given in last.items()
    ]


def _in_order(counts: Counter[str]) -> dict[str, int]:
    return {verdict: counts[verdict] for verdict in (*Verdict, *counts) if verdict in counts}
