"""The processes of `ejcache warm`: each compiles one program at a time, and gets the next one when it has answered.

A program that ends its process, because XLA crashes or memory runs out, is one that failed: another process goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ejcache.cli.warm.worker import FAILED
from ejcache.errors import EjcacheError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["WarmingPool"]

_PROGRAM: Final = "ejcache.cli.warm.worker"
_LARGEST_READ: Final = 65536
_STDERR: Final = 2
"""Where the processes print: stdout is for what the command says."""


@dataclass(eq=False)
class _Worker:
    """One process.

    Attributes:
        process: it reads requests from its standard input.
        answers: the descriptor on which it answers.
        is_ready: it has imported the target.
        request: what it is doing; None if nothing.
        read: the beginning of an answer.
    """

    process: subprocess.Popen[bytes]
    answers: int
    is_ready: bool = False
    request: dict[str, str] | None = None
    read: bytes = field(default=b"", repr=False)

    def send(self, request: dict[str, str]) -> None:
        """Give it something to do. A process that has died is noticed where it answers."""
        self.request = request
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(json.dumps(request).encode() + b"\n")
            self._stdin.flush()

    def finish(self) -> None:
        """There is nothing more to do."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()

    def close(self) -> int:
        """Wait until its process has ended; returns the exit status."""
        self.finish()
        os.close(self.answers)
        return self.process.wait()

    @property
    def _stdin(self) -> Any:
        return self.process.stdin

    @property
    def is_finishing(self) -> bool:
        return bool(self._stdin.closed)


class WarmingPool:
    """Compiles programs of one target in several processes.

    Args:
        target: `MODULE:FUNCTION` or `FILE.py:FUNCTION`.
        environment: of the processes.
        jobs: how many processes; None for one for each core where the platform is CPU, and otherwise one.
        answered: called with each program's fields: `shapes`, `program`, `outcome`, `reason`, `seconds`.
    """

    def __init__(
        self,
        target: str,
        *,
        environment: Mapping[str, str],
        jobs: int | None,
        answered: Callable[[dict[str, Any]], None],
    ) -> None:
        self._target = target
        self._environment = environment
        self._wanted = jobs
        self._answered = answered
        self._requests: deque[dict[str, str]] = deque()
        self._selector = selectors.DefaultSelector()
        self._workers: set[_Worker] = set()
        self.jobs = 0
        self.uploaded = True

    def run(self, requests: Sequence[dict[str, str]]) -> None:
        """Answer all requests.

        Raises:
            UsageError: there is no such target.
            EjcacheError: it cannot be imported.
        """
        self._requests.extend(requests)
        try:
            self._start()
            while self._workers:
                for ready, _ in self._selector.select():
                    self._read(ready.data)
        finally:
            for worker in self._workers:
                worker.process.kill()
                worker.close()
            self._selector.close()

    def _start(self) -> None:
        answers, theirs = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM, str(theirs), self._target],
                stdin=subprocess.PIPE,
                stdout=_STDERR,
                env=dict(self._environment),
                pass_fds=(theirs,),
            )
        finally:
            os.close(theirs)
        worker = _Worker(process, answers)
        self._workers.add(worker)
        self.jobs = max(self.jobs, len(self._workers))
        self._selector.register(answers, selectors.EVENT_READ, worker)

    def _read(self, worker: _Worker) -> None:
        data = os.read(worker.answers, _LARGEST_READ)
        if not data:
            self._end(worker)
            return
        *lines, worker.read = (worker.read + data).split(b"\n")
        for line in lines:
            self._take(worker, json.loads(line))

    def _take(self, worker: _Worker, answer: dict[str, Any]) -> None:
        if "refused" in answer:
            kind = UsageError if answer["usage"] else EjcacheError
            raise kind(f"warm: {self._target} cannot be imported: {answer['refused']}")
        if "uploaded" in answer:
            self.uploaded = self.uploaded and bool(answer["uploaded"])
        elif "platform" in answer:
            if answer["jitted"] and self._requests and "shapes" not in self._requests[0]:
                raise UsageError(f"warm: {self._target} is jitted; --shapes say for which arguments to compile it")
            worker.is_ready = True
            self._go_on(worker)
            self._start_others(str(answer["platform"]))
        elif "done" in answer:
            self._go_on(worker)
        else:
            self._answered({"shapes": (worker.request or {}).get("shapes", ""), **answer})

    def _go_on(self, worker: _Worker) -> None:
        """Give a process the next program, or let it end."""
        worker.request = None
        if self._requests:
            worker.send(self._requests.popleft())
        else:
            worker.finish()

    def _start_others(self, platform: str) -> None:
        """Start as many processes as are wanted and have something to do; the first one knows the platform."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        # An accelerator belongs to one process, or has no memory for several.
        wanted = self._wanted or (cores if platform == "cpu" else 1)
        coming = sum(not worker.is_ready for worker in self._workers)
        active = sum(not worker.is_finishing for worker in self._workers)
        for _ in range(min(wanted - active, len(self._requests) - coming)):
            self._start()

    def _end(self, worker: _Worker) -> None:
        """A process has ended, as it should or not."""
        self._selector.unregister(worker.answers)
        status = worker.close()
        self._workers.discard(worker)
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        if not worker.is_ready:
            raise EjcacheError(f"warm: {self._target} ends its process with {how} when it is imported")
        if worker.request is not None:
            shapes, reason = worker.request.get("shapes", ""), f"its process ended with {how}"
            self._answered({"shapes": shapes, "program": "", "outcome": FAILED, "reason": reason, "seconds": 0.0})
            if self._requests:
                self._start()
