"""What JAX hands over and gets: a program, where it is to run, and the executable that an entry gave for it.

`watch_made` lists the executables that a thread gets: which entry each of them was loaded from, or stored as.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final

from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ejcache.entry import Header
    from ejcache.jax_integration.preload.run_profile import ProgramUse


class CompileTarget(NamedTuple):
    """The devices and options that an executable is compiled or loaded for.

    Attributes:
        backend: the PJRT client.
        devices: in the order of the program's device assignment.
        options: XLA's compile options, with that assignment; PGLE changes them between two compilations.
        callbacks: Python functions of this process that the program calls.
    """

    backend: Any
    devices: Sequence[Any]
    options: Any
    callbacks: Sequence[Any] = ()


class KeyRequest(NamedTuple):
    """What JAX wants a key of.

    Attributes:
        module: the MLIR module.
        devices: JAX's array of devices.
        options: XLA's compile options.
        backend: the PJRT client.
        profile_sentinel: what JAX passes when it asks for the key of the optimised variant, otherwise None.
    """

    module: Any
    devices: Any
    options: Any
    backend: Any
    profile_sentinel: bytes | None = None


class LoweredProgram(NamedTuple):
    """The module that JAX wants compiled, after nothing was found under its key.

    Attributes:
        module: the MLIR module.
        name: its name, as JAX has it.
        target: where it is to run.
    """

    module: Any
    name: str
    target: CompileTarget


class Loaded(NamedTuple):
    """An executable that was loaded from an entry.

    Attributes:
        executable: as XLA loaded it.
        key: the key of the entry, which may be the alternative key of this kind of host.
        header: the entry's header.
        raw: the serialised executable; empty if it was loaded ahead.
        seconds: what reading and loading took, or waiting for it if it was loaded ahead.
        ahead: what to remember of it for the next run, if it was loaded ahead.
        candidate: the number of the candidate that it is (`lookup.candidates`).
    """

    executable: Any
    key: str
    header: Header
    raw: bytes
    seconds: float
    ahead: ProgramUse | None = None
    candidate: int = 0


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
