"""Compares a stored executable with a fresh one, where `jax_compilation_cache_check_contents` is set.

The serialised CPU executables of some programs (a `sort`) differ from compilation to compilation, and every one holds
the source lines of the program that stored it. So equal bytes prove that two executables are equal, and different bytes
prove nothing. Where the bytes differ, the optimised HLO without its metadata decides, and an entry is called wrong only
if two fresh compilations agree with each other and differ from it.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from ejcache.cache.stats import count_check
from ejcache.cache.writing import EntryWriter
from ejcache.jax_integration.seam import compiling

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.jax_integration.compilation import Compilation, LoadedExecutable

T = TypeVar("T")


class Comparison(Enum):
    """The result of a check. The values are parts of counters' names."""

    SAME = "same"
    """The bytes are equal, or both come from the same optimised program."""
    DIFFERENT = "different"
    """Two fresh compilations agree, and the stored executable is another program."""
    UNSURE = "unsure"
    """Fresh compilations differ among themselves, or XLA does not show its programs, so nothing is proven."""


class StoredExecutable:
    """A stored executable that is to be compared with a fresh one.

    Args:
        loaded: as it was loaded from its entry.
    """

    def __init__(self, loaded: LoadedExecutable) -> None:
        self.key = loaded.key
        self.raw = loaded.raw
        self.program = _if_given(compiling.optimised_program, loaded.executable)


def check(compilation: Compilation, fresh: Any, *, compile_again: Callable[[], Any]) -> None:
    """Compare a stored executable with a fresh one of its program; quarantine its entry if it is another program.

    Args:
        compilation: which has what was stored as its `to_check`.
        fresh: the fresh executable.
        compile_again: makes another one.

    Raises:
        Exception: it is another program. This is the error that JAX itself raises then, whatever
            `raise_persistent_cache_errors` is.
    """
    stored, cache, settings = compilation.to_check, compilation.cache, compilation.settings
    result = compare(stored, fresh, compile_again=compile_again)
    count_check(cache, result.value)
    if result is not Comparison.DIFFERENT:
        return
    EntryWriter(cache).quarantine(stored.key, settings)
    cache.warn("check", f"{stored.key} differs from what a fresh compilation gives; it is quarantined")
    raise compiling.verification_error(stored.key, stored.raw, _if_given(compiling.serialize_executable, fresh) or b"")


def compare(stored: StoredExecutable, fresh: Any, *, compile_again: Callable[[], Any]) -> Comparison:
    """Compare `stored` with a fresh executable; `compile_again` makes a second one where that is needed."""
    if _if_given(compiling.serialize_executable, fresh) == stored.raw:
        return Comparison.SAME
    program = _if_given(compiling.optimised_program, fresh)
    if program is None or stored.program is None:
        return Comparison.UNSURE
    if program == stored.program:
        return Comparison.SAME
    again = _if_given(compiling.optimised_program, compile_again())
    return Comparison.DIFFERENT if again == program else Comparison.UNSURE


def _if_given(asked: Callable[[Any], T], executable: Any) -> T | None:
    """Take the bytes or the optimised program of an executable; None if XLA, as that of some plug-ins, has none."""
    try:
        return asked(executable)
    except RuntimeError:
        return None
