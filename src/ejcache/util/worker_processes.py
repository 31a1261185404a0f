"""Starts child processes that answer requests as lines of JSON, and answers in the child (`answering`).

A request comes on the child's standard input. Answers go to what was its standard output; what its code prints goes to
standard error. A child is in a session of its own: an interrupt from the keyboard is for the parent, which ends it. A
child ends when its parent does.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
from typing import IO, TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from ejcache.util.processes import following

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LARGEST_READ: Final = 65536
_END_SECONDS: Final = 60.0


def python_of_ours(*arguments: str) -> list[str]:
    """Return the command of a process of ours: this Python, which imports nothing from the working directory (`-P`)."""
    return [sys.executable, "-P", *arguments]


class Answer(Protocol):
    """Sends the parent one answer."""

    def __call__(self, **fields: Any) -> None: ...


@contextlib.contextmanager
def answering() -> Iterator[Answer]:
    """Yield, in a child, the function that answers. Before anything is imported that prints."""
    following(os.getppid())()
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)

        def answer(**fields: Any) -> None:
            answers.write(json.dumps(fields) + "\n")
            answers.flush()

        yield answer


def how_it_ended(status: int) -> str:
    """Return an exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    import signal

    return signal.Signals(-status).name


class WorkerProcess:
    """One child, `python -P -m MODULE ARGUMENTS`.

    Args:
        command: the module and its arguments.
        environment: all of the child's.
        errors: a file that takes what the child writes to standard error; by default it has the parent's.

    Attributes:
        is_finishing: it was told that there is nothing more to do.
    """

    def __init__(self, *command: str, environment: Mapping[str, str], errors: IO[bytes] | None = None) -> None:
        self._process = subprocess.Popen(
            python_of_ours("-m", *command),
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        # Both are there, because both are pipes.
        self._requests: Any = self._process.stdin
        self._answers: Any = self._process.stdout
        self._unread = b""
        self.is_finishing = False

    def fileno(self) -> int:
        """Return the descriptor on which answers come."""
        return int(self._answers.fileno())

    def send(self, **fields: Any) -> None:
        """Make a request. That the child has ended is seen where it answers."""
        with contextlib.suppress(BrokenPipeError):
            self._requests.write(json.dumps(fields).encode() + b"\n")
            self._requests.flush()

    def finish(self) -> None:
        """End the work: the child ends after its last answer."""
        self.is_finishing = True
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()

    def read(self) -> list[dict[str, Any]] | None:
        """Return the answers that have come, after a wait for something; None if the child has ended."""
        data = os.read(self.fileno(), _LARGEST_READ)
        if not data:
            return None
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self, *, timeout: float | None = _END_SECONDS) -> int:
        """Wait until the child has ended, and kill it after `timeout` seconds; None waits as long as it takes.

        Returns:
            Its exit status, or minus the signal that ended it.
        """
        self.finish()
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._answers.close()

    def kill(self) -> None:
        """End the child now."""
        self._process.kill()
        self.end()


W = TypeVar("W", bound=WorkerProcess)


class WorkerProcesses(Generic[W]):
    """The children of one task. Used by one thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._workers: set[W] = set()

    def __iter__(self) -> Iterator[W]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    def add(self, worker: W) -> None:
        """Wait for the answers of this child, too."""
        self._workers.add(worker)
        self._selector.register(worker, selectors.EVENT_READ)

    def remove(self, worker: W) -> None:
        """Wait for this child no longer. It goes on."""
        self._workers.remove(worker)
        self._selector.unregister(worker)

    def answers(self) -> Iterator[tuple[W, dict[str, Any] | None]]:
        """Yield each answer and its child, until there is no child; None instead of an answer if the child has ended.

        A child that has ended is removed before. Children may be added and removed meanwhile.
        """
        while self._workers:
            for ready, _ in self._selector.select():
                worker: Any = ready.fileobj
                answers = worker.read()
                if answers is None:
                    self.remove(worker)
                    yield worker, None
                for answer in answers or ():
                    if worker in self._workers:
                        yield worker, answer

    def kill(self) -> None:
        """End all children now."""
        for worker in list(self._workers):
            self.remove(worker)
            worker.kill()
        self._selector.close()
