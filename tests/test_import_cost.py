"""Importing ejcache imports neither JAX nor any back end."""

from __future__ import annotations

import json

import pytest
from forking import ForkedBeforeEjcache

HEAVY = ("jax", "jaxlib", "numpy", "fsspec", "gcsfs", "s3fs", "diskcache", "sqlite3", "typer", "rich", "zstandard")
HEAVY += ("filelock", "asyncio", "pytest", "hypothesis")


def imported(run_python, program):
    done = run_python(f"{program}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))")
    names = {name.split(".")[0] for name in json.loads(done.stdout)}
    return sorted(names & set(HEAVY))


def test_importing_the_package(run_python):
    """`import ejcache` leaves JAX, storage and the command line alone."""
    assert imported(run_python, "import ejcache") == []


def test_looking_at_the_package(run_python):
    """Neither the version nor a listing of the names imports what is behind them."""
    assert imported(run_python, "import ejcache; dir(ejcache); ejcache.__version__") == []


def test_errors_and_base(run_python):
    """The contract is of the standard library alone."""
    assert imported(run_python, "import ejcache.stores.base, ejcache.errors, ejcache.util.units") == []


ROOMS_OF_OTHERS = {"reuse", "bucket", "autotune", "history", "reports", "cli", "coordination"}
"""The rooms of ours that a plain hit never needs."""
LIBRARIES_OF_OTHERS = {"fsspec", "gcsfs", "s3fs", "google", "boto3", "botocore", "azure", "diskcache", "typer", "rich"}
"""Libraries of remote storage and of the command line."""


def test_what_a_hit_imports(run_python, tmp_path):
    """A process that hits imports neither the rooms for misses, remote storage and commands, nor their libraries."""
    program = """
        import sys
        import jax, numpy as np
        of_jax = {name.partition(".")[0] for name in sys.modules}
        import ejcache
        ejcache.enable(sys.argv[1], min_compile_seconds=0)
        jax.block_until_ready(jax.jit(lambda x: x * 2 + 1)(np.ones(8, np.float32)))
        libraries = {name.partition(".")[0] for name in sys.modules} - of_jax
        rooms = {name.split(".")[1] for name in sys.modules if name.startswith("ejcache.")}
        print(ejcache.stats().hits, *sorted(rooms | libraries))
    """
    starts = [run_python(program, str(tmp_path / "cache"), start=ForkedBeforeEjcache).stdout.split() for _ in range(2)]
    hits, *names = starts[1]
    assert hits == "1"
    assert set(names) & (ROOMS_OF_OTHERS | LIBRARIES_OF_OTHERS) == set()
    assert {"stores", "ejcache"} <= set(names)


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
