"""A state machine: whatever hypothesis thinks of is done to a store and to a model, which must then be the same."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from store_invariants import check_everything

from ejcache.errors import StoreTooSmallError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.stores.base import Store

    Opener = Callable[[Path, int], Store]

__all__ = ["StoreMachine", "store_machine"]

_KEYS: Final = ("a", "b", "A", "a/b", "a%2Fb", "é", "../up", "x" * 300)
_LIMIT: Final = 100_000
# Around the sizes at which backends change how they keep a value, and around the limit.
_SIZES: Final = (0, 1, 99, 4_000, 33_000, 60_000, _LIMIT - 1, _LIMIT, _LIMIT + 1)

keys = st.sampled_from(_KEYS)
values = st.builds(lambda size, fill: bytes([fill]) * size, st.sampled_from(_SIZES), st.integers(0, 255))


class StoreMachine(RuleBasedStateMachine):
    """A store against a dictionary that is ordered from the least to the most recently used.

    The machine is bound to a backend by `store_machine`. It knows the contract only: strict least-recently-used
    eviction down to the limit, `get` and writing as uses, everything else as none.
    """

    opener: ClassVar[Opener]
    """Opens the store at a path with a limit."""
    reopens: ClassVar[bool] = True
    """Entries outlive the store."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        self._path = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ejcache-"))) / "store"
        self.model: OrderedDict[str, bytes] = OrderedDict()
        self.counts: dict[str, float] = {}
        self.limit = -1
        self.store: Store

    @initialize(limit=st.sampled_from([-1, _LIMIT]))
    def start(self, limit: int) -> None:
        """With a limit or without."""
        self.limit = limit
        self.store = type(self).opener(self._path, self.limit)

    def _fits(self, data: bytes) -> bool:
        return self.limit < 0 or len(data) <= self.limit

    def _write(self, key: str, data: bytes) -> None:
        self.model.pop(key, None)
        while self.limit >= 0 and sum(map(len, self.model.values())) + len(data) > self.limit:
            self.model.popitem(last=False)
        self.model[key] = data

    @rule(key=keys, data=values)
    def put(self, key: str, data: bytes) -> None:
        """Creates an entry if there is none."""
        if key in self.model and not self._fits(data):
            return  # both answers are right: it is taken, and it would not fit
        if not self._fits(data):
            with pytest.raises(StoreTooSmallError):
                self.store.put(key, data)
            return
        assert self.store.put(key, data) is (key not in self.model)
        if key not in self.model:
            self._write(key, data)

    @rule(key=keys, data=values)
    def replace(self, key: str, data: bytes) -> None:
        """Writes an entry, whether or not there is one."""
        if not self._fits(data):
            with pytest.raises(StoreTooSmallError):
                self.store.replace(key, data)
            return
        self.store.replace(key, data)
        self._write(key, data)

    @rule(key=keys)
    def get(self, key: str) -> None:
        """Reads, and notes the use."""
        assert self.store.get(key) == self.model.get(key)
        self.store.note_used(key)
        if key in self.model:
            self.model.move_to_end(key)

    @rule(key=keys, length=st.one_of(st.none(), st.sampled_from([0, 1, 50, 40_000, 1_000_000])))
    def peek(self, key: str, length: int | None) -> None:
        """Reads, and is none."""
        expected = self.model.get(key)
        assert self.store.peek(key, length=length) == (None if expected is None else expected[:length])

    @rule(key=keys)
    def contains(self, key: str) -> None:
        """Tells what a get would."""
        assert self.store.contains(key) is (key in self.model)

    @rule(key=keys)
    def delete(self, key: str) -> None:
        """Removes an entry."""
        assert self.store.delete(key) is (self.model.pop(key, None) is not None)

    @rule(key=keys, data=values)
    def quarantine_other(self, key: str, data: bytes) -> None:
        """Takes nothing out of use but what was seen."""
        same = self.model.get(key) == data
        assert self.store.quarantine(key, data) is same
        if same:
            del self.model[key]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def quarantine_seen(self, data: st.DataObject) -> None:
        """Takes out of use what was seen."""
        key = data.draw(st.sampled_from(sorted(self.model)))
        assert self.store.quarantine(key, self.model.pop(key)) is True

    @rule(name=st.sampled_from(["hits", "misses.absent"]), amount=st.sampled_from([1, 2, 0.25]))
    def count(self, name: str, amount: float) -> None:
        """Counts add up."""
        self.store.add_counters({name: amount})
        self.counts[name] = self.counts.get(name, 0) + amount
        assert self.store.counters() == self.counts

    @rule()
    def close(self) -> None:
        """A closed store is used again."""
        self.store.close()

    @precondition(lambda self: self.reopens)
    @rule()
    def reopen(self) -> None:
        """A new store finds everything, in its order."""
        self.store.close()
        self.store = type(self).opener(self._path, self.limit)

    @precondition(lambda self: self.reopens)
    @rule()
    def open_another(self) -> None:
        """Another store at the same path goes on from here while this one stays open, unused."""
        self._stack.callback(self.store.close)
        self.store = type(self).opener(self._path, self.limit)

    @invariant()
    def same(self) -> None:
        """The store holds what the model holds, in the same order of use."""
        if not hasattr(self, "store"):
            return
        infos = sorted(self.store.entries(), key=lambda info: info.last_used)
        assert [(info.key, info.size) for info in infos] == [(key, len(data)) for key, data in self.model.items()]
        assert self.store.size() == sum(map(len, self.model.values()))

    def teardown(self) -> None:
        """At the end everything that was put is still what it was."""
        try:
            if hasattr(self, "store"):
                assert {key: self.store.peek(key) for key in self.model} == self.model
                check_everything(self.store)
                self.store.close()
        finally:
            self._stack.close()


def store_machine(name: str, opener: Opener, *, reopens: bool = True) -> type[StoreMachine]:
    """The state machine for one backend; its attribute `TestCase` is what pytest runs.

    Args:
        name: what the machine is called in failures.
        opener: `opener(path, max_size)` opens the store at `path`, two at one path being one store.
        reopens: entries outlive the store that put them.
    """
    return type(name, (StoreMachine,), {"opener": staticmethod(opener), "reopens": reopens})
