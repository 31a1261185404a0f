"""What each test of tuning begins with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forking import PLACE

from ejcache.autotune.measure import tuning_run
from ejcache.autotune.records.store import AutotuneStore, set_default_store
from ejcache.util.log import forget_warnings


@pytest.fixture(autouse=True)
def fresh_process():
    """Each test hears its own warnings, and leaves no store of its own behind."""
    forget_warnings()
    set_default_store(None)
    yield
    set_default_store(None)


@pytest.fixture
def store(tmp_path):
    """A store of the test's own."""
    return AutotuneStore(str(tmp_path / "store"), refresh_seconds=0.0)


@pytest.fixture(autouse=True)
def compiled_once(jax_as_before):
    """What another test has compiled is loaded by JAX's own cache: most of them measure the same few programs."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(Path(os.environ[PLACE], "compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture
def runs_take(monkeypatch):
    """`runs_take(seconds)`: candidates run, and each run of one counts as `seconds(configuration)`.

    For tests in which one configuration has to win: a busy machine turns the order of times that are measured.
    """
    import jax

    first = tuning_run.first_run

    def plant(seconds):
        def run_once(trial, arrays, repeats):
            jax.block_until_ready(trial.compiled(*arrays))
            return seconds(trial.configuration)

        def first_run(trial, arrays, **options):
            return seconds(trial.configuration), first(trial, arrays, **options)[1]

        monkeypatch.setattr(tuning_run, "run_once", run_once)
        monkeypatch.setattr(tuning_run, "first_run", first_run)

    return plant


@pytest.fixture
def runs_take_the_same(runs_take):
    """For tests in which it does not matter what wins: each configuration runs as often as it is looked at."""
    runs_take(lambda _: 1e-3)
