"""Recency on shared storage: the format, the journals of processes, and what they are folded into."""

from __future__ import annotations

import contextlib
import json
import random
import zlib
from pathlib import Path

import hypothesis.strategies as st
import pytest
from archives import flipped
from helpers import raiser, traced_memory, used_in, uses
from hypothesis import given
from memory_bucket import MemoryBucket
from store_suite import ODD_KEYS

from ejcache.bucket.files import FileBucket
from ejcache.errors import EntryCorruptError, EntryVersionError, StoreUnavailableError
from ejcache.journal.fold import compact
from ejcache.journal.format import (
    JOURNALS,
    SNAPSHOT,
    Folded,
    decode_folded,
    decode_lines,
    decode_pieces,
    decode_record_lines,
    decode_sums,
    encode_journal,
    encode_ordered,
)
from ejcache.journal.line import EntryUse
from ejcache.journal.shared_journal import SharedJournal
from ejcache.maintenance.listed_entries import Listing
from ejcache.stores.base import EntryInfo
from ejcache.stores.worth import order_by_cost

GOLDEN = Path(__file__).parents[1] / "data" / "journal"
USES = {
    "jit_f-0123": EntryUse(1_700_000_000.0, 12, 2.5),
    "漢字 and spaces": EntryUse(1_700_000_060.0),
    "\u2028line": EntryUse(0.0, 0, 0.01),
}
NOW = 1_700_000_000.0


# -- the format ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["journal-v1", "snapshot-v1"])
def test_golden_files(name):
    """Files that version 1 has written are read for ever."""
    assert dict(decode_lines((GOLDEN / name).read_bytes())) == USES


def test_writes_what_version_1_wrote():
    """The same uses are the same bytes; only compressed ones may depend on the compressor."""
    assert encode_journal(USES) == (GOLDEN / "journal-v1").read_bytes()


A_USE = st.builds(
    EntryUse, st.integers(0, 2**40), st.integers(0, 2**50), st.sampled_from([None, 0.01, 12.5, 1.25e20, -3.0])
)


@given(st.dictionaries(st.sampled_from(ODD_KEYS), A_USE), st.booleans())
def test_round_trip(used, compress):
    """Every key that a store takes comes back, with whole seconds, the number of uses, and its worth."""
    assert dict(decode_lines(encode_journal(used, compress=compress))) == used


@pytest.mark.parametrize("compress", [False, True])
def test_no_damage_goes_unseen(compress):
    """A truncated or flipped file is refused, wherever it is damaged."""
    data = encode_journal(USES, compress=compress)
    for length in range(len(data)):
        with pytest.raises((EntryCorruptError, EntryVersionError)):
            dict(decode_lines(data[:length]))
    for bit in range(len(data) * 8):
        with contextlib.suppress(EntryCorruptError, EntryVersionError):
            assert dict(decode_lines(flipped(data, bit))) == USES  # a letter of a field that nobody reads


def changed(**fields):
    header, _, body = encode_journal(USES).partition(b"\n")
    return json.dumps(json.loads(header) | fields).encode() + b"\n" + body


def test_later_versions():
    """A later version is told from damage; fields that this version does not know are no matter."""
    with pytest.raises(EntryVersionError):
        dict(decode_lines(changed(version=2)))
    assert dict(decode_lines(changed(later="field"))) == USES


def with_body(body, **fields):
    header = {"format": "ejcache-journal", "version": 1, "codec": "plain", "crc32": zlib.crc32(body), "count": 1}
    return json.dumps(header | fields).encode() + b"\n" + body


@pytest.mark.parametrize(
    "data",
    [
        changed(codec="zstd"),
        changed(count=4),
        changed(format="other"),
        b"[]\n",
        b"\n",
        b"{" * 10_000,
        b"[" * 4_000 + b"\n",
        with_body(b"12\t1\t\tk"),
        with_body(b"x\t1\t\tk\n"),
        with_body(b"12\t1\t\t\n"),
        with_body(b"12 1\t\tk\n"),
        with_body(b"12\t1\t\t\xff\n"),
        with_body(b"12\t1\t\ta\tb\n"),
        with_body(b"9" * 400 + b"\t1\t\tk\n"),
        with_body(zlib.compress(b"12\t1\t\tk\n")[:-1], codec="zlib"),
        with_body(b"1" * 10_000 + b"\t1\t\tk\n"),
        with_body(b"12\t1\t\tk\n", count=10**4000),
        with_body(b"12\t1\t\tk\n", crc32=float("nan")),
        b'{"version": ' + b"9" * 4_050 + b"}\n",
        with_body(b"9" * 5_000 + b"\t1\t\tk\n"),
        with_body(b"12\tk\n"),
        with_body(b"12\t-1\t\tk\n"),
        with_body(b"12\t1.5\t\tk\n"),
        with_body(b"12\t1\tnan\tk\n"),
        with_body(b"12\t1\tinf\tk\n"),
        with_body(b"12\t" + b"9" * 400 + b"\t\tk\n"),
    ],
    ids=range(26),
)
def test_what_nobody_wrote(data):
    """Intact by its checksum or not, what is no list of uses is refused as such."""
    with pytest.raises(EntryCorruptError):
        dict(decode_lines(data))


@pytest.mark.parametrize("compress", [False, True])
def test_pieces_are_as_good_as_the_whole(compress):
    """A file that is read piece by piece gives the same uses, and damage in the last piece is found."""
    used = uses({f"key {number}": number for number in range(5000)})
    data = encode_journal(used, compress=compress)
    pieces = [data[start : start + 5000] for start in range(0, len(data), 5000)]
    assert dict(decode_pieces(pieces)) == used
    with pytest.raises(EntryCorruptError):
        dict(decode_pieces([*pieces[:-1], flipped(pieces[-1], -8)]))
    with pytest.raises(EntryCorruptError):
        dict(decode_pieces(pieces[:-1]))


@pytest.mark.parametrize("compress", [False, True])
def test_a_line_without_end_takes_linear_time(compress):
    """A body of one endless line is refused after a few pieces, not after copying it for each of them."""
    body = b"1" * (32 << 20)
    stored = zlib.compress(body, 1) if compress else body
    data = with_body(stored, codec="zlib" if compress else "plain")
    with traced_memory() as peak, pytest.raises(EntryCorruptError):
        dict(decode_lines(data))
    assert peak[0] < 4 << 20


def test_a_bomb_is_refused_after_its_limit():
    """What a journal expands to is bounded: a few hundred kilobytes cannot become a gigabyte."""
    line = b"12\t1\t\tkey\n"
    bomb = with_body(zlib.compress(line * 900_000, 1), codec="zlib", count=900_000)
    read = []
    with pytest.raises(EntryCorruptError, match="more than"):
        read.extend(map(len, decode_lines(bomb, limit=1 << 20)))
    assert len(read) * len(line) <= 1 << 20


def test_larger_than_a_journal():
    """What is larger than a journal may be is refused before it is read."""
    with pytest.raises(EntryCorruptError, match="larger"):
        dict(decode_lines(encode_journal(USES), limit=10))


def test_a_record_follows_the_uses():
    """It is read beside the uses; cut or damaged, it takes no use with it that can be trusted."""
    lines = [b'{"v": 1}', b"x" * 50_000]
    for compress in (False, True):
        data = encode_journal(USES, sums={"hits": 1}, compress=compress, record=lines)
        assert (decode_record_lines(data), dict(decode_lines(data)), decode_sums(data)) == (lines, USES, {"hits": 1})
        assert decode_record_lines(data[:-1]) == []
        assert dict(decode_lines(data[:-5] + b"\0\0\0\0\0")) == USES
        with pytest.raises(EntryCorruptError):
            dict(decode_lines(data[:-1]))
    assert decode_record_lines(encode_journal(USES)) == decode_record_lines(b"junk") == []
    bomb = encode_journal({}, record=[b"x" * (9 << 20)])
    assert decode_record_lines(bomb) == []


def test_what_was_folded_is_in_the_header():
    """Sums and names of journals come back; those of a later version are not known, and damage is nothing."""
    data = (GOLDEN / "snapshot-v1").read_bytes()
    name = f"{JOURNALS}2023-11-14/host-1-{0:032x}-0"
    assert decode_folded(data) == ({"hits": 5, "seconds_saved": 1.5}, {name}, False)
    assert decode_folded(encode_journal(USES)) == ({}, set(), False)
    assert decode_folded(changed(version=2, sums={"hits": 1})) == ({}, set(), True)
    for other in (b"", b"garbage\n", changed(format="other", sums={"hits": 1}), changed(folded=5), data[:50]):
        assert decode_folded(other) == ({}, set(), False)


# -- journals --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "files"])
def objects(request, tmp_path):
    return MemoryBucket() if request.param == "memory" else FileBucket(tmp_path / "shared")


def names(objects):
    return sorted(info.name for info in objects.walk(JOURNALS))


def journal_name(number=0):
    return f"{JOURNALS}2023-11-14/host-1-{number:032x}-0"


def journal(objects, used, *, number=0):
    objects.write(journal_name(number), encode_journal(uses(used)))


def compacted_in(objects):
    """The compaction, and the uses that it noted."""
    listing = Listing()
    return compact(objects, listing, now=NOW), {key: use.when for key, use in listing.uses()}


# -- folding ---------------------------------------------------------------------------------------------------------


def test_compact(objects):
    """Journals become one snapshot with each key's last use, and are gone; once more changes nothing."""
    for n in range(20):
        journal(objects, {"shared": 100.0 + n, f"own-{n}": 50.0}, number=n)
    compaction, used = compacted_in(objects)
    expected = {"shared": 119.0} | {f"own-{n}": 50.0 for n in range(20)}
    assert (used, compaction.journals, compaction.damaged, compaction.written) == (expected, 20, 0, True)
    assert names(objects) == [SNAPSHOT]
    assert compacted_in(objects)[1] == used_in(objects) == expected
    journal(objects, {"shared": 60.0, "new": 200.0})
    assert compacted_in(objects)[1] == used_in(objects) == expected | {"new": 200.0}


def numbers(objects):
    """The uses of each key that the snapshot has."""
    return dict(decode_lines(objects.read(SNAPSHOT).data))


def test_numbers_are_folded_once(objects, monkeypatch):
    """Uses add up over journals and passes, the last worth counts, and a pass that dies halfway adds nothing twice."""
    objects.write(journal_name(1), encode_journal({"k": EntryUse(10.0, 2, 4.0), "put": EntryUse(10.0, 0, 1.5)}))
    objects.write(journal_name(2), encode_journal({"k": EntryUse(5.0, 3, 7.0), "nobody says": EntryUse(5.0)}))
    compacted_in(objects)
    assert numbers(objects) == {
        "k": EntryUse(10.0, 5, 4.0),
        "put": EntryUse(10.0, 0, 1.5),
        "nobody says": EntryUse(5.0),
    }
    objects.write(journal_name(3), encode_journal({"k": EntryUse(20.0)}))
    with monkeypatch.context() as patched:
        patched.setattr(objects, "delete_many", raiser(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            compacted_in(objects)
    for _ in range(2):
        compacted_in(objects)
        assert numbers(objects)["k"] == EntryUse(20.0, 6, 4.0)
    assert names(objects) == [SNAPSHOT]


def test_an_entry_has_an_order(objects):
    """An entry is listed with its uses, and with what these are worth for each byte, less with each day without one."""
    day = 86_400.0
    uses = {"k": EntryUse(NOW, 3, 4.0), "put": EntryUse(NOW, 0, 2.0), "old": EntryUse(NOW - 3 * day, 3, 4.0)}
    objects.write(journal_name(1), encode_journal(uses))
    listing = Listing()
    listing.add(EntryInfo(key, 8, 1.0, 1.0) for key in (*uses, "unknown"))
    compact(objects, listing, now=NOW)
    found = {info.key: (info.hits, order_by_cost(info, now=NOW), info.worth) for info in listing.entries()}
    assert found == {"k": (3, 1.0, 4.0), "put": (0, 0.25, 2.0), "old": (3, 0.25, 4.0), "unknown": (0, None, None)}


def test_nothing_to_fold(objects):
    """Folding nothing writes a snapshot all the same: it tells others that somebody has looked."""
    assert compacted_in(objects)[1] == {}
    before = objects.read(SNAPSHOT).version
    compacted_in(objects)
    assert objects.read(SNAPSHOT).version != before


def test_wrong_clocks(objects):
    """A use in the future, by a clock that is wrong, counts as now."""
    journal(objects, {"k": NOW + 10_000})
    assert compacted_in(objects)[1] == {"k": NOW}


def test_forgotten_entries(objects):
    """What is known of entries that are gone is forgotten, unless the use is so new that the entry may be."""
    journal(objects, {"there": 5.0, "gone": 5.0, "new": NOW - 60})
    listing = Listing()
    listing.add([EntryInfo("there", 1, 0.0, 0.0, "1")])
    compact(objects, listing, complete=True, now=NOW)
    assert used_in(objects) == {"there": 5.0, "new": NOW - 60}


def test_damaged_journals(objects):
    """A damaged journal is deleted and counted; one of a later version is left for processes that can read it."""
    journal(objects, {"k": 5.0})
    objects.write(journal_name(1), encode_journal(USES)[:-1])
    later = b'{"codec":"plain",' + changed(version=2)[1:]
    objects.write(journal_name(2), later)
    compaction, used = compacted_in(objects)
    assert (used, compaction.journals, compaction.damaged, compaction.left) == ({"k": 5.0}, 1, 1, 1)
    assert names(objects) == [journal_name(2), SNAPSHOT]


def test_files_of_others_are_left_alone(objects):
    """What is not named as a journal, or does not begin as one, was not written by ejcache and is never deleted."""
    foreign = [f"{JOURNALS}2023-11-14/thesis.tex", f"{JOURNALS}notes", journal_name(3)]
    for name in foreign:
        objects.write(name, b"a private text")
    compaction, used = compacted_in(objects)
    assert (used, compaction.damaged) == ({}, 0)
    assert sorted(names(objects)) == sorted([*foreign, SNAPSHOT])


def test_a_snapshot_is_read_in_pieces(tmp_path):
    """Reading a large snapshot takes less memory than it has bytes."""
    objects, chosen = FileBucket(tmp_path / "shared"), random.Random(0)
    listing = Listing()
    used = {chosen.randbytes(2_000).hex(): 1.0 for _ in range(2_000)}
    objects.write(SNAPSHOT, encode_journal(uses(used), compress=True))
    size = objects.stat(SNAPSHOT).size
    assert size > 4_000_000
    compact(objects, listing, dry_run=True)
    with traced_memory() as peak:
        compact(objects, listing, dry_run=True)
    assert peak[0] < 0.8 * size


def test_damaged_snapshot(objects):
    """A damaged snapshot begins anew; one of a later version is neither read nor overwritten."""
    objects.write(SNAPSHOT, b"garbage")
    journal(objects, {"k": 5.0})
    assert compacted_in(objects)[1] == {"k": 5.0}
    objects.write(SNAPSHOT, changed(version=2))
    journal(objects, {"l": 6.0})
    compaction, used = compacted_in(objects)
    assert (used, compaction.written, compaction.left) == ({"l": 6.0}, False, 1)
    assert objects.read(SNAPSHOT).data == changed(version=2)
    assert len(names(objects)) == 2


def test_sums_outlive_damaged_uses(objects):
    """The header of a snapshot whose uses are damaged is believed: what it has counted and folded is not lost."""
    objects.write(journal_name(1), encode_journal(uses({"k": 5.0}), sums={"hits": 2}))
    compacted_in(objects)
    objects.write(SNAPSHOT, objects.read(SNAPSHOT).data[:-1])
    objects.write(journal_name(2), encode_journal(uses({"l": 6.0}), sums={"hits": 3}))
    assert compacted_in(objects)[1] == {"l": 6.0}
    assert Folded.read(objects).sums == {"hits": 5}


def test_a_snapshot_that_names_many_journals(objects):
    """Its header is read whole, however long it is, and each of its uses is there."""
    folded = [f"{JOURNALS}2023-11-14/{'h' * 60}-1-{number:032x}-0" for number in range(12_000)]
    objects.write(SNAPSHOT, encode_ordered(uses({"k": 5.0}).items, sums={"hits": 2}, compress=True, folded=folded))
    assert Folded.read(objects).names == set(folded)
    assert compacted_in(objects)[1] == {"k": 5.0}
    assert Folded.read(objects)[:2] == ({"hits": 2}, set())  # none of them is there any more


def test_a_later_version_is_left_and_said(objects, caplog):
    """Who counts says that what a later version has folded is not in the numbers, and no pass changes it."""
    objects.write(SNAPSHOT, changed(version=2, sums={"hits": 7}))
    usage = SharedJournal(objects)
    usage.add({"hits": 1})
    usage.write()
    assert usage.total() == {"hits": 1}
    assert "a later version of ejcache" in caplog.text
    compacted_in(objects)
    assert objects.read(SNAPSHOT).data == changed(version=2, sums={"hits": 7})
    assert usage.total() == {"hits": 1}


def test_two_fold_at_once():
    """Of two that fold at the same moment neither loses what the other has folded, nor a new journal."""
    objects = MemoryBucket()
    journal(objects, {"a": 5.0}, number=1)
    write = objects.write

    def late(name, data, *, version=None):
        if name == SNAPSHOT:
            objects.write = write
            compacted_in(objects)
            journal(objects, {"b": 6.0}, number=2)
        return write(name, data, version=version)

    objects.write = late
    assert compacted_in(objects)[1] == {"a": 5.0, "b": 6.0}
    assert used_in(objects) == {"a": 5.0, "b": 6.0}
    assert names(objects) == [SNAPSHOT]


def test_others_keep_folding():
    """A process that never gets to write the snapshot has noted the uses, and leaves the journals."""
    objects = MemoryBucket()
    journal(objects, {"k": 5.0})
    objects.write = lambda *args, **options: None
    compaction, used = compacted_in(objects)
    assert (used, compaction.written, compaction.journals) == ({"k": 5.0}, False, 0)
    assert len(names(objects)) == 1


def test_journal_that_cannot_be_read_now():
    """A journal that the storage will not give now stays for the next time."""
    objects = MemoryBucket()
    journal(objects, {"a": 5.0}, number=1)
    journal(objects, {"b": 6.0}, number=0xF)
    read = objects.read

    def failing(name, **options):
        if name == journal_name(0xF):
            raise StoreUnavailableError("reset")
        return read(name, **options)

    objects.read = failing
    compaction, used = compacted_in(objects)
    assert (used, compaction.left) == ({"a": 5.0}, 1)
    objects.read = read
    assert compacted_in(objects)[1] == {"a": 5.0, "b": 6.0}
