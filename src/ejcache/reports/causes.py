"""Why programs were compiled: each miss has one cause, and misses of one cause are shown together. Pure functions.

`ejcache why` compares the texts of two programs and opens their cache. Here only start records are compared, so that
ten thousand misses take less than a second; what is shown of a cause names the function to ask `ejcache why` about.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ejcache.cache.counters import Miss, Skip
from ejcache.journal.line import STORED
from ejcache.keys.difference import environment_differences
from ejcache.misses.log import identity_of
from ejcache.misses.reasons import why_not_found, why_not_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ejcache.journal.line import ProgramRecord
    from ejcache.misses.explanation import Explanation

Pair = tuple[str, str]
"""The keys of an earlier and of a later program."""
NEW: Final = "new"
_SIGNATURE: Final = "signature"
_GONE: Final = "gone"
_CODE: Final = "computation"
_LABELS: Final = {
    NEW: "nothing of this name was compiled here before",
    _GONE: "its entry is gone: it was stored before, and evicted or removed since",
    _SIGNATURE: "the shapes or types of its arguments or results changed",
    _CODE: "its code changed, or a constant in it",
}
_ADVICE: Final = {
    NEW: "`ejcache warm` compiles ahead, and a shared cache brings what another host compiled",
    _GONE: "raise max_size; `ejcache stats` shows the limit",
    _SIGNATURE: "pad to a few fixed shapes (buckets), so that the next shape is one that was compiled",
    _CODE: "if the code did not change, a constant or an order did: `ejcache why` shows the line",
    Skip.QUICK: "set min_compile_seconds=0 to store what compiles quickly",
    Skip.SMALL: "set min_entry_size=0 to store it",
    Skip.READ_ONLY: "unset EJCACHE_READ_ONLY where the program may store",
    Skip.LARGE: "raise max_size, so that its entry fits",
    Skip.CALLBACK: "move callbacks such as jax.debug.print out of the program, or use JAX 0.11 or later",
    Skip.PARTITIONING: "set remove_custom_partitioning_ptr=True if the function is the same in every process",
    Skip.ERROR: "`ejcache doctor` checks the storage",
    Miss.ERROR: "`ejcache doctor` checks the storage",
    Miss.FORCED: "unset EASYDEL_RECOMPILE_FORCE",
    Skip.DUPLICATE: "nothing: the processes started at the same time, and one of them stored it",
    Miss.CORRUPT: "`ejcache verify` checks all entries",
}


@dataclass(slots=True)
class Cause:
    """Why some programs were compiled.

    Attributes:
        kind: names the cause for machines.
        label: in words.
        advice: what to do about it; empty if nothing is known.
        misses: how many compilations.
        seconds: what they took.
        seconds_by_function: what they took, by name of the program.
        pairs: by name, the keys of the last program and of the earlier one that it is compared with, if there is one.
    """

    kind: str
    label: str
    advice: str = ""
    misses: int = 0
    seconds: float = 0.0
    seconds_by_function: dict[str, float] = field(default_factory=dict)
    pairs: dict[str, Pair] = field(default_factory=dict)

    @property
    def ranked(self) -> list[str]:
        """Its functions, the one that took the most seconds first."""
        return sorted(self.seconds_by_function, key=lambda name: -self.seconds_by_function[name])


class Causes:
    """Gives each miss its cause, by what came before it."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], ProgramRecord] = {}
        self._by_name: dict[tuple[str, str], list[ProgramRecord]] = {}

    def of(self, program: ProgramRecord) -> Cause:
        """Return the cause of a miss; programs are given in the order of their times, hits too."""
        cause = self._cause(program)
        if not program.is_hit:
            self._by_key[program.url, program.key] = program
            named = self._by_name.setdefault((program.url, program.name), [])
            named.append(program)
            del named[:-8]
        return cause

    def _cause(self, program: ProgramRecord) -> Cause:
        if program.is_hit:
            return Cause("", "")
        if not program.reason:
            return _cause(program.outcome, f"it was not looked up: {why_not_stored(program.outcome)}")
        if program.reason != Miss.ABSENT:
            return _cause(program.reason, why_not_found(program.reason))
        if program.outcome == Skip.DUPLICATE:
            return _cause(Skip.DUPLICATE, "another process compiled it at the same time, and stored it first")
        before = self._by_key.get((program.url, program.key))
        if before is not None:
            if before.outcome == STORED:
                return _cause(_GONE)
            return _cause(before.outcome, f"it was not stored before: {why_not_stored(before.outcome)}")
        named = self._by_name.get((program.url, program.name))
        return self._changed(program, named) if named else _cause(NEW)

    def _changed(self, program: ProgramRecord, named: list[ProgramRecord]) -> Cause:
        nearest = min(
            reversed(named),
            key=lambda other: (len(changed_components(other, program)), other.signature != program.signature),
        )
        found = environment_differences(identity_of(nearest), identity_of(program))
        if found:
            cause = Cause(found[0].component, found[0].sentence, found[0].advice)
        else:
            cause = _cause(_CODE if nearest.signature == program.signature else _SIGNATURE)
        cause.pairs[program.name] = (nearest.key, program.key)
        return cause


def changed_components(before: ProgramRecord, after: ProgramRecord) -> list[str]:
    """Return the names of the components of two keys that differ."""
    names = before.components.keys() | after.components.keys()
    return sorted(name for name in names if before.components.get(name) != after.components.get(name))


def reason(cause: str, pair: Pair | None, differences: Mapping[Pair, Explanation]) -> str:
    """Say why a program was compiled: what its text shows, if it was compared with an earlier one, or else its cause.

    Args:
        cause: its `Cause.label`.
        pair: of `Cause.pairs`, if there is one.
        differences: what changed within the pairs that were compared.
    """
    told = differences[pair].differences if pair is not None and pair in differences else ()
    return told[0].sentence if told else cause


def group_misses(causes: Iterable[tuple[ProgramRecord, Cause]], shown: Callable[[str], str]) -> list[Cause]:
    """Return the causes, the costliest first; `shown` returns the name under which a program is shown.

    Causes of one kind with other words, such as other versions, are apart: the words hold for each program of a group.
    """
    found: dict[tuple[str, str], Cause] = {}
    for program, cause in causes:
        name = shown(program.name)
        group = found.setdefault((cause.kind, cause.label), Cause(cause.kind, cause.label, cause.advice))
        group.misses += 1
        group.seconds += program.compile_seconds
        took = group.seconds_by_function
        took[name] = took.get(name, 0.0) + program.compile_seconds
        if name == program.name:
            group.pairs.update(cause.pairs)
    return sorted(found.values(), key=lambda cause: (-cause.seconds, -cause.misses))


def _cause(kind: str, label: str = "") -> Cause:
    return Cause(str(kind), label or _LABELS[kind], _ADVICE.get(kind, ""))
