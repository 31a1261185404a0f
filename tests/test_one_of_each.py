"""One mechanism for one purpose: threads, locks, signals and exits belong to few levels, and functions stay short."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache

import pytest
from helpers import ROOT
from syntax import defined, dotted, nodes, parsed

PACKAGE = ROOT / "src" / "ejcache"

THE_PROGRAMS = [
    "gc.callbacks",
    "gc.disable",
    "gc.freeze",
    "gc.set_threshold",
    "gc.unfreeze",
    # They draw from the one generator that `random.seed` sets: the program would get other numbers.
    *(
        f"random.{name}"
        for name in ("choice", "getrandbits", "randint", "random", "randrange", "sample", "seed", "shuffle", "uniform")
    ),
    "sys.setprofile",
    "sys.setrecursionlimit",
    "sys.setswitchinterval",
    "sys.settrace",
    "threading.setprofile",
    "threading.settrace",
]
"""What belongs to the program and not to a cache: no module uses it."""

LEVELS_OF: dict[str, set[str]] = {
    **{name: set() for name in THE_PROGRAMS},
    "atexit.register": {"util"},
    "concurrent.futures.ThreadPoolExecutor": {
        "bucket"
    },  # asyncio wants one, which hands its calls to the threads of util
    "fcntl.flock": {"util", "coordination"},  # coordination reads whether a lock is held, without taking it
    "filelock.FileLock": set(),  # where there is no flock, it becomes a file that a killed process leaves behind
    "filelock.lock_descriptor": {"util"},
    "multiprocessing.Process": set(),
    "os.register_at_fork": {"util"},
    "signal.signal": {"cli"},  # in a process of our own, which waits for the program
    # Elsewhere locks are reentrant: a signal handler may compile a program. In util a thread waits for ever in one.
    "threading.Lock": {"cli", "util"},
    "threading.Thread": {"util", "autotune"},  # a measurement of autotune has one with a large stack
    "threading.Timer": set(),
}
"""Facility → the levels of `test_architecture.py` that may use it."""

MAX_FUNCTION_LINES = 60


@cache
def trees() -> dict[str, ast.Module]:
    return {path.relative_to(PACKAGE).as_posix(): parsed(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def facilities(tree: ast.Module) -> set[str]:
    """The names of `LEVELS_OF` that a module uses, however it imports them."""
    aliases = {}
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            aliases |= {(alias.asname or alias.name): alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            aliases |= {(alias.asname or alias.name): f"{node.module}.{alias.name}" for alias in node.names}
    found = set()
    last = {name.rpartition(".")[2] for name in LEVELS_OF}
    for node in nodes(tree):
        # Also under another name, so that each plain name is looked up.
        if isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and node.attr in last):
            head, _, tail = dotted(node).partition(".")
            found.add(f"{aliases.get(head, head)}.{tail}" if tail else aliases.get(head, head))
    return found & LEVELS_OF.keys()


@cache
def facilities_by_path() -> dict[str, set[str]]:
    return {path: facilities(tree) for path, tree in trees().items()}


@pytest.mark.parametrize("facility", sorted(LEVELS_OF))
def test_facility_is_used_at_its_levels(facility):
    """A cache starts threads, takes locks and orders the exit at few levels; what is the program's it leaves alone."""
    users = {path.partition("/")[0] for path, found in facilities_by_path().items() if facility in found}
    assert users == LEVELS_OF[facility]


@pytest.mark.parametrize(
    ("pattern", "home"),
    [
        (r"(?i)breaker$", "bucket/breaker.py"),
        (r"^_?(warn|say|log|note)_?once$", "util/log.py"),
        (r"^_?write_atomically$|^_?atomic_write$", "util/files.py"),
        (r"^EvictionPass$", "maintenance/eviction.py"),
        (r"^Scheduler$", "util/scheduler.py"),
    ],
)
def test_mechanism_is_defined_once(pattern, home):
    """There is one circuit breaker, one warn-once, one atomic write, one eviction pass and one scheduler."""
    assert [path for path, tree in trees().items() for name in defined(tree) if re.search(pattern, name)] == [home]


def test_class_names_are_unique():
    """A class name in a traceback names one class. Private classes do not count."""
    names = Counter(
        node.name
        for path, tree in trees().items()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == set()


def test_functions_are_short():
    """No function has more lines than fit on a screen."""
    long = {
        f"{path}:{node.name}"
        for path, tree in trees().items()
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert long == set()


def test_facilities_are_found():
    """The check sees a facility through an import of the module, of the name, and under another name."""
    assert facilities(ast.parse("import fcntl\nfcntl.flock(1, 2)")) == {"fcntl.flock"}
    assert facilities(ast.parse("from threading import Thread as T\nT()")) == {"threading.Thread"}
    assert facilities(ast.parse("import atexit\n@atexit.register\ndef f(): ...")) == {"atexit.register"}


def test_only_the_table_of_capabilities_skips():
    """A condition of one's own is asked in every run and seen by nobody: a skip asks `support/capabilities.py`."""
    words = ("mark.skip" + "if", "import" + "orskip")
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    own = [str(path.relative_to(ROOT)) for path in tests if any(word in path.read_text() for word in words)]
    assert own == []
