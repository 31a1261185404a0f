"""Eviction passes over stores, and the audit of entries."""

from __future__ import annotations

import os

import pytest
from archives import flipped, framed

from ejcache import entry
from ejcache.bucket.files import FileBucket
from ejcache.bucket.object_names import ENTRIES
from ejcache.errors import StoreReadOnlyError, StoreUnavailableError
from ejcache.maintenance.audit import Problem, audit, audit_structure, take_back
from ejcache.maintenance.eviction import EvictionPass, ScannedStore, run_pass
from ejcache.maintenance.eviction_plan import EvictionPolicy
from ejcache.stores.local.store import LocalStore
from ejcache.stores.memory import MemoryStore
from ejcache.stores.shared.store import SharedStore


def put(store, key, raw=b"payload"):
    data = entry.encode(entry.Header(key=key, compile_seconds=1.5), raw)
    assert store.put(key, data)
    return data


@pytest.fixture(params=["memory", "local"])
def store(request, tmp_path):
    """Both stores that there are."""
    with MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "cache") as opened:
        yield opened


class Refusing(MemoryStore):
    """A store whose disk refuses one key."""

    def delete(self, key):
        if key == "b":
            raise StoreUnavailableError("the disk says no")
        return super().delete(key)

    def peek(self, key, *, length=None):
        if key == "b":
            raise StoreUnavailableError("the disk says no")
        return super().peek(key, length=length)


def test_another_spelling_of_a_header(store):
    """An entry whose header is not spelled as `encode` does is damage, though its checksum is right."""
    plain = put(store, "plain")
    end = 8 + int.from_bytes(plain[4:8], "big")
    store.replace("plain", framed(plain[8 : end - 1] + b" }", plain[end:-32]))
    assert entry.decode(store.peek("plain"), key="plain").raw == b"payload"
    (finding,) = audit(store, list(store.entries())).findings
    assert (finding.key, finding.problem) == ("plain", Problem.CORRUPT)


def test_a_pass_over_a_store(store):
    """What is there goes, what is gone already is no failure, and each deletion is reported as it is tried."""
    size = len(put(store, "a"))
    put(store, "b")
    steps = []
    eviction = EvictionPass(store, EvictionPolicy(max_size=0))
    store.delete("b")
    put(store, "c")
    report = eviction.run(advance=lambda: steps.append(1))
    assert (report.removed, report.freed, report.gone, report.failed, report.left) == (1, size, 1, [], 0)
    assert len(steps) == 2
    assert [e.key for e in store.entries()] == ["c"]


def test_clear_of_a_local_store(tmp_path):
    """All goes at once, also what was stored after the plan was made, and the report counts what was there."""
    steps = []
    with LocalStore(tmp_path / "local") as store:
        put(store, "a")
        put(store, "b")
        eviction = EvictionPass(store, EvictionPolicy(everything=True))
        size = len(put(store, "c"))
        report = eviction.run(advance=lambda: steps.append(1))
        assert (report.removed, report.freed, report.gone, report.failed) == (3, 3 * size, 0, [])
        assert (report.left, report.left_size, len(steps)) == (0, 0, 2)
        assert list(store.entries()) == []
        assert store.put("a", b"again")


def test_a_pass_goes_on_after_a_failure():
    """One entry that cannot be deleted does not keep the others, and counts among those that are left."""
    store = Refusing()
    for key in "abc":
        put(store, key)
    report = run_pass(store, EvictionPolicy(everything=True))
    assert (report.failed, report.failures, report.left) == ([("b", "the disk says no")], 1, 1)
    assert report.left_size == store.size()
    assert [e.key for e in store.entries()] == ["b"]


def test_storage_that_refuses_everything_is_not_asked_for_ever():
    """After a few refusals in a row the other deletions are not tried; all of them count as failed."""

    class Dead(MemoryStore):
        asked = 0

        def delete(self, key):
            self.asked += 1
            raise StoreUnavailableError("the disk says no")

    store = Dead()
    for number in range(20):
        put(store, f"k{number}")
    report = run_pass(store, EvictionPolicy(everything=True))
    assert (report.failures, report.left, store.asked) == (20, 20, 3)


def test_a_pass_over_a_read_only_store_is_refused():
    """Nothing can be deleted from a read-only store, which is said once and not once for each entry."""
    with pytest.raises(StoreReadOnlyError):
        run_pass(MemoryStore(read_only=True), EvictionPolicy(everything=True))
    assert run_pass(MemoryStore(read_only=True), EvictionPolicy(everything=True), dry_run=True).removed == 0


def test_a_clean_store_is_clean(store):
    """Intact entries give no finding, and their use is not noted."""
    size = len(put(store, "a")) + len(put(store, "b"))
    before = {e.key: e.last_used for e in store.entries()}
    seen = audit(store, list(store.entries()))
    assert (seen.entries, seen.size, seen.findings, seen.clean) == (2, size, [], True)
    assert {e.key: e.last_used for e in store.entries()} == before
    assert audit_structure(store).findings == []


def test_what_went_meanwhile_is_no_finding(store):
    """An entry that was evicted between the listing and the reading is nobody's fault."""
    put(store, "a")
    listed = list(store.entries())
    store.delete("a")
    assert audit(store, listed).findings == []


def test_an_unreadable_entry_is_a_finding_that_stays():
    """What the storage refuses to give is reported, and not counted as repaired."""
    store = Refusing()
    put(store, "a")
    put(store, "b")
    seen = audit(store, list(store.entries()), fix=True)
    assert [(f.key, f.problem, f.repaired) for f in seen.findings] == [("b", Problem.UNREADABLE, False)]
    assert (seen.entries, seen.unreadable, seen.clean) == (1, 1, False)


def test_an_entry_replaced_by_another_process_stays(tmp_path):
    """A fix does not remove the good entry that somebody put in a damaged one's place after it was read."""

    class Overtaken(MemoryStore):
        def quarantine(self, key, data, *, wrong=False):
            self.replace(key, entry.encode(entry.Header(key=key), b"good"))
            return super().quarantine(key, data, wrong=wrong)

    store = Overtaken()
    store.put("a", b"damaged")
    seen = audit(store, list(store.entries()), fix=True)
    assert [f.repaired for f in seen.findings] == [True]
    assert audit(store, list(store.entries())).findings == []


def test_only_what_is_intact_is_put_back(tmp_path):
    """Quarantine gives back a whole entry; one with a good header and damage after it stays where it is."""
    with LocalStore(tmp_path / "cache") as store:
        good, damaged = put(store, "good"), flipped(put(store, "damaged"), -40)
        store.replace("damaged", damaged)
        assert store.quarantine("good", good)
        assert store.quarantine("damaged", damaged)
        assert take_back(store) == 1
        assert [(e.key, store.peek(e.key)) for e in store.entries()] == [("good", good)]


def test_lost_files_of_a_local_store(tmp_path):
    """A file that is gone without a word is a structural finding, mended by a fix."""
    with LocalStore(tmp_path / "cache") as store:
        put(store, "a", os.urandom(100_000))
        for path in (tmp_path / "cache").glob("v1/local/??/a"):
            path.unlink()
        found = audit_structure(store)
        assert [(f.problem, f.repaired) for f in found.findings] == [(Problem.STRUCTURE, False)]
        fixed = audit_structure(store, fix=True)
        assert [f.repaired for f in fixed.findings] == [True]
        assert audit_structure(store).findings == []


def test_foreign_names_in_a_shared_cache(tmp_path):
    """A file that ejcache did not name is reported, does no harm, and stays; the entries are verified all the same."""
    bucket = FileBucket(tmp_path / "shared")
    store = SharedStore(bucket)
    put(store, "a")
    foreign = [f"{ENTRIES}aa/evil%1B]0;x", f"{ENTRIES}aa/.DS_Store"]
    for name in foreign:
        bucket.write(name, b"x")
    seen = audit(store, store.entries(), fix=True)
    seen.findings += audit_structure(ScannedStore(store), fix=True).findings
    assert (seen.entries, seen.clean) == (1, True)
    assert {finding.problem for finding in seen.findings} == {Problem.FOREIGN_NAME}
    assert all(any(name in finding.detail for finding in seen.findings) for name in foreign)
    assert all(bucket.stat(name) is not None for name in foreign)
