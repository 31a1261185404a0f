"""Starts every daemon thread of ejcache, and says whether those without work wait or end."""

from __future__ import annotations

import os
import resource
import threading
import weakref
from typing import TYPE_CHECKING, Final

from ejcache.util.late_patches import is_patched_late, note_functions
from ejcache.util.lifecycle import members, note_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class HasThreads(Protocol):
        """Something whose threads wait for tasks."""

        def end_idle(self) -> None:
            """Have the threads that wait for a task look whether they are still kept."""


_FEW_THREADS: Final = 64
"""With a limit (`ulimit -u`) below this we start none. JAX alone has 13 with 2 cores, measured with jaxlib 0.12.0.1."""


def start_daemon(target: Callable[..., object], *args: object, name: str) -> bool:
    """Start a daemon thread; False if there is none: during exit, or where this user may have few threads.

    XLA ends the process if it cannot start its own threads, so the few are left to it.
    """
    if _may_have_few_threads() or is_patched_late():
        return False
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    note_functions()
    note_thread(thread)  # before it starts, as another thread may fork at once
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


def _may_have_few_threads() -> bool:
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return limit != resource.RLIM_INFINITY and limit < _FEW_THREADS and os.geteuid() != 0  # root has no limit


class IdleThreads:
    """Whether our threads that have nothing to do wait for the next task, or end.

    Attributes:
        are_kept: they wait.
    """

    def __init__(self) -> None:
        self.are_kept = True
        self._owners: weakref.WeakSet[HasThreads] = weakref.WeakSet()

    def add(self, owner: HasThreads) -> None:
        """End the idle threads of `owner`, too."""
        self._owners.add(owner)

    def keep(self) -> None:
        """Have threads wait for tasks from now on."""
        self.are_kept = True

    def end(self) -> None:
        """End the threads that have nothing to do, and the others when they have done it; a task starts one anew."""
        self.are_kept = False
        for owner in members(self._owners):
            owner.end_idle()


idle_threads: Final = IdleThreads()
"""Those of this process."""
