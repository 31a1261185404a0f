"""What `ejcache why` remembers on this host, in two logs of this user: start records, and the texts of programs.

Start records (`cache.starts`) have the last programs that had to be compiled, and whether they were stored. The program
log has the texts of the last programs with their source lines: a shared cache holds texts without them, and cannot
always be reached. Versions before start records wrote each miss as a line of `misses.jsonl`, which is still read.

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
from typing import TYPE_CHECKING, Final

from ejcache.cache.recorder import START_LOG, recorder
from ejcache.cache.run_counts import AppendedLog
from ejcache.cache.starts import ProgramRecord, decode_line, decode_program
from ejcache.errors import MALFORMED
from ejcache.keys.difference import Identity
from ejcache.keys.key import listed_name
from ejcache.util.locks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

_OLD_MISSES: Final = AppendedLog("misses", limit=2_000_000)

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


def record_miss(record: MissRecord, *, seconds: Mapping[str, float] | None = None, thread: str = "") -> None:
    """Add a miss to the start record of this process, and write that; does nothing if the log cannot be written.

    Args:
        record: the miss.
        seconds: what each phase took.
        thread: the name of the thread that wanted the program.
    """
    # Not `asdict`, which copies what the fields hold and takes longer than the rest of this.
    fields = {name: getattr(record, name) for name in record.__slots__}
    recorder.add(ProgramRecord(**fields, caller=record.caller, thread=thread, seconds=seconds or {}))
    recorder.write()


def misses_of(programs: Iterable[ProgramRecord]) -> Iterator[MissRecord]:
    """Those programs that were missed."""
    for program in programs:
        if not program.is_hit:
            yield MissRecord(**{name: getattr(program, name) for name in MissRecord.__slots__})


def read_misses() -> Iterator[MissRecord]:
    """The misses, the latest first; lines that are damaged or of another version are skipped."""
    for line in START_LOG.lines():
        part = decode_line(line)
        yield from misses_of(reversed(part.programs)) if part is not None else ()
    for line in _OLD_MISSES.lines():
        with suppress(*MALFORMED):
            yield from misses_of([decode_program(json.loads(line))])


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
