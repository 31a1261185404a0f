"""Measures recorded calls on all devices of this host at once, with one process for each device.

Measurements in one process would disturb each other, because tracing holds Python's lock; and a candidate that ends its
process, or hangs on a device, would end the measurements on the other devices, too.
"""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.records.record import decode_record
from ejcache.autotune.replay import TunedCall, TuningOutcome
from ejcache.errors import EjcacheError, UsageError
from ejcache.settings.environment import child_environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ejcache.autotune.recording import RecordedCall

__all__ = ["Spread"]

_PROGRAM: Final = "ejcache.autotune.program.worker"
_END_SECONDS: Final = 60.0
_ATTEMPTS: Final = 3
"""A call whose process ends is tried again: the crash journal names the candidate, which is then left out."""


@dataclass(frozen=True)
class Spread:
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
            queue.close()


@dataclass(frozen=True)
class _Place:
    """One device: the variables that show a process this device alone, or its index among those that it sees."""

    environment: dict[str, str]
    device: int | None


def _places() -> list[_Place]:
    """The devices of this host. They are counted in a process of its own, because a process may keep what it sees."""
    command = [sys.executable, "-m", _PROGRAM, "devices"]
    done = subprocess.run(command, env=_environment({}), stdout=subprocess.PIPE, text=True, check=False)
    try:
        found = json.loads(done.stdout)
        platform, devices = str(found["platform"]), list(found["devices"])
    except (KeyError, ValueError) as exc:
        raise EjcacheError(f"the devices of this host cannot be counted: status {done.returncode}") from exc
    if platform == "gpu":
        names = ("JAX_CUDA_VISIBLE_DEVICES", "JAX_ROCM_VISIBLE_DEVICES")
        return [_Place(dict.fromkeys(names, str(device)), None) for device in devices]
    if platform == "tpu":
        # The chips of a host belong to one process at a time.
        return [_Place({}, None)]
    return [_Place({}, index) for index in range(len(devices))]


def _environment(changes: dict[str, str]) -> dict[str, str]:
    return child_environment({"EJCACHE_AUTOTUNE_RECORD": "0", **changes})


class _Worker:
    """A process that measures on one device."""

    def __init__(self, place: _Place, setup: Spread) -> None:
        self.place = place
        self.ready = False
        self.task: RecordedCall | None = None
        # In a session of its own: an interrupt from the keyboard is for the parent, which ends its workers.
        self.process = subprocess.Popen(
            [sys.executable, "-m", _PROGRAM],
            env=_environment(place.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._send(
            {
                "path": list(setup.path),
                "modules": None if setup.modules is None else list(setup.modules),
                "directory": setup.directory,
                "device": place.device,
                "force": setup.force,
                "unsure": setup.unsure,
            }
        )

    def give(self, task: RecordedCall) -> None:
        self.task = task
        self._send({"path": task.path, "call": task.call, "problem": task.problem})

    def answer(self) -> dict[str, Any] | None:
        """The answer to the last line; None if the process has ended instead."""
        assert self.process.stdout is not None  # noqa: S101 (for the type checker)
        line = self.process.stdout.readline()
        if not line.endswith("\n"):
            return None
        body: dict[str, Any] = json.loads(line)
        return body

    def end(self) -> int:
        """Let the process end after its last answer; its exit status."""
        try:
            self.process.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        return self.process.returncode

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def _send(self, body: dict[str, Any]) -> None:
        assert self.process.stdin is not None  # noqa: S101 (for the type checker)
        try:
            self.process.stdin.write(json.dumps(body) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            # It has ended. Reading its answer says so.
            pass


class _Queue:
    """The calls that wait, and the workers that take them."""

    def __init__(self, setup: Spread, calls: Sequence[RecordedCall]) -> None:
        self.setup = setup
        self.waiting = deque(calls)
        self.ended: Counter[str] = Counter()
        self.workers: list[_Worker] = []
        self.selector = selectors.DefaultSelector()

    def start(self, place: _Place) -> None:
        worker = _Worker(place, self.setup)
        self.workers.append(worker)
        assert worker.process.stdout is not None  # noqa: S101 (for the type checker)
        self.selector.register(worker.process.stdout, selectors.EVENT_READ, worker)

    def results(self) -> Iterator[TunedCall]:
        while self.workers:
            for event, _ in self.selector.select():
                worker: _Worker = event.data
                body = worker.answer()
                if body is None:
                    yield from self._lost(worker)
                    continue
                if "error" in body:
                    raise UsageError(str(body["error"]))
                worker.ready = True
                if worker.task is not None:
                    yield _result(worker.task, body)
                    worker.task = None
                if body.get("last"):
                    self._forget(worker)
                    worker.kill()
                    self._replace(worker)
                elif self.waiting:
                    worker.give(self.waiting.popleft())
                else:
                    self._forget(worker)
                    worker.end()

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.workers.clear()
        self.selector.close()

    def _lost(self, worker: _Worker) -> Iterator[TunedCall]:
        """A worker has ended: its call is tried again, and another worker takes its place."""
        self._forget(worker)
        status = worker.end()
        task = worker.task
        if not worker.ready:
            raise EjcacheError(f"a process for measuring ended with status {status} before its first call")
        if task is not None:
            self.ended[task.path] += 1
            if self.ended[task.path] < _ATTEMPTS:
                self.waiting.appendleft(task)
            else:
                operation = "" if task.call is None else str(task.call["operation"])
                problem = f"the process that measured it ended with status {status}, {_ATTEMPTS} times"
                yield TunedCall(task.path, operation, TuningOutcome.FAILED, problem=problem)
        self._replace(worker)

    def _replace(self, worker: _Worker) -> None:
        if self.waiting:
            self.start(worker.place)

    def _forget(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None  # noqa: S101 (for the type checker)
        self.selector.unregister(worker.process.stdout)
        self.workers.remove(worker)


def _result(task: RecordedCall, body: dict[str, Any]) -> TunedCall:
    text = body["record"]
    record = None if text is None else decode_record(text.encode())
    return TunedCall(task.path, body["operation"], TuningOutcome[body["outcome"]], record, body["problem"])
