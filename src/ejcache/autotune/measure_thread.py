"""A clean thread to measure in: nothing is being traced there, and a call that hangs is left behind.

What a thread that traces has around it, its mesh and its tracers, must not reach the candidates, and what decides how
they compile, such as the matmul precision, must.
"""

from __future__ import annotations

import contextlib
import contextvars
import queue
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CleanThread", "TookTooLongError"]

T = TypeVar("T")


class TookTooLongError(Exception):
    """A call did not end in time; it is left behind, and still runs. It never leaves the measurement."""


class CleanThread:
    """Runs calls one after the other in a daemon thread of its own, as if in the thread that made it.

    After a call that took too long, the next one gets a new thread: the old one cannot be stopped.
    """

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._config = _configuration()
        self._tasks: queue.SimpleQueue[Any] | None = None

    def run(self, function: Callable[[], T], *, timeout: float | None = None) -> T:
        """What `function` answers or raises.

        Raises:
            TookTooLongError: it did not end within `timeout` seconds.
        """
        if self._tasks is None:
            self._tasks = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(self._tasks,), name="ejcache-autotune", daemon=True).start()
        answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._tasks.put((function, answers))
        try:
            good, answer = answers.get(timeout=timeout)
        except queue.Empty:
            self.close()
            raise TookTooLongError(f"it took longer than {timeout:g} s") from None
        if good:
            return answer  # type: ignore[no-any-return]  # a queue does not know what it carries
        raise answer

    def close(self) -> None:
        """Let the thread end when it is done."""
        if self._tasks is not None:
            self._tasks.put(None)
            self._tasks = None

    def _work(self, tasks: queue.SimpleQueue[Any]) -> None:
        with _configured(self._config):
            while (task := tasks.get()) is not None:
                function, answers = task
                try:
                    # A copy for each: a call that was left behind still holds its own.
                    answers.put((True, self._context.copy().run(function)))
                except BaseException as exc:
                    answers.put((False, exc))
                del task, function, answers


def _configuration() -> dict[str, Any]:
    import jax

    names = ("default_matmul_precision", "default_device", "enable_x64", "numpy_rank_promotion")
    return {name: getattr(jax.config, f"jax_{name}") for name in names}


@contextlib.contextmanager
def _configured(configuration: dict[str, Any]) -> Iterator[None]:
    import jax

    with contextlib.ExitStack() as stack:
        for name, value in configuration.items():
            # What this JAX has no context for is the process's own, and the same in every thread.
            make = getattr(jax, name, None)
            if make is not None and getattr(jax.config, f"jax_{name}") != value:
                stack.enter_context(make(value))
        yield
