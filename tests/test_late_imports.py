"""Imports of our own modules stand at the top of a file; each one inside a function names its reason, and it is true.

There are four: a room that no hit needs, an optional library, JAX itself, and the door of a path that a hit does not
take. A door has a name, and ARCHITECTURE.md lists them. Behind a door, imports stand at the top.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from helpers import ROOT
from syntax import dotted, nodes, parsed

PACKAGE = ROOT / "src" / "ejcache"
ROOMS = {"autotune", "bucket", "cli", "coordination", "history", "reports", "reuse"}
"""What a hit imports nothing of (`test_import_cost.py`)."""
OPTIONAL = {"adlfs", "aiobotocore", "azure", "botocore", "ejkernel", "gcsfs", "pynvml", "s3fs"}
JAX = {"ejcache.jax_integration.seam", "jax", "jaxlib"}
"""The seam imports JAX's internals by name (`Part`)."""
DOORS: dict[str, set[str]] = {
    "JAX whose names fit": {"jax_integration/activate.py", "jax_integration/seam/backends.py"},
    "JAX whose names do not fit": {"jax_integration/activate.py"},
    "PGLE": {"jax_integration/pipeline.py"},
    "XLA's caches": {"jax_integration/pipeline.py", "jax_integration/xla_options.py"},
    "Python functions": {"jax_integration/lowering/key.py"},
    "a cache in memory": {"stores/opening.py"},
    "a command": {"api.py", "cli/entry.py", "cli/interrupt.py", "cli/main.py", "stores/local/store.py"},
    "a comparison": {"jax_integration/pipeline.py"},
    "a listing": {"stores/local/store.py"},
    "a miss": {"cache/compilation_cache.py", "jax_integration/pipeline.py"},
    "a guard": {"jax_integration/pipeline.py"},
    "a put": {"stores/local/store.py"},
    "a report": {"cli/starting.py", "jax_integration/activate.py"},
    "a run": {"cli/entry.py"},
    "a stored policy": {"cache/reading.py", "cache/policy_watch.py"},
    "accelerators": {"jax_integration/lowering/key.py", "keys/environment_variables.py"},
    "completion": {"cli/completion.py"},
    "configuration files": {"settings/resolve.py"},
    "eviction by cost": {"cache/opening.py"},
    "files that have to be read": {
        "jax_integration/lowering/host_cpu.py",
        "jax_integration/lowering/key.py",
        "jax_integration/lowering/native_libraries.py",
    },
    "flags": {"jax_integration/lowering/key.py", "keys/environment_variables.py"},
    "kernels": {"jax_integration/lowering/private_functions.py"},
    "other devices": {"jax_integration/pipeline.py"},
    "preloading": {"jax_integration/pipeline.py"},
    "questions about keys": {"jax_integration/pipeline.py"},
    "repair": {"stores/local/store.py"},
    "settings in words": {"jax_integration/activate.py", "settings/resolve.py"},
    "settings of a run": {"cache/report_destination.py", "cli/starting.py", "settings/environment.py"},
    "shared storage": {
        *("cache/opening.py", "jax_integration/xla_directories.py", "stores/opening.py", "stores/sharing_detection.py"),
    },
    "the ranks of a job": {"jax_integration/pipeline.py"},
}
"""The doors, and the modules in which each one is."""
TABLES = {
    "__init__.py",
    "autotune/__init__.py",
    "cli/main.py",
    "jax_integration/__init__.py",
    "jax_integration/decorator.py",
}
"""Modules with a table of names, which are imported when they are asked for (ARCHITECTURE.md, The rooms)."""
REASON = re.compile(r"# (?:(a room that no hit needs|an optional library|JAX itself)|the door to (.+))$")


@cache
def sources() -> dict[str, str]:
    return {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def module_of(path: str) -> str:
    return ".".join(["ejcache", *Path(path).with_suffix("").parts]).removesuffix(".__init__")


@cache
def known() -> dict[str, str]:
    """Module → its path."""
    return {module_of(path): path for path in sources()}


def imported(node: ast.AST) -> list[str]:
    """The modules that an import statement names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        return [name if name in known() else str(node.module) for name in names]
    return []


def late_imports(source: str) -> list[tuple[int, str]]:
    """(line, module of ours) of each import in a function."""
    found = {
        (inner.lineno, name)
        for outer in nodes(parsed(source))
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(outer)
        for name in imported(inner)
        if name.partition(".")[0] == "ejcache"
    }
    return sorted(found)


@cache
def at_once(module: str) -> frozenset[str]:
    """What importing a module imports, as far as the tops of our files say it: our modules, and names of libraries."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in known():
            seen.add(name.partition(".")[0])
            continue
        waiting += [".".join(name.split(".")[:end]) for end in range(2, name.count(".") + 1)]
        body = list(parsed(sources()[known()[name]]).body)
        while body:
            node = body.pop()
            if isinstance(node, ast.If):
                body += node.orelse if dotted(node.test).endswith("TYPE_CHECKING") else [*node.body, *node.orelse]
            elif isinstance(node, ast.Try | ast.With):
                body += node.body
            waiting += imported(node)
    return frozenset(seen)


def faults(path: str, source: str) -> list[str]:
    """What is wrong with the late imports of a module."""
    lines = source.splitlines()
    said = []
    for line, name in late_imports(source):
        reason = REASON.search(lines[line - 1])
        here, room = path.partition("/")[0], name.split(".")[1] if "." in name else ""
        if reason is None:
            said.append(f"{path}:{line}: no reason why {name} is not imported at the top")
        elif reason[1] == "a room that no hit needs" and (room not in ROOMS or room == here):
            said.append(f"{path}:{line}: {name} is in no such room")
        elif reason[1] == "an optional library" and not at_once(name) & OPTIONAL:
            said.append(f"{path}:{line}: {name} imports no optional library")
        elif reason[1] == "JAX itself" and (not at_once(name) & JAX or at_once(module_of(path)) & JAX):
            said.append(f"{path}:{line}: JAX does not come with {name} alone")
        elif reason[2] and path not in DOORS.get(reason[2], ()):
            said.append(f"{path}:{line}: the door to {reason[2]} is not here")
    return said


def test_each_late_import_has_a_reason_that_is_true():
    """An import in a function is where no hit comes by, where JAX or a library is not wanted yet, or at a door."""
    assert [said for path, source in sources().items() if path not in TABLES for said in faults(path, source)] == []


def test_no_door_is_left_over():
    """Each door of the table is used, where the table says; and ARCHITECTURE.md lists it."""
    used: dict[str, set[str]] = {}
    for path, source in sources().items():
        lines = source.splitlines()
        for line, _ in late_imports(source):
            if (reason := REASON.search(lines[line - 1])) and reason[2]:
                used.setdefault(reason[2], set()).add(path)
    assert used == DOORS
    page = (ROOT / "ARCHITECTURE.md").read_text()
    assert [door for door in DOORS if f"| {door} |" not in page] == []


def test_nothing_takes_the_place_of_an_import():
    """No function, and no table but those that ARCHITECTURE.md names, imports a module of ours by a text."""
    by_text = re.compile(
        r"""(?:import_module|__import__|sys\.modules(?:\.get)?[\[(])\(?f?["']ejcache|def __getattr__\(name"""
    )
    assert {path for path, source in sources().items() if by_text.search(source)} <= TABLES


@pytest.mark.parametrize(
    ("path", "line", "said"),
    [
        ("util/new.py", "from ejcache.util.log import log", "no reason"),
        ("util/new.py", "from ejcache.util.log import log  # few callers need it", "no reason"),
        ("cache/new.py", "from ejcache.util.log import log  # a room that no hit needs", "in no such room"),
        ("bucket/new.py", "from ejcache.bucket.s3 import S3Bucket  # a room that no hit needs", "in no such room"),
        ("cache/new.py", "from ejcache.util.log import log  # an optional library", "no optional library"),
        ("cli/new.py", "from ejcache.util.log import log  # JAX itself", "JAX does not come"),
        (
            "jax_integration/pgle.py",
            "from ejcache.jax_integration.seam import patch  # JAX itself",
            "JAX does not come",
        ),
        ("util/new.py", "from ejcache.util.log import log  # the door to PGLE", "is not here"),
        ("util/new.py", "from ejcache.util.log import log  # the door to nowhere", "is not here"),
    ],
)
def test_a_false_reason_is_found(path, line, said):
    """A late import without a reason, or with one that is not true, is refused."""
    (fault,) = faults(path, f"def f():\n    {line}")
    assert said in fault
