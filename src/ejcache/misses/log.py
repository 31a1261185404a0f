"""What `ejcache why` remembers on this host, in two logs of this user: misses, and the texts of programs.

The miss log has the last programs that had to be compiled, and whether they were stored; each line is a JSON object.
The program log has the texts of the last programs with their source lines: a shared cache holds texts without them, and
cannot always be reached.

    line := {"computation": digest of the program (a component of its key), "text": base64(zlib(text))}
    text := the module with debug locations, then a line `LARGE_CONSTANT digest` for each constant that it leaves out

Both belong to no cache. Without them misses cannot be explained, and nothing else is lost.
"""

from __future__ import annotations

import base64
import json
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ejcache.cache.run_counts import AppendedLog
from ejcache.errors import MALFORMED
from ejcache.keys.difference import Identity
from ejcache.keys.key import listed_name
from ejcache.util.locks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

STORED: Final = "stored"
"""The outcome of a compilation whose executable was stored."""
_MISSES: Final = AppendedLog("misses", limit=2_000_000)
_LARGEST_NUMBER: Final = 1e15

LARGE_CONSTANT: Final = "// large constant "
"""Begins a line after a text: the digest of a constant whose elements the text leaves out, in their order."""
_PROGRAMS: Final = AppendedLog("programs", limit=8_000_000)
_LARGEST: Final = 8_000_000
"""Characters of a text; what compiles a larger program has worse to explain than its source lines."""
_LARGEST_LINE: Final = 2_000_000
_MANY: Final = 4096

# The programs that this process has logged: some are compiled over and over.
_logged: set[tuple[str, str]] = set()
_lock: Final = ForkLock()


@dataclass(frozen=True, slots=True, kw_only=True)
class MissRecord:
    """One program that had to be compiled.

    Attributes:
        time: seconds since the epoch.
        url: the cache that was read.
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
            and all(isinstance(number, int | float) and abs(number) < _LARGEST_NUMBER for number in numbers)
            and all(isinstance(value, str) for mapping in mappings for value in dict(mapping).values())
        )


def record_miss(record: MissRecord) -> None:
    """Append to the log; does nothing if the log cannot be written."""
    # Not `asdict`, which copies what the fields hold and takes longer than the rest of this.
    body = {name: getattr(record, name) for name in record.__slots__}
    _MISSES.append(json.dumps(body, separators=(",", ":")).encode())


def read_misses() -> Iterator[MissRecord]:
    """The records, the latest first; lines that are damaged or of another version are skipped."""
    for line in _MISSES.lines():
        with suppress(*MALFORMED):
            fields: dict[str, Any] = json.loads(line)
            record = MissRecord(**fields)
            if record.is_valid:
                yield record


def last_compile_seconds(name: str) -> float | None:
    """The seconds that the last program of this name took, or None if the miss log has none."""
    listed = listed_name(name)
    return next((miss.compile_seconds for miss in read_misses() if listed_name(miss.name) == listed), None)


def remember_program(computation: str, text: str) -> None:
    """Log a program's text; does nothing if it is very large, or the log cannot be written."""
    if len(text) > _LARGEST:
        return
    this = str(_PROGRAMS.path), computation
    with _lock:
        if this in _logged:
            return
        if len(_logged) >= _MANY:
            _logged.clear()
        _logged.add(this)
    packed = base64.b64encode(zlib.compress(text.encode(), 1)).decode()
    if len(packed) < _LARGEST_LINE:
        _PROGRAMS.append(json.dumps({"computation": computation, "text": packed}, separators=(",", ":")).encode())


def recall_programs(computations: Collection[str]) -> dict[str, str]:
    """The texts of those of these programs that the log holds, by digest."""
    wanted = {f'{{"computation":"{computation}"'.encode(): computation for computation in computations if computation}
    found: dict[str, str] = {}
    for line in _PROGRAMS.lines() if wanted else ():
        computation = wanted.get(line.partition(b",")[0])
        if computation is None or computation in found:
            continue
        with suppress(zlib.error, *MALFORMED):
            packed = base64.b64decode(json.loads(line)["text"], validate=True)
            # A line may be cut, and may unpack to anything.
            unpacking = zlib.decompressobj()
            text = unpacking.decompress(packed, 4 * _LARGEST)
            if unpacking.eof:
                found[computation] = text.decode()
    return found
