"""What is recalled: its format, which entries a recall takes back, and what does not fit."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from memory_bucket import MemoryBucket

from ejcache import entry
from ejcache.bucket.files import FileBucket
from ejcache.errors import EntryCorruptError, EntryVersionError, PolicyDamagedError, UsageError
from ejcache.maintenance.ended_epochs import EndedEpochs
from ejcache.maintenance.eviction import run_pass
from ejcache.maintenance.eviction_plan import EvictionPolicy
from ejcache.maintenance.recalling import Recaller
from ejcache.maintenance.recalls import (
    MOST_ENTRIES,
    MOST_RULES,
    Recalls,
    Rule,
    Stamp,
    decode_recalls,
    digests_of,
    encode_recalls,
    recalls_in_words,
)
from ejcache.maintenance.stored_policy import (
    MAX_BYTES,
    POLICY,
    change_policy,
    decode_policy,
    encode_policy,
    epochs_of,
    read_limits,
    recalls_of,
)
from ejcache.stores.epochs import MOST_FORMER, Epochs, FormerEpoch, encode_epochs, folder_of, present_place
from ejcache.stores.local.store import LocalStore
from ejcache.stores.memory import MemoryStore
from ejcache.stores.shared.store import SharedStore

GOLDEN = Path(__file__).parents[1] / "data" / "policy" / "policy-v1.json"
BY_BERT = Rule(20.0, by="node-3", recalled_by="anna@ops")
BEFORE = Rule(1030.0, before=1000.5, recalled_by="anna@ops")
CHECKSUM = bytes(range(32))
ALL = Recalls().with_rule(Rule(10.0, recalled_by="anna@ops")).with_rule(BY_BERT).with_rule(BEFORE)
ALL = ALL.with_entries([digests_of("k", CHECKSUM)])
EPOCHS = Epochs("0123456789abcdef", (FormerEpoch("", 10.0),))


def test_golden_file():
    """The first format is read as it was written, and written as it was."""
    data = GOLDEN.read_bytes()
    policy = decode_policy(data)
    assert (recalls_of(policy), epochs_of(policy)) == (ALL, EPOCHS)
    assert encode_policy({"max_size": 5, "recalled": encode_recalls(ALL)} | encode_epochs(EPOCHS)) == data


@pytest.mark.parametrize("recalls", [Recalls(), ALL, Recalls().with_rule(Rule(4.0, by="a@b/c"))])
def test_round_trip(recalls):
    """What is written is read again; nothing is written of nothing."""
    written = encode_recalls(recalls)
    assert decode_recalls(None if written is None else json.loads(json.dumps(written))) == recalls
    assert (written is None) == (recalls == Recalls())


RULE = {"at": 10, "recalled_by": "a", "all": True}
GOOD = {"version": 1, "rules": [RULE], "entries": ["0" * 32]}


@pytest.mark.parametrize(
    "change",
    [
        {"version": 0},
        {"version": []},
        {"rules": {"a": 1}},
        {"rules": [[]]},
        {"rules": [RULE] * (MOST_RULES + 1)},
        {"rules": [RULE | {"by": "x"}]},
        {"rules": [RULE | {"all": False}]},
        {"rules": [{"at": 3, "recalled_by": "a"}]},
        {"rules": [{"at": 3, "all": True}]},
        {"rules": [RULE | {"at": -1}]},
        {"rules": [RULE | {"at": True}]},
        {"rules": [RULE | {"at": 1 << 70}]},
        {"rules": [{"at": 3, "recalled_by": "a", "by": ""}]},
        {"rules": [{"at": 3, "recalled_by": "a", "by": "x" * 999}]},
        {"rules": [{"at": 3, "recalled_by": "a", "before": float("inf")}]},
        {"rules": [{"at": 3, "recalled_by": "a", "before": float("nan")}]},
        {"rules": [{"at": 3, "recalled_by": "a", "before": True}]},
        {"rules": [{"at": 3, "recalled_by": "a", "before": "9" * 5000}]},
        {"entries": ["0" * 31]},
        {"entries": ["G" * 32]},
        {"entries": [7]},
        {"entries": [f"{number:032x}" for number in range(MOST_ENTRIES + 1)]},
        {"entries": None},
    ],
)
def test_what_is_refused(change):
    """Whatever others write, it is read whole or not at all."""
    assert recalls_of({"recalled": GOOD}) == Recalls().with_rule(Rule(10.0, recalled_by="a")).with_entries(["0" * 32])
    with pytest.raises((EntryCorruptError, EntryVersionError)):
        decode_policy(encode_policy({"recalled": GOOD | change}))


@pytest.mark.parametrize(
    "epochs",
    [
        {"epoch": "x" * 16},
        {"epoch": "../../other"},
        {"epoch": 7},
        {"epoch": "0" * 15},
        {"former": [{"epoch": "", "ended": 1}]},
        {"epoch": "0" * 16, "former": [{"epoch": "0" * 16, "ended": 1}]},
        {"epoch": "0" * 16, "former": [{"epoch": "", "ended": float("nan")}]},
        {"epoch": "0" * 16, "former": [{"ended": 1}]},
        {"epoch": "0" * 16, "former": {}} | {"former": 7},
        {"epoch": "0" * 16, "former": [{"epoch": f"{number:016x}", "ended": 1} for number in range(9, 99)]},
    ],
)
def test_a_damaged_epoch(epochs):
    """It is the name of a folder, so nothing but such a name is taken."""
    with pytest.raises(EntryCorruptError):
        decode_policy(encode_policy(epochs))


@pytest.mark.parametrize(
    ("rule", "stamp", "included"),
    [
        (Rule(50.0), Stamp(49.0, "anna@h/1-a"), True),
        (Rule(50.0), Stamp(50.0, "anna@h/1-a"), False),
        (BY_BERT, Stamp(19.0, "bert@node-3/7-a"), True),
        (BY_BERT, Stamp(20.0, "bert@node-3/7-a"), False),
        (BY_BERT, Stamp(19.0, "bert@node-4/7-a"), False),
        (BY_BERT, Stamp(19.0, ""), False),
        (BEFORE, Stamp(1000.4, "any@host/1-a"), True),
        (BEFORE, Stamp(1000.5, "any@host/1-a"), False),
    ],
)
def test_which_entries_a_rule_recalls(rule, stamp, included):
    """By what the header says; a recall of everything condemns nothing at the place where entries are since."""
    recalls = Recalls().with_rule(rule)
    assert recalls.keeps_out(stamp) is included
    assert recalls.condemns(stamp) is (included and not rule.is_of_all)
    assert recalls.since == rule.at


def test_an_entry_is_recalled_by_its_bytes():
    """Another one under the same key is not; a key says which entries are to be looked at."""
    recalls = Recalls().with_entries([digests_of("k", CHECKSUM)])
    assert recalls.condemns(Stamp(1e10, "", CHECKSUM)) is True
    assert recalls.condemns(Stamp(1.0, "", CHECKSUM[::-1])) is False
    assert (recalls.may_include("k"), recalls.may_include("other")) == (True, False)


def test_what_does_not_fit_is_refused():
    """A host that was away may have copies of what the earliest takes back, so none is dropped; --all begins anew."""
    recalls = Recalls().with_entries([f"{number:032x}" for number in range(MOST_ENTRIES)])
    with pytest.raises(UsageError, match="single entries"):
        recalls.with_entries(["f" * 32])
    for number in range(MOST_RULES):
        recalls = recalls.with_rule(Rule(float(number), by=f"node-{number}"))
    with pytest.raises(UsageError, match="recall --all"):
        recalls.with_rule(Rule(90.0, by="another"))
    again = recalls.with_rule(Rule(90.0, by="node-9"))
    assert (len(again.rules), again.rules[-1].at) == (MOST_RULES, 90.0)
    everything = recalls.with_rule(Rule(90.0))
    assert everything == Recalls().with_rule(Rule(90.0))
    for number in range(MOST_RULES):
        everything = everything.with_rule(Rule(91.0, by=f"node-{number}"))  # as many as without it
    assert decode_recalls(encode_recalls(everything)) == everything
    with pytest.raises(UsageError, match="recall --all"):
        everything.with_rule(Rule(92.0, by="another"))
    everything = recalls.with_rule(Rule(90.0))
    older, newer = Rule(91.0, before=5.0), Rule(92.0, before=6.0)
    assert everything.with_rule(older).with_rule(newer).rules == (Rule(90.0), newer)
    assert everything.with_rule(newer).with_rule(older._replace(at=93.0)).rules == (
        Rule(90.0),
        newer,
        older._replace(at=93.0),
    )


@pytest.mark.parametrize("letter", ["w", "\N{CJK UNIFIED IDEOGRAPH-7B1B}", "\x01", '"', "\U0001f600"])
def test_the_largest_fits_into_the_document(letter):
    """Hosts read no more than that: the longest names, in whatever script, and as many as there can be."""
    recalls = Recalls().with_rule(Rule(1e10 / 3, recalled_by="r" * 80))
    recalls = recalls.with_entries([f"{number:032x}" for number in range(MOST_ENTRIES)])
    for number in range(MOST_RULES):
        recalls = recalls.with_rule(Rule(1e10 / 3, by=f"{number:02}" + letter * 158, recalled_by="r" * 80))
    former = tuple(FormerEpoch(f"{number:016x}", 1e10 / 3) for number in range(1, MOST_FORMER + 1))
    epochs = encode_epochs(Epochs("f" * 16, former))
    data = encode_policy({"max_size": 1 << 60, "recalled": encode_recalls(recalls)} | epochs)
    assert len(data) < MAX_BYTES
    assert recalls_of(decode_policy(data)) == recalls


def test_words():
    """What stats and doctor show."""
    assert recalls_in_words(Recalls()) == ""
    text = recalls_in_words(ALL)
    assert text.startswith("recalled: everything, by anna@ops, 1970-01-01 00:00 UTC; what node-3 has stored")
    assert "before 1970-01-01 00:16 UTC by its writer's clock" in text
    assert text.endswith("; 1 entry")


# -- removing ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["shared", "local", "memory"])
def recaller(request, tmp_path):
    """Recalls entries of a store."""
    objects = MemoryBucket()
    if request.param == "shared":
        yield Recaller(store=SharedStore(objects), objects=objects)
    elif request.param == "local":
        with LocalStore(tmp_path / "cache") as store:
            yield Recaller(store=store, objects=objects, directory=tmp_path / "cache")
    else:
        yield Recaller(store=MemoryStore(max_size=1 << 30), objects=objects, directory=tmp_path)


def put(store, key, *, writer="", created=1.0, raw=b"x", padding=0, extra=None):
    header = entry.Header(
        key=key, writer=writer, created=created, extra=({"padding": "p" * padding} if padding else {}) | (extra or {})
    )
    assert store.put(key, entry.encode(header, raw))


def keys(store):
    return sorted(info.key for info in store.entries())


def test_one_entry(recaller):
    """It goes, and is recalled by its bytes; the same command again says that it is gone."""
    store, objects = recaller.store, recaller.objects
    put(store, "good")
    put(store, "bad")
    data = store.peek("bad")
    report = recaller.entries(["bad", "absent"])
    assert (report.removed, report.absent) == (["bad"], ["absent"])
    assert keys(store) == ["good"]
    recalls = recalls_of(read_limits(objects))
    assert recalls.condemns(Stamp(1e10, "", entry.checksum_of(data)))
    assert recaller.entries(["bad"]).at == 0
    assert recalls_of(read_limits(objects)) == recalls


@pytest.mark.parametrize("forged", [None, {"recall": 2**53 - 1, "number": 2**36 - 1}])
@pytest.mark.parametrize(
    ("rule", "stays"),
    [
        (Rule(0.0, by="anna@h"), ["module_text-1", "of-bert", "old"]),
        (Rule(0.0, before=500.0), ["module_text-1", "of-anna", "of-bert"]),
        (Rule(0.0), []),
    ],
)
def test_rules(recaller, rule, stays, forged):
    """Texts of programs stay, but where everything goes; limits stay. Nothing in a header exempts an entry."""
    store, objects = recaller.store, recaller.objects
    change_policy(objects, {"max_size": 7})
    put(store, "of-anna", writer="anna@h/1-a", created=900.0, padding=20_000, extra=forged)
    put(store, "of-bert", writer="bert@h/1-a", created=900.0, extra=forged)
    put(store, "old", created=100.0, extra=forged)
    put(store, "module_text-1")
    report = recaller.by_rule(rule)
    assert keys(store) == stays
    assert sorted({"of-anna", "of-bert", "old"} - set(stays)) == sorted(report.removed)
    policy = read_limits(objects)
    assert policy["max_size"] == 7
    (stored,) = recalls_of(policy).rules
    assert stored == rule._replace(at=report.at)
    assert abs(report.at - time.time()) < 60


def test_a_date_in_the_future_does_not_help():
    """What the storage says of an entry's age condemns it as well; a recall of what comes later is one of until now."""
    objects = MemoryBucket()
    store = SharedStore(objects)
    put(store, "forged", created=9e9)
    report = Recaller(store=store, objects=objects).by_rule(Rule(0.0, before=9.9e9))
    assert report.removed == ["forged"]
    (rule,) = recalls_of(read_limits(objects)).rules
    assert rule.before == rule.at < time.time() + 60


class Killed(BaseException):
    """A process is killed here."""


@pytest.mark.parametrize("rule", [Rule(0.0, recalled_by="anna@ops"), Rule(0.0, by="anna@h")])
@pytest.mark.parametrize("step", range(1, 12))
def test_killed_in_the_middle_and_repeated(step, rule):
    """At whichever request: it is in force or not, and repeated it removes the rest."""
    objects = MemoryBucket()
    store = SharedStore(objects)
    for name in "abc":
        put(store, name, writer="anna@h/1-a")
    left = step

    def kill(*_):
        nonlocal left
        left -= 1
        if not left:
            raise Killed

    objects.before = kill
    try:
        Recaller(store=store, objects=objects).by_rule(rule)
    except Killed:
        objects.before = lambda *_: None
        Recaller(store=store, objects=objects).by_rule(rule)
    objects.before = lambda *_: None
    assert keys(store) == []
    assert recalls_of(read_limits(objects)).keeps_out(Stamp(1.0, "anna@h/1-a"))


def test_what_was_replaced_meanwhile_stays():
    """Each is removed only if it still is the one that was looked at."""
    objects = MemoryBucket()
    store = SharedStore(objects)
    put(store, "a", writer="anna@h/1-a")
    fresh = entry.encode(entry.Header(key="a", writer="anna@h/1-a", created=9e9), b"new")

    def replace(kind, name, *_):
        if kind == "delete" and "entries" in name:
            objects.before = lambda *_: None
            store.replace("a", fresh)

    objects.before = replace
    assert Recaller(store=store, objects=objects).by_rule(Rule(0.0, by="anna@h")).removed == []
    assert store.peek("a") == fresh


# -- policies that cannot be read --------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"{", b"", b"[" * 9999, encode_policy({"epoch": "x"}), b"x" * (MAX_BYTES + 1)])
def test_a_damaged_policy_is_not_changed(data):
    """It may have turned the cache off. Replaced on purpose it begins another epoch: what was stored is not found."""
    objects = MemoryBucket()
    objects.write(POLICY, data)
    store = SharedStore(objects)
    put(store, "a")
    for rule in (Rule(0.0), Rule(0.0, by="x")):
        with pytest.raises(PolicyDamagedError):
            Recaller(store=store, objects=objects).by_rule(rule)
    with pytest.raises(PolicyDamagedError):
        change_policy(objects, {"max_size": 5})
    assert (objects.read(POLICY).data, keys(store)) == (data, ["a"])
    change_policy(objects, {"max_size": 5}, replace_damaged=True)
    policy = read_limits(objects)
    assert (policy["enabled"], policy["max_size"]) == (True, 5)
    assert [each.epoch for each in epochs_of(policy).former] == [""]
    assert keys(SharedStore(present_place(objects))) == []


def test_a_later_policy_is_never_replaced():
    """The command fails instead, and removes nothing."""
    objects = MemoryBucket()
    objects.write(POLICY, encode_policy({"recalled": GOOD | {"version": 2}}))
    store = SharedStore(objects)
    put(store, "a")
    with pytest.raises(EntryVersionError):
        Recaller(store=store, objects=objects, replace_damaged=True).by_rule(Rule(0.0))
    assert keys(store) == ["a"]


def test_a_writer_sends_nothing_that_its_reader_refuses():
    """What would be too large is refused before it is sent."""
    objects = MemoryBucket()
    change_policy(objects, {"max_size": 5})
    with pytest.raises(UsageError, match="nobody reads"):
        change_policy(objects, {"unknown": "x" * MAX_BYTES})
    with pytest.raises(UsageError, match="nobody reads"):
        change_policy(objects, {"max_size": -5})
    assert read_limits(objects) == {"enabled": True, "max_size": 5}


# -- epochs ------------------------------------------------------------------------------------------------------------


def place(objects):
    """The store where the policy says that entries are."""
    return SharedStore(present_place(objects), root=objects)


def test_a_recall_of_everything_is_another_place():
    """Whoever knows it finds nothing there, whatever is written to the place before; then maintenance deletes that."""
    objects = MemoryBucket()
    before = place(objects)
    put(before, "a", created=9e9)
    objects.write("v1/journal/2026-01-01/x", b"kept")
    objects.write("autotune/x.json", b"kept")
    report = Recaller(store=before, objects=objects).by_rule(Rule(0.0))
    assert report.removed == ["a"]
    put(before, "late", created=9e9)
    after = place(objects)
    assert keys(after) == []
    put(after, "a")
    assert keys(after) == ["a"]
    (name,) = (info.name for info in objects.walk("v1/in-"))
    epochs = epochs_of(read_limits(objects))
    assert name.startswith(f"v1/in-{epochs.present}/v1/entries/")
    run_pass(after, None)
    assert keys(before) == []
    assert keys(place(objects)) == ["a"]
    assert objects.read("autotune/x.json").data == b"kept"
    Recaller(store=after, objects=objects).by_rule(Rule(0.0))
    again = epochs_of(read_limits(objects))
    assert [each.epoch for each in again.former] == ["", epochs.present]
    assert list(objects.walk("v1/in-")) == []


def test_maintenance_deletes_only_what_the_policy_lists():
    """An unknown place stays; so does a former one after thirty days, and when the policy has changed meanwhile."""
    objects = MemoryBucket()
    for epoch in ("", "a" * 16, "b" * 16, "c" * 16):
        objects.write(f"{folder_of(epoch)}v1/entries/00/k", b"x")
    day = 86_400.0
    former = (FormerEpoch("a" * 16, 1e9), FormerEpoch("b" * 16, 1e9 - 31 * day))
    objects.write(POLICY, encode_policy(encode_epochs(Epochs("d" * 16, former))))
    gone = list(EndedEpochs(objects, now=1e9 + day).remove())
    assert gone == [f"v1/in-{'a' * 16}/v1/entries/00/k"]
    objects.write(f"{folder_of('a' * 16)}v1/entries/00/k", b"x")
    places = EndedEpochs(objects, now=1e9 + day)
    objects.write(POLICY, encode_policy({}))
    assert list(places.remove()) == []
    objects.write(POLICY, b"{")
    assert list(EndedEpochs(objects).remove()) == []
    objects.delete(POLICY)
    assert list(EndedEpochs(objects).remove()) == []
    assert len(list(objects.walk("v1/"))) == 4


def test_eviction_sees_the_present_place_alone():
    """Its limit holds for what is there; uses and leftovers are those of the whole cache."""
    objects = MemoryBucket()
    Recaller(store=place(objects), objects=objects).by_rule(Rule(0.0))
    store = place(objects)
    put(store, "a")
    put(SharedStore(objects), "elsewhere")
    report = run_pass(store, EvictionPolicy(max_size=0), now=lambda: time.time() + 3600)
    assert (report.removed, keys(store)) == (1, [])


def test_a_cache_of_one_host_is_emptied(tmp_path):
    """Its quarantine and what XLA has stored go with its entries; it is where it was."""
    with LocalStore(tmp_path / "cache") as store:
        put(store, "a")
        put(store, "bad")
        assert store.quarantine("bad", store.peek("bad"))
        with FileBucket(tmp_path / "cache", local=True, documents=True) as objects:
            for name in ("v1/xla/env/x.pb", "v1/xla-processes/env/1-0123456789ab/y.pb"):
                objects.write(name, b"x")
            report = Recaller(store=store, objects=objects, directory=tmp_path / "cache").by_rule(Rule(0.0))
            assert report.removed == ["a"]
            assert epochs_of(read_limits(objects)) == Epochs()
            for prefix in ("v1/quarantine/", "v1/xla/", "v1/xla-processes/"):
                assert list(objects.walk(prefix)) == []
        assert keys(store) == []
        put(store, "a")
        assert keys(store) == ["a"]
