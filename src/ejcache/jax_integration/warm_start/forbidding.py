"""`forbid_compile`: a block in which every program comes from the cache.

What is forbidden is the compilation by XLA. `compiling.py` refuses it at the one place where it would compile. A
program that does not come that far (no cache is enabled, or the program has no key) is refused before JAX compiles it
itself.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ejcache.cache.counters import Skip
from ejcache.errors import CompileForbiddenError, UsageError
from ejcache.jax_integration.seam import patch as seam
from ejcache.jax_integration.seam.compilations import before_each_compilation
from ejcache.jax_integration.seam.tracebacks import caller, without_our_frames
from ejcache.jax_integration.warm_start.state import enter, is_forbidden, leave
from ejcache.misses.words import why_not_stored

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")


class CompileGuard:
    """What `forbid_compile` returns: a context manager and a decorator. It may be entered again, also while entered."""

    def __init__(self, *, everywhere: bool) -> None:
        self._is_everywhere = everywhere

    def __enter__(self) -> None:
        before_each_compilation(_refuse_unasked)
        enter(everywhere=self._is_everywhere)

    def __exit__(self, *_: object) -> None:
        leave(everywhere=self._is_everywhere)

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        """`function`, each call of which is such a block.

        Raises:
            UsageError: it is a generator or asynchronous: it runs after its call has returned.
        """
        kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        if any(kind(function) for kind in kinds):
            raise UsageError(
                f"forbid_compile cannot decorate {function.__name__}, which runs after its call has returned; use "
                "`with ejcache.forbid_compile():` inside it"
            )

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        wrapped: Callable[P, R] = without_our_frames(guarded)
        return wrapped


def forbid_compile(*, everywhere: bool = False) -> CompileGuard:
    """Within the block, a program that would be compiled raises `CompileForbiddenError`; one that is cached runs.

    For servers and training loops that must not stop to compile:

        with ejcache.forbid_compile():
            serve(request)

        @ejcache.forbid_compile()
        def serve(request): ...

    The error has the sentence of `ejcache why`, the program's name and the line of your program that called it. Nothing
    is compiled. The refusal is counted as a miss, and `ejcache why` shows it. What this process has compiled before,
    and what the cache holds, runs as usual. So does a program that another thread, process or host compiles at that
    moment: it is waited for, up to the setting `wait_seconds`. If no cache is enabled, all compilations are forbidden,
    except that JAX's own cache still answers where it is in use. Hits are not recompiled to check them
    (`check_contents`, `check_one_in`). An operation of `ejcache.autotuned` that would be tuned raises, too.

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


def refuse_if_forbidden(program: str, why: str | Skip) -> None:
    """Raise CompileForbiddenError if this thread may not compile; `why` says why no cache can answer for `program`."""
    if is_forbidden():
        words = why_not_stored(why) if isinstance(why, Skip) else why
        raise CompileForbiddenError(program, f"{program} would be compiled: {words}", caller())


def _refuse_unasked(program: str) -> None:
    """Called before each compilation of JAX; those that `compiling.py` has refused do not come here."""
    why = (
        "it did not ask the cache" if seam.is_installed() else "no cache is enabled (ejcache.enable, @ejit, EJCACHE=1)"
    )
    refuse_if_forbidden(program, why)
