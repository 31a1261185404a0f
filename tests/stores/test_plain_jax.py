"""A directory that plain JAX wrote: listed, verified and pruned without JAX."""

from __future__ import annotations

import contextlib
import os
import tracemalloc
import zlib

import pytest
import zstandard

from ejcache.errors import EntryCorruptError, StoreBusyError, StoreUnavailableError
from ejcache.maintenance.audit import Problem, audit_jax_directory
from ejcache.stores.plain_jax import JaxDirectory

KEY = "jit_f-" + "ab" * 32
OTHER = "jit_g-" + "cd" * 32


def write(path, key=KEY, *, raw=b"\x00\x00\x00\x07executable", compress=None, used=None):
    data = (compress or zstandard.ZstdCompressor().compress)(raw)
    (path / f"{key}-cache").write_bytes(data)
    if used is not None:
        (path / f"{key}-atime").write_bytes(int(used * 1e9).to_bytes(8, "little"))
    return data


def test_a_directory_written_by_jax(run_forked, tmp_path):
    """What JAX itself wrote, bounded, is listed with its size and its use, and can be read."""
    run_forked(
        """
        import jax, jax.numpy as jnp
        jax.config.update("jax_compilation_cache_dir", "plain")
        jax.config.update("jax_compilation_cache_max_size", 10_000_000)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        jax.jit(lambda x: jnp.sin(x) + 1, keep_unused=True).lower(jnp.ones(3)).compile()
        """
    )
    directory = JaxDirectory(tmp_path / "plain")
    entries = list(directory.entries())
    assert any(entry.key.startswith("jit__lambda") for entry in entries)
    assert directory.size() == sum(path.stat().st_size for path in (tmp_path / "plain").glob("*-cache"))
    for entry in entries:
        noted = int.from_bytes((tmp_path / "plain" / f"{entry.key}-atime").read_bytes(), "little") / 1e9
        assert entry.last_used == pytest.approx(max(noted, entry.created))
        assert directory.compile_seconds(entry.key) >= 0
        assert directory.delete(entry.key)
    assert not list((tmp_path / "plain").glob("*-*"))


@pytest.mark.parametrize(
    "start",
    [b"", zlib.compress(b"x" * 100)[:-8], zstandard.ZstdCompressor(level=1).compress(b"x" * 100)[:6]],
    ids=["nothing", "zlib", "zstd"],
)
def test_a_file_of_holes(tmp_path, start):
    """A file that claims 128 MB and takes no disk is checked in little memory, whatever it begins with."""
    with (tmp_path / f"{KEY}-cache").open("wb") as file:
        file.write(start)
        file.truncate(128 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(EntryCorruptError):
            JaxDirectory(tmp_path).check_entry(KEY)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compress", [zstandard.ZstdCompressor().compress, zlib.compress])
def test_a_large_entry_is_checked_in_pieces(tmp_path, compress):
    """An intact one passes, and one that lacks its end does not; neither is held whole."""
    raw = os.urandom(20 << 20)
    data = write(tmp_path, raw=raw, compress=compress)
    tracemalloc.start()
    try:
        assert JaxDirectory(tmp_path).check_entry(KEY) is True
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    (tmp_path / f"{KEY}-cache").write_bytes(data[:-100_000])
    with pytest.raises(EntryCorruptError):
        JaxDirectory(tmp_path).check_entry(KEY)


def test_recency(tmp_path):
    """The use that JAX noted counts; without a readable note, the time of writing."""
    write(tmp_path, used=2e9)
    write(tmp_path, OTHER)
    os.utime(tmp_path / f"{OTHER}-cache", (1, 1000.0))
    (tmp_path / f"{OTHER}-atime").write_bytes(b"short")
    found = {entry.key: entry.last_used for entry in JaxDirectory(tmp_path).entries()}
    assert found == {KEY: 2e9, OTHER: 1000.0}


def test_other_files_are_not_listed(tmp_path):
    """Only names that JAX gives are entries."""
    for name in ("notes-cache", "jit_f-cache", f"{KEY}-cache.bak", f"{KEY}-atime", "v1"):
        (tmp_path / name).write_bytes(b"x")
    assert JaxDirectory(tmp_path).is_empty()
    assert JaxDirectory(tmp_path / "nowhere").is_empty()


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: b"", lambda d: b"no codec at all", lambda d: d[:10]])
@pytest.mark.parametrize("compress", [zstandard.ZstdCompressor().compress, zlib.compress])
def test_truncation_is_found(tmp_path, damage, compress):
    """A file that is cut off, empty or of something else is corrupt."""
    data = write(tmp_path, compress=compress)
    (tmp_path / f"{KEY}-cache").write_bytes(damage(data))
    with pytest.raises(EntryCorruptError):
        JaxDirectory(tmp_path).check_entry(KEY)


def test_a_payload_without_executable_is_found(tmp_path):
    """A compile time alone is no entry."""
    write(tmp_path, raw=b"\x00\x00\x00\x07")
    with pytest.raises(EntryCorruptError):
        JaxDirectory(tmp_path).compile_seconds(KEY)


def test_audit_reports_and_fixes(tmp_path):
    """A damaged file is reported; a fix removes it and leaves the good ones, for JAX never replaces it."""
    write(tmp_path)
    write(tmp_path, OTHER)
    (tmp_path / f"{OTHER}-cache").write_bytes(b"")
    directory = JaxDirectory(tmp_path)
    seen = audit_jax_directory(directory, list(directory.entries()))
    assert [(f.key, f.problem, f.repaired) for f in seen.findings] == [(OTHER, Problem.CORRUPT, False)]
    assert (tmp_path / f"{OTHER}-cache").exists()
    assert audit_jax_directory(directory, list(directory.entries()), fix=True).clean
    assert [entry.key for entry in directory.entries()] == [KEY]


def test_delete_removes_both_files(tmp_path):
    """The note of use goes with the entry; a second time there is nothing to remove."""
    write(tmp_path, used=5.0)
    assert JaxDirectory(tmp_path).delete(KEY)
    assert list(tmp_path.glob("*-*")) == []
    assert not JaxDirectory(tmp_path).delete(KEY)
    assert JaxDirectory(tmp_path).compile_seconds(KEY) is None


def test_delete_waits_for_jaxs_lock_and_gives_up(tmp_path):
    """While a JAX process has its lock, nothing is removed under its feet."""
    import filelock

    write(tmp_path)
    lock = filelock.FileLock(tmp_path / ".lockfile")
    with lock, pytest.raises(StoreBusyError):
        JaxDirectory(tmp_path, patience=0.05).delete(KEY)
    assert JaxDirectory(tmp_path).delete(KEY)


def test_a_directory_that_cannot_be_read(tmp_path):
    """An entry that is no file is trouble with the storage, not damage."""
    (tmp_path / f"{KEY}-cache").mkdir()
    with pytest.raises(StoreUnavailableError):
        JaxDirectory(tmp_path).compile_seconds(KEY)


@pytest.mark.parametrize("compress", [zstandard.ZstdCompressor().compress, zlib.compress])
def test_a_bomb_costs_a_listing_nothing(tmp_path, compress):
    """The compile time of an entry that expands to 100 MB is read without expanding it."""
    write(tmp_path, raw=b"\x00\x00\x00\x07" + bytes(100 << 20), compress=compress)
    tracemalloc.start()
    try:
        assert JaxDirectory(tmp_path).compile_seconds(KEY) == 7.0
        with contextlib.suppress(EntryCorruptError):
            JaxDirectory(tmp_path).check_entry(KEY)
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("suffix", ["cache", "atime"])
@pytest.mark.parametrize("kind", ["pipe", "link to a device", "link to a file", "huge"])
def test_what_is_no_regular_file(tmp_path, suffix, kind):
    """A pipe, a device, a link or a giant under a name of JAX's keeps nobody waiting, and is not read."""
    directory = tmp_path / "plain"
    directory.mkdir()
    data = write(directory)
    path = directory / f"{KEY}-{suffix}"
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(6 << 30)
    else:
        (tmp_path / "file").write_bytes(data)
        path.symlink_to("/dev/zero" if kind == "link to a device" else tmp_path / "file")
    found = JaxDirectory(directory)
    listed = [info.key for info in found.entries()]
    assert listed == ([KEY] if suffix == "atime" or kind == "huge" else [])
    if suffix == "cache":
        with pytest.raises((StoreUnavailableError, EntryCorruptError)):
            found.compile_seconds(KEY)
        with pytest.raises((StoreUnavailableError, EntryCorruptError)):
            found.check_entry(KEY)
    else:
        assert found.compile_seconds(KEY) == 7.0
