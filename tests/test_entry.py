"""The envelope: what it keeps, what it refuses, and that version 1 stays readable."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest
import zstandard
from archives import flipped, framed
from hypothesis import given
from hypothesis import strategies as st

from ejcache import entry
from ejcache.errors import EntryCorruptError, EntryForeignError, EntryVersionError

DATA = Path(__file__).parent / "data" / "entry"

HEADER = entry.Header(
    key="jit_f-cpu-plain-0123",
    name="jit_f",
    compile_seconds=1.25,
    created=1_700_000_000.5,
    platform="cpu",
    jax="0.12.0",
    jaxlib="0.12.0",
    components={"computation": "ab", "flags": "cd"},
)

SMALL = {"key": "k", "codec": "none", "payload_size": 1, "raw_size": 1}


@given(raw=st.binary(max_size=2000), level=st.sampled_from([0, 1, 3, 19]))
def test_round_trip(raw, level):
    """What goes in comes out, at every level."""
    data = entry.encode(HEADER, raw, level=level)

    found = entry.decode(data, key=HEADER.key)

    assert found.raw == raw
    assert found.header.raw_size == len(raw)
    assert found.header.codec == ("zstd" if level else "none")
    assert entry.verify(data) == found.header == entry.decode_header(data)


@pytest.mark.parametrize("size", [2046, 2047, 2048, 4094, 4095, (1 << 15) - 1, 1 << 15, (1 << 15) + 1])
def test_small_entries_have_the_same_checksum_as_large_ones(size):
    """It is computed piece by piece below a size, and at once above it."""
    data = entry.encode(entry.Header(key="k"), random.Random(size).randbytes(size), level=0)
    assert hashlib.sha256(data[:-32]).digest() == data[-32:]
    entry.verify(data)
    for place in (len(data) - 33, len(data) // 2, 2046, 2047, 2048):
        with pytest.raises(EntryCorruptError, match="checksum"):
            entry.verify(flipped(data, 8 * (place % (len(data) - 32))))


@pytest.mark.parametrize("level", [0, 3])
def test_every_flip_and_truncation_of_a_small_entry_is_detected(level, monkeypatch):
    """No single flipped bit and no truncation gets as far as the decompressor."""
    data = entry.encode(HEADER, b"an executable" * 9, level=level)

    def decompressed(*_):
        pytest.fail("damage reached the decompressor")

    monkeypatch.setattr(entry, "decompress", decompressed)
    for bit in range(len(data) * 8):
        with pytest.raises(EntryCorruptError):
            entry.decode(flipped(data, bit), key=HEADER.key)
    for length in range(len(data)):
        with pytest.raises(EntryCorruptError):
            entry.decode(data[:length], key=HEADER.key)
        with pytest.raises(EntryCorruptError):
            entry.decode(data + data[:length] if length else data + b"\0", key=HEADER.key)


def test_sampled_flips_and_truncations_of_a_large_entry_are_detected():
    """500 flips and truncations of a 1 MB entry: every one is an `EntryCorruptError`."""
    rng = random.Random(20)
    data = entry.encode(HEADER, rng.randbytes(1_000_000))
    for number in range(500):
        damaged = flipped(data, rng.randrange(len(data) * 8)) if number % 2 else data[: rng.randrange(len(data))]
        with pytest.raises(EntryCorruptError):
            entry.decode(damaged, key=HEADER.key)


def test_an_entry_of_another_key_is_refused():
    """A damaged or hostile index that answers with somebody else's entry gets nowhere."""
    data = entry.encode(HEADER, b"x")

    with pytest.raises(EntryForeignError, match="jit_f-cpu-plain-0123"):
        entry.decode(data, key="another")


def test_a_later_version_is_told_from_damage():
    """An intact entry of version 2 is left alone; one with a broken checksum is damage."""
    later = framed({"key": "k"}, b"anything at all", magic=b"EJC2")

    with pytest.raises(EntryVersionError):
        entry.decode(later)
    with pytest.raises(EntryCorruptError):
        entry.decode(flipped(later, -8))


def test_unknown_header_fields_are_kept():
    """A field of a later version is no reason for a miss, and survives in `extra`."""
    data = framed({"key": "k", "codec": "none", "payload_size": 1, "raw_size": 1, "zebra": {"a": 1}}, b"x")

    assert entry.decode(data).header.extra == {"zebra": {"a": 1}}


@pytest.mark.parametrize(
    ("fields", "payload"),
    [
        pytest.param([], b"", id="not-an-object"),
        pytest.param({"codec": "none", "payload_size": 0, "raw_size": 0}, b"", id="no-key"),
        pytest.param({"key": 1, "codec": "none", "payload_size": 0, "raw_size": 0}, b"", id="key-not-text"),
        pytest.param({"key": "k", "codec": "lzma", "payload_size": 0, "raw_size": 0}, b"", id="unknown-codec"),
        pytest.param({"key": "k", "codec": "none", "payload_size": 2, "raw_size": 2}, b"x", id="sizes-do-not-add-up"),
        pytest.param({"key": "k", "codec": "none", "payload_size": 1, "raw_size": 2}, b"x", id="raw-size-wrong"),
        pytest.param({"key": "k", "codec": "none", "payload_size": 1, "raw_size": True}, b"x", id="size-is-a-bool"),
        pytest.param({"key": "k", "codec": "zstd", "payload_size": 1, "raw_size": 1}, b"x", id="not-a-zstd-frame"),
        pytest.param(
            {"key": "k", "codec": "none", "payload_size": 1, "raw_size": 1, "components": {"a": 1}},
            b"x",
            id="components",
        ),
        pytest.param(
            {"key": "k", "codec": "zstd", "payload_size": 0, "raw_size": entry.MAX_RAW_SIZE + 1},
            b"",
            id="absurd-raw-size",
        ),
        pytest.param({**SMALL, "created": 10**400}, b"x", id="created-no-float"),
        pytest.param({**SMALL, "created": 1e300}, b"x", id="created-no-date"),
        pytest.param({**SMALL, "created": float("inf")}, b"x", id="created-infinite"),
        pytest.param({**SMALL, "created": float("nan")}, b"x", id="created-nan"),
        pytest.param({**SMALL, "created": -1.0}, b"x", id="created-negative"),
        pytest.param({**SMALL, "compile_seconds": 10**400}, b"x", id="compile-seconds-no-float"),
        pytest.param({**SMALL, "compile_seconds": float("inf")}, b"x", id="compile-seconds-infinite"),
    ],
)
def test_a_checksummed_lie_is_corrupt(fields, payload):
    """A header that passes the checksum but makes no sense is damage too."""
    with pytest.raises(EntryCorruptError):
        entry.decode(framed(fields, payload))


@pytest.mark.parametrize("sizes", [{"payload_size": -1}, {"raw_size": -1}, {"raw_size": entry.MAX_RAW_SIZE + 1}])
def test_a_header_alone_has_sizes_that_an_entry_can_have(sizes):
    """A listing reads headers alone, and adds up what they say."""
    with pytest.raises(EntryCorruptError):
        entry.decode_header(framed({**SMALL, "codec": "zstd", **sizes}))


def test_the_last_date_is_kept():
    """What a clock may say, however wrong, is a date."""
    assert entry.decode(framed({**SMALL, "created": 253_402_214_400}, b"x")).header.created == 253_402_214_400.0


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ({"name": None}, "name"),
        ({"platform": 5}, "platform"),
        ({"components": {"a": 1}}, "components"),
        ({"components": None}, "components"),
        ({"created": 1e300}, "creation time"),
        ({"compile_seconds": float("nan")}, "compile time"),
        ({"extra": {"note": {1, 2}}}, "set"),
        ({"extra": {"note": float("nan")}}, "range"),
    ],
)
def test_what_would_not_be_read_back_is_not_written(header, named):
    """A header that `decode` would call corrupt is refused where it is made, and the field is named."""
    with pytest.raises(ValueError, match=named):
        entry.encode(entry.Header(key="k", **header), b"x")


CANONICAL = b'{"codec":"none","key":"k","payload_size":1,"raw_size":1}'


OTHER_SPELLINGS = [
    pytest.param(CANONICAL.replace(b'"key":"k"', b'"key":"j","key":"k"'), id="doubled-field"),
    pytest.param(CANONICAL.replace(b",", b", "), id="white-space"),
    pytest.param(CANONICAL.replace(b'"key":"k",', b"")[:-1] + b',"key":"k"}', id="not-sorted"),
]


@pytest.mark.parametrize("text", OTHER_SPELLINGS)
def test_another_spelling_of_a_header_is_damage_to_who_lists(text):
    """A header that `encode` would have spelled otherwise is damage; a hit, whose checksum is right, does not look."""
    assert entry.decode_header(framed(CANONICAL)).key == "k"
    with pytest.raises(EntryCorruptError, match="canonical"):
        entry.decode_header(framed(text))
    assert entry.decode(framed(text), key="k").raw == b"x"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(CANONICAL.decode().encode("utf-16"), id="utf-16"),
        pytest.param(b"\xef\xbb\xbf" + CANONICAL, id="byte-order-mark"),
        pytest.param(CANONICAL + b" ", id="white-space-after-it"),
        pytest.param(CANONICAL + b"{}", id="two-objects"),
        pytest.param(CANONICAL[:-1] + b',"zebra":NaN}', id="nan"),
        pytest.param(CANONICAL[:-1] + b',"zebra":"\\ud800"}', id="surrogate"),
        pytest.param(CANONICAL[:-1] + b',"zebra":' + b"9" * 5000 + b"}", id="huge-number"),
        pytest.param(CANONICAL.replace(b'"k"', '"\u00e9"'.encode()), id="not-ascii"),
        pytest.param(b"[" * 200_000, id="nested-deep"),
    ],
)
def test_a_header_is_one_object_of_text(text):
    """What is no JSON text, or more than one object, is damage even if its checksum is right."""
    assert entry.decode(framed(CANONICAL)).raw == b"x"
    for read in (entry.decode, entry.decode_header):
        with pytest.raises(EntryCorruptError):
            read(framed(text))


def test_kind_is_compared():
    """An entry of another kind than the one that was asked for is somebody else's, as one of another key is."""
    data = entry.encode(entry.Header(key="k", kind="module_text"), b"text")
    assert entry.decode(data, key="k", kind="module_text").raw == entry.decode(data).raw == b"text"
    with pytest.raises(EntryForeignError, match="kind"):
        entry.decode(data, key="k", kind="executable")


def test_what_compresses_like_a_bomb_is_stored_as_it_is():
    """An executable that is nothing but a large constant of zeros is written so that it is read again."""
    data = entry.encode(HEADER, bytes(100 << 20))
    assert entry.verify(data).codec == "none"
    assert len(entry.decode(data).raw) == 100 << 20


def test_expected_size():
    """The first bytes of an entry say how long it is; the first bytes of anything else say nothing."""
    data = entry.encode(HEADER, b"executable" * 1000)
    assert entry.expected_size(data[:600]) == len(data)
    assert [entry.expected_size(start) for start in (b"", b"EJC1", data[:20], b"x" * 100)] == [None] * 4


def test_extra_fields_cannot_shadow_named_ones():
    """A caller's metadata cannot change what the header says of the payload."""
    header = entry.Header(key="k", extra={"raw_size": 7})

    with pytest.raises(ValueError, match="raw_size"):
        entry.encode(header, b"x")


def test_the_golden_files_are_read():
    """Entries written by version 0.1.0 are read as they were (tests/data/entry; see its README to make one)."""
    paths = sorted(DATA.glob("*.ejc"))
    assert [path.stem for path in paths] == ["v1-empty", "v1-plain", "v1-stored", "v1-unknown-field"]
    for path in paths:
        expected = json.loads(path.with_suffix(".json").read_text())
        found = entry.decode(path.read_bytes(), key=expected["key"])
        assert hashlib.sha256(found.raw).hexdigest() == expected.pop("raw_sha256")
        assert dict(found.header.extra) == expected.pop("extra")
        for name, value in expected.items():
            assert getattr(found.header, name) == value


@pytest.mark.parametrize(("raw_size", "said"), [(10, "not as long"), (100 << 20, "claim to expand")])
def test_a_decompression_bomb_is_refused(raw_size, said):
    """A small frame that expands to very much never gets the memory for it, whether or not its header says so."""
    bomb = zstandard.ZstdCompressor().compress(bytes(100 << 20))
    fields = {"key": "k", "codec": "zstd", "payload_size": len(bomb), "raw_size": raw_size}
    with pytest.raises(EntryCorruptError, match=said):
        entry.decode(framed(fields, bomb))
