"""Signal handlers that call tuned operations inside the program's own calls of them, as one that saves a checkpoint."""

from __future__ import annotations

import itertools

import pytest
from autotune_helpers import key, record
from interruptions import interrupt_everywhere
from test_autotune_pod import Asked, Notes, chooser

from ejcache.autotune.records.store import AutotuneStore, default_store, set_default_store

pytestmark = pytest.mark.timeout(120)  # a deadlock is what these tests look for


@pytest.mark.soak
def test_inside_a_choice(tmp_path):
    """A handler may make the very call that it interrupts: both get the stored configuration, neither waits."""
    store = AutotuneStore(str(tmp_path), seeds=(), read_only=True)
    store.publish(record(block=16))
    asked = chooser(Notes(), 0, store)

    def choose():
        assert asked.choose(Asked()).configuration == {"block": 16}

    def choose_anew():
        nonlocal asked
        asked = chooser(Notes(), 0, store)
        choose()

    assert interrupt_everywhere(choose_anew, choose) > 20


def test_inside_a_publication(tmp_path):
    """A handler may publish a record wherever the program publishes one; the process has both."""
    # Read only: a handler in the middle of a write would wait for the lock of the file as another process does.
    store, numbers = AutotuneStore(str(tmp_path), seeds=(), read_only=True), itertools.count()

    def publish():
        of = key(m=next(numbers))
        store.publish(record(of))
        assert store.find(of).record.key == of

    assert interrupt_everywhere(publish, publish) > 20
    assert store.stats()["in_memory"] == next(numbers)


def test_inside_the_opening(tmp_path, monkeypatch):
    """A handler may be the first to use the store of the process while the program opens it: there is one."""
    monkeypatch.setenv("EJCACHE_AUTOTUNE_DIR", str(tmp_path))
    set_default_store(None)
    used = []
    with monkeypatch.context() as patched:

        def opened():
            patched.undo()
            used.append(default_store())
            return AutotuneStore()

        patched.setattr("ejcache.autotune.records.store.AutotuneStore", opened)
        used.append(default_store())
    assert used[0] is used[1]
    set_default_store(None)
