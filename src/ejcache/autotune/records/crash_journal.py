r"""Journals which candidates a process compiles or runs now, in case one of them ends the process.

There is one small file for each key that is being tuned, in the user's state directory on this host:

    journal := JSON of {candidate: [[when a death was, how sure], …], …} · "\n"
             · JSON of [state, process, candidate, …] · "\n" · the number of the signal that ended the process, if known

A candidate is the canonical JSON of a configuration; the state is `compiled` or `ran`. The process that tunes holds the
lock of the file, which the kernel releases however the process ends, and removes the file when the tuning has ended. So
a file that is not locked was left by a process that died, and its second line names the candidates.

A process may die for another reason: a job is preempted, a host runs out of memory. So a death is the candidate's fault
if the signal is one that code causes, or if it is the third within a day. A process cannot note its own signal, and
ejcache changes no handler of it; so only a parent that is ours notes it, which is `ejcache run`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.records.json_values import canonical_json, parse_json
from ejcache.settings.directories import state_directory
from ejcache.util.files import make_private
from ejcache.util.locks import locked_descriptors, try_lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_APPEND
_MAX_BYTES: Final = 8 * 2**20
_BLAMED: Final = 3
_DAY: Final = 86400.0
_OF_CODE: Final = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)


class CandidateJournal:
    """The journal of one tuning. It never raises because of its file; without one, nothing is remembered.

    If another process tunes the same key at the same time, only the first one has a journal.

    Args:
        digest: of the key; without one there is no file.

    Attributes:
        crashed: the reason for each candidate, by canonical JSON, that ended a process.
        suspicious: a process ended while it compiled or ran one or several candidates.
    """

    def __init__(self, digest: str) -> None:
        self.crashed: dict[str, str] = {}
        self.suspicious = False
        self._deaths: dict[str, list[tuple[float, int]]] = {}
        self._active: list[str] = []
        self._header = b""
        self._path: Path | None = None
        self._fd: int | None = None
        if digest:
            try:
                self._open(state_directory() / "tuning" / digest)
            except (OSError, ValueError):
                self.close()

    def compiling(self, candidate: Any) -> contextlib.AbstractContextManager[None]:
        """Return a block in which the candidate is compiled."""
        return self._marked(candidate, "compiled")

    def running(self, candidate: Any) -> contextlib.AbstractContextManager[None]:
        """Return a block in which the candidate runs."""
        return self._marked(candidate, "ran")

    def close(self) -> None:
        """Remove the file: the results of the tuning are known."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
        locked_descriptors.unlock(fd)

    def _open(self, path: Path) -> None:
        make_private(path.parent)
        fd = os.open(path, _FLAGS, 0o600)
        if not try_lock(fd):
            os.close(fd)
            return
        locked_descriptors.add(fd)
        self._fd = fd
        self._learn(os.pread(fd, _MAX_BYTES, 0), os.fstat(fd).st_mtime)
        self._header = json.dumps(self._deaths).encode() + b"\n"
        self._write("")
        self._path = path

    def _write(self, state: str) -> None:
        assert self._fd is not None  # noqa: S101 (for the type checker)
        os.ftruncate(self._fd, 0)
        os.write(self._fd, self._header + json.dumps([state, os.getpid(), *self._active]).encode() + b"\n")

    def _learn(self, left: bytes, written: float) -> None:
        """Count the death of the process that left this file, which was last written then."""
        header, _, rest = left.partition(b"\n")
        running, _, noted = rest.partition(b"\n")
        now = time.time()
        try:
            deaths = parse_json(header, max_size=_MAX_BYTES).items()
            held = {str(text): [(float(when), int(sure)) for when, sure in pairs] for text, pairs in deaths}
            state, _, *active = map(str, parse_json(running, max_size=_MAX_BYTES))
        except (AttributeError, TypeError, ValueError):
            return
        self.suspicious = bool(active)
        if len(active) == 1:
            # A signal that code causes says enough whenever it came; of other deaths, those of one day are counted.
            death = (now, 1) if noted else (min(now, written), 0)
            held.setdefault(active[0], []).append(death)
        for text, pairs in held.items():
            # A death from the future may be of any age.
            recent = [(when, sure) for when, sure in pairs if 0 <= now - when <= _DAY]
            if not recent:
                continue
            self._deaths[text] = recent
            known = any(sure for _, sure in recent)
            if known or len(recent) >= _BLAMED:
                how = "a signal that code causes" if known else f"{len(recent)} times within a day"
                self.crashed[text] = f"the process that {state or 'ran'} it ended: {how}"

    @contextlib.contextmanager
    def _marked(self, candidate: Any, state: str) -> Iterator[None]:
        text = canonical_json(candidate)
        self._active.append(text)
        self._note(state)
        try:
            yield
        finally:
            self._active.remove(text)
            self._note(state)

    def _note(self, state: str) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                self._write(state)


def note_signal(process: int, number: int) -> None:
    """Note that a signal which code causes has ended a child of this process, if the child was tuning.

    It never raises, and does nothing for other signals. The next process that tunes the same key may have learned of
    the death already, and then it stays a death of unknown cause.
    """
    if number not in _OF_CODE:
        return
    with contextlib.suppress(OSError, ValueError):
        for path in (state_directory() / "tuning").iterdir():
            _note_in(path, process, number)


def _note_in(path: Path, process: int, number: int) -> None:
    fd = os.open(path, _FLAGS & ~os.O_CREAT)
    try:
        if try_lock(fd):
            lines = os.pread(fd, _MAX_BYTES, 0).split(b"\n")
            if len(lines) > 1 and lines[1].split(b", ")[1:2] == [b"%d" % process]:
                os.write(fd, b"%d\n" % number)
    finally:
        os.close(fd)
