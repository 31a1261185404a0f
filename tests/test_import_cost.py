"""Importing ejcache imports neither JAX nor any back end."""

from __future__ import annotations

import json
import sys

import pytest
from helpers import ROOT, run_program

HEAVY = ("jax", "jaxlib", "numpy", "fsspec", "gcsfs", "s3fs", "diskcache", "sqlite3", "typer", "rich", "zstandard")
HEAVY += ("filelock", "asyncio", "pytest", "hypothesis")


def imported(run_python, program):
    done = run_python(f"{program}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))")
    names = {name.split(".")[0] for name in json.loads(done.stdout)}
    return sorted(names & set(HEAVY))


def test_importing_the_package(run_python):
    """`import ejcache` leaves JAX, storage and the command line alone."""
    assert imported(run_python, "import ejcache") == []


def test_what_is_noted_at_the_start_is_noted_quickly():
    """`import ejcache` notes how the process was started, and does without pathlib, a third of its time."""
    program = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); import ejcache; print(*sys.modules)"
    # Without the site, whose .pth files may import anything.
    found = run_program([sys.executable, "-I", "-S", "-c", program]).stdout.split()
    assert "ejcache.settings.start" in found
    assert "pathlib" not in found


def test_looking_at_the_package(run_python):
    """Neither the version nor a listing of the names imports what is behind them."""
    assert imported(run_python, "import ejcache; dir(ejcache); ejcache.__version__") == []


def test_errors_and_base(run_python):
    """The contract is of the standard library alone."""
    assert imported(run_python, "import ejcache.stores.base, ejcache.errors, ejcache.util.units") == []


@pytest.mark.parametrize(
    "module",
    [
        "ejcache.settings.resolve",
        "ejcache.stores.memory",
        "ejcache.stores.base",
    ],
)
def test_light_modules(run_python, module):
    """What needs no library imports none."""
    assert imported(run_python, f"import {module}") == []


def test_the_check_can_fail(run_python):
    """A heavy import is seen by this check."""
    assert "sqlite3" in imported(run_python, "import ejcache, sqlite3")
