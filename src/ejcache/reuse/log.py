"""What reuse did with each function, for `ejcache why`, in a log of this user on this host.

line := JSON object: function, did, sentence, advice, url, process, time
"""

from __future__ import annotations

import json
import os
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
        process: its number.
        time: seconds since the epoch.
    """

    function: str
    did: str
    sentence: str
    advice: str
    url: str
    process: int
    time: float

    @property
    def words(self) -> str:
        """`traced, because the variable FOO changed`."""
        return f"{_DID.get(self.did, self.did)}, because {self.sentence}"


_DID: Final = {
    "recorded": "traced and recorded",
    "proven": "traced and proven",
    "plain": "traced, and is not recorded",
    "wrong": "traced, and nothing is reused any more",
}


def note(function: str, did: str, sentence: str, advice: str = "", *, url: str) -> None:
    """Remember what was done, once in a process; what cannot be written is not remembered."""
    about = (function, did, sentence, url)
    if about not in _said:
        _said.add(about)
        this = ReuseNote(function, did, sentence, advice, url, os.getpid(), time.time())
        _LOG.append(json.dumps(this._asdict()).encode())


def read_notes() -> Iterator[ReuseNote]:
    """The notes of this user on this host, the latest first; damaged lines are skipped."""
    for line in _LOG.lines():
        with suppress(*MALFORMED):
            fields: dict[str, Any] = json.loads(line)
            found = ReuseNote(**fields)
            if all(isinstance(text, str) for text in found[:5]):
                yield found


def latest_notes(what: str | None = None) -> list[ReuseNote]:
    """The last note of each function, the latest first.

    Args:
        what: a function by its qualified name, the end of one, or its last component, with or without `jit_`; None for
            the functions of the last process.
    """
    found: dict[str, ReuseNote] = {}
    wanted = None if what is None else (what, what.removeprefix("jit_"))
    for each in read_notes():
        if wanted is None and found and each.process != next(iter(found.values())).process:
            break
        if wanted is None or each.function in wanted or each.function.endswith(tuple(f".{name}" for name in wanted)):
            found.setdefault(each.function, each)
    return list(found.values())
