"""Listings and plans of many entries."""

from __future__ import annotations

import pytest
from helpers import traced_memory, uses
from store_suite import ODD_KEYS

from ejcache.errors import EntryCorruptError
from ejcache.journal.format import decode_lines, encode_ordered
from ejcache.journal.line import EntryUse
from ejcache.maintenance.eviction_plan import EvictionPlan, EvictionPolicy
from ejcache.maintenance.listed_entries import Listing
from ejcache.stores.base import EntryInfo


def long_key(number):
    return f"jit_step-cpu-plain-{number:040x}-{0:024x}"


def infos(count):
    return (EntryInfo(long_key(number), 10, float(number), float(number)) for number in range(count))


def test_entries_with_their_uses():
    """An entry was last used when the latest of all journals says so, or when it was made; odd keys come back whole."""
    listing = Listing()
    listing.add(EntryInfo(key, 3, 5.0, 5.0, str(n)) for n, key in enumerate(ODD_KEYS))
    listing.note_uses(uses({ODD_KEYS[0]: 7, ODD_KEYS[1]: 2, "gone": 9}).items(), now=100.0)
    listing.note_uses(uses({ODD_KEYS[0]: 6, ODD_KEYS[2]: 1000}).items(), now=100.0)
    used = {entry.key: entry.last_used for entry in listing.entries()}
    assert used == dict.fromkeys(ODD_KEYS, 5.0) | {ODD_KEYS[0]: 7.0, ODD_KEYS[2]: 100.0}
    assert {entry.key: (entry.size, entry.version) for entry in listing.entries()}[ODD_KEYS[1]] == (3, "1")


def test_damage_in_the_middle_notes_nothing():
    """Of uses that turn out damaged halfway none is noted, and what was known stays."""

    def damaged():
        yield "a", EntryUse(50.0)
        raise EntryCorruptError("cut short")

    listing = Listing()
    listing.note_uses([("a", EntryUse(1.0))], now=100.0)
    with pytest.raises(EntryCorruptError):
        listing.note_uses(damaged(), now=100.0)
    assert list(listing.uses()) == [("a", EntryUse(1.0))]


@pytest.mark.parametrize("policy", [{"max_size": 10_000}, {"max_size": 10_000, "by_cost": True}, {"everything": True}])
def test_the_memory_of_a_plan(policy):
    """A plan takes at most 300 bytes of memory for each entry, with the key, and while it is made."""
    count = 5_000
    EvictionPlan(infos(10), now=1e6, policy=EvictionPolicy(**policy))  # what is imported and kept once
    with traced_memory() as most:
        planned = EvictionPlan(infos(count), now=1e6, policy=EvictionPolicy(**policy))
    assert most[0] < 300 * count
    assert planned.count + planned.left == count
    assert planned.size + planned.left_size == 10 * count
    assert next(iter(planned)).entry.key == long_key(0)


def test_a_snapshot_of_many_uses_takes_what_it_is_compressed_to():
    """Encoding a snapshot and noting it takes a few times its bytes, not an object for each use."""
    used = [(long_key(number), EntryUse(float(number))) for number in range(8_000)]
    with traced_memory() as peak:
        data = encode_ordered(lambda: iter(used), compress=True)
    assert dict(decode_lines(data)) == dict(used)
    assert peak[0] < 2 * len(data) + 1_000_000


def test_a_plan_can_be_read_again():
    """Each reading of a plan gives the same deletions, also two readings at once."""
    planned = EvictionPlan(infos(50), now=1e6, policy=EvictionPolicy(older_than=1e6 - 10, max_size=300))
    first, second = iter(planned), iter(planned)
    pairs = list(zip(first, second, strict=True))
    assert len(pairs) == planned.count == 20
    assert all(one == other for one, other in pairs)
    assert [str(one.reason) for one, _ in pairs] == ["older_than"] * 10 + ["max_size"] * 10
