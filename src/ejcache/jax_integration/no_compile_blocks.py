"""Keeps programs from being compiled in blocks (`forbid_compile`), or has them only given a key, or only stored.

In a block of `forbid_compile` every program comes from the cache. What is forbidden is the compilation by XLA.
`misses.py` refuses it at the one place where it would compile. A program that does not come that far (no cache is
enabled, or the program has no key) is refused before JAX compiles it itself.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from typing import TYPE_CHECKING, Final, NoReturn, ParamSpec, TypeVar

from ejcache.errors import CompileForbiddenError, UsageError
from ejcache.history.causes import why_not_found, why_not_stored
from ejcache.history.why import cause_in
from ejcache.jax_integration.compilation import asking_threads
from ejcache.jax_integration.seam import key_parts
from ejcache.jax_integration.seam import patch as seam
from ejcache.jax_integration.seam.calling_line import caller
from ejcache.jax_integration.seam.compilation_watch import before_each_compilation
from ejcache.jax_integration.seam.tracebacks import without_our_frames
from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ejcache.cache.reasons import Skip
    from ejcache.jax_integration.compilation import Compilation
    from ejcache.jax_integration.publishing import Publisher
    from ejcache.jax_integration.seam.patch import JaxCall
    from ejcache.journal.line import ProgramRecord


class AlreadyStoredError(Exception):
    """The program is stored, and its caller wants no more than that."""

    is_for_program: Final = True


class AskedError(Exception):
    """The keys of a program are known, and its caller wants no more than that."""

    is_for_program: Final = True


class Storing:
    """What is asked of programs that are compiled only to store them, and what becomes of them.

    Attributes:
        memory: bytes of a device; 0 if it is not known.
        peak: bytes of a device that the program needs at its peak.
    """

    def __init__(self, memory: int = 0) -> None:
        self.memory = memory
        self.peak = 0


class _EnteredBlocks(threading.local):
    """How many blocks this thread is in, and whether it compiles only to store."""

    blocks = 0
    storing: Storing | None = None


_entered_blocks: Final = _EnteredBlocks()
# Its methods that are used here are atomic, so that no lock can be held while the process forks.
_blocks_everywhere: Final[list[None]] = []


def is_forbidden() -> bool:
    """True if this thread may not compile now."""
    return bool(_entered_blocks.blocks or _blocks_everywhere)


def stores_only() -> Storing | None:
    """Return the block of a thread that only stores, and needs no executable if there is an entry; else None."""
    return _entered_blocks.storing


@contextlib.contextmanager
def storing_only(memory: int = 0) -> Iterator[Storing]:
    """Raise AlreadyStoredError, in this block, for a program for absent devices that is stored already.

    Args:
        memory: bytes of a device; a program that needs more is not stored. 0 if it is not known.
    """
    before, _entered_blocks.storing = _entered_blocks.storing, Storing(memory)
    try:
        yield _entered_blocks.storing
    finally:
        _entered_blocks.storing = before


@contextlib.contextmanager
def asking() -> Iterator[list[Compilation]]:
    """Raise AskedError, in this block, when the keys of a compilation are known, which are then in the list."""
    thread = threading.current_thread()  # not its number, which another thread of a forked child may have
    before = asking_threads.get(thread)
    asked: list[Compilation] = []
    asking_threads[thread] = asked
    try:
        yield asked
    finally:
        del asking_threads[thread]
        if before is not None:
            asking_threads[thread] = before


def note_keys(asked: list[Compilation], call: JaxCall, make: Callable[[], list[Compilation]] | None) -> NoReturn:
    """Note the keys that a thread would look up which is `asking`.

    Args:
        asked: the list for its keys.
        call: of JAX.
        make: makes the compilations with the keys; None if there is no cache.

    Raises:
        AskedError: always.
    """
    if make is not None and seam.can_serialize(call.backend):
        try:
            asked.extend(make())
        except Exception as exc:
            log.debug("ejcache: %s has no key: %s", key_parts.module_name(call.module), exc)
    raise AskedError


def refuse_tuning(operation: str) -> None:
    """Raise CompileForbiddenError if this thread may not compile, because tuning compiles every candidate."""
    if is_forbidden():
        why = f"{operation} has no tuned configuration for this call, and tuning it compiles each of its candidates"
        raise CompileForbiddenError(operation, why)


P = ParamSpec("P")
R = TypeVar("R")


class CompileGuard(contextlib.ContextDecorator):
    """What `forbid_compile` returns: a context manager and a decorator. It may be entered again, also while entered."""

    def __init__(self, *, everywhere: bool) -> None:
        self._is_everywhere = everywhere

    def __enter__(self) -> None:
        before_each_compilation(_refuse_unasked)
        if self._is_everywhere:
            _blocks_everywhere.append(None)
        else:
            _entered_blocks.blocks += 1

    def __exit__(self, *_: object) -> None:
        if self._is_everywhere:
            _blocks_everywhere.pop()
        else:
            _entered_blocks.blocks -= 1

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:  # type: ignore[override]  # a narrower type
        """Return `function`, each call of which is such a block.

        Raises:
            UsageError: it is a generator or asynchronous: it runs after its call has returned.
        """
        kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        if any(kind(function) for kind in kinds):
            raise UsageError(
                f"forbid_compile cannot decorate {function.__name__}, which runs after its call has returned; use "
                "`with ejcache.forbid_compile():` inside it"
            )

        wrapped: Callable[P, R] = without_our_frames(super().__call__(function))
        return wrapped


def forbid_compile(*, everywhere: bool = False) -> CompileGuard:
    """Raise `CompileForbiddenError` within the block for a program that would be compiled; one that is cached runs.

    For servers and training loops that must not stop to compile:

        with ejcache.forbid_compile():
            serve(request)

        @ejcache.forbid_compile()
        def serve(request): ...

    The error has the sentence of `ejcache why`, the program's name and the line of your program that called it. Nothing
    is compiled. The refusal is counted as a miss, and `ejcache why` shows it. What this process has compiled before,
    and what the cache holds, runs as usual. So does a program that another thread, process or host compiles at that
    moment: it is waited for, for ten minutes at most. If no cache is enabled, all compilations are forbidden,
    except that JAX's own cache still answers where it is in use. Hits are not recompiled to check them
    (`check_contents`). An operation of `ejcache.autotuned` that would be tuned raises, too.

    Args:
        everywhere: forbid compilations in all threads of this process, until the block ends. Without it, they are
            forbidden in the thread that entered the block, as with JAX's own configuration contexts; threads that it
            starts may compile.

    Raises:
        UsageError: it decorates a generator or an asynchronous function, which run after their call has returned.

    Blocks may be nested. An `except` in the block that catches `Exception` catches this error, too.

    The ranks of a program that spans processes say to each other whether they forbid compilations, when they agree
    whether to load it. If it cannot be loaded and one of them forbids, all of them raise, and none waits for another. A
    rank whose cache is off raises without telling the others, which then wait for it for at most a minute.
    """
    return CompileGuard(everywhere=everywhere)


def refuse_if_forbidden(program: str, why: str) -> None:
    """Raise CompileForbiddenError if this thread may not compile; `why`, a `Skip` or a sentence, says why no cache can
    answer for `program`.
    """
    if is_forbidden():
        raise CompileForbiddenError(program, f"{program} would be compiled: {why_not_stored(why)}", caller())


class Refusals:
    """Makes the errors of programs that have a key and may not be compiled. Safe to use from several threads.

    Args:
        publisher: counts and logs these misses.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._sentences: dict[str, str] = {}  # why each program would have been compiled, by its key

    def error(self, compilation: Compilation, skip: Skip | None, where: str) -> CompileForbiddenError:
        """Return the error for a compilation that is forbidden. It is counted as a miss, and logged the first time.

        Args:
            compilation: which missed.
            skip: why this program is never stored, if that is so.
            where: which ranks forbid it, in words.
        """
        name, key = compilation.name, compilation.text
        self._publisher.count_refused(compilation)
        if key not in self._sentences:
            # A server may be asked for the same program again and again, and the reason may cost a listing.
            record = self._publisher.log_refused(compilation)
            self._sentences[key] = _why_compiled(compilation, record, skip)
        return CompileForbiddenError(name, self._sentences[key], caller(), where, f"`ejcache why {name}` says more.")


def _why_compiled(compilation: Compilation, record: ProgramRecord, skip: Skip | None) -> str:
    """Return why a program would have been compiled, as a sentence."""
    found = None
    try:
        found = cause_in(compilation.cache, record, compilation.settings) if skip is None else None
    except Exception as exc:
        compilation.report_failure("explain a miss", exc)
    why = why_not_stored(skip) if skip else why_not_found(compilation.miss)
    return found.text if found else f"{compilation.name} would be compiled: {why}"


def _refuse_unasked(program: str) -> None:
    """Refuse, before each compilation of JAX; those that `misses.py` has refused do not come here."""
    why = (
        "it did not ask the cache" if seam.is_installed() else "no cache is enabled (ejcache.enable, @ejit, EJCACHE=1)"
    )
    refuse_if_forbidden(program, why)
