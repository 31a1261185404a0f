"""`%load_ext ejcache` in notebooks: enables the cache, and says after each cell what it compiled and loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ejcache.jax_integration.activate import active, disable, enable
from ejcache.jax_integration.progress import show_progress

if TYPE_CHECKING:
    from ejcache.cache.compilation_cache import CompilationCache
    from ejcache.cache.stats import Stats

_EVENTS: Final = ("pre_run_cell", "post_run_cell")


class _CellReporter:
    """Compares the counters before and after a cell."""

    def __init__(self) -> None:
        self._before: Stats | None = None

    def pre_run_cell(self, *_: object) -> None:
        cache = active()
        self._before = cache.stats() if cache is not None else None

    def post_run_cell(self, *_: object) -> None:
        cache = active()
        if cache is None or self._before is None:
            return
        line = _line(self._before, cache.stats())
        if line:
            print(line)  # noqa: T201 (that is what it is for)


_reporter = _CellReporter()
_ours: CompilationCache | None = None
"""What `%load_ext` has enabled."""


def load_ipython_extension(shell: Any) -> None:
    """Enable the cache, unless it is enabled, and print a line after each cell that compiled or loaded programs.

    Compilations that last long say so on stderr.

    Args:
        shell: IPython's `InteractiveShell`.
    """
    global _ours
    if active() is None:
        _ours = enable()
    show_progress()
    for event in _EVENTS:
        shell.events.register(event, getattr(_reporter, event))


def unload_ipython_extension(shell: Any) -> None:
    """Print no lines any more, and use the cache no longer, unless the program itself has enabled it."""
    global _ours
    if _ours is not None:
        _ours = None
        disable()
    for event in _EVENTS:
        shell.events.unregister(event, getattr(_reporter, event))


def _line(before: Stats, after: Stats) -> str:
    compiled, loaded = after.misses - before.misses, after.hits - before.hits
    parts = []
    if compiled > 0:
        seconds = after.compile_seconds - before.compile_seconds
        parts.append(f"compiled {compiled} in {seconds:.1f} s")
    if loaded > 0:
        parts.append(f"loaded {loaded}, saved {max(0.0, after.seconds_saved - before.seconds_saved):.1f} s")
    return f"ejcache: {', '.join(parts)}" if parts else ""
