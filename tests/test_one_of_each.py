"""One mechanism for one purpose: each low-level facility is used in one place, and functions stay short."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache

import pytest
from helpers import ROOT

PACKAGE = ROOT / "src" / "ejcache"

THE_PROGRAMS = [
    "gc.disable",
    "gc.freeze",
    "gc.set_threshold",
    "gc.unfreeze",
    "sys.setprofile",
    "sys.setrecursionlimit",
    "sys.setswitchinterval",
    "sys.settrace",
    "threading.setprofile",
    "threading.settrace",
]
"""What belongs to the program and not to a cache: no module uses it."""

USED_BY: dict[str, set[str]] = {
    "fcntl.flock": {
        "util/locks.py",
        "coordination/leases.py",  # reads whether a lock is held, without taking it
    },
    "filelock.FileLock": {
        "stores/plain_jax.py",  # JAX's own lock, which JAX takes with the same library
    },
    **{name: set() for name in THE_PROGRAMS},
    "gc.callbacks": set(),
    "threading.stack_size": {"util/threads.py"},  # reads it
    "signal.signal": {"cli/run.py"},  # in a process of our own, which waits for the program
    "os.register_at_fork": {"util/lifecycle.py"},
    "atexit.register": {"util/lifecycle.py"},
    "threading.Thread": {
        "util/scheduler.py",
        "util/threads.py",
        "autotune/measure/trial.py",  # has a large stack and belongs to one measurement
    },
    "threading.Timer": set(),
    "concurrent.futures.ThreadPoolExecutor": {
        "bucket/client_bucket.py",  # asyncio wants one; this one hands its calls to util/threads.py
    },
    "sys.executable": {
        "util/worker_processes.py",  # the one command of processes of ours
        "cli/run.py",  # the user's program, as the user's Python runs it
    },
    "multiprocessing.Process": set(),
    "selectors.DefaultSelector": {"util/worker_processes.py"},
    "os.rename": {
        "stores/local/values.py",  # the commit of a value, whose index row names the file
        "stores/local/layout.py",  # moves a damaged index into quarantine, by directory descriptors
    },
    "os.replace": set(),
    "Path.replace": {
        "util/files.py",
        "bucket/files.py",  # creates with a link or replaces, after a condition was checked under a lock
        "cache/run_counts.py",  # moves the full log aside, and writes nothing
        "maintenance/archive.py",  # gives an export, which may be resumed, its name when it is complete
    },
}
"""Facility → the modules that may use it, relative to the package."""

MAX_FUNCTION_LINES = 60


@cache
def trees() -> dict[str, ast.Module]:
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def facilities(tree: ast.Module) -> set[str]:
    """The names of `USED_BY` that a module uses, however it imports them."""
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {(alias.asname or alias.name): alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            aliases |= {(alias.asname or alias.name): f"{node.module}.{alias.name}" for alias in node.names}
    found = set()
    last = {name.rpartition(".")[2] for name in USED_BY}
    for node in ast.walk(tree):
        # Also under another name, so that each plain name is looked up.
        if isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and node.attr in last):
            head, _, tail = ast.unparse(node).partition(".")
            found.add(f"{aliases.get(head, head)}.{tail}" if tail else aliases.get(head, head))
        # str.replace takes two arguments and dataclasses.replace keywords: one argument is a path's.
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "replace"
            and len(node.args) == 1
            and not node.keywords
        ):
            found.add("Path.replace")
    return found & USED_BY.keys()


@cache
def facilities_by_path() -> dict[str, set[str]]:
    return {path: facilities(tree) for path, tree in trees().items()}


@pytest.mark.parametrize("facility", sorted(USED_BY))
def test_facility_is_used_in_one_place(facility):
    """Files are locked, written and renamed, threads started and exits ordered by `ejcache.util` only."""
    users = {path for path, found in facilities_by_path().items() if facility in found}
    assert users == USED_BY[facility]


@pytest.mark.parametrize(
    ("pattern", "home"),
    [
        (r"(?i)breaker$", "bucket/breaker.py"),
        (r"^_?(warn|say|log|note)_?once$", "util/log.py"),
        (r"^_?write_atomically$|^_?atomic_write$", "util/files.py"),
        (r"^EvictionPass$", "maintenance/eviction.py"),
        (r"^Scheduler$", "util/scheduler.py"),
        (r"^NamedTuple$", "util/tuples.py"),
    ],
)
def test_mechanism_is_defined_once(pattern, home):
    """There is one circuit breaker, one warn-once, one atomic write, one eviction pass and one scheduler."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    homes = [
        path
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, kinds) and re.search(pattern, node.name)
    ]
    assert homes == [home]


def test_named_tuples_are_made_quickly():
    """No module takes its named tuples from `typing`, whose import compiles every annotation."""
    users = {
        path
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "typing"
        if any(alias.name == "NamedTuple" for alias in node.names)
    }
    assert users == {"util/tuples.py"}


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
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert long == set()


def test_facilities_are_found():
    """The check sees a facility through an import of the module, of the name, and under another name."""
    assert facilities(ast.parse("import fcntl\nfcntl.flock(1, 2)")) == {"fcntl.flock"}
    assert facilities(ast.parse("from threading import Thread as T\nT()")) == {"threading.Thread"}
    assert facilities(ast.parse("import atexit\n@atexit.register\ndef f(): ...")) == {"atexit.register"}
    assert facilities(ast.parse("path.replace(other)")) == {"Path.replace"}
    assert facilities(ast.parse("'a'.replace('a', 'b')\nreplace(x, a=1)")) == set()
