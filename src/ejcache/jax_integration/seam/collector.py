"""Python's cyclic garbage collector collects less often while JAX traces and lowers a function.

Tracing makes hundreds of thousands of objects that live on, and the collector walks through them again and again: that
takes 5 to 15 % of the time of tracing and lowering. So its threshold is higher while one of the two functions that
everything passes is running, `_infer_params` (tracing) and `lower_sharding_computation`. It is not switched off: cycles
that a program drops while it is traced are collected after as many new objects as the setting says.

Read for this: jax 0.10.2 and 0.12.0.1, `pjit.py`, `pxla.py`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import threading
from typing import TYPE_CHECKING, Any, Final

from ejcache.jax_integration.seam.tracebacks import without_our_frames
from ejcache.util.lifecycle import track_forks

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CollectorPatch"]

_REPLACED: Final = (
    ("jax._src.pjit", "_infer_params"),
    ("jax._src.interpreters.pxla", "lower_sharding_computation"),
)


class CollectorPatch:
    """Raises the collector's threshold while JAX traces and lowers, and puts it back.

    Only the outermost of nested calls, and one of several threads, changes the threshold. A threshold that the program
    has set higher, a collector that it has switched off, and a change that it makes meanwhile are left alone. If JAX
    does not have the two functions, nothing happens.

    Args:
        threshold: how many new objects may wait for a collection; 0 leaves the collector alone.
    """

    def __init__(self, threshold: Callable[[], int]) -> None:
        self._threshold = threshold
        self._originals: list[tuple[Any, str, Any]] = []
        self._before: tuple[int, int, int] | None = None
        self._raised: tuple[int, int, int] | None = None
        self._is_free = threading.Lock()
        track_forks(self)

    def install(self) -> None:
        """Replace the two functions."""
        for place, name in _REPLACED:
            with contextlib.suppress(ImportError, AttributeError):
                module = importlib.import_module(place)
                original = getattr(module, name)
                self._originals.append((module, name, original))
                setattr(module, name, self._wrapped(original))

    def uninstall(self) -> None:
        """Put JAX's functions back."""
        while self._originals:
            module, name, original = self._originals.pop()
            setattr(module, name, original)

    def after_fork_in_child(self) -> None:
        """The thread that raised the threshold may not exist here."""
        self._is_free = threading.Lock()
        self._restore()

    def _wrapped(self, original: Any) -> Any:
        @functools.wraps(original)
        def called(*arguments: Any, **named: Any) -> Any:
            free = self._is_free
            if not free.acquire(blocking=False):
                return original(*arguments, **named)
            try:
                self._raise(self._threshold())
                return original(*arguments, **named)
            finally:
                self._restore()
                free.release()

        return without_our_frames(called)

    def _raise(self, threshold: int) -> None:
        now = gc.get_threshold()
        if 0 < now[0] < threshold and gc.isenabled():
            self._before = now
            self._raised = (threshold, *now[1:])
            gc.set_threshold(*self._raised)

    def _restore(self) -> None:
        before, self._before = self._before, None
        if before is not None and gc.get_threshold() == self._raised:
            gc.set_threshold(*before)
