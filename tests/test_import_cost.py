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


def test_the_import_is_quick():
    """`import ejcache` does without pathlib, a third of its time."""
    program = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); import ejcache; print(*sys.modules)"
    # Without the site, whose .pth files may import anything.
    found = run_program([sys.executable, "-I", "-S", "-c", program]).stdout.split()
    assert "pathlib" not in found


def test_looking_at_the_package(run_python):
    """Neither the version nor a listing of the names imports what is behind them."""
    assert imported(run_python, "import ejcache; dir(ejcache); ejcache.__version__") == []


def test_errors_and_base(run_python):
    """The contract is of the standard library alone."""
    assert imported(run_python, "import ejcache.stores.base, ejcache.errors, ejcache.util.units") == []


FIRST_HIT = 58
"""Modules of ours, packages among them, that a process needs for its first hit in a local store. A new one costs each
process about a quarter of a millisecond: import what a plain hit does not use where it is used."""


def test_what_a_first_hit_imports(run_python, tmp_path):
    """A process that hits imports nothing for misses, remote storage, other ranks, or reuse."""
    program = """
        import sys
        import jax, numpy as np
        import ejcache
        ejcache.enable(sys.argv[1], min_compile_seconds=0)
        jax.block_until_ready(jax.jit(lambda x: x * 2 + 1)(np.ones(8, np.float32)))
        names = sorted(name for name in sys.modules if name.partition(".")[0] == "ejcache")
        print(ejcache.stats().hits, *names)
    """
    run_python(program, str(tmp_path / "cache"))
    hits, *names = run_python(program, str(tmp_path / "cache")).stdout.split()
    assert hits == "1"
    assert len(names) <= FIRST_HIT, names
    absent = ("reuse", "bucket", "autotune", "history", "reports", "cli", "coordination")
    assert [name for name in names if name.split(".")[1:2] and name.split(".")[1] in absent] == []
    only_others = {"cache.writing", "cache.stats", "cache.opening_tiers", "keys.parsing", "stores.abilities"}
    only_others |= {"stores.listing", "jax_integration.seam.coordination_service", "jax_integration.lowering.kernels"}
    only_others |= {"errors", "entry_encoding", "keys.flags", "keys.known_flags", "keys.library_reading"}
    only_others |= {f"jax_integration.seam.{name}" for name in ("compiling", "earlier_registrations", "trace_settings")}
    only_others |= {f"jax_integration.lowering.{name}" for name in ("plugins", "private_functions", "python_functions")}
    only_others |= {"cache.counters", "cache.shared_switch", "journal.start_records", "journal.late_writes"}
    only_others |= {f"stores.local.{name}" for name in ("index_repair", "index_upkeep", "new_store", "quarantine")}
    only_others |= {"stores.local.value_files", "stores.urls"}
    assert {f"ejcache.{name}" for name in only_others}.isdisjoint(names)


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
