"""The executables that a thread gets while it watches: which entry each of them was loaded from, or stored as."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final

from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.jax_integration.program import CompileTarget


class Made(NamedTuple):
    """An executable that JAX has now, and that an entry holds.

    Attributes:
        executable: as XLA loaded or compiled it.
        key: the text of the key that was asked for.
        target: what it was loaded or compiled for.
    """

    executable: Any
    key: str
    target: CompileTarget


class _Watching(threading.local):
    """The lists of the blocks that this thread is in."""

    lists: tuple[list[Made], ...] = ()


_here: Final = _Watching()


@contextlib.contextmanager
def watch_made() -> Iterator[list[Made]]:
    """Within the block, the list gets what this thread loads from entries or stores in them."""
    found: list[Made] = []
    before = _here.lists
    _here.lists = (*before, found)
    try:
        yield found
    finally:
        _here.lists = before


def note_made(executable: Any, key: str, target: CompileTarget) -> None:
    """Tell the blocks that this thread is in."""
    for found in _here.lists:
        found.append(Made(executable, key, target))
