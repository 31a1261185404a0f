"""Runs the command line so that Ctrl-C ends the process within two seconds, whatever it is doing.

The main thread gets Python's KeyboardInterrupt, and what it runs cleans up after itself. That may take long or never
come: the main thread may be in a call of XLA or in a wait for a thread of it, and an interpreter that ends joins the
threads that compile, or has the C++ runtime abort ("exception not rethrown") when it ends them. So a thread learns of
the signal at once, and after a moment it ends the process in the place of the main thread. An interrupted process ends
without the finalization of its interpreter; its exit phases (`util.lifecycle`) have run if there was time.

`ejcache run` hands the signals to its program, and stops the watching before.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from typing import Final, NoReturn

from ejcache.util.daemon_threads import start_daemon
from ejcache.util.processes import kill_descendants

LIMIT_SECONDS: Final = 2.0
"""An interrupted command ends within this time."""
GRACE_SECONDS: Final = 1.5
"""The part of it in which the command may clean up."""
INTERRUPTED: Final = 130

_watch: _Watch | None = None


class _Watch:
    """A thread that waits for Ctrl-C, and ends the process if the main thread has not after `GRACE_SECONDS`."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._stopped = threading.Event()
        self._interrupted = False
        self._taking = threading.Lock()
        start_daemon(self._wait, name="ejcache-interrupt")

    def stop(self) -> bool:
        """Watch for Ctrl-C no longer; returns whether Ctrl-C has come before."""
        self._stopped.set()
        signal.set_wakeup_fd(self._before)
        interrupted = self.was_interrupted()
        self._wake()  # last: a thread that goes on would take signals from the program's parent
        return interrupted

    def was_interrupted(self) -> bool:
        """Return whether Ctrl-C has come, even if Python has lost the KeyboardInterrupt, as in the callback of a weak
        reference, and even if the thread has not run since.
        """
        with self._taking:
            before = self._interrupted
            with contextlib.suppress(BlockingIOError):
                self._interrupted |= signal.SIGINT in os.read(self._reader, 64)
            if self._interrupted and not before:
                self._wake()  # the thread waits for what may have been taken here
            return self._interrupted

    def _wait(self) -> None:
        while True:
            select.select([self._reader], [], [])
            if self._stopped.is_set():
                return
            if self.was_interrupted():
                time.sleep(GRACE_SECONDS)  # the main thread ends the process, if it can
                _end_now()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"\0")


def watch_no_longer() -> None:
    """Leave Ctrl-C to the program that this process is about to start or to become."""
    if _watch is not None and _watch.stop():
        raise KeyboardInterrupt


def main() -> int:
    """Run the command line of this process and answer its exit status; the entry point `ejcache`."""
    global _watch
    try:
        # Otherwise Ctrl-C is ignored, as in the background of a shell.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            _watch = _Watch()
        from ejcache.cli.main import main as command_line  # the door to a command
        from ejcache.util.lifecycle import run_exit_phases  # the door to a command

        status = command_line()
        if status == INTERRUPTED or (_watch is not None and _watch.was_interrupted()):
            _end_in_order()
        run_exit_phases()  # not by `atexit`, where an interrupt of an upload would be printed and leave the status
    except KeyboardInterrupt:
        _end_in_order()
    return status


def _end_in_order() -> NoReturn:
    """End this process after its exit phases; the watching thread does if they take too long."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        from ejcache.util.lifecycle import run_exit_phases  # the door to a command

        kill_descendants()
        with contextlib.suppress(Exception):
            run_exit_phases()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
    finally:
        _end_now()


def _end_now() -> NoReturn:
    try:
        kill_descendants()
    finally:
        os._exit(INTERRUPTED)
