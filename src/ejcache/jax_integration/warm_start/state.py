"""Whether compilations are forbidden here. It is known without JAX."""

from __future__ import annotations

import threading
from typing import Final

from ejcache.errors import CompileForbiddenError

__all__ = ["enter", "is_forbidden", "leave", "refuse_tuning"]


class _Entered(threading.local):
    """How many blocks this thread is in."""

    blocks = 0


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


def refuse_tuning(operation: str) -> None:
    """Raise CompileForbiddenError if this thread may not compile, because tuning compiles every candidate."""
    if is_forbidden():
        why = f"{operation} has no tuned configuration for this call, and tuning it compiles each of its candidates"
        raise CompileForbiddenError(operation, why)
