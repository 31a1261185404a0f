"""What JAX hands over and gets: a program, where it is to run, and the executable that an entry gave for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.entry import Header
    from ejcache.jax_integration.preload.run_profile import ProgramUse


class Placement(NamedTuple):
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
        placement: where it is to run.
    """

    module: Any
    name: str
    placement: Placement


class LoadedExecutable(NamedTuple):
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
