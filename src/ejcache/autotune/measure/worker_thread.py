"""Runs candidates in a thread of their own, which is left behind by one that takes too long."""

from __future__ import annotations

import contextvars
import queue
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")


class TookTooLongError(Exception):
    """A call did not end in time. The measurement catches this error.

    Attributes:
        done: set when the call ends in its thread after all.
    """

    def __init__(self, message: str, done: threading.Event) -> None:
        super().__init__(message)
        self.done = done


class WorkerThread:
    """Runs calls one after the other in a daemon thread, with the context variables and settings of its creator.

    A call that takes too long cannot be stopped. The next call gets a new thread.
    """

    def __init__(self) -> None:
        from ejcache.jax_integration.seam.trace_settings import local_trace_settings  # JAX itself

        self._context = contextvars.copy_context()
        self._settings = local_trace_settings()
        self._tasks: queue.SimpleQueue[Any] | None = None

    def run(self, function: Callable[[], T], *, timeout: float | None = None) -> T:
        """Return the result of `function`, or its exception.

        Raises:
            TookTooLongError: it did not end within `timeout` seconds.
        """
        if self._tasks is None:
            self._tasks = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(self._tasks,), name="ejcache-autotune", daemon=True).start()
        answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        done = threading.Event()
        self._tasks.put((function, answers, done))
        try:
            good, answer = answers.get(timeout=timeout)
        except queue.Empty:
            self.close()
            raise TookTooLongError(f"it took longer than {timeout:g} s", done) from None
        if good:
            return answer  # type: ignore[no-any-return]  # the queue has no type
        raise answer

    def close(self) -> None:
        """Let the thread end after its last call."""
        if self._tasks is not None:
            self._tasks.put(None)
            self._tasks = None

    def _work(self, tasks: queue.SimpleQueue[Any]) -> None:
        while (task := tasks.get()) is not None:
            function, answers, done = task
            try:
                # Each call has a copy of the context, because a call that took too long still uses its own.
                answers.put((True, self._context.copy().run(self._call, function)))
            except BaseException as exc:
                answers.put((False, exc))
            done.set()
            del task, function, answers, done

    def _call(self, function: Callable[[], T]) -> T:
        from ejcache.jax_integration.seam.trace_settings import set_locally  # JAX itself

        # Here, where an error reaches who waits for the answer.
        set_locally(self._settings)
        return function()
