"""Reads what the record of a program says: where its function is defined, which line called it, what it took."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.history.definitions import definition_of
from ejcache.history.program_text import spell_types
from ejcache.history.source_files import is_installed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ejcache.history.definitions import Definition
    from ejcache.journal.line import ProgramRecord
    from ejcache.journal.start_records import StartRecord

_CALLER: Final = re.compile(r"^(.+?):(\d{1,9}) in ([^,]*)(?:, from (.+):(\d{1,9}) in ([^,]*))?(?:, via .*)?$")
_JAX: Final = re.compile(r"/(?:site|dist)-packages/jax/|/jax/_src/")
MOST_SIZES: Final = 2
"""Sizes that change from call to call, at most, where sizes to pad to are named."""
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
    """Return the caller that a program's record names."""
    match = _CALLER.match(text)
    return Caller(match[1], int(match[2]), match[3]) if match else Caller()


def read_maker(text: str) -> Caller:
    """Return the line that makes or calls the object in whose method the caller is, or that calls the library that
    calls the caller; without a file if there is none.
    """
    match = _CALLER.match(text)
    return Caller(match[4], int(match[5]), match[6]) if match and match[4] else Caller()


def caller_of(program: ProgramRecord) -> Caller:
    """Return the line that called the program."""
    return read_caller(program.caller)


def function_of(program: ProgramRecord) -> str:
    """Return the function as its author calls it: `step` for the module `jit_step`."""
    return definition_of(program.details).name or program.name.removeprefix("jit_")


def defined_by_jax(definition: Definition) -> bool:
    """True if JAX itself defines the function."""
    return bool(_JAX.search(definition.file))


def is_of_jax(program: ProgramRecord) -> bool:
    """True if JAX itself defines the function: an operation outside of any function that the author jitted."""
    return defined_by_jax(definition_of(program.details))


def is_of_user(program: ProgramRecord) -> bool:
    """True if the user's own code defines the function."""
    definition = definition_of(program.details)
    return bool(definition.file) and not definition.is_library and not defined_by_jax(definition)


def digest_of(program: ProgramRecord) -> str:
    """Return the digest of the program's text; empty if it is not known."""
    return program.components.get("computation", "")


def spent(program: ProgramRecord) -> float:
    """Return the seconds that all phases of this program took, without those of waiting for others."""
    return sum(program.seconds.get(phase, 0.0) for phase in _PHASES)


def traced(program: ProgramRecord) -> float:
    """Return the seconds of tracing; 0.0 if JAX had its trace."""
    return program.seconds.get("traced", 0.0)


def misses_by_key(records: Iterable[StartRecord]) -> dict[str, ProgramRecord]:
    """Return the last miss of each key, which says what a hit does not."""
    return {each.key: each for record in records for each in record.programs if each.details and each.key}


def with_facts(programs: Iterable[ProgramRecord], by_key: Mapping[str, ProgramRecord]) -> list[ProgramRecord]:
    """Return programs of which those that were loaded have what the misses that stored them say."""
    found = []
    for program in programs:
        miss = program if program.details else by_key.get(program.key, program)
        found.append(
            program
            if miss is program
            else program._replace(components=miss.components, details=miss.details, signature=miss.signature)
        )
    return found


def by_function(programs: Sequence[ProgramRecord]) -> list[list[ProgramRecord]]:
    """Return the programs of each function, the costliest function first."""
    groups: dict[tuple[object, ...], list[ProgramRecord]] = {}
    for program in programs:
        place = definition_of(program.details)
        caller = caller_of(program)
        same = (place.file, place.line, place.name) if is_of_user(program) else (caller.file, caller.line)
        groups.setdefault((program.name, *same), []).append(program)
    return sorted(groups.values(), key=lambda group: -sum(map(spent, group)))


_TENSOR: Final = re.compile(r"tensor<((?:(?:\d+|\?)x)*)([^<>,]+(?:<[^<>]*>)?)[^<>]*>")


class Type(NamedTuple):
    """The type of an argument."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        """Return it as JAX writes it, `f32[32,64]`."""
        return spell_types(f"tensor<{''.join(f'{size}x' for size in self.shape)}{self.dtype}>")


@functools.lru_cache(4096)
def argument_types(signature: str) -> tuple[Type, ...]:
    """Return the types of the arguments in a program's signature."""
    arguments = signature.rpartition("->")[0] or signature
    return tuple(
        Type(tuple(int(size) for size in match[1].split("x") if size.isdigit()), match[2])
        for match in _TENSOR.finditer(arguments)
    )


def are_alike(one: Sequence[Type], other: Sequence[Type]) -> bool:
    """True if arguments differ in sizes only."""
    return [(each.dtype, len(each.shape)) for each in one] == [(each.dtype, len(each.shape)) for each in other]
