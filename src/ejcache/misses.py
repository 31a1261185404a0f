"""The miss log: the last compilations of this user on this host that no entry answered, and what became of them.

One JSON object a line, appended whole; the file is moved aside at 2 MB, so that two of them are all there ever is.
It is this host's own memory, no part of any cache, and losing it loses nothing but explanations.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ejcache.keys.difference import Identity
from ejcache.settings import make_private, state_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["STORED", "MissRecord", "read_misses", "record_miss"]

STORED: Final = "stored"
"""The outcome of a compilation that made an entry."""
_LIMIT: Final = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MissRecord:
    """One compilation that no entry answered.

    Attributes:
        time: seconds since the epoch.
        url: the cache that was asked.
        reason: why the lookup failed, a `Miss`; empty if there was no lookup.
        outcome: "stored", or the `Skip` that says why not.
        compile_seconds: what it cost.
        key: the text of its key; empty if none was made.
        name: the module's name.
        components: as in `Identity`.
        details: as in `Identity`.
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
        """The compilation, as far as keys go."""
        return Identity(
            self.key, self.name, self.components, self.details, self.signature, self.module, created=self.time
        )


def record_miss(record: MissRecord) -> None:
    """Append to the log; what cannot be written is not."""
    path = _path()
    line = json.dumps(asdict(record), separators=(",", ":")).encode() + b"\n"
    try:
        make_private(path.parent)
        # One write with O_APPEND: lines of several processes do not mix.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line)
            written = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        # Another process may have moved it aside meanwhile, and a fresh one must not replace that.
        if written.st_size > _LIMIT and path.stat().st_ino == written.st_ino:
            path.replace(path.with_suffix(".old.jsonl"))
    except OSError:
        return


def read_misses() -> Iterator[MissRecord]:
    """The records, the latest first; lines that are damaged or of another version are passed over."""
    path = _path()
    for place in (path, path.with_suffix(".old.jsonl")):
        try:
            lines = place.read_bytes().splitlines()
        except OSError:
            continue
        for line in reversed(lines):
            try:
                fields: dict[str, Any] = json.loads(line)
                yield MissRecord(**fields)
            except (ValueError, TypeError):
                continue


def _path() -> Path:
    return state_directory() / "misses.jsonl"
