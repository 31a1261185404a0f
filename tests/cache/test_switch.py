"""A cache that is turned off: within a minute nobody reads from it or stores there, and each process says so once."""

from __future__ import annotations

import json
import logging
import threading

import pytest
from cli_helpers import ejcache

from ejcache import entry
from ejcache.cache import policy_watch, shared_policy_watch
from ejcache.cache.former_copies import FormerCopies
from ejcache.cache.opening import open_cache
from ejcache.cache.policy_watch import FRESH_SECONDS, PolicyWatch, Reading
from ejcache.cache.reading import CacheReader
from ejcache.cache.reasons import Miss, Skip
from ejcache.cache.shared_policy_watch import SharedPolicyWatch
from ejcache.cache.writing import EntryWriter
from ejcache.errors import NoPermissionError, StoreUnavailableError
from ejcache.maintenance.stored_policy import MAX_BYTES, encode_policy, switch_of
from ejcache.settings.resolve import resolve
from ejcache.stores.epochs import Epochs, FormerEpoch, encode_epochs, tier_folder
from ejcache.stores.local.store import LocalStore
from ejcache.stores.opening import open_bucket
from ejcache.util.writer import user_and_host

OFF = encode_policy(switch_of(enabled=False, by="anna@ops", at=1e9))
ON = encode_policy(switch_of(enabled=True, by="anna@ops", at=1e9))
KEY = "jit_f-cpu-plain-" + "0" * 64


class Time:
    """A clock that a test sets."""

    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        return self.now


class Stored:
    """What is stored with a cache, and how often it was asked for."""

    def __init__(self, data=b""):
        self.data, self.asked, self.error = data, 0, None
        self.answers = threading.Event()
        self.answers.set()

    def __call__(self):
        self.asked += 1
        self.answers.wait(60)
        if self.error is not None:
            raise self.error
        return Reading(self.data, str(self.asked))


@pytest.fixture
def host(tmp_path):
    """Makes the switches of the processes of one host, with one clock."""
    clock, stored = Time(), Stored()

    def make():
        return SharedPolicyWatch("gs://b/x", stored, note=tmp_path / "scratch" / "policy", clock=clock)

    return make, clock, stored


def test_processes_of_a_host_ask_once_a_minute(host):
    """Whoever finds a reading of the last minute asks nobody; what was turned off is off for all within that time."""
    make, clock, stored = host
    first = make()
    first.begin()
    assert (first.is_off(), stored.asked) == (False, 1)
    others = [make() for _ in range(3)]
    for other in others:
        other.begin()
        other.look()
        assert other.is_off() is False
    assert stored.asked == 1
    stored.data = OFF
    clock.now += FRESH_SECONDS + 1
    for each in (first, *others):
        each.look()
        assert each.is_off() is True
    assert stored.asked == 2
    late = make()
    late.begin()
    assert (late.is_off(), stored.asked) == (True, 2)


def test_without_an_answer_the_last_one_holds(host):
    """Storage that fails leaves a cache as it was; storage that is known to be dead is not asked."""
    make, clock, stored = host
    stored.data = OFF
    make().look()
    stored.error = StoreUnavailableError("gone")
    clock.now += 10 * FRESH_SECONDS
    late = make()
    late.begin()
    assert (late.is_off(), stored.asked) == (True, 2)
    other = make()
    other.begin(ask=False)
    assert (other.is_off(), stored.asked) == (True, 2)
    stored.error, stored.data = None, ON
    clock.now += FRESH_SECONDS + 1
    other.look()
    assert other.is_off() is False


def test_the_first_lookup_waits_for_the_answer(host):
    """It is asked for in another thread, and what comes within a second counts."""
    make, _, stored = host
    switch = make()
    stored.data = OFF
    stored.answers.clear()
    switch.begin()
    stored.answers.set()
    assert switch.is_off() is True


UNREADABLE = [
    b"{",
    b"[]",
    b"\xff",
    encode_policy({"enabled": "no"}),
    encode_policy({"epoch": "../x"}),
    OFF.replace(b'"version": 1', b'"version": 9'),
    b"[" * 9999,
    b"x" * (MAX_BYTES + 1),
]


@pytest.mark.parametrize("data", UNREADABLE)
def test_what_cannot_be_read_changes_nothing(host, data, caplog):
    """A host that knew that the cache is off keeps to that, and says so once; one that never knew keeps away."""
    make, clock, stored = host
    stored.data = OFF
    make().look()
    stored.data = data
    clock.now += FRESH_SECONDS + 1
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            switch = make()
            switch.begin()
            assert (switch.is_off(), switch.epoch) == (True, "")
            clock.now += FRESH_SECONDS + 1
    assert caplog.text.count("keeps to the one that it knows") == 1


@pytest.mark.parametrize("data", [*UNREADABLE, StoreUnavailableError("down"), NoPermissionError("403")])
def test_who_never_could_read_it_does_not_know_where_the_cache_is(host, data, caplog):
    """It asks again with longer and longer pauses, at most one request of the host a minute."""
    make, clock, stored = host
    if isinstance(data, Exception):
        stored.error = data
    else:
        stored.data = data
    troubles = []
    with caplog.at_level(logging.WARNING):
        for _ in range(60):
            switch = make()
            switch.begin()
            assert (switch.is_off(), switch.epoch) == (False, None)
            switch.look()
            troubles.append(switch.trouble)
            clock.now += 61
    assert stored.asked <= 12
    assert any(troubles) is isinstance(data, Exception)  # which the first lookup reports
    assert caplog.text.count("is not used until its policy") == (not isinstance(data, Exception))
    stored.error, stored.data = None, ON
    clock.now += 601
    switch.look()
    assert switch.epoch == ""


@pytest.mark.parametrize("later", [b"", encode_policy({"max_size": 5})])
def test_a_policy_that_is_gone_changes_nothing(host, later, caplog):
    """Nor does one that was written since by somebody who knew nothing of it: what it says of limits counts, and the
    place where entries are stays."""
    make, clock, stored = host
    known = Epochs("a" * 16, (FormerEpoch("", 10.0),))
    stored.data = encode_policy(switch_of(enabled=False, by="anna@ops", at=1e9) | encode_epochs(known))
    make().look()
    with caplog.at_level(logging.WARNING):
        for data in (b"", later, later):
            stored.data = data
            clock.now += FRESH_SECONDS + 1
            switch = make()
            switch.begin()
            assert (switch.is_off(), switch.epoch) == (not data, "a" * 16)
    assert caplog.text.count("is gone") == 1
    assert caplog.text.count("is an earlier one") == bool(later)
    stored.data = encode_policy(encode_epochs(known.ended(20.0)))
    clock.now += FRESH_SECONDS + 1
    switch.look()
    assert switch.epoch not in ("", "a" * 16)


def test_a_clock_that_was_set_back(host):
    """A note that was written in the future is old."""
    make, clock, stored = host
    make().look()
    clock.now -= 86_400
    stored.data = OFF
    switch = make()
    switch.begin()
    assert switch.is_off() is True


def test_a_cache_of_one_host_is_asked_by_the_monotonic_clock():
    """What is there is looked at once a minute, whatever the clock on the wall says; what is gone or damaged changes
    nothing."""
    clock, stored = Time(), Stored(OFF)
    switch = PolicyWatch("/cache", stored, clock=clock)
    for data in (OFF, b"", b"{", ON, b"", b"{"):
        stored.data = data
        clock.now += FRESH_SECONDS + 1
        assert switch.is_off() is (stored.asked <= 3)
    assert stored.asked == 6
    damaged = PolicyWatch("/cache", Stored(b"{"), clock=clock)
    assert damaged.is_off() is True  # it may have been turned off


def test_it_is_logged_by_which_policy_a_process_goes(host, caplog):
    """Its version, and how old that reading is; whenever that changes."""
    make, clock, stored = host
    stored.data = ON
    with caplog.at_level(logging.INFO, logger="ejcache"):
        make().look()
        clock.now += 20
        late = make()
        late.begin()
        late.look()
    said = [record.message for record in caplog.records if "of its policy" in record.message]
    assert [
        "version 1 of its policy, read 0 s ago" in said[0],
        "version 1 of its policy, read 20 s ago" in said[1],
    ] == [True, True]
    assert len(said) == 2


@pytest.mark.parametrize(
    "note", [b"", b"x", b"1e400\n{}", b'{"asked": 1000000.0, "read": 1e6, "failures": 0, "generation": ""}\n{', b"[]\n"]
)
def test_a_damaged_note_of_the_host_is_read_anew(host, tmp_path, note):
    """What this host has noted is not trusted to be in its form."""
    make, _, stored = host
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "policy").write_bytes(note)
    switch = make()
    switch.begin()
    switch.look()
    assert switch.is_off() is False
    stored.data = OFF


def test_where_nothing_can_be_noted_a_process_asks_for_itself(host, tmp_path):
    """Once a minute: not before each upload."""
    make, clock, stored = host
    (tmp_path / "scratch").write_bytes(b"")
    switch = make()
    for _ in range(3):
        switch.look()
    assert stored.asked == 1
    clock.now += FRESH_SECONDS + 1
    stored.data = OFF
    switch.look()
    assert (stored.asked, switch.is_off()) == (2, True)


def policy_at(url):
    settings = resolve(calls={"dir": url, "min_compile_seconds": 0.0})
    return CacheReader(url, open_store=lambda: open_cache(url, settings)), settings


@pytest.mark.parametrize("where", ["directory", "bucket"])
def test_a_cache_that_is_off_is_neither_read_nor_written(where, tmp_path, bucket, caplog, monkeypatch):
    """Neither there nor in this host's copies; each lookup and compilation says why, and one sentence is logged."""
    monkeypatch.setenv("EJCACHE_LOCAL_DIR", str(tmp_path / "host"))
    url = f"gs://bucket/{tmp_path.name}" if where == "bucket" else str(tmp_path / "cache")
    policy, settings = policy_at(url)
    header = entry.Header(key=KEY, name="jit_f", compile_seconds=9.0)
    assert EntryWriter(policy).write(header, b"x" * 100, settings).skip is None
    assert isinstance(policy.read(KEY, settings), entry.Entry)
    policy.flush(60)
    policy.close()
    if where == "bucket":
        with open_bucket(url) as objects:
            objects.write("v1/policy.json", OFF)
        (note,) = (tmp_path / "host").rglob("scratch/policy")
        note.unlink()  # as a minute later
    else:
        (tmp_path / "cache" / "v1" / "policy.json").write_bytes(OFF)
    policy, settings = policy_at(url)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert policy.read(KEY, settings) is Miss.DISABLED
            other = header._replace(key=KEY.replace("jit_f", "jit_g"))
            assert EntryWriter(policy).write(other, b"x", settings).skip is Skip.DISABLED
        assert policy.contains(KEY, settings) is False
        assert policy.single_flight(settings) is None
        assert policy.opened(settings) is None
    assert [record.message.count("is turned off (by anna@ops, 2001-09-09") for record in caplog.records] == [1]
    policy.close()


def test_the_document_keeps_the_limits():
    """The switch lies beside the limits, and whether a cache is on is always written out."""
    off = json.loads(encode_policy({"max_size": 5} | switch_of(enabled=False, by="a", at=1.0)))
    assert (off["max_size"], off["enabled"], off["switched_by"]) == (5, False, "a")
    on = json.loads(encode_policy(switch_of(enabled=True, by="a", at=1.0)))
    assert on == {"enabled": True, "format": "ejcache-policy", "version": 1}


# -- recalls -----------------------------------------------------------------------------------------------------------

HEADER = entry.Header(key=KEY, name="jit_f", compile_seconds=9.0)


class Processes:
    """Makes processes of hosts that use one cache, and does what an operator does there."""

    def __init__(self, kind, tmp_path, monkeypatch):
        self.one_host = kind == "directory"
        self._has_disk = kind != "bucket without a disk"
        self._path, self._monkeypatch = tmp_path, monkeypatch
        self.url = str(tmp_path / "cache") if self.one_host else f"gs://bucket/{tmp_path.name}"
        self.opened = []

    def start(self, host):
        """Return the policy and the settings of a process that has looked at what is stored."""
        self._monkeypatch.setenv("EJCACHE_LOCAL_DIR", str(self._path / host))
        if not self._has_disk:
            self._monkeypatch.setenv("EJCACHE_LOCAL_MAX_SIZE", "0")
        policy, settings = policy_at(self.url)
        assert policy.opened(settings) is not None
        self.opened.append(policy)
        return policy, settings

    def minute_passes(self):
        """What was read before is old now; each process that looks reads it again."""
        with self._monkeypatch.context() as later:
            for module in (shared_policy_watch, policy_watch):
                later.setattr(module, "FRESH_SECONDS", -1.0)
            for policy in self.opened:
                if isinstance(policy.stored_policy, SharedPolicyWatch):
                    policy.stored_policy.look()
                policy.is_off()

    def recall(self, *arguments):
        said = ejcache("recall", "--dir", self.url, "--json", *arguments)
        assert said.status == 0, said.err
        return said.json


@pytest.fixture(params=["directory", "bucket", "bucket without a disk"])
def processes(request, tmp_path, bucket, monkeypatch):
    """Processes of several hosts, all closed in the end."""
    made = Processes(request.param, tmp_path, monkeypatch)
    yield made
    for policy in made.opened:
        policy.close()


def store(process, header=HEADER, raw=b"x" * 100):
    policy, settings = process
    assert EntryWriter(policy).write(header, raw, settings).skip is None
    assert policy.flush(60)


def found(process, key=KEY):
    policy, settings = process
    looked = policy.read(key, settings)
    return (looked.raw, None) if isinstance(looked, entry.Entry) else (None, looked)


@pytest.mark.parametrize("what", [[KEY], ["--all", "--yes"], ["--by", user_and_host()], ["--before", "2100-01-01"]])
def test_what_is_recalled_is_a_miss_everywhere(processes, what, caplog):
    """In processes that run and have copies, and in new ones; who has loaded it is told once; what is stored then is
    a hit."""
    first = processes.start("one")
    store(first)
    others = [processes.start(host) for host in ("one", "two")]
    for process in others:
        assert found(process)[0] is not None
        process[0].count_hit(HEADER, load_seconds=0.1)
    assert processes.recall(*what)["removed"] == [KEY]
    with caplog.at_level(logging.WARNING):
        processes.minute_passes()
        processes.minute_passes()
    told = [record.message for record in caplog.records if "were recalled" in record.message]
    assert (len(told), all("jit_f" in text for text in told)) == (1, True)  # all of them are one process here
    assert all(KEY in policy.taken_back for policy, _ in others)
    late = processes.start("two")
    for process in (*others, first, late):
        assert found(process)[1] in {Miss.ABSENT, Miss.RECALLED}
    store(late, raw=b"y" * 100)
    for process in (*others, first, processes.start("three")):
        assert found(process) == (b"y" * 100, None)


def test_who_does_not_know_yet_stores_in_vain(processes):
    """An entry of a process that had not read of the recall lies where nobody looks; one of who had read is a hit."""
    before, after = processes.start("one"), processes.start("two")
    store(before, HEADER._replace(key=KEY.replace("jit_f", "jit_g")))
    processes.recall("--all", "--yes")
    store(before)
    processes.minute_passes()
    if processes.one_host:
        assert found(after)[0] is not None  # it was compiled after the recall
        return
    assert found(after)[1] is Miss.ABSENT
    store(after, raw=b"y")
    assert found(before) == (b"y", None)
    assert found(processes.start("three")) == (b"y", None)


def test_a_reader_drops_its_copy(processes, monkeypatch):
    """A process that may not write reads what is stored anew."""
    writer = processes.start("one")
    store(writer)
    monkeypatch.setenv("EJCACHE_READ_ONLY", "1")
    reader = processes.start("two")
    assert found(reader)[0] is not None
    monkeypatch.delenv("EJCACHE_READ_ONLY")
    processes.recall(KEY)
    processes.minute_passes()
    for process in (reader, writer):
        assert found(process)[1] in {Miss.ABSENT, Miss.RECALLED}
    store(writer, raw=b"y")
    assert found(reader) == (b"y", None)


def test_copies_of_a_former_place_go(tmp_path, bucket, monkeypatch):
    """They are found by nobody, and removed by a later process of the host."""
    made = Processes("bucket", tmp_path, monkeypatch)
    first = made.start("one")
    store(first)
    made.recall("--all", "--yes")
    made.minute_passes()
    assert found(first)[1] is Miss.ABSENT
    store(first, raw=b"y")
    (tier,) = (tmp_path / "one").iterdir()
    (place,) = tier.glob("in-*")
    assert place.name == f"in-{first[0].stored_policy.epoch}"

    def open_local(epoch):
        return LocalStore(tier / tier_folder(epoch))

    for _ in range(2):
        FormerCopies(tier, lambda: [""], open_local).clear()
    with open_local("") as former, open_local(first[0].stored_policy.epoch) as present:
        assert ([info.key for info in former.entries()], [info.key for info in present.entries()]) == ([], [KEY])
    first[0].close()


def test_what_was_compiled_before_the_policy_was_known_is_shared_then(tmp_path, bucket, monkeypatch):
    """Until then it stays on this host; the storage is asked for the policy alone."""
    made = Processes("bucket", tmp_path, monkeypatch)
    with open_bucket(made.url) as objects:
        objects.write("v1/policy.json", b"{")
    bucket.clear_requests()
    process = made.start("one")
    policy, settings = process
    assert EntryWriter(policy).write(HEADER, b"x" * 100, settings).skip is None
    assert found(process)[0] is not None
    assert {request.path.rpartition("/")[2] for request in bucket.requests} == {"policy.json"}
    with open_bucket(made.url) as objects:
        objects.write("v1/policy.json", ON)
    made.minute_passes()
    assert found(process)[0] is not None
    assert policy.flush(60)
    other = made.start("two")
    assert found(other)[0] is not None
    for each in made.opened:
        each.close()


def test_what_a_living_process_kept_goes_to_the_place_that_the_policy_names(tmp_path, bucket, monkeypatch):
    """Also after everything was recalled: it has compiled that itself."""
    made = Processes("bucket", tmp_path, monkeypatch)
    with open_bucket(made.url) as objects:
        objects.write("v1/policy.json", b"{")
    policy, settings = process = made.start("one")
    assert EntryWriter(policy).write(HEADER, b"x", settings).skip is None
    epochs = Epochs("ab" * 8, (FormerEpoch("", 1e9),))
    with open_bucket(made.url) as objects:
        objects.write("v1/policy.json", encode_policy({"enabled": True} | encode_epochs(epochs)))
    made.minute_passes()
    assert found(process)[0] is not None
    assert policy.flush(60)
    (stored,) = (name for name in bucket.objects() if "/entries/" in name)
    assert f"/v1/in-{epochs.present}/" in stored
    for each in made.opened:
        each.close()


def test_what_a_process_kept_that_never_could_read_the_policy_is_sent_by_a_later_one(tmp_path, bucket, monkeypatch):
    """The first process of the host that reads it uploads what the others have left, of which they say how much."""
    made = Processes("bucket", tmp_path, monkeypatch)
    with open_bucket(made.url) as objects:
        objects.write("v1/policy.json", b"{")
    killed, ended = (made.start("one") for _ in range(2))
    for process, name in ((killed, "g"), (ended, "h")):
        header = HEADER._replace(key=KEY.replace("jit_f", f"jit_{name}"))
        assert EntryWriter(process[0]).write(header, b"x", process[1]).skip is None
    made.opened.remove(killed[0])
    ended[0].close()
    assert ended[0].tally.totals()["shared_spooled"] == 1
    with open_bucket(made.url) as objects:
        objects.write("v1/policy.json", ON)
    later = made.start("one")
    made.minute_passes()
    killed[0].kept_here.leave()  # the locks of a process go with it
    assert found(later, KEY.replace("jit_f", "jit_h"))[0] is not None
    assert later[0].flush(60)
    assert {name.rpartition("/")[2].split("-")[0] for name in bucket.objects() if "/v1/entries/" in name} == {
        "jit_g",
        "jit_h",
    }
    later[0].close()


def test_what_was_kept_before_everything_was_recalled_is_dropped(tmp_path, bucket, monkeypatch):
    """Nobody sends it, and no note of it stays."""
    made = Processes("bucket", tmp_path, monkeypatch)
    with open_bucket(made.url) as objects:
        objects.write("v1/policy.json", b"{")
    process = made.start("one")
    assert EntryWriter(process[0]).write(HEADER, b"x", process[1]).skip is None
    process[0].close()
    former = encode_epochs(Epochs("ab" * 8, (FormerEpoch("", 1e9),)))
    with open_bucket(made.url) as objects:
        objects.write("v1/policy.json", encode_policy(switch_of(enabled=True, by="anna@ops", at=1e9) | former))
    later = made.start("one")
    made.minute_passes()
    assert found(later)[1] is Miss.ABSENT
    assert later[0].flush(60)
    (tier,) = (tmp_path / "one").iterdir()
    assert len([path for path in tier.rglob("spool/*/*") if path.parent.name != "present"]) == 1
    FormerCopies(tier, lambda: [""], lambda epoch: LocalStore(tier / tier_folder(epoch))).clear()
    assert not [path for path in tier.rglob("spool/*/*") if path.parent.name != "present"]
    assert not [name for name in bucket.objects() if "/entries/" in name]
    later[0].close()
