"""Keeps on this host what `ejcache why` remembers, in two logs: start records, and the texts of programs.

Start records (`start_records`) have the last programs that had to be compiled, and whether they were stored. The
program log has the texts of the last programs with their source lines: a shared cache holds texts without them, and
cannot always be reached.

    line := {"computation": digest of the program (a component of its key), "text": base64(zlib(text))}
    text := the module with debug locations, then a line `LARGE_CONSTANT digest` for each constant that it leaves out

Both belong to no cache. Without them misses cannot be explained, and nothing else is lost.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ejcache.errors import MALFORMED
from ejcache.journal.appended_log import AppendedLog
from ejcache.journal.line import HIT
from ejcache.journal.recorder import START_LOG, recorder
from ejcache.journal.start_records import decode_line
from ejcache.keys.key import listed_name
from ejcache.util.locks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from ejcache.journal.line import ProgramRecord
    from ejcache.journal.start_records import StartRecord

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


def record_miss(program: ProgramRecord) -> None:
    """Add a program to the start record of this process, and write that; does nothing if the log cannot be written."""
    recorder.add(program)
    recorder.write()


def read_misses() -> Iterator[ProgramRecord]:
    """Yield the programs that were compiled, the latest first; lines that are damaged or of another version are
    skipped.
    """
    for line in START_LOG.lines():
        part = decode_line(line)
        yield from (each for each in reversed(part.programs) if each.outcome != HIT) if part is not None else ()


def misses_of(records: Iterable[StartRecord]) -> list[ProgramRecord]:
    """Return the programs that these starts have compiled, the latest first."""
    found = [each for record in records for each in record.programs if each.outcome != HIT]
    return sorted(found, key=lambda each: -each.time)


def lost_before(records: Sequence[StartRecord]) -> float | None:
    """Return the time at which the records of this host begin, if earlier ones are lost; else None."""
    return min((each.process.began for each in records), default=None) if START_LOG.is_cut() else None


def programs_with(function: str) -> list[str]:
    """Return the names of the programs into which JAX has put the jitted function of this name, the latest first.

    Of programs whose texts this host has.
    """
    function = function.removeprefix("jit_")
    names: dict[str, str] = {}
    for each in read_misses():
        names.setdefault(each.components.get("computation", ""), each.name)
    is_part = re.compile(rf"func\.func private @{re.escape(function)}(?:_\d+)?\(|/jit\({re.escape(function)}\)/")
    texts = recall_programs(names)
    return list(dict.fromkeys(name for each, name in names.items() if is_part.search(texts.get(each, ""))))


def last_compile_seconds(name: str) -> float | None:
    """Return the seconds that the last program of this name took, or None if no record of this host has one."""
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
    """Return the texts of those of these programs that the log holds, by digest."""
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
