"""Every store against a model, by a state machine (HYPOTHESIS_PROFILE=soak does more of it)."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis.stateful import run_state_machine_as_test
from store_faults import WrapperStore
from store_machine import store_machine

from ejcache.stores.local.store import LocalStore
from ejcache.stores.memory import MemoryStore

TestLocal = store_machine("LocalMachine", lambda path, limit: LocalStore(path, max_size=limit)).TestCase
TestMemory = store_machine("MemoryMachine", lambda path, limit: MemoryStore(str(path), max_size=limit)).TestCase


class ForgetfulStore(WrapperStore):
    """A use that is not noted."""

    def note_used(self, key):
        pass


class LeakyStore(WrapperStore):
    """A quarantine that forgets to compare."""

    def quarantine(self, key, data, *, wrong=False):
        return self.inner.delete(key)


@pytest.mark.parametrize("broken", [ForgetfulStore, LeakyStore])
def test_machine_finds(broken):
    """The machine tells a store that breaks the contract from one that keeps it."""
    machine = store_machine("BrokenMachine", lambda path, limit: broken(MemoryStore(str(path), max_size=limit)))
    quick = hypothesis.settings(max_examples=200, phases=[hypothesis.Phase.generate], report_multiple_bugs=False)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=quick)
