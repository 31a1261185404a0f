"""Eviction by what an entry saves: the order, its age, other processes' entries, and a replay of real life."""

from __future__ import annotations

import pytest
from cli_helpers import ejcache
from eviction_traces import encoded, loop, saved, team, upgrade
from soak_turns import some

from ejcache.stores.local.store import LocalStore
from ejcache.stores.worth import worth


def stored(store, key, *, seconds, size=10_000):
    """Put an entry of this size that took so long to compile."""
    assert store.put(key, encoded(key, seconds=seconds, size=size))


def keys_of(store):
    return {info.key for info in store.entries()}


def test_the_cheapest_goes_first(tmp_path):
    """Seconds count, and bytes, and uses."""
    with LocalStore(tmp_path, max_size=52_000, worth=worth) as store:
        stored(store, "slow", seconds=10)
        stored(store, "quick", seconds=1)
        stored(store, "large", seconds=1.5, size=20_000)
        stored(store, "new", seconds=3)
        assert keys_of(store) == {"slow", "quick", "large", "new"}
        store.note_used("large")
        store.note_used("large")
        stored(store, "newer", seconds=3)
        assert keys_of(store) == {"slow", "large", "new", "newer"}
        assert store.check() == []


def test_what_is_not_used_any_more_ages(tmp_path):
    """Ten times the worth of the others keeps an entry for some time, and not for ever."""
    with LocalStore(tmp_path, max_size=52_000, worth=worth) as store:
        stored(store, "once", seconds=10)
        for number in range(200):
            stored(store, f"k{number}", seconds=1)
            assert number != 20 or "once" in keys_of(store)
        assert "once" not in keys_of(store)


def test_processes_of_both_orders_share_a_store(tmp_path):
    """Entries that were there before get their place by their worth; who evicts by last use goes on doing so."""
    with LocalStore(tmp_path, max_size=52_000) as store:
        stored(store, "slow", seconds=10)
        stored(store, "large", seconds=1, size=20_000)
        stored(store, "quick", seconds=1)
    with LocalStore(tmp_path, max_size=52_000, worth=worth) as by_cost, LocalStore(tmp_path, max_size=52_000) as by_use:
        stored(by_cost, "new", seconds=2)
        stored(by_cost, "newer", seconds=2)
        assert keys_of(by_cost) == {"slow", "quick", "new", "newer"}
        stored(by_use, "mine", seconds=0.01)
        stored(by_use, "mine too", seconds=0.01)
        assert "slow" not in keys_of(by_use)
        for number in range(4):
            stored(by_cost, f"newest{number}", seconds=2)
        assert by_cost.check() == []
        assert not {"mine", "mine too"} & keys_of(by_cost)


def test_an_unreadable_entry_is_worth_little(tmp_path):
    """Bytes that are no entry go before one."""
    with LocalStore(tmp_path, max_size=32_000, worth=worth) as store:
        stored(store, "a", seconds=1)
        store.put("garbage", b"x" * 10_000)
        stored(store, "b", seconds=1)
        stored(store, "c", seconds=1)
        assert keys_of(store) == {"a", "b", "c"}


def test_prune_shows_both_orders(tmp_path, monkeypatch):
    """A dry run says what each order would remove and what that costs; the setting chooses."""
    place = tmp_path / "cache"
    with LocalStore(place) as store:
        stored(store, "slow", seconds=10)
        stored(store, "quick", seconds=1)
    options = ("prune", "--dir", place, "--max-size", "15kB")
    dry = ejcache(*options, "-n", "--json").json["orders"]
    assert [(each["order"], each["chosen"], each["compile_seconds"]) for each in dry] == [
        ("lru", True, 10.0),
        ("cost", False, 1.0),
    ]
    assert "in the order cost (evict=cost): 1 entry, 10 kB, 1.00 s to compile again" in ejcache(*options, "-n").out
    monkeypatch.setenv("EJCACHE_EVICT", "cost")
    with LocalStore(place, worth=worth, max_size=21_000) as store:
        stored(store, "another", seconds=2)
        assert keys_of(store) == {"slow", "another"}
    assert ejcache(*options, "--json").json["removed_entries"] == 1
    with LocalStore(place) as store:
        assert keys_of(store) == {"slow"}


def replayed(place, trace, *, by_cost):
    """The share of the avoidable seconds that a store saves."""
    uses, limit = trace
    with LocalStore(place, max_size=limit, worth=worth if by_cost else None) as store:
        return saved(store, uses)


@pytest.mark.parametrize(("sigma", "least"), some([(0.3, 0.70), (1.1, 0.90)], every=2))
def test_a_suite_that_runs_in_a_loop(tmp_path, sigma, least):
    """A cache that is a little too small for a suite saves nothing by last use, and most of it by cost."""
    trace = loop(sigma, seed=0)
    assert replayed(tmp_path / "lru", trace, by_cost=False) == 0
    assert replayed(tmp_path / "cost", trace, by_cost=True) >= least


def test_a_suite_after_an_upgrade(tmp_path):
    """What was used for long before an upgrade of JAX soon makes room for what has a few uses since."""
    assert replayed(tmp_path, upgrade(0.3, seed=0), by_cost=True) >= 0.65


@pytest.mark.parametrize(("sigma", "least"), some([(0.3, 0.78), (1.1, 0.85)], every=2))
def test_a_team_with_many_projects(tmp_path, sigma, least):
    """Of forty projects some are started often, and the cache holds 30 % of them."""
    trace = team(sigma, seed=2, starts=80)
    by_use = replayed(tmp_path / "lru", trace, by_cost=False)
    assert replayed(tmp_path / "cost", trace, by_cost=True) >= max(least, by_use)
