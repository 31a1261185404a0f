"""What a process spends in tracing, lowering, keys, reads, loads and compilations, whatever cache JAX is given.

The hooks are the same for every contestant: JAX's own events for tracing and lowering, and a clock around the functions
that JAX calls for a key, a read, a load and a compilation, or that a cache has put in their place.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Phases"]

_EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
}
_FUNCTIONS = {
    "_get_cache_key": "key",
    "_cache_read": "fetch",
    "_compile_and_write_cache": "store",
    "backend_compile_and_load": "compile",
}
_COUNTED = {
    "/jax/compilation_cache/cache_hits": "hits",
    "/jax/compilation_cache/compile_requests_use_cache": "requests",
}


class Phases:
    """Seconds by phase, each without the phases inside it: a read is `fetch`, the load inside it is `load`.

    Attributes:
        main: of the thread that made this object.
        behind: of all other threads.
        processor: what functions took of a processor in that thread, each without the functions inside it; without the
            phases of JAX's events.
        counts: the hits and requests that JAX, or the cache in its place, has counted.
        collections: when full collections of garbage began in the main thread.
        collecting: seconds that these took.
    """

    def __init__(self) -> None:
        self.main: dict[str, float] = defaultdict(float)
        self.behind: dict[str, float] = defaultdict(float)
        self.processor: dict[str, float] = defaultdict(float)
        self.counts: Counter[str] = Counter()
        self.collections: list[float] = []
        self.collecting = 0.0
        self._intervals: list[tuple[str, float, float]] = []
        self._thread = threading.get_ident()
        self._inside: list[float] = []
        self._began_at: dict[int, list[float]] = defaultdict(list)
        self._ended: dict[int, list[tuple[float, float]]] = {}

    def listen(self) -> None:
        """Begin with JAX's events."""
        from jax import monitoring

        monitoring.register_scalar_listener(self._began)
        monitoring.register_event_duration_secs_listener(self._done)
        monitoring.register_event_listener(self._event)
        gc.callbacks.append(self._collected)

    def watch_loads(self) -> None:
        """Begin with loads."""
        from jax._src.lib import xla_client

        self.watch(xla_client.Client, "deserialize_executable", "load")

    def watch_compiler(self) -> None:
        """Begin with what JAX's compiler calls; after the cache has been enabled, which replaces some of it."""
        from jax._src import compiler

        for name, phase in _FUNCTIONS.items():
            self.watch(compiler, name, phase)

    def watch(self, owner: Any, name: str, phase: str) -> None:
        """Begin with a function of a module or a class."""
        function: Callable[..., Any] = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            is_main = threading.get_ident() == self._thread
            if is_main:
                self._inside.append(0.0)
            start, processor = time.perf_counter(), time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                end, spent = time.perf_counter(), time.thread_time() - processor
                if is_main:
                    self.processor[phase] += spent - self._inside.pop()
                    if self._inside:
                        self._inside[-1] += spent
                self.took(phase, start, end)

        setattr(owner, name, watched)

    def took(self, phase: str, start: float, end: float) -> None:
        """A phase of this thread has ended, and all phases inside it have been told before; times of one clock."""
        thread = threading.get_ident()
        ended = self._ended.setdefault(thread, [])
        inside = 0.0
        while ended and ended[-1][0] >= start:
            inside += ended.pop()[1]
        ended.append((start, end - start))
        times = self.main if thread == self._thread else self.behind
        times[phase] += max(0.0, end - start - inside)
        if thread == self._thread:
            self._intervals.append((phase, start, end))

    def collections_by(self, phases: list[tuple[str, float]]) -> dict[str, int]:
        """Count full collections by phase: the innermost one, or else the one of these that had not ended.

        Args:
            phases: what the main thread did around ours, and when that ended.
        """
        found: Counter[str] = Counter()
        for when in self.collections:
            inside = [(end - start, phase) for phase, start, end in self._intervals if start <= when <= end]
            found[min(inside)[1] if inside else next((name for name, end in phases if when <= end), "exit")] += 1
        return dict(found)

    def _collected(self, event: str, info: dict[str, int]) -> None:
        if info["generation"] == 2 and threading.get_ident() == self._thread:
            if event == "start":
                self.collections.append(time.perf_counter())
            elif self.collections:
                self.collecting += time.perf_counter() - self.collections[-1]

    def _began(self, event: str, _: float, **_options: Any) -> None:
        if event in _EVENTS:
            self._began_at[threading.get_ident()].append(time.perf_counter())

    def _done(self, event: str, _: float, **_options: Any) -> None:
        # JAX measures the duration by a clock that can be set, and one wrong duration makes all other phases wrong.
        began = self._began_at[threading.get_ident()]
        if event in _EVENTS and began:
            self.took(_EVENTS[event], began.pop(), time.perf_counter())

    def _event(self, event: str, **_: Any) -> None:
        if event in _COUNTED:
            self.counts[_COUNTED[event]] += 1
