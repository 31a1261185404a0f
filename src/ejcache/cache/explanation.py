"""Why a program was compiled rather than loaded: what its author changed since the most similar program."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from ejcache.cache.counters import Miss, Skip
from ejcache.cache.explaining.body import body_changes, first_reordered, likeness
from ejcache.cache.explaining.known import Known, stored_text
from ejcache.cache.explaining.outline import Outline, read_outline
from ejcache.cache.explaining.signature import argument_changes, changed_sizes, mesh_changes, result_changes
from ejcache.cache.explaining.source import SourceFiles
from ejcache.cache.explaining.types import jax_types
from ejcache.cache.miss_log import STORED
from ejcache.cache.program_log import recall_programs
from ejcache.cache.reasons import why_not_found, why_not_stored
from ejcache.errors import StoreError
from ejcache.keys.difference import Difference, Identity, environment_differences
from ejcache.util.units import format_age

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ejcache.cache.explaining.direct_history import DirectHistory
    from ejcache.cache.miss_log import MissRecord

__all__ = ["Explanation", "Known", "explain", "explain_direct"]

_DIFF_LINES: Final = 200
_COMPARED: Final = 12
"""Programs whose texts are compared; each text of a bucket costs a request."""
_RENAMED: Final = 20
"""Programs of other names that are compared, if none of this name is known."""
_ALIKE: Final = 0.97
_IN_SENTENCE: Final = 3


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one program was compiled.

    Attributes:
        sentence: the reason, for a person.
        nearest: if no entry was found, the compilation of the same function that is most similar.
        differences: what its author changed since then, the most important first.
        diff: a unified diff of the texts of the two modules, if both are known and differ.
        advice: what to do so that this costs no compilation again.
        note: what could not be asked, and why; empty if everything was.
        direct: what direct mode did with the functions of this program's name.
    """

    sentence: str
    nearest: Identity | None = None
    differences: tuple[Difference, ...] = ()
    diff: str = ""
    advice: tuple[str, ...] = ()
    note: str = ""
    direct: tuple[DirectHistory, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Stable snake_case fields, for machines."""
        return {
            "sentence": self.sentence,
            "nearest_key": self.nearest.key if self.nearest else None,
            "differences": [
                {"component": d.component, "sentence": d.sentence, "advice": d.advice} for d in self.differences
            ],
            "advice": list(self.advice),
            "note": self.note,
            "diff": self.diff,
            "direct": [history.to_dict() for history in self.direct],
        }


def explain_direct(history: DirectHistory) -> Explanation:
    """What is said of a function that was not missed, and that direct mode knows."""
    return Explanation(f"{history.function} in direct mode: {history.words}", direct=(history,))


def explain(record: MissRecord, known: Known | Exception | None, history: Iterable[MissRecord] = ()) -> Explanation:
    """Why the program of `record` was not loaded from its cache.

    Args:
        record: the miss.
        known: the entries of its cache; None if it has none; or the error for which it cannot be asked.
        history: the misses that this host remembers, the latest first. Earlier ones are compared, too.
    """
    if record.outcome == Skip.FORBIDDEN:
        found = _explain(record, known, history)
        return replace(found, sentence=found.sentence.replace(" was compiled", " would be compiled", 1))
    return _explain(record, known, history)


def _explain(record: MissRecord, known: Known | Exception | None, history: Iterable[MissRecord]) -> Explanation:
    if not record.reason:
        return Explanation(f"{record.name} was not looked up: {why_not_stored(record.outcome)}")
    if record.reason != Miss.ABSENT:
        return Explanation(f"{record.name} was compiled: {why_not_found(record.reason)}")
    # What was refused was not compiled, so that nothing is compared with it.
    compiled = (each for each in history if each.outcome != Skip.FORBIDDEN)
    earlier = [each for each in compiled if each.time < record.time and each.components]
    repeated = _repeated(record, earlier)
    if repeated is not None:
        return repeated
    stored: list[Identity] = []
    if isinstance(known, Known):
        try:
            stored = [identity for identity in known.named(record.name) if identity.created < record.time]
        except StoreError as exc:
            known = exc
    note = ""
    if isinstance(known, Exception):
        note = f"its cache cannot be asked, so it is compared with what this host has compiled: {known}"
        known = None
    return _Comparison(record, known, stored, earlier).explanation(note)


def _repeated(record: MissRecord, earlier: Sequence[MissRecord]) -> Explanation | None:
    """The explanation if this host has compiled the very same program before."""
    name = record.name
    if record.outcome == Skip.DUPLICATE:
        return Explanation(
            f"{name} was compiled because another process compiled it at the same time, and stored it first"
        )
    began = record.time - record.compile_seconds
    same = [each for each in earlier if each.key == record.key and each.time < began]
    here = [each for each in same if each.url == record.url]
    if not same:
        return None
    before = (here or same)[0]
    ago = format_age(max(0, round(record.time - before.time)))
    if not here:
        return Explanation(
            f"{name} was compiled because this is another cache: {ago} before, it was compiled for {before.url}",
            before.identity,
            advice=("use one cache for all programs; ejcache push and ejcache pull copy entries",),
        )
    if before.outcome == STORED:
        return Explanation(
            f"{name} was compiled because its entry is gone: it was stored {ago} before, and evicted or removed since",
            before.identity,
            advice=("ejcache stats shows the size limit (max_size); ejcache pin keeps an entry",),
        )
    advice = {
        Skip.QUICK: "set min_compile_seconds=0 (JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0) to store it",
        Skip.SMALL: "set min_entry_size=0 to store it",
        Skip.READ_ONLY: "unset EJCACHE_READ_ONLY to store it",
        Skip.LARGE: "raise max_size to store it",
    }
    return Explanation(
        f"{name} was compiled because it was not stored when it was compiled {ago} before: "
        f"{why_not_stored(before.outcome)}",
        before.identity,
        advice=tuple(filter(None, [advice.get(Skip(before.outcome)) if before.outcome in set(Skip) else None])),
    )


class _Comparison:
    """One miss, and the compilations that it is compared with."""

    def __init__(
        self, record: MissRecord, known: Known | None, stored: Sequence[Identity], earlier: Sequence[MissRecord]
    ) -> None:
        self.after = record.identity
        self._record = record
        self._known = known
        mine = [each.identity for each in earlier if each.name == record.name and each.url == record.url]
        by_key = {identity.key: identity for identity in (*mine, *stored) if identity.components}
        by_key.pop(record.key, None)
        self._others = earlier
        self._candidates = list(by_key.values())
        self._outlines: dict[str, Outline | None] = {}
        self._local: dict[str, str] = {}

    def explanation(self, note: str) -> Explanation:
        """What changed since the nearest compilation."""
        name = self._record.name
        ranked = self._ranked()
        if not ranked:
            return self._new(note)
        before = self._nearest(ranked)
        differences = environment_differences(before, self.after) + self._program_differences(before, ranked)
        if not differences:
            differences = [Difference("computation", "the program changed, and its text is not known")]
        shown = "; ".join(difference.sentence for difference in differences[:_IN_SENTENCE])
        if len(differences) > _IN_SENTENCE:
            shown += f"; and {len(differences) - _IN_SENTENCE} more"
        return Explanation(
            f"{name} was compiled because {shown}",
            before,
            tuple(differences),
            self._diff(before),
            tuple(dict.fromkeys(difference.advice for difference in differences if difference.advice)),
            note,
        )

    def _new(self, note: str) -> Explanation:
        name = self._record.name
        others: list[MissRecord] = []
        for each in self._others:
            if each.url == self._record.url and each.name not in {name, *(other.name for other in others)}:
                others.append(each)
        same = [each.identity for each in others if each.signature == self.after.signature]
        self._recall([self.after, *same[:_RENAMED]])
        outline = self._outline(self.after)
        for identity in same[:_RENAMED]:
            other = self._outline(identity)
            if other is None or outline is None or len(outline.operations) < 2:
                continue
            if likeness(other, outline) >= _ALIKE and self._is_gone(identity.name, other, outline):
                sentence = f"the function was renamed: {_plain(identity.name)} -> {_plain(name)}"
                return Explanation(
                    f"{name} was compiled because {sentence}",
                    identity,
                    (Difference("name", sentence, "a function's name is part of its executable: keep it"),),
                    note=note,
                )
        where = "no entry is stored under its key, nor another entry of a function of this name"
        return Explanation(f"{name} was compiled: {where}: it is new here, or was evicted", note=note)

    def _is_gone(self, name: str, before: Outline, after: Outline) -> bool:
        """Whether the file of both programs no longer has this name, so that it is not another function's."""
        files = [{each.place.file for each in outline.operations if each.place.line} for outline in (before, after)]
        return files[0] == files[1] and all(self._sources.lack(file, _plain(name)) for file in files[1])

    # -- the nearest -----------------------------------------------------------------------------------------------

    def _ranked(self) -> list[Identity]:
        """The candidates, those first that differ least, as far as their headers tell."""

        def distance(candidate: Identity) -> tuple[float, float]:
            ours, theirs = self.after.components, candidate.components
            names = (ours.keys() | theirs.keys()) - {"computation", "compile_options"}
            apart = sum(1.0 for name in names if ours.get(name) != theirs.get(name))
            apart += 3.0 * (1.0 - _signature_likeness(candidate.signature, self.after.signature))
            return apart - 3.0 * (ours.get("computation") == theirs.get("computation")), -candidate.created

        return sorted(self._candidates, key=distance)

    def _nearest(self, ranked: list[Identity]) -> Identity:
        """Of the first candidates, the one whose program is most similar."""
        first = ranked[:_COMPARED]
        self._recall([self.after, *first])
        after = self._outline(self.after)
        if after is None or len(first) == 1:
            return first[0]

        def distance(candidate: Identity) -> float:
            ours, theirs = self.after.components, candidate.components
            names = (ours.keys() | theirs.keys()) - {"computation", "compile_options"}
            apart = sum(1.0 for name in names if ours.get(name) != theirs.get(name))
            apart += 2.0 * (1.0 - _signature_likeness(candidate.signature, self.after.signature))
            if ours.get("computation") == theirs.get("computation"):
                return apart
            before = self._outline(candidate)
            return apart + 4.0 * (1.0 - (likeness(before, after) if before is not None else 0.5))

        return min(first, key=distance)

    # -- texts -----------------------------------------------------------------------------------------------------

    def _recall(self, identities: Sequence[Identity]) -> None:
        wanted = {identity.components.get("computation", "") for identity in identities} - self._local.keys()
        self._local |= recall_programs(wanted)

    def _text(self, identity: Identity) -> str | None:
        """The text of a program: with its source lines if this host compiled it, or as its cache keeps it."""
        text = self._local.get(identity.components.get("computation", ""))
        if text is None and self._known is not None and identity.module:
            try:
                return stored_text(self._known.store, identity.module)
            except StoreError:
                return None
        return text

    def _outline(self, identity: Identity) -> Outline | None:
        if identity.key not in self._outlines:
            text = self._text(identity)
            self._outlines[identity.key] = read_outline(text) if text is not None else None
        return self._outlines[identity.key]

    def _diff(self, before: Identity) -> str:
        texts = [self._text(identity) for identity in (before, self.after)]
        if None in texts:
            return ""
        old, new = (_without_locations(str(text)) for text in texts)
        lines = list(difflib.unified_diff(old, new, before.key, self.after.key, lineterm="", n=1))
        if len(lines) > _DIFF_LINES:
            lines = [*lines[:_DIFF_LINES], f"\N{HORIZONTAL ELLIPSIS} {len(lines) - _DIFF_LINES} more lines"]
        return "\n".join(lines)

    # -- differences -----------------------------------------------------------------------------------------------

    def _program_differences(self, before: Identity, ranked: Sequence[Identity]) -> list[Difference]:
        if before.components.get("computation") == self.after.components.get("computation"):
            return []
        old, new = self._outline(before), self._outline(self.after)
        if old is None or new is None:
            return self._without_texts(before)
        if reordered := self._reordered(before, old, new):
            return [reordered]
        seen = [outline.arguments for each in ranked[:_COMPARED] if (outline := self._outlines.get(each.key))]
        arguments = argument_changes(old, new, seen)
        shapes = any(each.component == "signature" for each in arguments)
        results = [] if shapes else result_changes(old, new)
        body = body_changes(
            old,
            new,
            moves=changed_sizes(old, new),
            dtypes_changed=any(each.component == "signature" for each in (*arguments, *results)),
            name_of=self._sources.variable,
        )
        found = [*mesh_changes(old, new), *arguments, *results, *body]
        # What says most comes first; shardings follow from the names of the mesh.
        found.sort(key=lambda each: "random number generator" not in each.sentence)
        if found and "axes were renamed" in found[0].sentence:
            found = [each for each in found if not each.sentence.startswith("the sharding of")]
        if not found and old.attributes != new.attributes:
            found = [
                Difference("computation", f"the module's attributes changed: {old.attributes} -> {new.attributes}")
            ]
        return found or [Difference("computation", "the order of the operations, or which values they use, changed")]

    def _reordered(self, before: Identity, old: Outline, new: Outline) -> Difference | None:
        """The difference if the source is the same and gave the same operations in another order."""
        place = first_reordered(old, new)
        if place is None or replace(old, operations=()) != replace(new, operations=()):
            return None
        files = {each.place.file for each in new.operations if each.place.line}
        if not self._sources.are_older(files, before.created):
            return None
        where = f"{place} in {place.function}" if place.function else str(place)
        return Difference(
            "computation",
            "the order of a set or dict changed, most likely: the same source gave the same operations in another "
            f"order, first at {where}",
            "set PYTHONHASHSEED=0 for every process, or sort what is taken from a set",
        )

    def _without_texts(self, before: Identity) -> list[Difference]:
        if before.signature != self.after.signature:
            return [Difference("signature", _short_signatures(before.signature, self.after.signature))]
        return [Difference("computation", "the function's code or a constant in it changed; no text of it was kept")]

    @cached_property
    def _sources(self) -> SourceFiles:
        return SourceFiles(until=self._record.time)


def _plain(name: str) -> str:
    return name.removeprefix("jit_")


def _signature_likeness(before: str, after: str) -> float:
    if before == after:
        return 1.0
    mine, theirs = before.split(", "), after.split(", ")
    return difflib.SequenceMatcher(None, mine[:400], theirs[:400], autojunk=False).ratio() * 0.9


def _short_signatures(before: str, after: str) -> str:
    old, new = jax_types(before), jax_types(after)
    if len(old) + len(new) <= 200:
        return f"the arguments and results changed from {old} to {new}"
    mine, theirs = new.split(", "), old.split(", ")
    if len(mine) != len(theirs):
        return f"the number of arguments and results changed: {len(theirs)} -> {len(mine)}"
    apart = [(number, a, b) for number, (a, b) in enumerate(zip(theirs, mine, strict=True)) if a != b]
    number, a, b = apart[0]
    more = f", and {len(apart) - 1} more" if len(apart) > 1 else ""
    return f"the arguments changed: number {number}: {a} -> {b}{more}"


def _without_locations(text: str) -> list[str]:
    lines = (line for line in text.splitlines() if not line.startswith(("#loc", "// ")))
    return [re.sub(r' loc\((?:#loc\d*|unknown|"(?:[^"\\]|\\.)*")\)', "", line) for line in lines]
