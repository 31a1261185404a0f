"""Python's cyclic garbage collector, as every room deals with it."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

__all__ = ["is_frozen_by_program", "watch_collections", "watchers_of_program", "without_collections"]

_FROZEN_BY_PYTHON: Final = 10_000
"""Python itself freezes a few hundred objects when it starts. A program that has frozen more does so for itself."""

_ours: Final[list[object]] = []


def is_frozen_by_program() -> bool:
    """Whether the program has frozen objects itself: `gc.unfreeze` would undo that."""
    return gc.get_freeze_count() > _FROZEN_BY_PYTHON


def watch_collections(watcher: Callable[[str, dict[str, int]], object]) -> None:
    """Call this at the start and the stop of each collection from now on; does nothing if it is called already.

    For good: the interpreter skips one of the others' functions when one is removed while they are called.
    """
    if watcher not in gc.callbacks:
        _ours.append(watcher)
        gc.callbacks.append(watcher)


def watchers_of_program() -> frozenset[CodeType]:
    """The code of the functions that others have called at the start and the stop of each collection."""
    if len(gc.callbacks) <= len(_ours):
        return frozenset()
    others = (each for each in gc.callbacks if each not in _ours)
    codes = (getattr(each, "__code__", None) or getattr(type(each).__call__, "__code__", None) for each in others)
    return frozenset(filter(None, codes))


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """A block in which no collection begins by itself; what exists after it counts as old, or one would begin then.

    A program that has switched the collector off, or has frozen objects itself, is left alone.
    """
    if not gc.isenabled() or is_frozen_by_program():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()
        gc.enable()
