"""The file format of `ejcache export`: written as a tar archive, read in every version, whoever has written it."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from bundles import bundle, old_bundle, old_record
from cli_helpers import files

from ejcache.errors import EntryCorruptError, EntryError, EntryVersionError
from ejcache.maintenance.transfer import BundleWriter, encode_member, read_bundle

GOLDEN = Path(__file__).parent.parent / "data" / "bundle"
PAIRS = [("key", b"entry"), ("ключ", b""), ("k" * 200, b"x" * 600)]


def read(data: bytes) -> list[tuple[str, bytes]]:
    return list(read_bundle(io.BytesIO(data)))


def test_golden_files():
    """What version 1 wrote is read; what is written now has the bytes of the golden file."""
    assert read((GOLDEN / "version_1.ejb").read_bytes()) == PAIRS
    assert read((GOLDEN / "version_2.ejb").read_bytes()) == PAIRS
    assert bundle(*PAIRS) == (GOLDEN / "version_2.ejb").read_bytes()
    assert old_bundle(*PAIRS) == (GOLDEN / "version_1.ejb").read_bytes()


def test_other_programs_read_it(tmp_path):
    """A bundle is an archive for `tar`."""
    (tmp_path / "all.ejb").write_bytes(bundle(*PAIRS))
    listed = subprocess.run(["tar", "tf", tmp_path / "all.ejb"], capture_output=True, text=True, check=True).stdout
    assert listed.splitlines()[:2] == ["ejcache-bundle", "entries/key"]
    with tarfile.open(tmp_path / "all.ejb") as archive:
        assert archive.getnames() == ["ejcache-bundle", *(f"entries/{key}" for key, _ in PAIRS), "ejcache-bundle-end"]


@pytest.mark.parametrize("make", [bundle, old_bundle])
def test_every_cut_is_noticed(make):
    """Wherever a bundle is cut off, the entries before the cut are read, and then an error is raised."""
    data = make(*PAIRS[:2])
    for length in range(len(data) - (1024 if make is bundle else 0)):
        found = []
        records = read_bundle(io.BytesIO(data[:length]))
        with pytest.raises(EntryCorruptError):
            found.extend(records)
        assert found == PAIRS[: len(found)]


def test_every_flip_is_noticed():
    """A flipped bit is an error, unless it is in an entry, which has its own checksum, or in what fills a block."""
    whole = bundle(("a", b"first"))
    for position in range(len(whole)):
        data = bytearray(whole)
        data[position] ^= 1
        try:
            ((key, entry),) = read(bytes(data))
        except (EntryCorruptError, EntryVersionError):
            continue
        assert key == "a"
        assert entry == b"first" or whole[position : position + 1] in b"first"
    old = old_bundle(("a", b"first"))
    for position in range(len(old)):
        data = bytearray(old)
        data[position] ^= 1
        with pytest.raises((EntryCorruptError, EntryVersionError)):
            read(bytes(data))


def test_an_export_is_taken_up_at_any_length(tmp_path):
    """Wherever a writer was killed, the next one continues there, and the bundle is the same."""
    pairs = PAIRS[:2]
    whole = bundle(*pairs)
    edges = {edge + more for edge in range(0, len(whole), 512) for more in (-1, 0, 1)}
    lengths = sorted({*range(0, len(whole), 61), len(whole), *edges} - {-1})
    for left in (*(whole[:length] for length in lengths), old_bundle(*pairs), b"EJB9"):
        (tmp_path / "partial").write_bytes(left)
        with BundleWriter(tmp_path / "bundle", partial=tmp_path / "partial") as writer:
            for key, data in pairs:
                writer.add(key, data)
            assert writer.keys == {"key", "ключ"}
            writer.finish()
        assert (tmp_path / "bundle").read_bytes() == whole
        assert not (tmp_path / "partial").exists()


def member(name: str = "entries/k", data: bytes = b"x", *, promised: int | None = None, **fields) -> bytes:
    """A member with these fields, as a person with bad intentions would make it."""
    info = tarfile.TarInfo(name)
    info.size = len(data) if promised is None else promised
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.PAX_FORMAT) + data + bytes(-len(data) % 512)


HOSTILE = {
    "a symbolic link": member(data=b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "a hard link": member(data=b"", type=tarfile.LNKTYPE, linkname="entries/other"),
    "a device": member(data=b"", type=tarfile.CHRTYPE, devmajor=1, devminor=5),
    "a pipe": member(data=b"", type=tarfile.FIFOTYPE),
    "a sparse file": member(type=tarfile.GNUTYPE_SPARSE),
    "a sparse file by pax": member(pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}),
    "an absolute path": member("/etc/cron.d/x"),
    "a path that leads out": member("../../x"),
    "no key": member("entries/"),
    "a key that is too long": member(f"entries/{'k' * 5000}"),
    "two gigabytes": member(promised=2 << 30),
    "exabytes": member(promised=1 << 62),
    "a negative size": member(pax_headers={"size": "-1024"}),
    "a size that is no number": member(pax_headers={"size": "many"}),
    "a long header": member(pax_headers={"comment": "x" * 100_000}),
    "a header of gigabytes": member(data=b"", type=tarfile.XHDTYPE, promised=2 << 30),
    "headers without end": member(type=tarfile.XHDTYPE, data=b"") * 3000,
    "a second beginning": member("ejcache-bundle", b"2\n"),
    "another count": member("ejcache-bundle-end", b"7\n"),
    "nothing more": b"",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_archives(what, tmp_path, monkeypatch):
    """What no bundle has is one error behind the entries before it; it takes no memory, and writes nothing."""
    import tracemalloc

    monkeypatch.chdir(tmp_path)
    found = []
    records = read_bundle(io.BytesIO(bundle(("a", b"first"), end=False) + HOSTILE[what]))
    tracemalloc.start()
    try:
        with pytest.raises(EntryError, match="bundle"):
            found.extend(records)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
    assert found[:1] == [("a", b"first")]
    assert files(tmp_path) == {}


@pytest.mark.parametrize("data", [b"EJB1" + old_record(b"k", b"", size=2 << 30), b"EJB1" + b"\xff" * 64])
def test_promises_of_version_1(data):
    """A record that claims gigabytes is damage."""
    with pytest.raises(EntryCorruptError):
        read(data)


@pytest.mark.parametrize("data", [b"EJB7" + bytes(44), encode_member("ejcache-bundle", b"3\n")])
def test_a_later_version(data):
    """A bundle of another version is not read, and not called damaged."""
    with pytest.raises(EntryVersionError, match="does not read"):
        read(data)


def test_directories_are_passed_over():
    """A bundle that a person has packed again has directories."""
    data = bundle(("a", b"first"), end=False) + member("entries", b"", type=tarfile.DIRTYPE)
    assert read(data + encode_member("ejcache-bundle-end", b"1\n") + bytes(1024)) == [("a", b"first")]
