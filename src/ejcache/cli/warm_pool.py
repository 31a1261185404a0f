"""The processes of `ejcache warm`: each compiles one program at a time, and gets the next one when it has answered.

A program that ends its process, because XLA crashes or memory runs out, is one that failed: another process goes on.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from ejcache.cli.warm_worker import FAILED
from ejcache.errors import EjcacheError, UsageError
from ejcache.util.threads import cores
from ejcache.util.worker_processes import WorkerProcess, WorkerProcesses, how_it_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["WarmingPool"]

_PROGRAM: Final = "ejcache.cli.warm_worker"


class _Worker(WorkerProcess):
    """One process.

    Attributes:
        is_ready: it has imported the target.
        request: what it is doing; None if nothing.
    """

    is_ready: bool = False
    request: dict[str, str] | None = None


class WarmingPool:
    """Compiles programs of one target in several processes.

    Args:
        target: `MODULE:FUNCTION` or `FILE.py:FUNCTION`.
        devices: the name of the target whose devices to compile for; None for those of this host.
        environment: of the processes.
        jobs: how many processes; None for one for each core where the platform is CPU, and otherwise one.
        answered: called with each program's fields: `shapes`, `program`, `outcome`, `reason`, `seconds`.
    """

    def __init__(
        self,
        target: str,
        *,
        devices: str | None = None,
        environment: Mapping[str, str],
        jobs: int | None,
        answered: Callable[[dict[str, Any]], None],
    ) -> None:
        self._target = target
        self._arguments = (target,) if devices is None else (target, devices)
        self._environment = environment
        self._wanted = jobs
        self._answered = answered
        self._requests: deque[dict[str, str]] = deque()
        self._workers: WorkerProcesses[_Worker] = WorkerProcesses()
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
            for worker, answer in self._workers.answers():
                if answer is None:
                    self._end(worker)
                else:
                    self._take(worker, answer)
        finally:
            self._workers.kill()

    def _start(self) -> None:
        self._workers.add(_Worker(_PROGRAM, *self._arguments, environment=self._environment))
        self.jobs = max(self.jobs, len(self._workers))

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
            worker.request = self._requests.popleft()
            worker.send(**worker.request)
        else:
            worker.finish()

    def _start_others(self, platform: str) -> None:
        """Start as many processes as are wanted and have something to do; the first one knows the platform."""
        # An accelerator belongs to one process, or has no memory for several.
        wanted = self._wanted or (cores() if platform == "cpu" else 1)
        coming = sum(not worker.is_ready for worker in self._workers)
        active = sum(not worker.is_finishing for worker in self._workers)
        for _ in range(min(wanted - active, len(self._requests) - coming)):
            self._start()

    def _end(self, worker: _Worker) -> None:
        """A process has ended, as it should or not."""
        # It may still write its counters to slow storage.
        how = how_it_ended(worker.end(timeout=None))
        if not worker.is_ready:
            raise EjcacheError(f"warm: {self._target} ends its process with {how} when it is imported")
        if worker.request is not None:
            shapes, reason = worker.request.get("shapes", ""), f"its process ended with {how}"
            self._answered({"shapes": shapes, "program": "", "outcome": FAILED, "reason": reason, "seconds": 0.0})
            if self._requests:
                self._start()
