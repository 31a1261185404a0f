"""What is recalled: its format, which entries a recall takes back, and what is left of many."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from memory_bucket import MemoryBucket

from ejcache import entry, entry_encoding
from ejcache.errors import EntryCorruptError, EntryVersionError
from ejcache.maintenance.recalling import recall_by_rule, recall_entries
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
    change_limits,
    decode_policy,
    encode_policy,
    read_limits,
    recalls_of,
)
from ejcache.stores.local.store import LocalStore
from ejcache.stores.memory import MemoryStore
from ejcache.stores.shared.store import SharedStore

GOLDEN = Path(__file__).parents[1] / "data" / "policy" / "policy-v1.json"
EVERYTHING = Rule(10, recalled_by="anna@ops")
BY_BERT = Rule(20, by="node-3", recalled_by="anna@ops")
BEFORE = Rule(30, before=1000.5, recalled_by="anna@ops")
CHECKSUM = bytes(range(32))
ALL = (
    Recalls(5).with_rule(EVERYTHING).with_rule(BY_BERT).with_rule(BEFORE).with_entries([digests_of("k", CHECKSUM)], 40)
)


def test_golden_file():
    """The first format is read as it was written, and written as it was."""
    data = GOLDEN.read_bytes()
    assert recalls_of(decode_policy(data)) == ALL
    assert encode_policy({"max_size": 5, "recalled": encode_recalls(ALL)}) == data


@pytest.mark.parametrize("recalls", [Recalls(), ALL, Recalls(3).with_rule(Rule(4, by="a@b/c", unfinished=True))])
def test_round_trip(recalls):
    """What is written is read again; nothing is written of nothing."""
    written = encode_recalls(recalls)
    assert decode_recalls(None if written is None else json.loads(json.dumps(written))) == recalls
    assert (written is None) == (recalls == Recalls())


RULE = {"number": 10, "recalled_by": "a", "all": True}
GOOD = {"version": 1, "number": 50, "dropped": 0, "rules": [RULE], "entries": {"0" * 32: 9}}


@pytest.mark.parametrize(
    "change",
    [
        {"version": 0},
        {"version": []},
        {"number": 0},
        {"number": True},
        {"number": 5},
        {"number": 1 << 70},
        {"number": 1e9},
        {"dropped": -1},
        {"dropped": 51},
        {"rules": {}} | {"entries": []},
        {"rules": [[]]},
        {"rules": [RULE] * (MOST_RULES + 1)},
        {"rules": [RULE | {"by": "x"}]},
        {"rules": [RULE | {"all": False}]},
        {"rules": [{"number": 3, "recalled_by": "a"}]},
        {"rules": [{"number": 3, "all": True}]},
        {"rules": [{"number": 3, "recalled_by": "a", "by": ""}]},
        {"rules": [{"number": 3, "recalled_by": "a", "by": "x" * 999}]},
        {"rules": [{"number": 3, "recalled_by": "a", "before": float("inf")}]},
        {"rules": [{"number": 3, "recalled_by": "a", "before": float("nan")}]},
        {"rules": [{"number": 3, "recalled_by": "a", "before": True}]},
        {"rules": [{"number": 3, "recalled_by": "a", "before": "9" * 5000}]},
        {"entries": {"0" * 31: 1}},
        {"entries": {"G" * 32: 1}},
        {"entries": {"0" * 32: 51}},
        {"entries": {f"{number:032x}": 1 for number in range(MOST_ENTRIES + 1)}},
    ],
)
def test_what_is_no_list_of_recalls(change):
    """Damage and nonsense recall nothing."""
    assert decode_recalls(GOOD).number == 50
    with pytest.raises((EntryCorruptError, EntryVersionError)):
        decode_recalls(GOOD | change)


@pytest.mark.parametrize("fields", [[], 5, "x", {}, True])
def test_what_is_of_another_kind(fields):
    """The field may hold anything."""
    with pytest.raises(EntryCorruptError):
        decode_policy(encode_policy({"recalled": fields}))


def test_a_later_version():
    """It is told apart from damage, so that nobody replaces it."""
    with pytest.raises(EntryVersionError):
        decode_policy(encode_policy({"recalled": GOOD | {"version": 2}}))


@pytest.mark.parametrize(
    ("rule", "stamp", "included"),
    [
        (EVERYTHING, Stamp(5.0, "", 0), True),
        (EVERYTHING, Stamp(5.0, "", 9), True),
        (EVERYTHING, Stamp(5.0, "", 10), False),
        (BY_BERT, Stamp(5.0, "bert@node-3/7-a", 19), True),
        (BY_BERT, Stamp(5.0, "bert@node-3/7-a", 20), False),
        (BY_BERT, Stamp(5.0, "bert@node-33/7-a", 0), False),
        (BY_BERT, Stamp(5.0, "", 0), False),
        (BY_BERT._replace(by="bert@"), Stamp(5.0, "bert@node-1/7-a", 0), True),
        (BY_BERT._replace(by="bert@node-3"), Stamp(5.0, "bert@node-3/7-a", 0), True),
        (BY_BERT._replace(by="bert@node-3/7-a"), Stamp(5.0, "bert@node-3/7-a", 0), True),
        (BY_BERT._replace(by="bert@node-3/7-b"), Stamp(5.0, "bert@node-3/7-a", 0), False),
        (BY_BERT._replace(by="bert"), Stamp(5.0, "bert@node-3/7-a", 0), False),
        (BEFORE, Stamp(1000.4, "", 0), True),
        (BEFORE, Stamp(1000.5, "", 0), False),
        (BEFORE, Stamp(1000.4, "", 30), False),
    ],
)
def test_which_entries_a_rule_recalls(rule, stamp, included):
    """Those that a process has stored which did not know of it."""
    assert Recalls(50, rules=(rule,)).includes(stamp) is included


def test_an_entry_is_recalled_by_its_bytes():
    """Another one under the same key is not; a key says which entries are to be looked at."""
    recalls = Recalls().with_entries([digests_of("k", CHECKSUM)], 7)
    assert recalls.includes(Stamp(1.0, "", 99, CHECKSUM)) is True
    assert recalls.includes(Stamp(1.0, "", 0, CHECKSUM[::-1])) is False
    assert (recalls.may_include("k"), recalls.may_include("other")) == (True, False)


def test_what_is_kept_of_many():
    """The oldest entries and rules go first, and what went is said; what a later rule covers is not kept."""
    recalls = Recalls().with_entries([f"{number:032x}" for number in range(MOST_ENTRIES)], 5)
    assert (recalls.dropped, len(recalls.entries)) == (0, MOST_ENTRIES)
    recalls = recalls.with_entries(["f" * 32], 6)
    assert (recalls.dropped, len(recalls.entries), recalls.number) == (5, MOST_ENTRIES, 6)
    assert recalls.with_entries(["f" * 32], 7) is recalls
    for number in range(7, 7 + MOST_RULES):
        recalls = recalls.with_rule(Rule(number, by=f"node-{number}"))
    assert (len(recalls.rules), recalls.dropped) == (MOST_RULES, 5)
    assert recalls.with_rule(Rule(90, by="another")).dropped == 7
    again = recalls.with_rule(Rule(90, by="node-9"))
    assert (len(again.rules), again.dropped) == (MOST_RULES, 5)
    everything = recalls.with_rule(Rule(90))
    assert everything == Recalls(90, rules=(Rule(90),))
    older, newer = Rule(91, before=5.0), Rule(92, before=6.0)
    assert everything.with_rule(older).with_rule(newer).rules == (Rule(90), newer)


def test_the_largest_fits_into_the_document():
    """Hosts read no more than that."""
    recalls = Recalls().with_entries([f"{number:032x}" for number in range(MOST_ENTRIES)], (1 << 36) - 2)
    for number in range(MOST_RULES):
        rule = Rule((1 << 36) - 1, by=f"{number:02}" + "w" * 158, recalled_by="r" * 80, unfinished=True)
        recalls = recalls.with_rule(rule)
    data = encode_policy({"max_size": 1 << 60, "recalled": encode_recalls(recalls)})
    assert len(data) < MAX_BYTES
    assert recalls_of(decode_policy(data)) == recalls


def test_numbers_only_rise():
    """Whatever the clocks of operators say."""
    assert Recalls(100).next_number(now=50.9) == 101
    assert Recalls(100).next_number(now=500.9) == 500


def test_words():
    """What stats and doctor show."""
    assert recalls_in_words(Recalls()) == ""
    text = recalls_in_words(ALL)
    assert text.startswith("recalled: everything, by anna@ops, 1970-01-01 00:00 UTC; what node-3 has stored")
    assert "before 1970-01-01 00:16 UTC by its writer's clock" in text
    assert text.endswith("; 1 entry")
    assert "not finished" in recalls_in_words(Recalls().with_rule(Rule(4, unfinished=True)))


# -- removing ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["shared", "local", "memory"])
def place(request, tmp_path):
    """A store, and where its policy is."""
    objects = MemoryBucket()
    if request.param == "shared":
        yield SharedStore(objects), objects
    elif request.param == "local":
        with LocalStore(tmp_path / "cache") as store:
            yield store, objects
    else:
        yield MemoryStore(max_size=1 << 30), objects


def put(store, key, *, writer="", created=1.0, recall=0, raw=b"x", padding=0):
    extra = {"padding": "p" * padding} if padding else {}
    header = entry.Header(key=key, writer=writer, created=created, recall=recall, extra=extra)
    assert store.put(key, entry_encoding.encode(header, raw))


def keys(store):
    return sorted(info.key for info in store.entries())


def test_one_entry(place):
    """It goes, and is recalled by its bytes; the same command again says that it is gone."""
    store, objects = place
    put(store, "good")
    put(store, "bad")
    data = store.peek("bad")
    report = recall_entries(store, objects, ["bad", "absent"], now=1e9)
    assert (report.removed, report.absent, report.number) == (["bad"], ["absent"], 1_000_000_000)
    assert keys(store) == ["good"]
    recalls = recalls_of(read_limits(objects))
    assert recalls.includes(Stamp(1.0, "", 0, entry.checksum_of(data)))
    assert recall_entries(store, objects, ["bad"], now=2e9).number == 0
    assert recalls_of(read_limits(objects)) == recalls


@pytest.mark.parametrize(
    ("rule", "stays"),
    [
        (Rule(0), ["knows", "module_text-1"]),
        (Rule(0, by="anna@h"), ["knows", "module_text-1", "of-bert", "old"]),
        (Rule(0, before=500.0), ["knows", "module_text-1", "of-anna", "of-bert"]),
    ],
)
def test_rules(place, rule, stays):
    """What a process has stored that knew of a later recall stays, and so do the texts of programs; limits stay."""
    store, objects = place
    change_limits(objects, {"max_size": 7})
    put(store, "of-anna", writer="anna@h/1-a", created=900.0, padding=20_000)
    put(store, "of-bert", writer="bert@h/1-a", created=900.0)
    put(store, "old", created=100.0)
    put(store, "knows", writer="anna@h/1-a", recall=2_000_000_000)
    put(store, "module_text-1")
    report = recall_by_rule(store, objects, rule, now=1e9)
    assert keys(store) == stays
    assert sorted({"of-anna", "of-bert", "old"} - set(stays)) == sorted(report.removed)
    policy = read_limits(objects)
    assert policy["max_size"] == 7
    assert [(each.number, each.unfinished) for each in recalls_of(policy).rules] == [(1_000_000_000, False)]


class Killed(BaseException):
    """A process is killed here."""


@pytest.mark.parametrize("step", range(1, 9))
def test_killed_in_the_middle_and_repeated(step):
    """At whichever request: it is in force or not, and repeated it is the same one, so nothing stored since is lost."""
    objects = MemoryBucket()
    store = SharedStore(objects)
    for name in "abc":
        put(store, name)
    left = step

    def kill(*_):
        nonlocal left
        left -= 1
        if not left:
            raise Killed

    objects.before = kill
    rule = Rule(0, recalled_by="anna@ops")
    with pytest.raises(Killed):
        recall_by_rule(store, objects, rule, now=1e9)
    objects.before = lambda *_: None
    begun = recalls_of(read_limits(objects) or {})
    if begun.number:
        put(store, "since", recall=begun.number)
    recall_by_rule(store, objects, rule, now=2e9)
    assert keys(store) == (["since"] if begun.number else [])
    (done,) = recalls_of(read_limits(objects)).rules
    assert (done.number, done.unfinished) == (begun.number or 2_000_000_000, False)


def test_what_was_replaced_meanwhile_stays():
    """Each is removed only if it still is the one that was looked at."""
    objects = MemoryBucket()
    store = SharedStore(objects)
    put(store, "a")
    fresh = entry_encoding.encode(entry.Header(key="a", recall=3_000_000_000), b"new")

    def replace(kind, name, *_):
        if kind == "delete":
            objects.before = lambda *_: None
            store.replace("a", fresh)

    objects.before = replace
    assert recall_by_rule(store, objects, Rule(0), now=1e9).removed == []
    assert store.peek("a") == fresh


def test_a_later_policy_is_not_replaced():
    """The command fails instead, and removes nothing."""
    objects = MemoryBucket()
    objects.write(POLICY, encode_policy({"recalled": GOOD | {"version": 2}}))
    store = SharedStore(objects)
    put(store, "a")
    with pytest.raises(EntryVersionError):
        recall_by_rule(store, objects, Rule(0), now=1e9)
    assert keys(store) == ["a"]
