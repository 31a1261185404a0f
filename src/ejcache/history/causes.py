"""Says in words why a program was compiled: the kind of the cause, a sentence, and what to do about it.

`cause` gives a miss its kind, a sentence, and what to do about it. `ejcache why` prints one, `ejcache report` groups
them, `ejcache advise` picks those that a change of the program removes, and the tables in `docs/causes.md` are made of
`CAUSES` and `OUTCOMES`. `environment_difference` and `difference` say what differs between two programs; what that
means is said here.
"""

from __future__ import annotations

import difflib
import re
import time
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ejcache.cache.reasons import Miss, Skip
from ejcache.history import difference as differ
from ejcache.history.definitions import definition_of
from ejcache.history.environment_difference import ARROW, Difference, environment_differences
from ejcache.history.padding import buckets_of
from ejcache.history.program_text import read_text, spell_types
from ejcache.history.recorded_program import argument_types, caller_of, digest_of
from ejcache.history.source_files import SourceFiles
from ejcache.journal.line import STORED
from ejcache.util.units import format_age

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ejcache.history.known_texts import Texts
    from ejcache.history.nearest_program import Earlier, Neighbours
    from ejcache.journal.line import ProgramRecord

NEW: Final = "new"
RENAMED: Final = "renamed"
GONE: Final = "gone"
OTHER_CACHE: Final = "other_cache"
_DIFF_LINES: Final = 200
_LONGEST: Final = 400
"""Characters of two signatures."""
IN_SENTENCE: Final = 3
"""Differences that a sentence names; how many more there are, it says."""


AVOIDABLE: Final = (differ.SHAPE, differ.TYPE, differ.PLACEMENT, differ.NUMBER, differ.CAPTURED)
"""The kinds that a change of the program removes."""
OF_TEXTS: Final = frozenset(
    {
        NEW,
        *(differ.SHAPE, differ.TYPE, differ.NUMBER, differ.CAPTURED, differ.PLACEMENT, differ.MESH),
        *(differ.ARGUMENTS, differ.ORDER, differ.PRECISION, differ.CODE),
    }
)
"""The kinds that the texts of programs may tell apart."""


class CauseKind(NamedTuple):
    """A kind of cause.

    Attributes:
        title: a heading for several of them.
        what_to_do: `{name}` is what changed; empty if there is nothing that helps every time.
        reason: "The program was compiled because", as a person would go on.
    """

    title: str
    what_to_do: str
    reason: str


_SAME: Final = "nothing: it is stored once"

CAUSES: Final[Mapping[str, CauseKind]] = {
    NEW: CauseKind(
        "new here",
        "compile it ahead with `ejcache warm`, or share a cache: then this host loads what another host compiled",
        "it is new here: no other program of this function is known",
    ),
    RENAMED: CauseKind(
        "a function was renamed",
        "keep the name of a function: the name is part of the executable",
        "its function has another name, and is otherwise the same",
    ),
    GONE: CauseKind(
        "its entry is gone",
        "raise max_size if the limit is too small: `ejcache stats` shows the limit",
        "its entry was evicted or removed",
    ),
    OTHER_CACHE: CauseKind(
        "another cache",
        "use one cache for all programs; `ejcache push` and `ejcache pull` copy entries",
        "it was compiled before for another cache",
    ),
    differ.SHAPE: CauseKind(
        "a shape varies",
        "if {name} has another size in every call, pad {name} to a few sizes, and mask the padding",
        "an argument has another shape",
    ),
    differ.TYPE: CauseKind(
        "a type varies",
        "give {name} one dtype in every call: a Python number is weakly typed, jnp.asarray(value, dtype) is not",
        "an argument has another dtype, or has changed between weakly and strongly typed",
    ),
    differ.NUMBER: CauseKind(
        "a number is part of the program",
        "pass {name} as an argument: a Python value is compiled into the program",
        "a Python number that is compiled into it has another value",
    ),
    differ.CAPTURED: CauseKind(
        "a captured array is part of the program",
        "pass the array as an argument: what a function captures is compiled into the program",
        "an array that its function captures has other elements",
    ),
    differ.PLACEMENT: CauseKind(
        "arguments are placed in another way",
        "place and donate arguments alike in every call: jax.device_put(value, sharding), in_shardings, donate_argnums",
        "its arguments have another sharding or layout, or are donated or committed differently",
    ),
    differ.MESH: CauseKind(
        "another mesh", "keep one mesh, and one set of names for its axes", "its mesh has other axes"
    ),
    differ.ARGUMENTS: CauseKind(
        "other arguments or results",
        "nothing: another model or another call is another program",
        "it has other arguments or results",
    ),
    differ.ORDER: CauseKind(
        "the order of a set or dict",
        "set PYTHONHASHSEED=0 for every process, or sort what is taken from a set",
        "it has the same operations in another order, most likely because a set or dict has another order",
    ),
    differ.PRECISION: CauseKind(
        "another precision",
        "keep jax_default_matmul_precision and precision=, which decide the precision",
        "one of its operations has another precision",
    ),
    differ.CODE: CauseKind(
        "its code changed", "nothing, if the code was changed on purpose", "the code of its function changed"
    ),
    "jaxlib": CauseKind(
        "another version of JAX",
        "nothing: entries of another version are not used; `ejcache prune --old-versions` removes them",
        "JAX or jaxlib has another version",
    ),
    "native_libraries": CauseKind(
        "other native libraries",
        "nothing: an executable of other libraries could give other results",
        "the native libraries that compile it changed, and the version of jaxlib did not",
    ),
    "format": CauseKind(
        "another format of keys",
        "nothing: this version of ejcache makes other keys",
        "another version of ejcache made keys in another format",
    ),
    "platform_version": CauseKind(
        "another version of the platform",
        "nothing: an executable of another version could give other results",
        "the XLA platform, such as that of CUDA, has another version",
    ),
    "devices": CauseKind(
        "other devices",
        "nothing, or compile it ahead for its devices with `ejcache warm --target`",
        "it is for other devices",
    ),
    "machine": CauseKind(
        "another machine",
        "nothing: an executable for another machine could give other results",
        "XLA describes the hardware of the machine differently",
    ),
    "cpu": CauseKind(
        "another kind of CPU",
        "nothing: code that was compiled for one kind of CPU may crash on another",
        "this host has another kind of CPU",
    ),
    "threads": CauseKind(
        "another number of threads",
        "give each process the same number of cores",
        "XLA uses another number of threads on this CPU",
    ),
    "variables": CauseKind(
        "environment variables",
        "set {name} to the same value everywhere",
        "an environment variable that changes compiled code has another value",
    ),
    "arguments": CauseKind(
        "flags on the command line",
        "pass the same flags everywhere",
        "the command line of the process has other flags of XLA",
    ),
    "settings": CauseKind(
        "settings of JAX", "set {name} to the same value everywhere", "a setting of JAX has another value"
    ),
    "options": CauseKind(
        "compile options", "set {name} to the same value everywhere", "a compile option of XLA has another value"
    ),
    "overrides": CauseKind(
        "compiler_options",
        "pass the same compiler_options everywhere",
        "the argument compiler_options of jax.jit has other values",
    ),
    "compile_options": CauseKind(
        "compile options",
        "compile with the same options everywhere",
        "a compile option of XLA changed whose name ejcache does not know",
    ),
    "namespace": CauseKind(
        "EJCACHE_NAMESPACE",
        "set EJCACHE_NAMESPACE to the same text everywhere",
        "EJCACHE_NAMESPACE has another value",
    ),
    "custom_hook": CauseKind(
        "the custom key hook",
        "register the same hook in every process",
        "JAX's custom hook for cache keys returned another text",
    ),
    "partitioned_calls": CauseKind(
        "batch partitionable custom calls",
        "register the same calls in every process",
        "other custom calls are registered as batch partitionable",
    ),
    "variant": CauseKind(
        "PGLE",
        "nothing: the program is profiled once, and compiled with its profile once",
        "PGLE needs another variant of it: one to be profiled, or one that is compiled with a profile",
    ),
    "profile": CauseKind(
        "another profile",
        "nothing: the program is compiled with the new profile once",
        "it is compiled with another profile, which XLA uses to optimise it",
    ),
}
"""What has changed, so that a program is another one: kinds of causes, by the names that JSON, the comment
`# ejcache: ignore[…]` and this host's records have for them."""

OUTCOMES: Final[Mapping[str, CauseKind]] = {
    Miss.CORRUPT: CauseKind(
        "its entry was damaged",
        "if entries are damaged again, check the disk; `ejcache verify` finds all damaged entries",
        "its entry was damaged; ejcache quarantined the entry, and this compilation replaces the entry",
    ),
    Miss.FOREIGN: CauseKind(
        "another program's entry",
        "run `ejcache verify`, which finds all such entries",
        "the cache returned another program's entry, which ejcache quarantined",
    ),
    Miss.VERSION: CauseKind(
        "another format of entries",
        "use one version of ejcache",
        "its entry has a format that this version of ejcache does not read",
    ),
    Miss.SUSPECTED: CauseKind(
        "two starts ended while they loaded it",
        "nothing: this compilation replaces the entry",
        "its entry is intact, but two starts in a row ended while they loaded the entry",
    ),
    Miss.REJECTED: CauseKind(
        "XLA cannot load it on this host",
        "nothing: this host stores another entry beside that one",
        "its entry is intact, but XLA cannot load the entry on this host",
    ),
    Miss.FORCED: CauseKind(
        "a fresh compilation is asked for",
        "unset EJCACHE_RECOMPILE_FORCE and EASYDEL_RECOMPILE_FORCE",
        "the setting recompile_force asks for a fresh compilation",
    ),
    Miss.DISAGREED: CauseKind(
        "not on every rank",
        "nothing: the next start finds it on every rank",
        "it could be loaded on this rank, but not on every rank, and all ranks must do the same",
    ),
    Miss.CHECKED: CauseKind(
        "a hit was checked",
        "unset jax_compilation_cache_check_contents when the check is done",
        "check_contents is set, so its entry was compared with a new executable",
    ),
    Miss.ERROR: CauseKind(
        "the storage failed",
        "run `ejcache doctor`, which checks the storage",
        "the storage could not be read or written",
    ),
    Miss.DISABLED: CauseKind(
        "the cache is off", "run `ejcache config`, which says what switches the cache off", "the cache is switched off"
    ),
    Miss.RECALLED: CauseKind(
        "its entry was recalled",
        "nothing: this compilation replaces the entry",
        "its entry was recalled by an operator (`ejcache recall`)",
    ),
    Miss.NO_DEVICES: CauseKind(
        "for devices that are not here",
        "nothing: it is stored for its devices",
        "its entry is for devices that this process does not have, and cannot be loaded here",
    ),
    Skip.QUICK: CauseKind(
        "it compiles quickly",
        "nothing, if `ejcache config` shows the default of min_compile_seconds; otherwise unset min_compile_seconds",
        "it compiled in less than the minimum compile time (0.01 s for this host and 0.1 s for other hosts, unless "
        "min_compile_seconds is set)",
    ),
    Skip.DUPLICATE: CauseKind(
        "compiled at the same time",
        "nothing: the processes started at the same time, and one of them stored it",
        "another process compiled it at the same time, and stored it first",
    ),
    Skip.OTHER_RANK: CauseKind(
        "another rank stores it", _SAME, "another rank runs the same program and stores it in the same place"
    ),
    Skip.SMALL: CauseKind(
        "its entry is small",
        "lower min_entry_size, so that it is stored",
        "its entry is below the minimum entry size (min_entry_size)",
    ),
    Skip.LARGE: CauseKind(
        "its entry is large",
        "raise max_size, so that its entry fits",
        "its entry is larger than the whole limit of the cache (max_size)",
    ),
    Skip.READ_ONLY: CauseKind(
        "the cache is read-only",
        "unset EJCACHE_READ_ONLY if processes may store; `ejcache doctor` says whether they have the permission",
        "the cache is read-only",
    ),
    Skip.CALLBACK: CauseKind(
        "it calls back into the process",
        "move callbacks such as jax.debug.print out of the program, or use JAX 0.11 or later",
        "it calls back into the process, which this version of JAX cannot restore",
    ),
    Skip.PARTITIONING: CauseKind(
        "custom_partitioning",
        "set jax_remove_custom_partitioning_ptr_from_cache_key if the function is the same in every process",
        "it uses custom_partitioning, whose Python function no key can describe",
    ),
    Skip.INSPECTION: CauseKind(
        "it shows a sharding while it compiles",
        "remove the call of jax.debug.inspect_array_sharding",
        "it shows a sharding to a Python function while it compiles (jax.debug.inspect_array_sharding)",
    ),
    Skip.PLATFORM: CauseKind("the platform", "nothing", "this platform cannot serialise executables"),
    Skip.NO_KEY: CauseKind("no key", "look in the log, which says why", "ejcache could not make a key for it"),
    Skip.FORBIDDEN: CauseKind(
        "compilations are forbidden",
        "call its function before the block of forbid_compile",
        "ejcache.forbid_compile forbade the compilation",
    ),
    Skip.RANKS_DIFFER: CauseKind(
        "ranks compile different programs",
        "look in the log of a rank: it names the part of the key that differs, and the first line that differs",
        "another rank compiles another program of the same name",
    ),
    Skip.HLO_PASS: CauseKind(
        "an HLO pass",
        "nothing: while the pass is registered, the process compiles",
        "the process has registered a pass over the HLO (jax.extend.xla), which no key can describe",
    ),
}
"""What became of a look-up or of storing, so that a program was compiled that has not changed (`Miss`, `Skip`)."""
_KNOWN_QUICK: Final = "it is known to compile too quickly to be published, so shared storage was not read"
_NOT_READ: Final = "the storage could not be read"
_NOT_WRITTEN: Final = "the storage could not be written"


class Cause(NamedTuple):
    """Why one program was compiled.

    Attributes:
        name: of the program.
        key: of the program.
        kind: one of `CAUSES` or `OUTCOMES`.
        sentence: the reason, for a person: `argument x changed: f32[4] -> f32[8]`.
        what_to_do: so that this costs no compilation again; empty if nothing is known.
        place: the line that has what changed, or else the one that called it, `/home/me/train.py:31`; empty if it is
            not known.
        seconds: what compiling took.
        nearest: the earlier program that it is compared with, if there is one.
        differences: what changed since then, the most important first.
        compared: which program that is: `since the start 3m ago`, `beside the call with f32[8]`; empty without one.
        note: what could not be read, and why; empty if everything was.
        is_refused: True if it was not compiled, because the program forbids that.
        diff: a unified diff of the texts of the two modules, if both are known and differ, and it was asked for.
    """

    name: str = ""
    key: str = ""
    kind: str = ""
    sentence: str = ""
    what_to_do: str = ""
    place: str = ""
    seconds: float = 0.0
    nearest: ProgramRecord | None = None
    differences: tuple[Difference, ...] = ()
    compared: str = ""
    note: str = ""
    is_refused: bool = False
    diff: str = ""

    def __repr__(self) -> str:
        """Return the sentence; a notebook shows no more of it."""
        return f"<Cause: {self.text}>"

    @property
    def title(self) -> str:
        """The heading of its kind."""
        return title_of(self.kind)

    @property
    def is_avoidable(self) -> bool:
        """True if a change of the program keeps it from compiling so."""
        return self.kind in AVOIDABLE and not self.what_to_do.startswith("nothing")

    @property
    def reason(self) -> str:
        """The sentence, and what it compares with."""
        return f"{self.sentence} ({self.compared})" if self.compared else self.sentence

    @property
    def text(self) -> str:
        """The whole sentence: `jit_step was compiled because …`."""
        return f"{self.name} {'would be' if self.is_refused else 'was'} compiled because {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Return stable snake_case fields, for machines."""
        return {
            "kind": self.kind,
            "sentence": self.sentence,
            "what_to_do": self.what_to_do,
            "place": self.place,
            "seconds": round(self.seconds, 6),
            "nearest_key": self.nearest.key if self.nearest else None,
            "differences": [{"kind": each.kind, "sentence": each.sentence} for each in self.differences],
            "compared": self.compared,
            "note": self.note,
        }


def kind_of(kind: str) -> CauseKind | None:
    """Return the cause or outcome of this name; None if this version does not know it."""
    return CAUSES.get(kind) or OUTCOMES.get(kind)


def what_to_do(kind: str, *, name: str = "it") -> str:
    """Say what to do about a kind, where this has changed; empty if nothing is known."""
    found = kind_of(kind)
    return found.what_to_do.format(name=name) if found is not None else ""


def title_of(kind: str) -> str:
    """Return the heading of a kind; of one that this version does not know, the kind itself."""
    found = kind_of(kind)
    return found.title if found is not None else kind


def why_not_found(reason: str) -> str:
    """Return the `Miss` of this name in words; an unknown name is returned as it is."""
    if reason == Miss.ERROR:
        return _NOT_READ
    return _KNOWN_QUICK if reason == Miss.QUICK else _reason(reason)


def why_not_stored(outcome: str) -> str:
    """Return the `Skip` of this name in words; an unknown name is returned as it is."""
    return _NOT_WRITTEN if outcome == Skip.ERROR else _reason(outcome)


def _reason(kind: str) -> str:
    found = kind_of(kind)
    return (found.reason if found is not None else "") or kind


def cause(program: ProgramRecord, earlier: Earlier, *, diff_up_to: float = 0) -> Cause:
    """Say why a program was compiled, since the last start if there was one.

    Args:
        program: the record of the miss.
        earlier: what was compiled before.
        diff_up_to: characters of texts whose lines are compared, too.
    """
    caller = caller_of(program)
    if not program.reason:
        found = _of(program.outcome, f"it was not looked up: {why_not_stored(program.outcome)}")
    elif program.reason != Miss.ABSENT:
        found = _of(program.reason, why_not_found(program.reason))
    elif program.outcome == Skip.DUPLICATE:
        found = _of(Skip.DUPLICATE)
    else:
        found = _repeated(program, earlier) or _changed(program, earlier.of_function(program), earlier, diff_up_to)
    return found._replace(
        name=program.name,
        key=program.key,
        place=found.place or (f"{caller.file}:{caller.line}" if caller.file else ""),
        seconds=program.compile_seconds,
        is_refused=program.outcome == Skip.FORBIDDEN,
    )


def cause_beside(program: ProgramRecord, asked: Sequence[ProgramRecord], earlier: Earlier) -> Cause:
    """Say why one process needed a program beside those that it has `asked` for before.

    Args:
        program: with the facts of the compilation that stored it.
        asked: programs of the same function, with theirs, in the order in which the process asked for them.
        earlier: has their texts.
    """
    found = _changed(program, earlier.beside(program, asked), earlier, 0)
    return found._replace(name=program.name, key=program.key, seconds=program.compile_seconds)


def _of(kind: str, sentence: str = "", *, name: str = "it", nearest: ProgramRecord | None = None) -> Cause:
    advice = what_to_do(kind, name=name)
    return Cause(kind=str(kind), sentence=sentence or _reason(kind), what_to_do=advice, nearest=nearest)


def _repeated(program: ProgramRecord, earlier: Earlier) -> Cause | None:
    """Say why a program was compiled again that this host has compiled before."""
    same = earlier.of_key(program)
    here = [each for each in same if each.url == program.url]
    if not same:
        return None
    before = (here or same)[0]
    ago = format_age(max(0, round(program.time - before.time)))
    if not here:
        words = f"this is another cache: {ago} before, it was compiled for {before.url}"
        return _of(OTHER_CACHE, words, nearest=before)
    if before.outcome == STORED:
        words = f"its entry is gone: it was stored {ago} before, and evicted or removed since"
        return _of(GONE, words, nearest=before)
    words = f"it was not stored when it was compiled {ago} before: {why_not_stored(before.outcome)}"
    return _of(before.outcome, words, nearest=before)


def _changed(program: ProgramRecord, neighbours: Neighbours, earlier: Earlier, diff_up_to: float) -> Cause:
    """Say what differs from the nearest program of the same function."""
    ranked, note = neighbours.programs, neighbours.note
    sources = SourceFiles(until=program.time)
    if not ranked:
        return (_renamed(program, earlier, sources) or _new(neighbours))._replace(note=note)
    before = ranked[0]
    is_named = not definition_of(program.details).is_library or "named" in program.details
    differences = _differences(before, program, earlier, sources, is_named=is_named)
    sentence = _joined(differences)
    if neighbours.equal is not None:
        other = _joined(_differences(neighbours.equal, program, earlier, sources, is_named=is_named))
        sentence += f"; or, as near: {other}" if other != sentence else ""
    first = differences[0]
    advice = what_to_do(first.kind, name=first.name or "it")
    if first.is_in_library:
        advice = "nothing, if it was changed on purpose: the library compiles what it is given into the program"
    if first.kind == differ.SHAPE:
        # Those of this program are the last.
        seen = buckets_of([each.signature for each in (*reversed(ranked), program)])
        names = earlier.texts.argument_names(program) if seen is not None else []
        if seen is not None:
            if seen.argument < len(names) and first.name:
                name = names[seen.argument]
            else:
                name = f"argument {seen.argument}" if is_named else "that argument"
            advice = seen.words(spell_types(name))
    raw = [earlier.texts.raw(each) for each in (before, program)] if diff_up_to else [""]
    is_compared = all(raw) and max(map(len, raw)) <= diff_up_to
    return Cause(
        kind=first.kind,
        sentence=sentence,
        what_to_do=advice,
        place=first.place,
        nearest=before,
        differences=tuple(differences),
        compared=_compared(neighbours, program),
        note=note,
        diff=_diff(raw[0], raw[1], before.key, program.key) if is_compared else "",
    )


def _new(neighbours: Neighbours) -> Cause:
    """Say that nothing is known to compare with."""
    if neighbours.lost_before is None:
        return _of(NEW)
    since = time.strftime("%Y-%m-%d", time.localtime(neighbours.lost_before))
    return _of(NEW, f"it is new here: nothing earlier is recorded (since {since})")


def _compared(neighbours: Neighbours, program: ProgramRecord) -> str:
    """Say which program another one is compared with."""
    before = neighbours.programs[0]
    if neighbours.is_sibling:
        types = argument_types(before.signature), argument_types(program.signature)
        other = next((old for old, new in zip_longest(*types) if old != new), None)
        return f"beside the call with {other}" if other is not None else "beside another call of this start"
    if neighbours.began is not None:
        return f"since the start {format_age(max(0, round(time.time() - neighbours.began)))} ago"
    return f"since it was compiled {format_age(max(0, round(time.time() - before.time)))} ago"


def _differences(
    before: ProgramRecord, after: ProgramRecord, earlier: Earlier, sources: SourceFiles, *, is_named: bool
) -> list[Difference]:
    found = _found_once(before, after, earlier, sources)
    return found if is_named else [_without_names(each) for each in found]


def _joined(differences: Sequence[Difference]) -> str:
    """Return the sentences of the first differences, and how many more there are."""
    more = f"; and {len(differences) - IN_SENTENCE} more" if len(differences) > IN_SENTENCE else ""
    return "; ".join(each.sentence for each in differences[:IN_SENTENCE]) + more


def _found_once(
    before: ProgramRecord, after: ProgramRecord, earlier: Earlier, sources: SourceFiles
) -> list[Difference]:
    """List what changed; of two programs without texts, whose records repeat in each start, this is found once."""
    texts = earlier.texts
    if digest_of(before) == digest_of(after) or (texts.raw(before) and texts.raw(after)):
        return differences_of(before, after, texts, sources)
    said = earlier.said(before), earlier.said(after)
    if said not in earlier.differences:
        earlier.differences[said] = differences_of(before, after, texts, sources)
    return earlier.differences[said]


def _without_names(found: Difference) -> Difference:
    """Return a difference between programs of a library's function, whose names of arguments its caller has never
    seen.
    """
    return found._replace(sentence=_NAMED_ARGUMENT.sub("an argument", found.sentence), name="", more=())


_NAMED_ARGUMENT: Final = re.compile(r"\bargument [^\s:]+")


def differences_of(before: ProgramRecord, after: ProgramRecord, texts: Texts, sources: SourceFiles) -> list[Difference]:
    """List what changed from one program to another, the most important first; never empty."""
    found = environment_differences(before, after)
    if before.components.get("computation") != after.components.get("computation"):
        found += _program_differences(before, after, texts, sources)
    return found or [_UNKNOWN]


_UNKNOWN: Final = Difference(differ.CODE, "the function's code or a constant in it changed; its text is not known")


def _program_differences(
    before: ProgramRecord, after: ProgramRecord, texts: Texts, sources: SourceFiles
) -> list[Difference]:
    old, new = texts.read(before), texts.read(after)
    if old is None or new is None:
        return _recorded_differences(before, after)
    if old.is_named != new.is_named:  # a cache keeps texts without the names of arguments
        names = [argument.name for argument in (old if old.is_named else new).arguments]
        old, new = (read_text(texts.raw(each), names=names) for each in (before, after))
    place = differ.find_reordering(old, new)
    files = {line.place.file for line in new.lines if line.place.line}
    if place is not None and sources.are_older(files, before.time):
        words = (
            "the order of a set or dict changed, most likely: the same source gave the same operations in another "
            f"order, first at {place} in {place.function}"
        )
        return [Difference(differ.ORDER, words)]
    weak = differ.weak_differences(before, after, new, former=old)
    committed = differ.commitment_changes(before, after)
    found = differ.program_differences(old, new, sources=sources, weak=weak, committed=committed)
    found = found or differ.commitment_differences(before, after)
    return found or [Difference(differ.CODE, "the order of the operations, or which values they use, changed")]


def _recorded_differences(before: ProgramRecord, after: ProgramRecord) -> list[Difference]:
    """List what two records say of the programs, whose texts are not known."""
    if before.signature == after.signature:
        noted = differ.weak_differences(before, after) + differ.commitment_differences(before, after)
        return noted or [_UNKNOWN]
    was, now = (spell_types(each.signature) for each in (before, after))
    words = f"the arguments and results changed from {was} to {now}"
    return [
        Difference(
            differ.kind_of_signatures(before.signature, after.signature),
            words if len(words) < _LONGEST else "the arguments or results changed",
            "what changes",
        )
    ]


def _renamed(after: ProgramRecord, earlier: Earlier, sources: SourceFiles) -> Cause | None:
    """Say that a function was renamed: one of the same file did the same and is there no longer."""
    place = definition_of(after.details)
    others = [each for each in earlier.of_file(after) if sources.lack(place.file, definition_of(each.details).name)][
        :IN_SENTENCE
    ]
    earlier.texts.load([after, *others] if others else [])
    new = earlier.texts.read(after)
    for old in others if new is not None else ():
        text = earlier.texts.read(old)
        if new is not None and text is not None and differ.does_the_same(text, new):
            words = f"the function was renamed: {definition_of(old.details).name} {ARROW} {place.name}"
            found = [Difference(RENAMED, words), *environment_differences(old, after)]
            sentence = "; ".join(each.sentence for each in found[:IN_SENTENCE])
            return _of(RENAMED, sentence, nearest=old)._replace(differences=tuple(found))
    return None


def _diff(before: str, after: str, old_key: str, new_key: str) -> str:
    old, new = _without_locations(before), _without_locations(after)
    lines = list(difflib.unified_diff(old, new, old_key, new_key, lineterm="", n=1))
    if len(lines) > _DIFF_LINES:
        lines = [*lines[:_DIFF_LINES], f"\N{HORIZONTAL ELLIPSIS} {len(lines) - _DIFF_LINES} more lines"]
    return "\n".join(lines)


def _without_locations(text: str) -> list[str]:
    lines = (line for line in text.splitlines() if not line.startswith(("#loc", "// ")))
    return [re.sub(r' loc\((?:#loc\d*|unknown|"(?:[^"\\]|\\.)*")\)', "", line) for line in lines]


def table(kinds: Mapping[str, CauseKind]) -> list[tuple[str, str, str]]:
    """Return the rows of a table in the documentation: kind, what it is, and what to do."""
    return [(str(name), kind.reason, what_to_do(name, name=_CHANGED.get(name, ""))) for name, kind in kinds.items()]


_CHANGED: Final = {
    differ.SHAPE: "the argument",
    differ.TYPE: "the argument",
    differ.NUMBER: "the number",
    "variables": "the variable",
    "settings": "the setting",
    "options": "the option",
}
"""What changed, of the kinds whose advice names it."""
