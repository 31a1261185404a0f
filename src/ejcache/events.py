"""Describes the events that `ejcache.on_event` tells a program of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class ProgramLoaded(NamedTuple):
    """A program was loaded from the cache.

    Attributes:
        name: of its module, such as `jit_train_step`.
        key: the text of its key.
        seconds: what each phase took: traced, lowered, keyed, fetched, loaded, waited.
        saved: seconds of compiling that this saved.
        preloaded: whether it was loaded before the program asked for it.
    """

    name: str
    key: str
    seconds: Mapping[str, float]
    saved: float
    preloaded: bool


class ProgramCompiled(NamedTuple):
    """A program was compiled.

    Attributes:
        name: as in `ProgramLoaded`.
        key: as in `ProgramLoaded`; empty if no key could be made.
        seconds: as in `ProgramLoaded`; also compiled, stored, lost.
        compile_seconds: what compiling took.
        reason: why it was not loaded, such as "absent"; empty if it was not looked up.
        outcome: "stored", or why it was not stored, such as "quick".
    """

    name: str
    key: str
    seconds: Mapping[str, float]
    compile_seconds: float
    reason: str
    outcome: str


class ProgramStored(NamedTuple):
    """A program that was compiled is in the cache. What goes to shared storage is uploaded after that."""

    name: str
    key: str


class CacheTrouble(NamedTuple):
    """Something of the cache failed; the program goes on without it.

    Attributes:
        kind: what was tried, such as "read an entry".
        message: one sentence.
    """

    kind: str
    message: str


Event = ProgramLoaded | ProgramCompiled | ProgramStored | CacheTrouble
