"""The pytest plug-in: `pytest --ejcache` keeps what tests compile, and says which tests compiled longest.

pytest imports this module in each run, through the entry point `pytest11`. It is outside the package and imports only
the standard library and pytest; without `--ejcache`, `--ejcache-dir` or the ini line it does nothing else.

With one of them, this process has `EJCACHE` in its environment while pytest runs, as with `ejcache run`. So the workers
of pytest-xdist and the programs that tests start use the same cache, and a suite without JAX never imports it. Unless a
floor is set, there is none.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from ejcache.cache.opening import CompilationCache

_VARIABLE: Final = "EJCACHE"
_FLOOR: Final = "EJCACHE_MIN_COMPILE_SECONDS"
_FLOOR_OF_JAX: Final = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
_OFF: Final = frozenset({"", "0", "false", "no", "off"})
_ON: Final = frozenset({"1", "true", "yes", "on"})
_SHOWN: Final = 3
_MARKERS: Final = (
    "no_compile(everywhere=False): with --ejcache, the body of the test fails if it compiles; its fixtures may compile",
    "no_ejcache: with --ejcache, the test and its fixtures use no persistent compilation cache",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and the ini line."""
    group = parser.getgroup("ejcache", "a persistent compilation cache for JAX")
    group.addoption("--ejcache", action="store_true", help="keep what the tests compile with JAX (ejcache)")
    group.addoption("--ejcache-dir", metavar="URL", default="", help="the directory or URL to keep it in")
    line = "1 to keep what the tests compile with JAX, or the directory or URL to keep it in (ejcache)"
    parser.addini("ejcache", line, default="")


def pytest_configure(config: pytest.Config) -> None:
    """Add the markers and, if a cache is wanted, what uses it."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    option = config.getoption("ejcache_dir") or ("1" if config.getoption("ejcache") else "")
    given = os.environ.get(_VARIABLE, "").strip()
    wanted = option or ("" if given and given.lower() in _OFF else config.getini("ejcache").strip())
    if wanted.lower() in _ON and given.lower() not in _OFF:
        wanted = given  # it may name a cache
    if wanted.lower() not in _OFF:
        config.pluginmanager.register(_CachedRun(config, wanted), "ejcache-run")


class _CachedRun:
    """One run of pytest, or of one of its workers, with a cache."""

    def __init__(self, config: pytest.Config, wanted: str) -> None:
        self._config = config
        self._cache: CompilationCache | None = None
        self._totals: dict[str, float] = {}
        self._urls: set[str] = set()
        self._slowest: list[tuple[float, str]] = []
        self._processes = 0
        if wanted.lower() not in _ON and "://" not in wanted:
            # `EJCACHE=name` would be a typing error of a boolean; tests may change the working directory.
            wanted = f"{(config.rootpath / Path(wanted).expanduser()).resolve()}/"
        self._before = {name: os.environ.get(name) for name in (_VARIABLE, _FLOOR)}
        os.environ[_VARIABLE] = wanted
        if _FLOOR_OF_JAX not in os.environ:
            # A suite runs the same quick programs again and again.
            os.environ.setdefault(_FLOOR, "0")

    def pytest_unconfigure(self) -> None:
        """Leave the environment as it was."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Note the seconds that a test compiles, or run it without a cache."""
        before = self._compile_seconds()
        with _disabled() if item.get_closest_marker("no_ejcache") else contextlib.nullcontext():
            result = yield
        seconds = self._compile_seconds() - before
        if seconds > 0:
            self._slowest = sorted([*self._slowest, (seconds, item.nodeid)], reverse=True)[:_SHOWN]
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Forbid compilations in the body of a test that is marked so."""
        marker = item.get_closest_marker("no_compile")
        if marker is None:
            return (yield)
        from ejcache import forbid_compile

        with forbid_compile(*marker.args, **marker.kwargs):
            return (yield)

    def pytest_sessionfinish(self) -> None:
        """Add what this process counted; a worker hands it to the process that started it."""
        self._compile_seconds()
        if self._cache is None:
            return
        counted = {"amounts": dict(self._cache.stats().amounts), "url": self._cache.url, "slowest": self._slowest}
        self._add(counted)
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["ejcache"] = counted

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add what a worker of pytest-xdist counted; one that was killed says nothing."""
        counted = getattr(node, "workeroutput", {}).get("ejcache")
        if counted:
            self._add(counted)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what the cache saved, and which tests compiled longest."""
        if not self._processes:
            return
        from ejcache.cache.counters import Stats
        from ejcache.cache.exit_report import report_line

        terminalreporter.write_line(report_line(Stats.of(self._totals), sorted(self._urls), processes=self._processes))
        if self._slowest:
            slowest = ", ".join(f"{seconds:.2f} s {test}" for seconds, test in self._slowest)
            terminalreporter.write_line(f"ejcache: slowest compilations: {slowest}")

    def _add(self, counted: dict[str, Any]) -> None:
        for name, amount in counted["amounts"].items():
            self._totals[name] = self._totals.get(name, 0) + amount
        self._urls.add(counted["url"])
        self._processes += 1
        tests = {(seconds, test) for seconds, test in [*self._slowest, *counted["slowest"]]}
        self._slowest = sorted(tests, reverse=True)[:_SHOWN]

    def _compile_seconds(self) -> float:
        """What this process has compiled, in seconds; 0 as long as no test has made a backend of JAX."""
        activation = sys.modules.get("ejcache.jax_integration.activate")
        self._cache = (activation.active() if activation is not None else None) or self._cache
        return self._cache.stats().compile_seconds if self._cache is not None else 0.0


@contextlib.contextmanager
def _disabled() -> Iterator[None]:
    import ejcache

    with ejcache.disabled():
        yield
