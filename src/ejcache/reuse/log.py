"""What reuse did with each function, for `ejcache why`, in a log of this user on this host.

line := JSON object: function, did, sentence, advice, url, time
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ejcache.cache.run_counts import AppendedLog
from ejcache.errors import MALFORMED
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOG: Final = AppendedLog("reuse", limit=1_000_000)
_said: Final[set[tuple[str, ...]]] = set()


class ReuseNote(NamedTuple):
    """What reuse did with one question of a function.

    Attributes:
        function: module and qualified name.
        did: `recorded`, `proven`, `reused`, `traced`, `plain` or `wrong`.
        sentence: why, for a person.
        advice: an item of the setting `reuse_ignore` that would make the difference not count, or other advice.
        url: the cache.
        time: seconds since the epoch.
    """

    function: str
    did: str
    sentence: str
    advice: str
    url: str
    time: float


def note(function: str, did: str, sentence: str, advice: str = "", *, url: str) -> None:
    """Remember what was done, once in a process; what cannot be written is not remembered."""
    about = (function, did, sentence, url)
    if about not in _said:
        _said.add(about)
        _LOG.append(json.dumps(ReuseNote(function, did, sentence, advice, url, time.time())._asdict()).encode())


def read_notes() -> Iterator[ReuseNote]:
    """The notes of this user on this host, the latest first; damaged lines are skipped."""
    for line in _LOG.lines():
        with suppress(*MALFORMED):
            fields: dict[str, Any] = json.loads(line)
            found = ReuseNote(**fields)
            if all(isinstance(text, str) for text in found[:5]):
                yield found
