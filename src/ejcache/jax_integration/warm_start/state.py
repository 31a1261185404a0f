"""Whether compilations are forbidden here. It is known without JAX."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

from ejcache.errors import CompileForbiddenError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.jax_integration.compilation import Compilation


class AlreadyStoredError(Exception):
    """The program is stored, and its caller wants no more than that."""


class AskedError(Exception):
    """The keys of a program are known, and its caller wants no more than that."""


class Storing:
    """What is asked of programs that are compiled only to store them, and what becomes of them.

    Attributes:
        memory: bytes of a device; 0 if it is not known.
        peak: bytes of a device that the program needs at its peak.
    """

    def __init__(self, memory: int = 0) -> None:
        self.memory = memory
        self.peak = 0


class _Entered(threading.local):
    """How many blocks this thread is in, and whether it compiles only to store."""

    blocks = 0
    storing: Storing | None = None
    asked: list[Compilation] | None = None


_here: Final = _Entered()
# Its methods that are used here are atomic, so that no lock can be held while the process forks.
_everywhere: Final[list[None]] = []


def enter(*, everywhere: bool) -> None:
    """Forbid compilations in this thread, or in all threads, until `leave` was called as often."""
    if everywhere:
        _everywhere.append(None)
    else:
        _here.blocks += 1


def leave(*, everywhere: bool) -> None:
    """Take back one call of `enter`."""
    if everywhere:
        _everywhere.pop()
    else:
        _here.blocks -= 1


def is_forbidden() -> bool:
    """Whether this thread may not compile now."""
    return bool(_here.blocks or _everywhere)


def stores_only() -> Storing | None:
    """What this thread says if it compiles only to store, so that it needs no executable if there is an entry."""
    return _here.storing


@contextlib.contextmanager
def storing_only(memory: int = 0) -> Iterator[Storing]:
    """In this block, a program for absent devices that is stored already raises AlreadyStoredError.

    Args:
        memory: bytes of a device; a program that needs more is not stored. 0 if it is not known.
    """
    before, _here.storing = _here.storing, Storing(memory)
    try:
        yield _here.storing
    finally:
        _here.storing = before


@contextlib.contextmanager
def asking() -> Iterator[list[Compilation]]:
    """In this block, a compilation raises AskedError when its keys are known, which are then in the list."""
    before, _here.asked = _here.asked, []
    try:
        yield _here.asked
    finally:
        _here.asked = before


def being_asked() -> list[Compilation] | None:
    """The list for the keys of what this thread compiles, if it wants no more than those."""
    return _here.asked


def refuse_tuning(operation: str) -> None:
    """Raise CompileForbiddenError if this thread may not compile, because tuning compiles every candidate."""
    if is_forbidden():
        why = f"{operation} has no tuned configuration for this call, and tuning it compiles each of its candidates"
        raise CompileForbiddenError(operation, why)
