"""Notes, for `ejcache why`, whether each function was reused or traced, and finds which of its inputs have changed."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from ejcache.journal.line import ReuseNote
from ejcache.journal.recorder import START_LOG, recorder
from ejcache.journal.start_records import decode_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NOTHING: Final[Mapping[str, str]] = {}
_said: Final[set[tuple[str, ...]]] = set()


def note(function: str, did: str, sentence: str, parts: Mapping[str, str] = _NOTHING, *, url: str) -> None:
    """Remember what was done, once in a process; what cannot be written is not remembered.

    Args:
        function: its name.
        did: see `ReuseNote`.
        sentence: why.
        parts: of the question, by what a person calls them: a short digest of each.
        url: the cache.
    """
    about = (function, did, sentence, url, *parts.values())
    if about not in _said:
        _said.add(about)
        recorder.add_reuse(ReuseNote(function, did, sentence, parts, url, os.getpid(), time.time()))


def read_notes() -> Iterator[ReuseNote]:
    """Yield the notes of this user on this host, the latest first; damaged lines are skipped."""
    recorder.write()
    for line in START_LOG.lines():
        part = decode_line(line)
        yield from reversed(part.reuse) if part is not None else ()


def latest_notes(what: str | None = None) -> list[ReuseNote]:
    """Return the last note of each function, the latest first.

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


def changed_parts(note: ReuseNote) -> list[str]:
    """Name the parts of a question that differ from the nearest one of another process, that was asked before it."""
    earlier = [
        each.parts
        for each in read_notes()
        if each.function == note.function and each.process != note.process and each.time < note.time and each.parts
    ]
    differing = [[name for name, digest in note.parts.items() if parts.get(name) != digest] for parts in earlier]
    return min(differing, key=len, default=[])
