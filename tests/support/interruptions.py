"""A signal handler that runs everywhere in a piece of work."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import ejcache

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_PACKAGE: Final = str(Path(ejcache.__file__).parent)


def interrupt_everywhere(work: Callable[[], object], handle: Callable[[], object]) -> int:
    """Do the work once for each place at which ejcache calls something in it; there, a signal handler calls `handle`.

    Python runs signal handlers in the main thread, between two steps of what that thread does, locks taken or not.

    Returns:
        How many places there were.
    """
    steps = place = 0
    is_handling = was_handled = False

    def handler(*_: object) -> None:
        nonlocal is_handling, was_handled
        is_handling = was_handled = True
        try:
            handle()
        finally:
            is_handling = False

    def at_each_step(frame: FrameType, _: str, __: Any) -> None:
        nonlocal steps
        if not is_handling and frame.f_code.co_filename.startswith(_PACKAGE):
            steps += 1
            if steps == place:
                signal.raise_signal(signal.SIGUSR1)

    before, profiled = signal.signal(signal.SIGUSR1, handler), sys.getprofile()
    try:
        while True:
            place, steps, was_handled = place + 1, 0, False
            sys.setprofile(at_each_step)
            try:
                work()
            finally:
                sys.setprofile(profiled)
            if not was_handled:
                return place - 1
    finally:
        signal.signal(signal.SIGUSR1, before)
