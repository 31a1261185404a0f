"""What direct mode did with each call: for `ejcache why FUNCTION`, for counters, and for tests.

A log of this user on this host holds the last ones. Each line is a JSON object.
"""

from __future__ import annotations

import collections
import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ejcache.cache.counters import Verdict
from ejcache.cache.run_counts import AppendedLog, announce_verdict
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Verdict", "VerdictRecord", "last_verdicts", "read_verdicts", "record_verdict"]


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
