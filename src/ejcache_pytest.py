"""The pytest plug-in: `pytest --ejcache` keeps what tests compile, and says which tests compiled longest.

`--ejcache-fail-on-compile` makes a run fail in which a test compiled anything, so that a warm suite proves that it is.

pytest imports this module in each run, through the entry point `pytest11`. It is outside the package and imports only
the standard library and pytest; without `--ejcache`, `--ejcache-dir` or the ini line it does nothing else.

With one of them, this process has `EJCACHE` in its environment while pytest runs, as with `ejcache run`. So the workers
of pytest-xdist and the programs that tests start use the same cache, and a suite without JAX never imports it. Unless a
floor is set, there is none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from ejcache.cache.compilation_cache import CompilationCache

_VARIABLE: Final = "EJCACHE"
_FLOOR: Final = "EJCACHE_MIN_COMPILE_SECONDS"
_FLOOR_OF_JAX: Final = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
_OFF: Final = frozenset({"", "0", "false", "no", "off"})
_ON: Final = frozenset({"1", "true", "yes", "on"})
_SHOWN: Final = 3
_LONG_SECONDS: Final = 1.0
"""A test that compiled for so long is named, however many there are."""
_SAVES: Final = 0.5
"""Seconds that a change must save in one run to be told."""
_UPLOAD_SECONDS: Final = 30.0
"""How long the end of a run waits for uploads, so that the last lines say what became of them."""
_MARKERS: Final = (
    "no_compile(everywhere=False): with --ejcache, the body of the test fails if it compiles; its fixtures may compile",
    "max_compiles(n): with --ejcache, the test fails if one function is compiled or loaded more than n times",
    "no_ejcache: with --ejcache, the test and its fixtures use no persistent compilation cache",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and the ini line."""
    group = parser.getgroup("ejcache", "a persistent compilation cache for JAX")
    group.addoption("--ejcache", action="store_true", help="keep what the tests compile with JAX (ejcache)")
    group.addoption("--ejcache-dir", metavar="URL", default="", help="the directory or URL to keep it in")
    group.addoption(
        "--ejcache-fail-on-compile",
        action="store_true",
        help="keep what the tests compile, and fail if a test compiles what the cache does not have (ejcache)",
    )
    line = "1 to keep what the tests compile with JAX, or the directory or URL to keep it in (ejcache)"
    parser.addini("ejcache", line, default="")


def pytest_configure(config: pytest.Config) -> None:
    """Add the markers and, if a cache is wanted, what uses it."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    asked = config.getoption("ejcache") or config.getoption("ejcache_fail_on_compile")
    option = config.getoption("ejcache_dir") or ("1" if asked else "")
    given = os.environ.get(_VARIABLE, "").strip()
    wanted = option or ("" if given and given.lower() in _OFF else config.getini("ejcache").strip())
    if wanted.lower() in _ON and given.lower() not in _OFF:
        wanted = given  # it may name a cache
    if wanted.lower() not in _OFF:
        if option and wanted.lower() not in _ON:
            _check_place(wanted)
        config.pluginmanager.register(_CachedRun(config, wanted), "ejcache-run")


def _check_place(wanted: str) -> None:
    """Refuse a place that no store can be at, such as `gs:/bucket`; a run without its cache would say nothing."""
    from ejcache.errors import UsageError
    from ejcache.stores.location import Location

    try:
        Location.parse(wanted)
    except UsageError as exc:
        raise pytest.UsageError(f"--ejcache-dir: {exc}") from exc


class _Warnings(logging.Handler):
    """Keeps what ejcache warns of, which pytest shows with tests that fail only.

    Attributes:
        said: each message once, in order.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message, with the name in front that those of ejcache have."""
        self.said[f"ejcache: {record.getMessage().removeprefix('ejcache: ')}"] = None


class _CachedRun:
    """One run of pytest, or of one of its workers, with a cache."""

    def __init__(self, config: pytest.Config, wanted: str) -> None:
        self._config = config
        self._cache: CompilationCache | None = None
        self._totals: dict[str, float] = {}
        self._urls: set[str] = set()
        self._tests: dict[str, tuple[float, int]] = {}
        """The seconds that each test compiled, and how many programs."""
        self._processes = 0
        self._advice: dict[str, float] = {}
        self._warnings = _Warnings()
        logging.getLogger("ejcache").addHandler(self._warnings)
        if wanted.lower() not in _ON and "://" not in wanted:
            # `EJCACHE=name` would be a typing error of a boolean; tests may change the working directory.
            wanted = f"{config.rootpath / Path(wanted).expanduser()}/"
        self._before = {name: os.environ.get(name) for name in (_VARIABLE, _FLOOR)}
        os.environ[_VARIABLE] = wanted
        if _FLOOR_OF_JAX not in os.environ:
            # A suite runs the same quick programs again and again.
            os.environ.setdefault(_FLOOR, "0")

    def pytest_unconfigure(self) -> None:
        """Leave the environment and the logger as they were."""
        logging.getLogger("ejcache").removeHandler(self._warnings)
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Note what a test compiles, or run it without a cache."""
        before = self._compiled()
        with _disabled() if item.get_closest_marker("no_ejcache") else contextlib.nullcontext():
            result = yield
        after = self._compiled()
        if after != before:
            self._tests[item.nodeid] = after[0] - before[0], after[1] - before[1]
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Forbid or count compilations in the body of a test that is marked so."""
        marker, limit = item.get_closest_marker("no_compile"), item.get_closest_marker("max_compiles")
        with contextlib.ExitStack() as stack:
            if marker is not None:
                from ejcache import forbid_compile

                stack.enter_context(forbid_compile(*marker.args, **marker.kwargs))
            if limit is not None:
                stack.enter_context(_at_most(*limit.args, **limit.kwargs))
            return (yield)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Add what this process counted, and fail if nothing should compile; a worker hands it to its controller."""
        self._compiled()
        if self._cache is not None:
            self._cache.flush(_UPLOAD_SECONDS)
            counted = {
                "amounts": dict(self._cache.stats().amounts),
                "url": self._cache.url,
                "tests": self._tests,
                "advice": _advice(),
                "warnings": list(self._warnings.said),
            }
            self._add(counted)
            if hasattr(self._config, "workeroutput"):
                self._config.workeroutput["ejcache"] = counted
        if self._failing() and session.exitstatus == pytest.ExitCode.OK and not hasattr(self._config, "workeroutput"):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

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
        from ejcache.cache.exit_report import report_line
        from ejcache.cache.stats import Stats

        terminalreporter.write_line(report_line(Stats.of(self._totals), sorted(self._urls), processes=self._processes))
        if named := slowest({test: seconds for test, (seconds, _) in self._tests.items()}):
            terminalreporter.write_line(f"ejcache: slowest compilations: {named}")
        for line in [*self._warnings.said][:_SHOWN]:
            terminalreporter.write_line(line)
        for line in sorted(self._advice, key=lambda line: -self._advice[line])[:_SHOWN]:
            terminalreporter.write_line(f"ejcache: {line}")
        for test in self._failing():
            number = self._tests[test][1]
            what = f"{number} program{'s' * (number != 1)} that the cache did not have"
            terminalreporter.write_line(f"ejcache: FAILED because of --ejcache-fail-on-compile: {test} compiled {what}")

    def _failing(self) -> list[str]:
        """The tests that compiled what the cache did not have, if that is to fail."""
        if not self._config.getoption("ejcache_fail_on_compile"):
            return []
        return sorted(test for test, (_, number) in self._tests.items() if number)

    def _add(self, counted: dict[str, Any]) -> None:
        for name, amount in counted["amounts"].items():
            self._totals[name] = self._totals.get(name, 0) + amount
        self._urls.add(counted["url"])
        self._processes += 1
        self._tests |= counted["tests"]
        self._warnings.said |= dict.fromkeys(counted["warnings"])
        for line, saves in counted["advice"].items():
            self._advice[line] = max(saves, self._advice.get(line, 0.0))

    def _compiled(self) -> tuple[float, int]:
        """Count what this process compiled, in seconds and programs; 0 while no test has made a backend of JAX."""
        activation = sys.modules.get("ejcache.jax_integration.activate")
        self._cache = (activation.active() if activation is not None else None) or self._cache
        if self._cache is None:
            return 0.0, 0
        stats = self._cache.stats()
        return stats.compile_seconds, stats.misses


def _advice() -> dict[str, float]:
    """Say what to change, by what this process compiled, and the seconds that each change saves."""
    from ejcache.history.guard import of_this_process

    found = of_this_process(least=_SAVES)[:_SHOWN]
    return {f"{each.place}: {each.title}: {each.message}": each.saved for each in found}


def slowest(seconds: Mapping[str, float]) -> str:
    """Name the tests that compiled longest: each that compiled for a second or longer, and at least three."""
    ordered = sorted(((took, test) for test, took in seconds.items() if took > 0), reverse=True)
    shown = max(_SHOWN, sum(took >= _LONG_SECONDS for took, _ in ordered))
    return ", ".join(f"{took:.2f} s {test}" for took, test in ordered[:shown])


@contextlib.contextmanager
def _at_most(n: int) -> Iterator[None]:
    """Fail the test if one function is compiled or loaded more than n times in this block, and say what to change."""
    from ejcache.history.guard import CompilationCounts, described, known, place_of
    from ejcache.history.recorded_program import is_of_jax
    from ejcache.journal.recorder import watch

    beyond: dict[tuple[object, ...], tuple[Any, int]] = {}
    end = watch(CompilationCounts(n, lambda program, times: beyond.update({place_of(program): (program, times)})))
    try:
        yield
    finally:
        end()
    for program, times in beyond.values():
        if not is_of_jax(known(program)):
            pytest.fail(f"{described(program, times)}; max_compiles allows {n}", pytrace=False)


@contextlib.contextmanager
def _disabled() -> Iterator[None]:
    import ejcache

    with ejcache.disabled():
        yield
