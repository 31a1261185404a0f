r"""The crash journal: which candidate a process compiles or runs now, in case that ends the process.

There is one small file for each key that is being tuned, in the user's state directory on this host:

    journal   := JSON of {"candidates": [text, …], "crashed": {text: reason, …}, "suspected": {text: suspicion, …}}
                 · "\n" · one state byte per candidate
    suspicion := [how often, when last (seconds since the epoch)]
    state     := "." idle | "c" compiling | "r" running

A text is the canonical JSON of a configuration. The process that tunes holds the lock of the file, which the kernel
releases however the process ends, and removes the file when the tuning has ended. So a file that is not locked was left
by a process that died, and its state bytes name the candidate. Setting a byte costs one system call of microseconds.

A process may also die for another reason: a job is preempted, a host runs out of memory. So the candidate is suspected
after the first death, and blamed after the second one, if a day at most lies between them.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.records.json_values import canonical_json, parse_json
from ejcache.settings.directories import state_directory
from ejcache.util.files import make_private
from ejcache.util.locks import locked_descriptors, try_lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_BYTES: Final = 8 * 2**20
_IDLE, _COMPILING, _RUNNING = b".", b"c", b"r"
_BLAMED: Final = 2
_SUSPECTED_SECONDS: Final = 86400.0


class CandidateJournal:
    """The journal of one tuning. It never raises because of its file; without one, nothing is remembered.

    If another process tunes the same key at the same time, only the first one has a journal.

    Args:
        digest: of the key; without one there is no file.
        candidates: the configurations, JSON values.

    Attributes:
        crashed: the reason for each candidate, by canonical JSON, that ended a process.
        suspicious: a process ended while it compiled or ran one or several candidates.
    """

    def __init__(self, digest: str, candidates: Sequence[Any]) -> None:
        self.crashed: dict[str, str] = {}
        self._suspected: dict[str, tuple[int, float]] = {}
        self.suspicious = False
        self._places: dict[str, int] = {}
        self._path: Path | None = None
        self._fd: int | None = None
        if not digest:
            return
        try:
            self._open(state_directory() / "tuning" / digest, [canonical_json(item) for item in candidates])
        except (OSError, ValueError):
            self.close()

    def compiling(self, candidate: Any) -> contextlib.AbstractContextManager[None]:
        """Return the candidate is compiled in this block."""
        return self._marked(candidate, _COMPILING)

    def running(self, candidate: Any) -> contextlib.AbstractContextManager[None]:
        """Return the candidate runs in this block."""
        return self._marked(candidate, _RUNNING)

    def add(self, candidate: Any) -> None:
        """Have this candidate in the file; none may be compiled or run meanwhile."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                self._write([*self._places, canonical_json(candidate)])

    def close(self) -> None:
        """Remove the file: the results of the tuning are known."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
        locked_descriptors.unlock(fd)

    def _open(self, path: Path, texts: list[str]) -> None:
        make_private(path.parent)
        fd = os.open(path, _FLAGS, 0o600)
        if not try_lock(fd):
            os.close(fd)
            return
        locked_descriptors.add(fd)
        self._fd = fd
        self._learn(os.pread(fd, _MAX_BYTES, 0))
        self._write(texts)
        self._path = path

    def _write(self, texts: list[str]) -> None:
        assert self._fd is not None  # noqa: S101 (for the type checker)
        body = {"candidates": texts, "crashed": self.crashed, "suspected": self._suspected}
        header = json.dumps(body).encode() + b"\n"
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, header + _IDLE * len(texts), 0)
        self._places = {text: len(header) + number for number, text in enumerate(texts)}

    def _learn(self, left: bytes) -> None:
        """Note which candidates may have ended the process that left this file."""
        now = time.time()
        header, _, states = left.partition(b"\n")
        try:
            body = parse_json(header, max_size=_MAX_BYTES)
            texts = [str(text) for text in body["candidates"]]
            crashed = {str(text): str(reason) for text, reason in body["crashed"].items()}
            suspected = {str(text): (int(count), float(last)) for text, (count, last) in body["suspected"].items()}
        except (AttributeError, KeyError, TypeError, ValueError):
            return
        self.crashed = crashed
        # A suspicion from the future may be of any age.
        self._suspected = {text: held for text, held in suspected.items() if 0 <= now - held[1] <= _SUSPECTED_SECONDS}
        for state, what in ((_RUNNING, "ran"), (_COMPILING, "compiled")):
            active = [text for text, byte in zip(texts, states, strict=False) if byte == state[0]]
            self.suspicious = bool(active)
            if len(active) == 1:
                count = self._suspected.get(active[0], (0, now))[0] + 1
                self._suspected[active[0]] = count, now
                if count >= _BLAMED:
                    self.crashed[active[0]] = f"{count} processes that {what} it ended"
            if active:
                return

    @contextlib.contextmanager
    def _marked(self, candidate: Any, state: bytes) -> Iterator[None]:
        place = self._places.get(canonical_json(candidate)) if self._fd is not None else None
        if place is None:
            yield
            return
        self._set(place, state)
        try:
            yield
        finally:
            self._set(place, _IDLE)

    def _set(self, place: int, state: bytes) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, state, place)
