"""Who hears what this process loads, compiles and stores: callbacks of `on_event`, and watchers of programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ejcache.events import CacheTrouble, ProgramCompiled, ProgramLoaded, ProgramStored
from ejcache.journal.line import HIT, STORED
from ejcache.journal.recorder import recorder
from ejcache.journal.start_records import saved_seconds
from ejcache.util.log import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    from ejcache.events import Event
    from ejcache.journal.line import ProgramRecord

    T = TypeVar("T")

_listeners: tuple[Callable[[Event], object], ...] = ()


def on_event(callback: Callable[[Event], object]) -> Callable[[], None]:
    """Call `callback` with each event from now on: programs that this process loads, compiles or stores, and trouble.

    The events are those of `ejcache.events`. The callback runs in the thread that loads a program, or in one of
    ejcache's own; what it raises is logged once, and never reaches the program. It should return at once.

    Returns:
        A function that ends this; to call it again does nothing.
    """

    def heard(event: Event) -> None:
        callback(event)

    heard.__qualname__ = getattr(callback, "__qualname__", repr(callback))
    global _listeners
    _listeners = (*_listeners, heard)
    recorder.tell, recorder.tell_trouble = _tell, _tell_trouble

    def end() -> None:
        global _listeners
        _listeners = tuple(each for each in _listeners if each is not heard)

    return end


def watch(watcher: Callable[[ProgramRecord], object]) -> Callable[[], None]:
    """Call `watcher` with each program from now on, in its own thread; returns a function that ends this."""

    def watching(program: ProgramRecord) -> None:
        _call(watcher, program, "warn_recompiles")

    recorder.watchers = (*recorder.watchers, watching)

    def end() -> None:
        recorder.watchers = tuple(each for each in recorder.watchers if each is not watching)

    return end


def _tell(program: ProgramRecord) -> None:
    for event in _events(program) if _listeners else ():
        for each in _listeners:
            _call(each, event, "on_event")


def _tell_trouble(kind: str, message: str) -> None:
    event = CacheTrouble(kind, message)
    for each in _listeners:
        _call(each, event, "on_event")


def _events(program: ProgramRecord) -> Iterator[Event]:
    seconds = dict(program.seconds)
    if program.outcome == HIT:
        yield ProgramLoaded(program.name, program.key, seconds, saved_seconds(program), program.preloaded)
        return
    yield ProgramCompiled(program.name, program.key, seconds, program.compile_seconds, program.reason, program.outcome)
    if program.outcome == STORED:
        yield ProgramStored(program.name, program.key)


def _call(function: Callable[[T], object], value: T, by: str) -> None:
    """Call a function of the program; what it raises is logged once for each function."""
    try:
        function(value)
    except Exception as exc:
        warn_once(
            ("listener", id(function)),
            "ejcache: %s, which %s was given, raises %s: %s",
            getattr(function, "__qualname__", repr(function)),
            by,
            type(exc).__name__,
            exc,
        )
