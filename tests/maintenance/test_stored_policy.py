"""The policy kept with a shared store: its format, changes by several people, and who goes by it."""

from __future__ import annotations

import json

import pytest
from memory_bucket import MemoryBucket

from ejcache.errors import EntryCorruptError, EntryVersionError, SettingError
from ejcache.maintenance.eviction_plan import EvictionPolicy
from ejcache.maintenance.stored_policy import (
    POLICY,
    EffectiveEvictionPolicy,
    change_policy,
    decode_policy,
    encode_policy,
    parse_limit,
    policy_of,
    read_limits,
)


def test_format():
    """A policy is readable JSON that says what it is; unknown fields survive."""
    data = encode_policy({"max_size": 10, "unused_for": None, "later": [1]})
    about = {"enabled": True, "max_size": 10, "later": [1]}
    assert json.loads(data) == {"format": "ejcache-policy", "version": 1, **about}
    assert decode_policy(data) == about


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"", EntryCorruptError),
        (b"[]", EntryCorruptError),
        (b'{"version": 1}', EntryCorruptError),
        (b'{"format": "other", "version": 1}', EntryCorruptError),
        (b'{"format": "ejcache-policy", "version": 1, "max_size": -5}', EntryCorruptError),
        (b'{"format": "ejcache-policy", "version": 1, "max_size": true}', EntryCorruptError),
        (b'{"format": "ejcache-policy", "version": 1, "evict": "random"}', EntryCorruptError),
        (b'{"format": "ejcache-policy", "version": 1, "evict": ["cost"]}', EntryCorruptError),
        (b'{"format": "ejcache-policy", "version": 1, "max_size": 1e999}', EntryCorruptError),
        (b'{"format": "ejcache-policy", "version": 1, "max_size": NaN}', EntryCorruptError),
        (b'{"format": "ejcache-policy", "version": 1, "max_size": ' + b"9" * 4000 + b"}", EntryCorruptError),
        (b'{"format": "ejcache-policy", "version": ' + b"9" * 5000 + b"}", EntryCorruptError),
        (b"[" * 200_000, EntryCorruptError),
        (b"[" * 30_000, EntryCorruptError),
        (b'{"a":' * 10_000, EntryCorruptError),
        (b'{"format": "ejcache-policy", "version": 2, "max_size": "?"}', EntryVersionError),
    ],
)
def test_what_is_no_policy(text, error):
    """Damage, nonsense and later versions are told apart, and none of them is a policy."""
    with pytest.raises(error):
        decode_policy(text)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_size", "10GB", 10_000_000_000),
        ("evict", "Cost", "cost"),
        ("evict", "none", None),
        ("max_size", "none", None),
        ("max_size", "-1", None),
        ("max_entries", "7", 7),
        ("older_than", " 2d ", 172_800.0),
        ("unused_for", "", None),
    ],
)
def test_limits_as_people_write_them(name, text, value):
    """Sizes, ages and numbers are read; none removes a limit."""
    assert parse_limit(name, text) == value


@pytest.mark.parametrize(("name", "text"), [("max_size", "x"), ("max_entries", "1.5"), ("older_than", "2"), ("a", "1")])
def test_limits_that_are_none(name, text):
    """Anything else is refused."""
    with pytest.raises(SettingError):
        parse_limit(name, text)


def test_changes():
    """A change leaves other limits, and those that a later version knows, as they are."""
    objects = MemoryBucket()
    assert read_limits(objects) is None
    change_policy(objects, {"max_size": 5, "max_entries": 9})
    objects.write(POLICY, encode_policy({**read_limits(objects), "later": "x"}))
    assert change_policy(objects, {"max_size": None, "unused_for": 60.0}) == {
        "enabled": True,
        "max_entries": 9,
        "unused_for": 60.0,
        "later": "x",
    }
    assert policy_of(read_limits(objects), evict="lru") == EvictionPolicy(max_entries=9, unused_for=60.0)


def test_changes_at_once():
    """Two who change different limits at the same time both get theirs."""
    objects = MemoryBucket()

    class Contended(MemoryBucket):
        """Objects of which somebody else changes the policy between a look and the first writes."""

        def __init__(self, times: int) -> None:
            super().__init__()
            self.times = times

        def read(self, name, *, length=None):
            found = objects.read(name, length=length)
            if self.times:
                self.times -= 1
                change_policy(objects, {"max_entries": self.times})
            return found

        def write(self, name, data, *, version=None):
            return objects.write(name, data, version=version)

    assert change_policy(Contended(2), {"max_size": 5}) == {"enabled": True, "max_size": 5, "max_entries": 0}


def test_who_goes_by_it(caplog):
    """The stored policy goes before a job's own limit; one that cannot be read removes nothing, and that is said."""
    objects = MemoryBucket()
    now = [0.0]
    own, none, zero = (EffectiveEvictionPolicy(objects, max_size=size, clock=lambda: now[0]) for size in (7, -1, 0))
    assert (own(), none(), zero()) == (EvictionPolicy(max_size=7), None, None)
    change_policy(objects, {"max_entries": 3})
    assert own() == EvictionPolicy(max_size=7)
    now[0] = 601
    assert own() == none() == EvictionPolicy(max_entries=3)
    change_policy(objects, {"max_entries": None})
    now[0] = 1202
    assert (own(), none()) == (EvictionPolicy(max_size=7), None)
    objects.write(POLICY, b"garbage")
    now[0] = 1803
    assert own() is None
    assert "nothing is evicted" in caplog.text


def test_the_order_that_is_stored():
    """It goes before a job's own, also where no limit is stored; without one, the job's own holds."""

    def policy(max_size=7, evict="lru"):
        return EffectiveEvictionPolicy(objects, max_size=max_size, evict=evict)()

    objects = MemoryBucket()
    assert policy(evict="cost") == EvictionPolicy(max_size=7, by_cost=True)
    change_policy(objects, {"evict": "cost"})
    assert policy() == EvictionPolicy(max_size=7, by_cost=True)
    assert policy(max_size=-1) is None
    change_policy(objects, {"evict": "lru", "max_entries": 3})
    assert policy(evict="cost") == EvictionPolicy(max_entries=3)
    change_policy(objects, {"evict": None})
    assert policy(evict="cost") == EvictionPolicy(max_entries=3, by_cost=True)
