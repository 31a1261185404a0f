"""The file of `ejcache push FILE.tar`: what is written, and what is read, whoever has written it."""

from __future__ import annotations

import io
import resource
import subprocess
import tarfile
from pathlib import Path

import pytest
from archives import archive, flipped, member
from cli_helpers import files
from helpers import traced_memory

from ejcache.autotune.records.record import MAX_RECORD_BYTES
from ejcache.bucket.object_names import entry_name
from ejcache.errors import EntryCorruptError, EntryError, StoreUnavailableError
from ejcache.maintenance.archive import ArchiveWriter, encode_member, read_archive

GOLDEN = Path(__file__).parent.parent / "data" / "archive.tar"
PAIRS = [("key", b"entry"), ("ключ", b""), ("k" * 300, b"x" * 600)]
RECORD = ("autotune/op/cpu/0123.json", b"{}")


def read(data: bytes) -> list[tuple[str, bytes]]:
    return list(read_archive(io.BytesIO(data)))


def named(*pairs: tuple[str, bytes]) -> list[tuple[str, bytes]]:
    return [(entry_name(key), data) for key, data in pairs]


def test_golden_file(tmp_path):
    """What is written has the bytes of the golden file, which is read as it was written."""
    assert read(GOLDEN.read_bytes()) == [*named(*PAIRS), RECORD]
    with ArchiveWriter(tmp_path / "all.tar") as writer:
        for name, data in [*named(*PAIRS), RECORD]:
            writer.add(name, data)
        writer.finish()
    assert (tmp_path / "all.tar").read_bytes() == GOLDEN.read_bytes()
    assert list(files(tmp_path)) == ["all.tar"]


def test_other_programs_read_it(tmp_path):
    """An archive is one for `tar`, which makes a shared cache of it."""
    (tmp_path / "all.tar").write_bytes(archive(*PAIRS))
    subprocess.run(["tar", "xf", tmp_path / "all.tar", "-C", tmp_path], check=True)
    assert {name: (tmp_path / name).read_bytes() for name, _ in named(*PAIRS)} == dict(named(*PAIRS))


def test_what_other_programs_wrote(tmp_path):
    """`tar` of a shared cache is an archive: names may begin with ./, and other files are passed over."""
    for name, data in [*named(*PAIRS), RECORD, ("v1/policy.json", b"{}"), ("notes.txt", b"n" * 2000)]:
        (tmp_path / "cache" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cache" / name).write_bytes(data)
    subprocess.run(["tar", "cf", tmp_path / "all.tar", "-C", tmp_path / "cache", "."], check=True)
    assert sorted(read((tmp_path / "all.tar").read_bytes())) == sorted([*named(*PAIRS), RECORD])


def test_a_tuned_record_may_be_as_large_as_a_store_reads_it():
    """One byte more is damage."""
    largest = bytes(MAX_RECORD_BYTES)
    assert read(encode_member(RECORD[0], largest) + bytes(1024)) == [(RECORD[0], largest)]
    with pytest.raises(EntryCorruptError, match="cannot have"):
        read(encode_member(RECORD[0], largest + b"!") + bytes(1024))


def test_every_cut_is_noticed():
    """Wherever an archive is cut off, what is before the cut is read, and then an error is raised."""
    data = archive(*PAIRS[:2])
    for length in range(len(data) - 1024):
        found = []
        with pytest.raises(EntryCorruptError):
            found.extend(read_archive(io.BytesIO(data[:length])))
        assert found == named(*PAIRS[:2])[: len(found)]


def test_every_flip_is_noticed():
    """A flipped bit is an error, unless it is in an entry, which has its own checksum, or in what fills a block."""
    whole = archive(("a", b"first"))
    for position in range(len(whole) - 512):  # one block of zeros is an end, too
        try:
            found = read(flipped(whole, 8 * position))
        except EntryCorruptError:
            continue
        assert [name for name, _ in found] == [entry_name("a")]
        assert found[0][1] == b"first" or whole[position : position + 1] in b"first"


def test_a_writer_that_is_not_finished_leaves_nothing(tmp_path):
    """The file that is there stays until the new one is complete."""
    (tmp_path / "all.tar").write_bytes(b"old")
    with ArchiveWriter(tmp_path / "all.tar") as writer:
        writer.add(entry_name("a"), b"first")
    assert files(tmp_path) == {"all.tar": b"old"}
    with pytest.raises(StoreUnavailableError, match="cannot be written"):
        ArchiveWriter(tmp_path / "none" / "all.tar")


def write_one(path: Path) -> None:
    with ArchiveWriter(path) as writer:
        writer.add(entry_name("a"), b"first")
        writer.finish()


def test_a_writer_without_room_names_its_file_and_leaves_nothing(tmp_path):
    """What was added last may reach the disk when the file is closed; the error is that of writing it all the same."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(StoreUnavailableError, match=r"all\.tar cannot be written"):
            write_one(tmp_path / "all.tar")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert files(tmp_path) == {}


HOSTILE = {
    "a symbolic link": member(data=b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "a hard link": member(data=b"", type=tarfile.LNKTYPE, linkname="v1/entries/other"),
    "a device": member(data=b"", type=tarfile.CHRTYPE, devmajor=1, devminor=5),
    "a pipe": member(data=b"", type=tarfile.FIFOTYPE),
    "a sparse file": member(type=tarfile.GNUTYPE_SPARSE),
    "a sparse file by pax": member(pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}),
    "two gigabytes": member(entry_name("k"), promised=2 << 30),
    "exabytes": member(entry_name("k"), promised=1 << 62),
    "a negative size": member(pax_headers={"size": "-1024"}),
    "a size that is no number": member(pax_headers={"size": "many"}),
    "a long header": member(pax_headers={"comment": "x" * 100_000}),
    "a header of gigabytes": member(data=b"", type=tarfile.XHDTYPE, promised=2 << 30),
    "headers without end": member(type=tarfile.XHDTYPE, data=b"") * 3000,
    "nothing more": b"",
}


def read_with_bounded_memory(data: bytes) -> tuple[list[tuple[str, bytes]], EntryError | None]:
    found: list[tuple[str, bytes]] = []
    problem = None
    with traced_memory() as peak:
        try:
            found.extend(read_archive(io.BytesIO(data)))
        except EntryError as exc:
            problem = exc
    assert peak[0] < 40 << 20
    return found, problem


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_archives(what, tmp_path, monkeypatch):
    """What no archive has is one error behind the entries before it; it takes no memory, and writes nothing."""
    monkeypatch.chdir(tmp_path)
    end = archive() if HOSTILE[what] else b""  # an archive that is cut off would be an error whatever it has
    found, problem = read_with_bounded_memory(archive(("a", b"first"), end=False) + HOSTILE[what] + end)
    assert (found[:1], "archive" in str(problem)) == (named(("a", b"first")), True)
    assert files(tmp_path) == {}


FOREIGN = {
    "an absolute path": member("/etc/cron.d/x"),
    "a path that leads out": member("../../x"),
    "a path that leads out of the entries": member("v1/entries/../../x"),
    "no key": member("v1/entries/"),
    "a key that is too long": member(f"v1/entries/aa/{'k' * 5000}"),
    "a key in another directory": member("v1/entries/00/key"),
    "a directory": member("v1/entries/aa", b"", type=tarfile.DIRTYPE),
    "another file": member("v1/policy.json", b"{}"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_foreign_names_are_passed_over(what):
    """As in a cache, a file of another name is not there."""
    data = archive(("a", b"first"), end=False) + FOREIGN[what] + archive(("b", b"second"))
    assert read_with_bounded_memory(data) == (named(("a", b"first"), ("b", b"second")), None)


@pytest.mark.parametrize("data", [b"", b"garbage", b"x" * 5000, encode_member("x", b"")[:100]])
def test_what_is_no_archive(data):
    """It is called so, and is not called damaged."""
    with pytest.raises(EntryCorruptError, match="not a tar archive"):
        read(data)
