"""Every format that is read from a store, fed with what nobody wrote: only our own errors come out.

Inputs are genuine objects with changed bytes, and objects of the right outer form with hostile JSON inside. Half of
each get their checksums recomputed, so that they reach what lies behind the checksum. Hypothesis chooses the seeds;
each seed stands for many inputs, because most of them end within microseconds.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import random
import struct
import tarfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from archives import archive
from autotune_helpers import record
from hypothesis import given, settings
from hypothesis import strategies as st

from ejcache import entry
from ejcache.autotune.records.record import decode_record, encode_record
from ejcache.coordination.shared_leases import LeaseFields, decode_lease
from ejcache.errors import EntryError
from ejcache.jax_integration.preload.run_profile import ProgramUse, RunProfile, decode_profile, encode_profile
from ejcache.journal.format import (
    JOURNALS,
    decode_folded,
    decode_lines,
    decode_record_lines,
    encode_journal,
    encode_ordered,
)
from ejcache.journal.line import EntryUse
from ejcache.maintenance.archive import read_archive
from ejcache.maintenance.stored_policy import decode_policy, encode_policy, policy_of
from ejcache.stores.host_notes import decode_notes, encode_note

if TYPE_CHECKING:
    from collections.abc import Callable

INPUTS = 100_000 if settings().max_examples >= 1000 else 2_000
BATCH = INPUTS // settings().max_examples

HOSTILE_TEXTS = ["", "\x00", "\x1b]0;x\x07", "\ud800", "\u202e", "a" * 5000, "../..", "~", "=", "漢字", "1e999", "\n\t"]
HOSTILE_NUMBERS = [0, -1, 10**400, -(10**400), 2**63, 1e308, math.nan, math.inf, -math.inf, 0.1, 10**18, True, None]
USES = {
    "jit_f-0123": EntryUse(1_700_000_000.0, 3, 2.5),
    "漢字": EntryUse(1_700_000_060.0),
    "k" * 300: EntryUse(5.0, 0, 0.01),
}


def hostile(chance: random.Random, depth: int = 0) -> object:
    """A JSON value that a parser, or the code that uses its result, may stumble over."""
    kind = chance.randrange(8 if depth < 4 else 4)
    if kind == 7 and depth == 0 and chance.random() < 0.1:
        value: object = []
        for _ in range(chance.choice([50, 500, 900])):
            value = [value] if chance.random() < 0.5 else {"a": value}
        return value
    if kind < 2:
        return chance.choice(HOSTILE_NUMBERS)
    if kind < 4:
        return chance.choice(HOSTILE_TEXTS)
    members = range(chance.randrange(4))
    if kind < 6:
        return [hostile(chance, depth + 1) for _ in members]
    return {chance.choice(HOSTILE_TEXTS): hostile(chance, depth + 1) for _ in members}


def changed(chance: random.Random, fields: dict) -> bytes:
    """JSON of `fields` with some of them hostile, missing, added, or of a nested object's."""
    fields = json.loads(json.dumps(fields))
    for _ in range(chance.randint(1, 3)):
        into = fields
        while (
            below := [value for value in into.values() if isinstance(value, dict) and value]
        ) and chance.random() < 0.5:
            into = chance.choice(below)
        name = chance.choice([*into, "later"])
        if chance.random() < 0.2:
            into.pop(name, None)
        else:
            into[name] = hostile(chance)
    spaces = chance.choice([(",", ":"), (", ", ": ")])
    text = json.dumps(fields, sort_keys=True, separators=spaces, ensure_ascii=chance.random() < 0.8)
    if chance.random() < 0.05:
        text = text.replace(":", ":" + chance.choice(["[", '{"a":']) * 20_000, 1)
    return text.encode("utf-8", "surrogatepass")


def mutated(chance: random.Random, data: bytes) -> bytes:
    """`data` with a few bytes flipped, cut, doubled, moved or replaced."""
    out = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 8])):
        at, length = chance.randrange(len(out) + 1), chance.choice([1, 2, 4, 8, 64])
        how = chance.randrange(6)
        if how == 0 and at < len(out):
            out[at] ^= 1 << chance.randrange(8)
        elif how == 1:
            del out[at : at + length]
        elif how == 2:
            out[at:at] = out[at : at + length]
        elif how == 3:
            out[at : at + length] = chance.randbytes(length)
        elif how == 4:
            out[at : at + length] = chance.choice([b"\xff", b"\x00", b"9", b"[", b"{", b'"', b"\n", b"\t"]) * length
        else:
            del out[at:]
    return bytes(out)


@dataclass(frozen=True)
class Format:
    """One format: genuine objects, hostile ones, the repair of checksums, and the reader."""

    samples: list[bytes]
    structured: Callable[[random.Random], bytes]
    mended: Callable[[bytes], bytes]
    read: Callable[[bytes], object]


# -- entries ---------------------------------------------------------------------------------------------------------


def signed(data: bytes) -> bytes:
    return data[:-32] + hashlib.sha256(data[:-32]).digest()


ENTRY = entry.encode(entry.Header(key="k", name="jit_f", extra={"details": {"a": "b"}}), bytes(range(256)) * 4)


def structured_entry(chance):
    (length,) = struct.unpack(">I", ENTRY[4:8])
    header = changed(chance, json.loads(ENTRY[8 : 8 + length]))
    return ENTRY[:4] + struct.pack(">I", len(header)) + header + ENTRY[8 + length :]


def read_entry(data):
    header = entry.decode_header(data)
    entry.decode(data, key="k")
    return header


# -- documents of a shared cache -------------------------------------------------------------------------------------


def unchanged(data):
    return data


LEASE = LeaseFields("host-1-abc", 7, 15.0).encode()


def read_lease(data):
    found = decode_lease(data)
    assert found is None or (0 <= found.interval <= 60 and isinstance(found.holder, str))


def journal_mended(data):
    head, _, body = data.partition(b"\n")
    try:
        header = json.loads(head)
        header["crc32"] = zlib.crc32(body)
        return json.dumps(header).encode() + b"\n" + body
    except (ValueError, TypeError, RecursionError):
        return data


def structured_journal(*, compress):
    def make(chance):
        fields = json.loads(encode_journal(USES).partition(b"\n")[0])
        lines = []
        for _ in range(chance.randrange(5)):
            seconds = chance.choice(["1", "9" * 500, "9" * 5000, "-5", "x", "1e9", "", "\u0661"])
            key = chance.choice([*HOSTILE_TEXTS, "k", "jit_f"])
            times = chance.choice(["1", "0", "-1", "9" * 500, "x", ""])
            worth = chance.choice(["", "2.5", "nan", "-inf", "1e400", "x"])
            between = chance.choice("\t \n")
            lines.append(f"{seconds}\t{times}\t{worth}{between}{key}\n".encode("utf-8", "surrogatepass"))
        body = b"".join(lines)
        fields["count"] = len(lines)
        fields["codec"] = "zlib" if compress else "plain"
        body = zlib.compress(body) if compress else body
        head = changed(chance, fields) if chance.random() < 0.5 else json.dumps(fields).encode()
        return head + b"\n" + body

    return make


def read_journal(data):
    assert all(isinstance(line, bytes) for line in decode_record_lines(data))
    for key, used in decode_lines(data):
        assert isinstance(key, str)
        assert math.isfinite(used.when)
        assert used.times >= 0
        assert used.worth is None or math.isfinite(used.worth)


def read_folded(data):
    sums, names, _ = decode_folded(data)
    assert all(isinstance(name, str) and math.isfinite(amount) for name, amount in sums.items())
    assert all(name.startswith(JOURNALS) for name in names)


def read_policy(data):
    policy_of(decode_policy(data), evict="lru")


FOLDED = encode_ordered(USES.items, sums={"hits": 5, "seconds_saved": 1.5}, folded=[f"{JOURNALS}2026-11-27/a"])
POLICY = encode_policy({"max_size": 10, "unused_for": 60.0})


NOTES = encode_note("0" * 32, 0.025, 1.8e9) + encode_note("1" * 32, None, 1.8e9)


def structured_notes(chance):
    words = ["0" * 32, "f" * 33, "-", "7", "9" * 12, "9" * 5000, "-1", "1e5", "\u0661", ""]
    lines = (" ".join(chance.choices(words, k=chance.randrange(5))) for _ in range(chance.randrange(5)))
    return chance.choice(["\n", "\r\n", "\0"]).join(lines).encode()


def read_notes(data):
    notes = decode_notes(data)
    assert decode_notes(b"".join(encode_note(digest, *note) for digest, note in notes.items())) == notes


# -- records and archives --------------------------------------------------------------------------------------------

RECORD = encode_record(record())


def record_mended(data):
    """Without their checksum a record is read as what a person wrote."""
    try:
        fields = json.loads(data)
        fields.pop("checksum", None)
        return json.dumps(fields).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return data


def structured_archive(chance):
    parts = [archive(end=False)]
    for _ in range(chance.randrange(4)):
        member = tarfile.TarInfo(chance.choice(["v1/entries/82/k", "autotune/a.json", *HOSTILE_TEXTS]))
        member.size = chance.choice([3, 0, 2**33, 2**63, 2**31])
        member.type = chance.choice([tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.SYMTYPE, b"S"])
        parts.append(member.tobuf(tarfile.GNU_FORMAT, errors="surrogatepass") + b"1\n".ljust(512, b"\0"))
    return b"".join(parts)


def archive_mended(data):
    """With a true checksum in each header, as an attacker would write it."""
    blocks = [data[start : start + 512] for start in range(0, len(data), 512)]
    return b"".join(_summed(block) if block[257:262] == b"ustar" else block for block in blocks)


def _summed(block):
    total = sum(block[:148]) + 8 * 32 + sum(block[156:])
    return block[:148] + b"%06o\0 " % total + block[156:]


def read_all_of_archive(data):
    for name, _ in read_archive(io.BytesIO(data)):
        assert isinstance(name, str)


USED = ProgramUse("jit_f-0123", 10, 0.5, options=b"o" * 30, devices=(0, 1))
RUN_PROFILE = encode_profile(
    RunProfile({"cpu-0": (USED, ProgramUse("jit_g", quick=0.5, stored=False, unused=2)), "gpu-1": (USED,)})
)


def structured_run_profile(chance):
    """Hostile programs in a list, which `changed` does not go into."""
    fields = json.loads(RUN_PROFILE)
    if chance.random() < 0.5:
        return changed(chance, fields)
    program = changed(chance, fields["environments"]["cpu-0"].pop())
    return json.dumps(fields).encode().replace(b"[", b"[" + program + b",", 2)


def read_run_profile(data):
    for name, uses in decode_profile(data).environments.items():
        assert isinstance(name, str)
        assert all(use.size >= 0 and math.isfinite(use.seconds) and isinstance(use.options, bytes) for use in uses)


FORMATS = {
    "entry": Format([ENTRY], structured_entry, signed, read_entry),
    "lease": Format([LEASE], lambda chance: changed(chance, json.loads(LEASE)), unchanged, read_lease),
    "journal": Format([encode_journal(USES)], structured_journal(compress=False), journal_mended, read_journal),
    "snapshot": Format(
        [encode_journal(USES, compress=True)], structured_journal(compress=True), journal_mended, read_journal
    ),
    "folded": Format(
        [FOLDED], lambda chance: changed(chance, json.loads(FOLDED.splitlines()[0])) + b"\n", unchanged, read_folded
    ),
    "policy": Format([POLICY], lambda chance: changed(chance, json.loads(POLICY)), unchanged, read_policy),
    "notes": Format([NOTES], structured_notes, unchanged, read_notes),
    "record": Format([RECORD], lambda chance: changed(chance, json.loads(RECORD)), record_mended, decode_record),
    "run_profile": Format([RUN_PROFILE], structured_run_profile, unchanged, read_run_profile),
    "archive": Format([archive(("k", ENTRY), ("l", b"x"))], structured_archive, archive_mended, read_all_of_archive),
}


def check(name: str, seed: int) -> None:
    """Feed a batch of inputs to the reader of one format."""
    made, chance = FORMATS[name], random.Random(seed)
    for number in range(BATCH):
        data = mutated(chance, chance.choice(made.samples)) if number % 2 else made.structured(chance)
        if chance.random() < 0.5:
            data = made.mended(data)
        try:
            made.read(data)
        except EntryError:
            continue
        except BaseException as exc:
            exc.add_note(f"{name}, seed {seed}, input {number}: {data[:2000]!r}")
            raise


@pytest.mark.parametrize("name", FORMATS)
@given(seed=st.integers(0, 2**64 - 1))
def test_only_our_own_errors(name, seed):
    """Whatever the bytes are, a reader returns what it may return or raises an error of ours."""
    check(name, seed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FORMATS)
@given(seed=st.integers(0, 2**64 - 1))
def test_only_our_own_errors_at_length(name, seed):
    """The same, with as many inputs as the profile says."""
    check(name, seed)


@pytest.mark.parametrize("name", FORMATS)
def test_samples_are_read(name):
    """The genuine objects that inputs are made of are read, also after their checksums were recomputed."""
    for sample in FORMATS[name].samples:
        FORMATS[name].read(sample)
        FORMATS[name].read(FORMATS[name].mended(sample))
