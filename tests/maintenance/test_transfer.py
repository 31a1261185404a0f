"""Copying entries: what is copied, in which order, and in how much memory."""

from __future__ import annotations

from helpers import traced_memory

from ejcache import entry
from ejcache.errors import StoreUnavailableError
from ejcache.maintenance.transfer import CopyPlan, Selection, transfer
from ejcache.stores.base import EntryInfo
from ejcache.stores.memory import MemoryStore

EVERYTHING = Selection()


def infos(count):
    return (EntryInfo(f"jit_step-cpu-plain-{n:040x}-{0:024x}", 10, float(n), float(-n)) for n in range(count))


def test_least_recently_used_first():
    """A plan has what the target lacks, the least recently used first, and counts what the target has."""
    listed = list(infos(5))
    plan = CopyPlan(listed, [listed[2].key, "other"], selection=EVERYTHING, now=100.0)
    assert list(plan) == [listed[n] for n in (4, 3, 1, 0)]
    assert (plan.count, plan.entries, plan.size, plan.already) == (4, 4, 40, 1)


def test_the_memory_of_a_plan():
    """A plan takes at most 300 bytes of memory for each entry of the source, and 250 for each of the target."""
    count = 5_000
    with traced_memory() as most:
        plan = CopyPlan(infos(count), (info.key for info in infos(count // 2)), selection=EVERYTHING, now=1e6)
    assert (plan.count, plan.already) == (count // 2, count // 2)
    assert most[0] < 425 * count


def test_a_key_that_no_store_can_hold():
    """A record with a key that no store can hold is reported, and the others are copied."""
    data = {key: entry.encode(entry.Header(key=key), b"x") for key in ("a", "b")}
    source = [(key, lambda key=key: data[key]) for key in data]
    target = MemoryStore()
    done = transfer([source[0], ("evil\x1b", lambda: data["a"]), ("x" * 900, lambda: b""), source[1]], write=target.put)
    assert (done.copied, [key for key, _ in done.damaged]) == (2, ["evil\x1b", "x" * 900])
    assert not done.complete


def test_a_target_that_fails_is_not_asked_for_ever():
    """After five failures in a row the other entries are not tried; one that is copied begins a new row."""
    asked = []

    def write(key, data):
        asked.append(key)
        if key != "k3":
            raise StoreUnavailableError("the storage is gone")
        return True

    data = {key: entry.encode(entry.Header(key=key), b"x") for key in map("k{}".format, range(30))}
    done = transfer([(key, lambda key=key: data[key]) for key in data], write=write, threads=1)
    assert (len(asked), done.copied, len(done.failed), done.not_tried) == (9, 1, 8, 21)
