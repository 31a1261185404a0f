"""Guards a process against compilations that nobody expects: `warn_recompiles`, and a marker of the pytest plug-in."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Final

from ejcache.history.advise import advise, of_function
from ejcache.history.definitions import definition_of
from ejcache.history.recorded_program import caller_of, is_of_jax, is_of_user, misses_by_key, with_facts
from ejcache.history.source_files import SourceFiles
from ejcache.journal.recorder import recorder, watch
from ejcache.journal.start_records import read_starts

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.history.findings import Advice
    from ejcache.journal.line import ProgramRecord

_TEXT: Final = "ejcache: {function} was compiled or loaded {times} times in this process ({at}): {why}"
_UNKNOWN: Final = "`ejcache why {name}` says what changed"


class CompilationCounts:
    """Counts how often each function is compiled or loaded from now on. What JAX itself defines does not count.

    Args:
        most: how often a function may be.
        exceeded: called with each program beyond that, and how many there are of its function (`place_of`).
    """

    def __init__(self, most: int, exceeded: Callable[[ProgramRecord, int], None]) -> None:
        self._most = most
        self._exceeded = exceeded
        self._counts: Counter[tuple[object, ...]] = Counter()

    def __call__(self, program: ProgramRecord) -> None:
        """Count a program that is ready."""
        if is_of_jax(program):
            return
        same = place_of(program)
        self._counts[same] += 1
        if self._counts[same] > self._most:
            self._exceeded(program, self._counts[same])


def place_of(program: ProgramRecord) -> tuple[object, ...]:
    """Return what the programs of one function have in common: its name, and the line at which it begins.

    If a library defines it, or if that line is not known, it is the file that calls the function.
    """
    definition = definition_of(program.details)
    if is_of_user(program):
        return program.name, definition.file, definition.line
    return program.name, caller_of(program).file


def warn_recompiles(n: int = 3) -> Callable[[], None]:
    """Warn when one function is compiled the n-th time in this process, or loaded from the cache, with what to change.

    Each function is warned of once, at the line that calls it. Single operations outside of any jitted
    function cause no warning.

    Args:
        n: at which compilation; 2 warns of the first one that a steady program would not need.

    Returns:
        A function that ends this.

    Raises:
        ValueError: `n` is less than 1.
    """
    if n < 1:
        raise ValueError(f"warn_recompiles({n}): accepted is a number of compilations, 1 or more")
    warned: set[tuple[object, ...]] = set()

    def warn(program: ProgramRecord, times: int) -> None:
        caller = caller_of(program)
        if place_of(program) in warned or is_of_jax(known(program)):
            return
        warned.add(place_of(program))
        file, line = caller.file or "<unknown>", caller.line or 1
        warnings.warn_explicit(described(program, times), RuntimeWarning, file, line)

    return watch(CompilationCounts(n - 1, warn))


def known(program: ProgramRecord) -> ProgramRecord:
    """Return a program with what the miss that stored it says, if its own details say nothing."""
    if program.details:
        return program
    (found,) = with_facts([program], misses_by_key(read_starts()))
    return found


def described(program: ProgramRecord, times: int) -> str:
    """Write the sentence that says how often a function was compiled, and what to change."""
    found = of_function(of_this_process(), program.name)
    why = found[0].message if found else _UNKNOWN.format(name=program.name)
    return _TEXT.format(function=program.name.removeprefix("jit_"), times=times, at=program.caller or "-", why=why)


def of_this_process(*, least: float = 0.0) -> list[Advice]:
    """Advise on the programs that this process has compiled and loaded until now."""
    sources = SourceFiles(until=time.time())
    return advise(read_starts(), lines_of=sources.lines, least=least, only={recorder.id})
