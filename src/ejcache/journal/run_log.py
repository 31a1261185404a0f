"""Adds up what the processes of one `ejcache run` have counted, each in lines of a file.

`ejcache run` creates the file and names it in the environment of the program. Each process appends what it counts, at
once: a process that is killed is counted, too, and so is one that leaves by `os._exit`, as multiprocessing's children
do. When the program has ended, `ejcache run` adds everything up. A line is written by one `write` to a file that was
opened for appending, so lines of several processes do not mix.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

from ejcache.journal.line import encode_line
from ejcache.journal.start_records import decode_line
from ejcache.settings.environment import environment_variable
from ejcache.util.files import append_regular, open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ejcache.journal.comparison_results import ProgramDifference


RUN_COUNTS: Final = "EJCACHE_RUN_COUNTS"
"""The variable that names the file."""


def announce_process(url: Callable[[], str], disabled_reason: str) -> Callable[[Mapping[str, float]], None] | None:
    """Tell `ejcache run` that this process has enabled a cache.

    Returns:
        A function that appends amounts to the file. It never raises, and may be called after a fork and by any thread.
        None if this process does not belong to an `ejcache run`.
    """
    path = environment_variable(RUN_COUNTS)
    if not path:
        return None
    announced = url()
    caches = {} if disabled_reason else {announced: ""}
    _append(path, encode_line({"pid": os.getpid()}, caches=caches, disabled=disabled_reason))

    def append(amounts: Mapping[str, float]) -> None:
        nonlocal announced
        before, announced = announced, url()
        # A directory that is not used is known as such when it is opened.
        caches = {} if announced == before else {announced: before}
        _append(path, encode_line({"pid": os.getpid()}, counts=amounts, caches=caches))

    return append


def append_difference(found: ProgramDifference) -> None:
    """Tell `ejcache run` what `--compare` has found; does nothing where there is none."""
    path = environment_variable(RUN_COUNTS)
    if path:
        _append(path, encode_line({"pid": os.getpid()}, differences=[found.encode()]))


def announce_overruled(sentence: str) -> None:
    """Tell `ejcache run` in a sentence which of its options had no effect in this process. It never raises."""
    path = environment_variable(RUN_COUNTS)
    if path:
        _append(path, encode_line({"pid": os.getpid()}, overruled=sentence))


def _append(path: str, line: bytes) -> None:
    # Opened each time: a program may close all descriptors or fork. After the end of the run the file is gone.
    with contextlib.suppress(OSError):
        append_regular(path, line + b"\n", create=False)


class RunTotal:
    """What all processes of a run have counted.

    Attributes:
        processes: identifiers of those that enabled a cache.
        urls: the caches that they used, in the order of their first use.
        disabled_reason: why nothing was cached, if a setting disables caching.
        overruled: sentences that say which options had no effect.
        amounts: every counter by its name.
        differences: what `--compare` has found.
    """

    def __init__(self) -> None:
        self.processes: set[int] = set()
        self.urls: dict[str, None] = {}
        self.disabled_reason = ""
        self.overruled: dict[str, None] = {}
        self.amounts: dict[str, float] = {}
        self.differences: list[ProgramDifference] = []

    def add(self, line: bytes) -> None:
        """Add what a line says; a line that is not one of ours is skipped."""
        record = decode_line(line)
        if record is None:
            return
        self.processes.add(record.process.pid)
        for name, amount in record.counts.items():
            self.amounts[name] = self.amounts.get(name, 0) + amount
        self.differences += record.differences
        self.disabled_reason = record.disabled or self.disabled_reason
        if record.overruled:
            self.overruled[record.overruled] = None
        for url, instead_of in record.caches.items():
            self.urls.pop(instead_of, None)
            self.urls[url] = None


def read_counts(path: str, *, also_append_to: str | None = None) -> RunTotal:
    """Return the sum of the lines in a file. If it cannot be read, the sum of none.

    Args:
        path: the file.
        also_append_to: the file of an outer `ejcache run`, which counts these processes as well.
    """
    total = RunTotal()
    with contextlib.suppress(OSError), os.fdopen(open_regular(path), "rb") as file:
        for line in file:
            total.add(line)
            if also_append_to:
                with contextlib.suppress(OSError):  # the outer run has ended, or its disk is full
                    append_regular(also_append_to, line, create=False)
    return total
