"""The miss log: the last programs of this user on this host that had to be compiled, and whether they were stored.

Each line is a JSON object. The log belongs to this host and to no cache; without it, misses cannot be explained, and
nothing else is lost.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ejcache.cache.appended_log import AppendedLog
from ejcache.errors import MALFORMED
from ejcache.keys.difference import Identity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["STORED", "MissRecord", "read_misses", "record_miss"]

STORED: Final = "stored"
"""The outcome of a compilation whose executable was stored."""
_LOG: Final = AppendedLog("misses", limit=2_000_000)
_LARGEST: Final = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class MissRecord:
    """One program that had to be compiled.

    Attributes:
        time: seconds since the epoch.
        url: the cache that was asked.
        reason: why the lookup failed, a `Miss`; empty if there was no lookup.
        outcome: `STORED`, or the `Skip` that says why it was not stored.
        compile_seconds: seconds that compiling took.
        key: the text of its key; empty if no key could be made.
        name: the module's name.
        components: as in `Identity`.
        details: as in `Identity`; also `caller`, the line of the user's program that called the function.
        signature: as in `Identity`.
        module: as in `Identity`.
    """

    time: float
    url: str
    reason: str
    outcome: str
    compile_seconds: float
    key: str
    name: str
    components: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)
    signature: str = ""
    module: str = ""

    @property
    def identity(self) -> Identity:
        """What the record has in common with the header of an entry."""
        return Identity(
            self.key, self.name, self.components, self.details, self.signature, self.module, created=self.time
        )

    @property
    def caller(self) -> str:
        """The line of the user's program that called the function, `/home/me/train.py:31 in main`; empty if unknown."""
        return self.details.get("caller", "")

    @property
    def is_valid(self) -> bool:
        """Whether every field has its type: a log on disk may hold anything."""
        texts: tuple[Any, ...] = (self.url, self.reason, self.outcome, self.key, self.name, self.signature, self.module)
        numbers: tuple[Any, ...] = (self.time, self.compile_seconds)
        mappings: tuple[Any, ...] = (self.components, self.details)
        return (
            all(isinstance(text, str) for text in texts)
            and all(isinstance(number, int | float) and abs(number) < _LARGEST for number in numbers)
            and all(isinstance(value, str) for mapping in mappings for value in dict(mapping).values())
        )


def record_miss(record: MissRecord) -> None:
    """Append to the log; does nothing if the log cannot be written."""
    # Not `asdict`, which copies what the fields hold and takes longer than the rest of this.
    body = {name: getattr(record, name) for name in record.__slots__}
    _LOG.append(json.dumps(body, separators=(",", ":")).encode())


def read_misses() -> Iterator[MissRecord]:
    """The records, the latest first; lines that are damaged or of another version are skipped."""
    for line in _LOG.lines():
        with suppress(*MALFORMED):
            fields: dict[str, Any] = json.loads(line)
            record = MissRecord(**fields)
            if record.is_valid:
                yield record
