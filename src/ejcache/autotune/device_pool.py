"""Measures recorded calls on all devices of this host at once, with one process for each device.

Measurements in one process would disturb each other, because tracing holds Python's lock; and a candidate that ends its
process, or hangs on a device, would end the measurements on the other devices, too.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.call_documents import RecordedNames
from ejcache.autotune.records.record import decode_record
from ejcache.autotune.replay import TunedCall, TuningOutcome, replay
from ejcache.autotune.workers import PROGRAM, worker_environment
from ejcache.errors import EjcacheError, UsageError
from ejcache.util.worker_processes import WorkerProcess, WorkerProcesses, how_it_ended

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ejcache.autotune.recording import RecordedCall
    from ejcache.autotune.records.store import AutotuneStore


_ATTEMPTS: Final = 5
"""A call whose process ends is tried again: a candidate that ends two is then left out, by the crash journal."""


@dataclass(frozen=True)
class DevicePool:
    """How recorded calls are measured.

    Attributes:
        directory: the URL of the store; None for the one that the settings name.
        modules: that are trusted, as for `RecordedNames`; None trusts all.
        path: where modules are imported from.
        force: measure calls even if they have a tuned record.
        unsure: measure calls also if their record is unsure.
    """

    directory: str | None
    modules: Sequence[str] | None
    path: Sequence[str]
    force: bool = False
    unsure: bool = False

    def tune_here(self, calls: Sequence[RecordedCall], store: AutotuneStore) -> Iterator[TunedCall]:
        """Measure the calls in this process, on its default device; raises `UsageError` as `tune` does."""
        names = RecordedNames(self.modules)
        for call in calls:
            yield replay(call, store, names, force=self.force, unsure=self.unsure)

    def tune(self, calls: Sequence[RecordedCall]) -> Iterator[TunedCall]:
        """Measure the calls, and yield each result when it is known. The processes end with the iterator.

        Raises:
            UsageError: a module cannot be imported, or the store cannot be opened.
            EjcacheError: a process ended before its first call.
        """
        if not calls:
            return
        places = _places()
        queue = _Queue(self, calls)
        try:
            for place in places[: len(calls)]:
                queue.start(place)
            yield from queue.results()
        finally:
            queue.workers.kill()


@dataclass(frozen=True)
class _Place:
    """One device: the variables that show a process this device alone, or its index among those that it sees."""

    environment: dict[str, str]
    device: int | None


def _places() -> list[_Place]:
    """The devices of this host. They are counted in a process of its own, because a process may keep what it sees."""
    worker = WorkerProcess(PROGRAM, environment=worker_environment({}))
    worker.send(do="devices")
    try:
        found = (worker.read() or [])[0]
        platform, devices = str(found["platform"]), list(found["devices"])
    except (IndexError, KeyError, ValueError) as exc:
        raise EjcacheError(f"the devices of this host cannot be counted: {how_it_ended(worker.end())}") from exc
    worker.end()
    if platform == "gpu":
        names = ("JAX_CUDA_VISIBLE_DEVICES", "JAX_ROCM_VISIBLE_DEVICES")
        return [_Place(dict.fromkeys(names, str(device)), None) for device in devices]
    if platform == "tpu":
        # The chips of a host belong to one process at a time.
        return [_Place({}, None)]
    return [_Place({}, index) for index in range(len(devices))]


class _Worker(WorkerProcess):
    """A process that measures on one device."""

    def __init__(self, place: _Place, setup: DevicePool) -> None:
        super().__init__(PROGRAM, environment=worker_environment(place.environment))
        self.place = place
        self.is_ready = False
        self.task: RecordedCall | None = None
        self.send(
            do="setup",
            path=list(setup.path),
            modules=None if setup.modules is None else list(setup.modules),
            directory=setup.directory,
            device=place.device,
            force=setup.force,
            unsure=setup.unsure,
        )

    def give(self, task: RecordedCall) -> None:
        self.task = task
        self.send(do="tune", path=task.path, call=task.call, problem=task.problem)


class _Queue:
    """The calls that wait, and the workers that take them."""

    def __init__(self, setup: DevicePool, calls: Sequence[RecordedCall]) -> None:
        self.setup = setup
        self.waiting = deque(calls)
        self.ended: Counter[str] = Counter()
        self.workers: WorkerProcesses[_Worker] = WorkerProcesses()

    def start(self, place: _Place) -> None:
        self.workers.add(_Worker(place, self.setup))

    def results(self) -> Iterator[TunedCall]:
        for worker, answer in self.workers.answers():
            if answer is None:
                yield from self._lost(worker)
                continue
            if "error" in answer:
                raise UsageError(str(answer["error"]))
            worker.is_ready = True
            if worker.task is not None:
                yield _result(worker.task, answer)
                worker.task = None
            if answer.get("last"):
                self.workers.remove(worker)
                worker.kill()
                self._replace(worker)
            elif self.waiting:
                worker.give(self.waiting.popleft())
            else:
                self.workers.remove(worker)
                worker.end()

    def _lost(self, worker: _Worker) -> Iterator[TunedCall]:
        """A worker has ended: its call is tried again, and another worker takes its place."""
        how = how_it_ended(worker.end())
        task = worker.task
        if not worker.is_ready:
            raise EjcacheError(f"a process for measuring ended with {how} before its first call")
        if task is not None:
            self.ended[task.path] += 1
            if self.ended[task.path] < _ATTEMPTS:
                self.waiting.appendleft(task)
            else:
                operation = "" if task.call is None else str(task.call["operation"])
                problem = f"the process that measured it ended with {how}, {_ATTEMPTS} times"
                yield TunedCall(task.path, operation, TuningOutcome.FAILED, problem=problem)
        self._replace(worker)

    def _replace(self, worker: _Worker) -> None:
        if self.waiting:
            self.start(worker.place)


def _result(task: RecordedCall, body: dict[str, Any]) -> TunedCall:
    text = body["record"]
    record = None if text is None else decode_record(text.encode())
    return TunedCall(task.path, body["operation"], TuningOutcome[body["outcome"]], record, body["problem"])
