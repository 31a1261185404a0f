"""The facts that advice is given on: what one process asked for, by function, and the texts of its programs."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final

from ejcache.misses.definitions import Definition, definition_of, qualified_name
from ejcache.misses.program_text import is_installed, read_text
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ejcache.journal.line import ProgramRecord, StartRecord
    from ejcache.misses.program_text import ProgramText

_CALLER: Final = re.compile(r"^(.+?):(\d{1,9}) in ([^,]*)(?:, from (.+):(\d{1,9}) in ([^,]*))?(?:, via (.*))?$")
_JAX: Final = re.compile(r"/(?:site|dist)-packages/jax/|/jax/_src/")
_LARGEST: Final = 4_000_000
"""Characters of a text that is read."""
_BUDGET: Final = 8_000_000
"""Characters of all texts that are read for one report: reading them takes about a second."""
_TEXTS: Final = 4
_PHASES: Final = ("traced", "lowered", "keyed", "fetched", "loaded", "compiled", "stored")
"""The phases that a change of the program spares."""


class Caller(NamedTuple):
    """A line that called a jitted function; `file` is empty if it is not known."""

    file: str = ""
    line: int = 0
    function: str = ""

    @property
    def is_library(self) -> bool:
        """True if the line is in an installed library, which its user cannot change."""
        return is_installed(self.file)


@functools.lru_cache(4096)
def read_caller(text: str) -> Caller:
    """The caller that a program's record names."""
    match = _CALLER.match(text)
    return Caller(match[1], int(match[2]), match[3]) if match else Caller()


def read_maker(text: str) -> Caller:
    """The line that makes or calls the object in whose method the caller is, or that calls the library that calls the
    caller; without a file if there is none.
    """
    match = _CALLER.match(text)
    return Caller(match[4], int(match[5]), match[6]) if match and match[4] else Caller()


def read_library(text: str) -> str:
    """The library through which the caller calls JAX; empty if it does so itself."""
    match = _CALLER.match(text)
    return (match[7] or "") if match else ""


def is_of_jax(definition: Definition) -> bool:
    """True if JAX itself defines the function."""
    return bool(_JAX.search(definition.file))


class Ask(NamedTuple):
    """One program that a process compiled or loaded, with what the miss that stored it says of it.

    Attributes:
        program: its record.
        definition: where its function begins.
        caller: the line that called it.
        signature: the types of its arguments and results.
        weak: the paths of its weakly typed arguments; None if that is not known.
        computation: the digest of its text.
        details: of its compilation.
    """

    program: ProgramRecord
    definition: Definition
    caller: Caller
    signature: str
    weak: frozenset[str] | None
    computation: str
    details: Mapping[str, str]

    @property
    def seconds(self) -> float:
        """The seconds that all phases of this program took, without those of waiting for others."""
        return sum(self.program.seconds.get(phase, 0.0) for phase in _PHASES)

    @property
    def traced(self) -> float:
        """The seconds of tracing; 0.0 if JAX had its trace."""
        return self.program.seconds.get("traced", 0.0)

    @property
    def function(self) -> str:
        """The function as its author calls it: `step` for the module `jit_step`."""
        return self.definition.name or self.program.name.removeprefix("jit_")

    @property
    def is_of_jax(self) -> bool:
        """True if JAX itself defines the function: an operation outside of any function that the author jitted."""
        return is_of_jax(self.definition)

    @property
    def is_of_user(self) -> bool:
        """True if the user's own code defines the function."""
        return bool(self.definition.file) and not self.definition.is_library and not self.is_of_jax


class Texts:
    """The texts of programs by the digests of their computations, fetched at once and each read once, up to a budget.

    Args:
        groups: the programs of each function; of each, the first ones, the costliest and the last one are fetched.
        fetch: returns the texts that are known of these digests.
    """

    def __init__(self, groups: Iterable[Sequence[Ask]], fetch: Callable[[Collection[str]], Mapping[str, str]]) -> None:
        self._raw: dict[str, str] = {}
        self._read: dict[str, ProgramText] = {}
        digests = dict.fromkeys(ask.computation for group in groups for ask in _compared(group) if ask.computation)
        found = fetch(list(digests)) if digests else {}
        left = _BUDGET
        for digest in digests:
            text = found.get(digest, "")
            if text and len(text) <= min(_LARGEST, left):
                left -= len(text)
                self._raw[digest] = text

    def raw(self, ask: Ask) -> str:
        """The text of a program; empty if it is not known."""
        return self._raw.get(ask.computation, "")

    def read(self, ask: Ask) -> ProgramText | None:
        """Read the text of a program; None if the text is not known."""
        raw = self.raw(ask)
        if not raw:
            return None
        if ask.computation not in self._read:
            self._read[ask.computation] = read_text(raw)
        return self._read[ask.computation]

    def argument_names(self, ask: Ask) -> list[str]:
        """The paths of a program's arguments; empty if they are not known."""
        text = self.read(ask)
        return [each.name for each in text.arguments] if text is not None and text.is_named else []

    def qualified_name(self, ask: Ask) -> str:
        """The name of the program's function with those around it; empty if it is not known."""
        return qualified_name(self.raw(ask), ask.definition)


def first_asks(group: Iterable[Ask]) -> list[Ask]:
    """The first ask for each program of a function, in the order of their times."""
    first_of: dict[str, Ask] = {}
    for ask in group:
        first_of.setdefault(ask.program.key, ask)
    return sorted(first_of.values(), key=lambda ask: ask.program.time)


def _compared(group: Sequence[Ask]) -> list[Ask]:
    """The programs of a function whose texts are compared."""
    ordered = first_asks(group)
    return [max(group, key=lambda ask: ask.seconds), *ordered[:_TEXTS], *ordered[-1:]]


def asks_of(programs: Iterable[ProgramRecord], by_key: Mapping[str, ProgramRecord]) -> list[Ask]:
    """List what a process asked for, as its record says. `by_key` has the misses that stored what it loaded."""
    found = []
    for program in programs:
        miss = program if program.details else by_key.get(program.key, program)
        details = miss.details
        weak = frozenset(details["weak"].split("\n")) - {""} if "weak" in details else None
        found.append(
            Ask(
                program,
                definition_of(details),
                read_caller(program.caller),
                miss.signature,
                weak,
                miss.components.get("computation", ""),
                details,
            )
        )
    return found


def by_function(asks: Sequence[Ask]) -> list[list[Ask]]:
    """The programs of each function, the costliest function first."""
    groups: dict[tuple[object, ...], list[Ask]] = {}
    for ask in asks:
        place = ask.definition
        same = (place.file, place.line, place.name) if ask.is_of_user else (ask.caller.file, ask.caller.line)
        groups.setdefault((ask.program.name, *same), []).append(ask)
    return sorted(groups.values(), key=lambda group: -sum(ask.seconds for ask in group))


def misses_by_key(records: Iterable[StartRecord]) -> dict[str, ProgramRecord]:
    """The last miss of each key, which says what a hit does not."""
    return {each.key: each for record in records for each in record.programs if each.details and each.key}


_TENSOR: Final = re.compile(r"tensor<((?:(?:\d+|\?)x)*)([^<>,]+(?:<[^<>]*>)?)[^<>]*>")


class Type(NamedTuple):
    """The type of an argument."""

    shape: tuple[int, ...]
    dtype: str


@functools.lru_cache(4096)
def argument_types(signature: str) -> tuple[Type, ...]:
    """The types of the arguments in a program's signature."""
    arguments = signature.rpartition("->")[0] or signature
    return tuple(
        Type(tuple(int(size) for size in match[1].split("x") if size.isdigit()), match[2])
        for match in _TENSOR.finditer(arguments)
    )
