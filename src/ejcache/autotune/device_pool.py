"""Measures recorded calls on all devices of this host at once, with one process for each device.

Measurements in one process would disturb each other, because tracing holds Python's lock; and a candidate that ends its
process, or hangs on a device, would end the measurements on the other devices, too.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import asdict, dataclass
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
            EjcacheError: the devices cannot be counted.
        """
        waiting, ended = deque(calls), Counter[str]()
        workers: WorkerProcesses[_Worker] = WorkerProcesses()

        def start(place: _Place) -> None:
            if waiting:
                workers.add(_Worker(place, self, waiting.popleft()))

        try:
            for place in _places() if calls else ():
                start(place)
            for worker, answer in workers.answers():
                task = worker.task
                if answer is not None:
                    if "error" in answer:
                        raise UsageError(str(answer["error"]))
                    yield _result(task, answer)
                    if waiting and not answer["last"]:
                        worker.give(waiting.popleft())
                        continue
                    workers.remove(worker)
                    # Where a candidate still runs, the process would not end.
                    worker.kill() if answer["last"] else worker.end()
                else:
                    how = how_it_ended(worker.end())
                    ended[task.path] += 1
                    if ended[task.path] < _ATTEMPTS:
                        waiting.appendleft(task)
                    else:
                        operation = "" if task.call is None else str(task.call["operation"])
                        problem = f"the process that measured it ended with {how}, {_ATTEMPTS} times"
                        yield TunedCall(task.path, operation, TuningOutcome.FAILED, problem=problem)
                start(worker.place)
        finally:
            workers.kill()


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
    """A process that measures on one device, and the call that it measures now."""

    def __init__(self, place: _Place, pool: DevicePool, task: RecordedCall) -> None:
        super().__init__(PROGRAM, environment=worker_environment(place.environment))
        self.place = place
        self.pool = pool
        self.give(task)

    def give(self, task: RecordedCall) -> None:
        self.task = task
        self.send(do="tune", pool=asdict(self.pool), device=self.place.device, call=asdict(task))


def _result(task: RecordedCall, body: dict[str, Any]) -> TunedCall:
    text = body["record"]
    record = None if text is None else decode_record(text.encode())
    return TunedCall(task.path, body["operation"], TuningOutcome[body["outcome"]], record, body["problem"])
