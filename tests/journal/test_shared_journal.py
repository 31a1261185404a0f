"""What a process used and counted of a shared cache: its journals, the sums of all, and how they are folded."""

from __future__ import annotations

import os
import time

import pytest
from buckets import GcsServer, gcs_bucket
from capabilities import needs
from eviction_traces import encoded
from helpers import raiser, used_in, uses
from memory_bucket import MemoryBucket
from store_processes import in_fork

from ejcache.bucket.files import FileBucket
from ejcache.bucket.object_names import entry_name
from ejcache.errors import StoreReadOnlyError, StoreUnavailableError
from ejcache.journal.fold import JournalListing, compact
from ejcache.journal.format import JOURNALS, SNAPSHOT, decode_lines, decode_record_lines, decode_sums, encode_journal
from ejcache.journal.line import ProgramRecord, encode_line
from ejcache.journal.recorder import Recorder
from ejcache.journal.shared_journal import SharedJournal
from ejcache.journal.unsent import UnsentUses
from ejcache.maintenance.listed_entries import Listing
from ejcache.stores.shared.store import SharedStore
from ejcache.util.writer import process_name

DAY = 86_400.0
MADE_LINE = encode_line({"id": "p1"}, [ProgramRecord("jit_step", time=5.0)])


@pytest.fixture
def store(tmp_path):
    with SharedStore(FileBucket(tmp_path / "shared")) as store:
        yield store


@pytest.fixture
def objects():
    return MemoryBucket()


@pytest.fixture
def usage(objects):
    return SharedJournal(objects)


def journals(objects):
    """Uses and sums of each journal, in the order of their names."""
    blobs = [objects.read(info.name).data for info in sorted(objects.walk(JOURNALS), key=lambda info: info.name)]
    return [({key: use.when for key, use in decode_lines(data)}, decode_sums(data)) for data in blobs]


def fold(objects, *, days=0.0, listed=None):
    """A pass of maintenance over the journals, so many days from now; the objects that are left."""
    listing = Listing()
    compact(objects, listing, now=time.time() + days * DAY, listed=listed)
    return sorted(info.name for info in objects.walk(JOURNALS))


FOLDED = [SNAPSHOT]


class TestUses:
    def test_what_is_a_use(self, store):
        """What is noted is a use, with its time; puts and reads are none. It shows in the listing."""
        before = time.time()
        for key in "abc":
            store.put(key, b"x")
        store.note_used("a")
        store.journal.write()
        store.note_used("b")
        store.get("c")
        infos = {info.key: info for info in store.entries()}
        assert infos["c"].last_used == infos["c"].created
        assert infos["b"].last_used >= infos["a"].last_used >= infos["a"].created
        store.journal.write()
        used = used_in(store.bucket)
        assert used.pop("c") == 0.0
        assert sorted(used) == ["a", "b"]
        assert all(int(before) <= when <= time.time() for when in used.values())

    def test_how_many_and_what_they_are_worth(self, store):
        """A journal says how many uses there were, and of what was stored what one is worth, by its header."""
        store.put("k", encoded("k", seconds=2.5, size=500))
        store.put("l", encoded("l", seconds=7.0, size=500))
        store.replace("m", b"no header")
        store.bucket.create(entry_name("n"), b"of another process")
        for key in ("k", "k", "k", "n"):
            store.note_used(key)
        store.journal.write()
        (found,) = [dict(decode_lines(store.bucket.read(info.name).data)) for info in store.bucket.walk(JOURNALS)]
        assert {key: use[1:] for key, use in found.items()} == {
            "k": (3, 2.5), "l": (0, 7.0), "m": (0, 0.01), "n": (1, None)
        }  # fmt: skip

    def test_a_read_only_store_remembers_nothing(self, store):
        """Reads of a read-only store are no uses."""
        store.put("k", b"x")
        reader = SharedStore(store.bucket, read_only=True)
        reader.note_used("k")
        reader.journal.write()
        assert used_in(store.bucket) == {}

    def test_bounded(self, objects):
        """A process that cannot write a journal does not remember uses without end."""
        usage = SharedJournal(objects, most=5)
        for n in range(20):
            usage.note(f"k{n}")
        usage.note("k0", when=4e9)
        usage.write()
        assert sorted(used_in(objects)) == [f"k{n}" for n in range(5)]


class TestJournals:
    def test_one_object_per_writing(self, objects, usage):
        """What was used and counted is one new object, under the day and a name of this process; nothing is none."""
        assert usage.write() is True
        assert journals(objects) == []
        usage.note("a", when=5.0)
        usage.note("b", when=6.0)
        usage.note("a", when=4.0)
        usage.add({"hits": 2, "none": 0})
        assert usage.write() is True
        usage.add({"hits": 1})
        assert usage.write() is True
        assert journals(objects) == [({"a": 5.0, "b": 6.0}, {"hits": 2}), ({}, {"hits": 1})]
        first, second = sorted(info.name for info in objects.walk(JOURNALS))
        assert first.startswith(f"{JOURNALS}{time.strftime('%Y-%m', time.gmtime())}")
        assert f"-{os.getpid()}-" in first
        assert (first[-2:], second[-2:]) == ("-0", "-1")

    def test_failed_writing_is_made_up_for(self, objects, usage):
        """What could not be written is written later, and once if it was written although no answer came."""
        write = objects.write
        usage.note("a", when=5.0)
        usage.add({"hits": 1})
        objects.write = raiser(StoreUnavailableError("gone"))
        assert usage.write() is False

        def unanswered(name, data, **options):
            write(name, data, **options)
            raise StoreUnavailableError("reset")

        objects.write = unanswered
        assert usage.write() is False
        objects.write = write
        usage.note("a", when=7.0)
        usage.add({"hits": 1})
        assert usage.write() is True
        assert journals(objects) == [({"a": 5.0}, {"hits": 1}), ({"a": 7.0}, {"hits": 1})]

    def test_written_and_folded_although_no_answer_came(self, objects, usage):
        """A journal that a pass has folded meanwhile may come again, and counts once."""
        write = objects.write

        def unanswered(name, data, **options):
            write(name, data, **options)
            raise StoreUnavailableError("reset")

        usage.add({"hits": 1})
        objects.write = unanswered
        assert usage.write() is False
        objects.write = write
        assert fold(objects) == FOLDED
        assert usage.write() is True
        assert usage.total() == {"hits": 1}
        assert fold(objects) == FOLDED
        assert usage.total() == {"hits": 1}

    def test_a_line_is_in_one_journal(self, objects, usage):
        """A line is written with the next journal, once for each cache, also if the first try failed."""
        teller, other = Recorder(), SharedJournal(objects)
        for each in (usage, other):
            each.tell(teller)
        teller.lines.append(b"one")
        write, objects.write = objects.write, raiser(StoreUnavailableError("gone"))
        assert usage.write() is False
        objects.write = write
        teller.lines.append(b"two")
        for _ in range(2):
            assert usage.write() is True
        names = sorted(info.name for info in objects.walk(JOURNALS))
        assert [decode_record_lines(objects.read(name).data) for name in names] == [[b"one"], [b"two"]]
        assert other.write() is True
        assert sorted(usage.records(most=9)) == [b"one", b"one", b"two", b"two"]

    def test_forbidden_writing_is_given_up(self, objects, usage):
        """Without permission to write no journal is tried again."""
        write, objects.write = objects.write, raiser(StoreReadOnlyError("forbidden"))
        usage.add({"hits": 1})
        assert usage.write() is True
        objects.write = write
        assert usage.write() is True
        assert journals(objects) == []

    def test_storage_that_is_left_alone(self, objects, usage):
        """While the breaker is open nothing is written, and nothing is lost."""
        usage.add({"hits": 1})
        objects.breaker.fail(seconds=100)
        assert usage.write() is False
        objects.breaker.succeed()
        assert usage.write() is True
        assert journals(objects) == [({}, {"hits": 1})]

    def test_what_cannot_be_sent_is_left(self, objects, tmp_path):
        """What this process cannot write is left to the next one of the host, which counts it once."""
        unsent = UnsentUses(tmp_path / "unsent")
        usage, teller = SharedJournal(objects, unsent=unsent), Recorder()
        usage.tell(teller)
        teller.lines.append(MADE_LINE)
        usage.note("a", when=5.0)
        usage.add({"hits": 1})
        write, objects.write = objects.write, raiser(StoreUnavailableError("gone"))
        assert usage.write() is False
        usage.note("b", when=6.0)
        usage.add({"hits": 2, "misses": 1})
        usage.write_or_hand_over()
        objects.write = write
        usage.write_or_hand_over()
        later = SharedJournal(objects, unsent=unsent)
        later.take_unsent_uses()
        later.take_unsent_uses()
        later.write_or_hand_over()
        assert journals(objects) == [({"a": 5.0, "b": 6.0}, {"hits": 3, "misses": 1})]
        assert list(later.records(most=9)) == [MADE_LINE]

    @needs("fork")
    def test_a_fork_writes_its_own(self, tmp_path):
        """A forked child writes under a name of its own, and not what its parent has yet to write."""
        objects = FileBucket(tmp_path / "shared")
        usage, teller = SharedJournal(objects), Recorder()
        usage.tell(teller)
        usage.note("parent", when=5.0)
        teller.lines.append(b"parent")

        def child():
            usage.note("child", when=6.0)
            teller.lines.append(b"child")
            return usage.write()

        assert in_fork(child) is True
        assert journals(objects) == [({"child": 6.0}, {})]
        assert list(usage.records(most=9)) == [b"child"]
        assert usage.write() is True
        assert used_in(objects) == {"parent": 5.0, "child": 6.0}
        assert len(journals(objects)) == 2


def post_statuses(server):
    return [r.status for r in server.requests if r.method == "POST"]


class TestCounters:
    def test_written_rarely(self):
        """A thousand additions are one small object, written when the store closes."""
        with GcsServer() as server:
            store = SharedStore(gcs_bucket(server))
            for _ in range(1000):
                store.add_counters({"hits": 1})
            assert post_statuses(server) == []
            for _ in range(2):
                store.close()
                assert post_statuses(server) == [200]

    def test_pending_amounts_of_this_process_count(self, store):
        """A question in this process counts what its stores have not written yet."""
        one, two = store, SharedStore(store.bucket)
        one.add_counters({"hits": 1})
        two.add_counters({"hits": 2})
        assert one.counters() == {"hits": 3}
        one.reset_counters()
        assert two.counters() == {}
        two.add_counters({"hits": 1})
        assert one.counters() == {"hits": 1}

    def test_folded(self, store):
        """A pass leaves one object with the same sums, of whatever was counted and reset before and after it."""
        for _ in range(5):
            store.add_counters({"hits": 2, "misses": 1})
            store.journal.write()
        assert store.counters() == {"hits": 10, "misses": 5}
        assert fold(store.bucket) == FOLDED
        assert store.counters() == {"hits": 10, "misses": 5}
        store.add_counters({"hits": 1})
        assert store.counters() == {"hits": 11, "misses": 5}
        store.reset_counters()
        assert store.counters() == {}
        assert fold(store.bucket) == FOLDED
        assert store.counters() == {}

    @pytest.mark.parametrize("point", ["before the snapshot", "before the deletions"])
    def test_folded_by_one_who_dies(self, objects, usage, point):
        """Nothing counts twice, for a reader, a reset or the next passes, wherever a pass dies."""
        for _ in range(3):
            usage.add({"hits": 1})
            usage.write()
        listed = JournalListing.now(objects)
        usage.add({"hits": 1})
        usage.write()
        write, delete = objects.write, objects.delete_many
        if point == "before the deletions":
            objects.delete_many = raiser(KeyboardInterrupt())
        else:
            objects.write = lambda name, data, **options: (
                raiser(KeyboardInterrupt())() if name.endswith("snapshot") else write(name, data, **options)
            )
        with pytest.raises(KeyboardInterrupt):
            fold(objects)
        objects.write, objects.delete_many = write, delete
        assert usage.total() == {"hits": 4}
        # A pass that had listed the objects before does not forget what the snapshot names meanwhile.
        fold(objects, listed=listed)
        assert usage.total() == {"hits": 4}
        assert fold(objects) == FOLDED
        assert usage.total() == {"hits": 4}
        usage.reset()
        assert usage.total() == {}
        assert fold(objects) == FOLDED
        assert usage.total() == {}

    def test_more_than_one_pass_folds(self, objects, usage, monkeypatch):
        """What a pass does not take into the snapshot stays for the next one."""
        monkeypatch.setattr("ejcache.journal.fold.MOST_FOLDED", 2)
        for _ in range(5):
            usage.add({"hits": 1})
            usage.write()
        for left in (3, 1, 0):
            assert len(fold(objects)) == left + 1
            assert usage.total() == {"hits": 5}

    def test_damaged_sums_count_nothing(self, store):
        """A damaged, absurd or endless journal counts nothing, for whoever reads it."""
        store.add_counters({"hits": 1})
        absurd = [b'{"sums": {"hits": ' + number + b"}}" for number in (b"9" * 4000, b"NaN", b"1e999", b"9" * 5000)]
        deep = [b"[" * 200_000, b'{"sums":' * 20_000, b'{"sums": {"hits": 5}}' + b" " * (1 << 22)]
        shapes = [b"", b"{", b"[1]", b'{"sums": 5}', b'{"sums": {"hits": "many"}}', b"\xff"]
        for data in (*shapes, *absurd, *deep):
            store.bucket.write(f"{JOURNALS}2023-11-14/{process_name()}-0", data + b"\n")
        journal = encode_journal(uses({"k": 5.0}), sums={"hits": 5})
        store.bucket.write(f"{JOURNALS}2023-11-14/{process_name()}-0", journal[:-1])
        assert store.counters() == {"hits": 6}  # the uses are damaged, and the sums are not
        fold(store.bucket, days=2)
        assert store.counters() == {"hits": 1}
