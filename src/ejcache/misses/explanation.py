"""`ejcache why` in words: why a program was compiled and not loaded, and what changed since the nearest compilation.

Three things are compared, in this order: the components of the key, the texts of the two programs, and the source lines
that these name.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ejcache.cache.counters import Miss, Skip
from ejcache.errors import StoreError
from ejcache.journal.line import STORED
from ejcache.keys.difference import ARROW, Difference, Identity, environment_differences
from ejcache.misses.definitions import are_one_function, definition_of
from ejcache.misses.difference import (
    commitment_changes,
    commitment_differences,
    does_the_same,
    find_reordering,
    program_differences,
    weak_differences,
)
from ejcache.misses.log import identity_of, read_misses
from ejcache.misses.nearest import KnownEntries, nearest
from ejcache.misses.program_text import SourceFiles, read_text, spell_types
from ejcache.misses.reasons import why_not_found, why_not_stored
from ejcache.util.units import format_age

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ejcache.cache.policy import CachePolicy
    from ejcache.journal.line import ProgramRecord
    from ejcache.settings.table import Settings

    IsWithin = Callable[[str, float], bool]


_DIFF_LINES: Final = 200
_LONGEST: Final = 400
"""Characters of two signatures."""
IN_SENTENCE: Final = 3
"""Causes that the sentence of an explanation names; how many more there are, it says."""
_UNKNOWN: Final = Difference("computation", "the function's code or a constant in it changed; its text is not known")


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """Why one program was compiled.

    Attributes:
        sentence: the reason, for a person.
        nearest: if no entry was found, the compilation of the same function that is most similar.
        differences: what changed since then, the most important first.
        diff: a unified diff of the texts of the two modules, if both are known and differ.
        advice: what to do so that this costs no compilation again.
        note: what could not be read, and why; empty if everything was.
    """

    sentence: str
    nearest: Identity | None = None
    differences: tuple[Difference, ...] = ()
    diff: str = ""
    advice: tuple[str, ...] = ()
    note: str = ""

    def __repr__(self) -> str:
        return f"<Explanation: {self.sentence}>"

    def to_dict(self) -> dict[str, Any]:
        """Stable snake_case fields, for machines."""
        return {
            "sentence": self.sentence,
            "nearest_key": self.nearest.key if self.nearest else None,
            "differences": [
                {"component": d.component, "sentence": d.sentence, "advice": d.advice} for d in self.differences
            ],
            "remedies": list(self.advice),
            "note": self.note,
            "diff": self.diff,
        }


def explain_in(cache: CachePolicy, record: ProgramRecord, settings: Settings) -> Explanation | None:
    """Say why the program of `record` was not loaded from `cache`, or None if its store cannot be opened."""
    store = cache.opened(settings)
    return explain(record, KnownEntries(store), read_misses()) if store is not None else None


def explain(
    record: ProgramRecord, known: KnownEntries | Exception | None, history: Iterable[ProgramRecord] = ()
) -> Explanation:
    """Say why the program of `record` was not loaded from its cache.

    Args:
        record: the miss.
        known: the entries of its cache; None if it has none; or the error for which it cannot be read.
        history: the misses that this host remembers, the latest first. Earlier ones are compared, too.
    """
    if not record.reason:
        return Explanation(f"{record.name} was not looked up: {why_not_stored(record.outcome)}")
    was = "would be" if record.outcome == Skip.FORBIDDEN else "was"
    if record.reason != Miss.ABSENT:
        return Explanation(f"{record.name} {was} compiled: {why_not_found(record.reason)}")
    # What was refused was not compiled, so that nothing is compared with it.
    compiled = (each for each in history if each.outcome != Skip.FORBIDDEN)
    earlier = [each for each in compiled if each.time < record.time and each.components]
    found = _repeated(record, earlier) or _compared(record, known, earlier)
    return replace(found, sentence=f"{record.name} {was} compiled{found.sentence}")


def _repeated(record: ProgramRecord, earlier: Sequence[ProgramRecord]) -> Explanation | None:
    """If this host has compiled the very same program before: why it was compiled again, without the first words."""
    if record.outcome == Skip.DUPLICATE:
        return Explanation(" because another process compiled it at the same time, and stored it first")
    began = record.time - record.compile_seconds
    same = [each for each in earlier if each.key == record.key and each.time < began]
    here = [each for each in same if each.url == record.url]
    if not same:
        return None
    before = (here or same)[0]
    ago = format_age(max(0, round(record.time - before.time)))
    if not here:
        return Explanation(
            f" because this is another cache: {ago} before, it was compiled for {before.url}",
            identity_of(before),
            advice=("use one cache for all programs; ejcache push and ejcache pull copy entries",),
        )
    if before.outcome == STORED:
        return Explanation(
            f" because its entry is gone: it was stored {ago} before, and evicted or removed since",
            identity_of(before),
            advice=("raise max_size if the limit is too small; ejcache stats shows it",),
        )
    advice = {
        Skip.QUICK: "set min_compile_seconds=0 (JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0) to store it",
        Skip.SMALL: "set min_entry_size=0 to store it",
        Skip.READ_ONLY: "unset EJCACHE_READ_ONLY to store it",
        Skip.LARGE: "raise max_size to store it",
    }
    return Explanation(
        f" because it was not stored when it was compiled {ago} before: {why_not_stored(before.outcome)}",
        identity_of(before),
        advice=tuple(filter(None, [advice.get(Skip(before.outcome)) if before.outcome in set(Skip) else None])),
    )


def _compared(
    record: ProgramRecord, known: KnownEntries | Exception | None, earlier: Sequence[ProgramRecord]
) -> Explanation:
    """Explain what changed since the nearest compilation, without the first words."""
    note, stored = "", []
    try:
        if isinstance(known, KnownEntries):
            stored = [each for each in known.named(record.name) if each.created < record.time]
    except StoreError as exc:
        known = exc
    if isinstance(known, Exception):
        note = f"its cache cannot be read, so it is compared with what this host has compiled: {known}"
        known = None
    same = [identity_of(each) for each in earlier if each.url == record.url and each.name == record.name]
    after = identity_of(record)
    candidates = {
        each.key: each
        for each in (*stored, *same)
        if each.components and each.key != record.key and are_one_function(each.details, after.details)
    }
    ranked, texts = nearest(after, candidates.values(), known.store if known is not None else None)
    text = texts.get(after.key, "")
    ranked = [
        each for each in ranked if are_one_function(each.details, after.details, texts=(texts.get(each.key, ""), text))
    ]
    if not ranked and (renamed := _renamed(after, [each for each in earlier if each.url == record.url], record.time)):
        return replace(renamed, note=note)
    if not ranked:
        where = "no entry is stored under its key, nor another entry of this function"
        return Explanation(f": {where}: it is new here, or was evicted", note=note)
    return replace(difference_of(ranked[0], after, texts, SourceFiles(until=record.time)), note=note)


def difference_of(before: Identity, after: Identity, texts: Mapping[str, str], sources: SourceFiles) -> Explanation:
    """Explain what changed from one compilation to another, without the first words.

    Args:
        before: the earlier one.
        after: the later one.
        texts: of these and of other programs of the function, by key, as far as they are known.
        sources: the files that the texts name.
    """
    found = environment_differences(before, after)
    if before.components.get("computation") != after.components.get("computation"):
        found += _differences(before, after, texts, sources)
    return replace(_because(found or [_UNKNOWN], before), diff=_diff(before, after, texts))


def _because(found: Sequence[Difference], before: Identity) -> Explanation:
    """Explain what changed since `before`, without the first words."""
    shown = "; ".join(each.sentence for each in found[:IN_SENTENCE])
    if len(found) > IN_SENTENCE:
        shown += f"; and {len(found) - IN_SENTENCE} more"
    advice = tuple(dict.fromkeys(each.advice for each in found if each.advice))
    return Explanation(f" because {shown}", before, tuple(found), advice=advice)


def _renamed(after: Identity, earlier: Iterable[ProgramRecord], time: float) -> Explanation | None:
    """If a function of the same file did the same and is there no longer: that it was renamed, without the first words.

    A lambda has no name to lose.
    """
    place, sources = definition_of(after.details), SourceFiles(until=time)
    candidates: dict[str, Identity] = {}
    for each in earlier:
        before = definition_of(each.details)
        if each.signature != after.signature or each.name == after.name or before.file != place.file:
            continue
        if not (before.is_lambda or place.is_lambda or place.is_library) and sources.lack(place.file, before.name):
            candidates.setdefault(each.key, identity_of(each))
    ranked, texts = nearest(after, candidates.values(), None)
    if after.key not in texts:
        return None
    new = read_text(texts[after.key])
    for old in ranked:
        if old.key in texts and does_the_same(read_text(texts[old.key]), new):
            words = f"the function was renamed: {definition_of(old.details).name} {ARROW} {place.name}"
            advice = "a function's name is part of its executable: keep it"
            return _because([Difference("name", words, advice), *environment_differences(old, after)], old)
    return None


def _differences(before: Identity, after: Identity, texts: Mapping[str, str], sources: SourceFiles) -> list[Difference]:
    if not {before.key, after.key} <= texts.keys():
        if before.signature == after.signature:
            noted = weak_differences(before, after) + commitment_differences(before, after)
            return noted or [_UNKNOWN]
        words = (
            f"the arguments and results changed from {spell_types(before.signature)} to {spell_types(after.signature)}"
        )
        return [Difference("signature", words if len(words) < _LONGEST else "the arguments or results changed")]
    read = {key: read_text(text) for key, text in texts.items()}
    old, new = read[before.key], read[after.key]
    if old.is_named != new.is_named:  # a cache keeps texts without the names of arguments
        names = [argument.name for argument in (old if old.is_named else new).arguments]
        old, new = (read_text(texts[each.key], names=names) for each in (before, after))
    place = find_reordering(old, new)
    files = {line.place.file for line in new.lines if line.place.line}
    if place is not None and sources.are_older(files, before.created):
        words = (
            "the order of a set or dict changed, most likely: the same source gave the same operations in another "
            f"order, first at {place} in {place.function}"
        )
        advice = "set PYTHONHASHSEED=0 for every process, or sort what is taken from a set"
        return [Difference("computation", words, advice)]
    weak = weak_differences(before, after, new, former=old)
    committed = commitment_changes(before, after)
    found = program_differences(old, new, sources=sources, seen=read.values(), weak=weak, committed=committed)
    found = found or commitment_differences(before, after)
    return found or [Difference("computation", "the order of the operations, or which values they use, changed")]


def _diff(before: Identity, after: Identity, texts: Mapping[str, str]) -> str:
    if not {before.key, after.key} <= texts.keys():
        return ""
    old, new = (_without_locations(texts[each.key]) for each in (before, after))
    lines = list(difflib.unified_diff(old, new, before.key, after.key, lineterm="", n=1))
    if len(lines) > _DIFF_LINES:
        lines = [*lines[:_DIFF_LINES], f"\N{HORIZONTAL ELLIPSIS} {len(lines) - _DIFF_LINES} more lines"]
    return "\n".join(lines)


def _without_locations(text: str) -> list[str]:
    lines = (line for line in text.splitlines() if not line.startswith(("#loc", "// ")))
    return [re.sub(r' loc\((?:#loc\d*|unknown|"(?:[^"\\]|\\.)*")\)', "", line) for line in lines]


def explain_all(
    what: str | None,
    is_within: IsWithin,
    known: Callable[[ProgramRecord], KnownEntries | Exception | None],
    *,
    most: int | None,
    named: Callable[[Iterable[ProgramRecord], str], list[ProgramRecord]],
    stored: Callable[[str], list[ProgramRecord]] = lambda _: [],
) -> list[tuple[ProgramRecord, Explanation]]:
    """Return the misses of this user on this host, explained, the latest first.

    Args:
        what: a name or a key; None for any.
        is_within: whether to count what happened in a cache (its URL) at a time (seconds since the epoch).
        known: the entries of the cache in which a program was missed, or why there are none.
        most: how many misses to explain; None for all.
        named: the misses that have a name or key.
        stored: entries of a name in place of its misses, if there are none.
    """
    history = list(read_misses())
    within = [record for record in history if is_within(record.url, record.time)]
    records = within if what is None else named(within, what) or stored(what)
    return [(record, explain(record, known(record), history)) for record in records[:most]]
