"""Where a local store can be, what it does to the place, and what it says where it cannot be."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import sqlite3
import stat
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
from capabilities import needs

from ejcache.errors import (
    NotAStoreError,
    StoreError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UntrustedDirectoryError,
)
from ejcache.stores.local import failures
from ejcache.stores.local.store import LocalStore

needs_root = needs("root")

AS_NOBODY = """
import logging, os, sys
from ejcache.errors import *
from ejcache.stores import location, memory, network_filesystems
from ejcache.stores.local import writing
from ejcache.stores.local.store import LocalStore
from ejcache.stores.opening import open_store
# Only now: the interpreter itself may be in a directory of root's.
os.setgroups([])
os.setgid(12345)
os.setuid(12345)
os.environ.pop("HOME", None)
def said(kind, function, *arguments):
    try:
        function(*arguments)
    except kind as exc:
        return str(exc)
    raise AssertionError(f"no {kind.__name__}")
"""


def tree(path):
    """Everything below `path`: names, modes, contents."""
    return {
        str(entry.relative_to(path)): (entry.lstat().st_mode, entry.read_bytes() if entry.is_file() else None)
        for entry in [path, *path.rglob("*")]
    }


def test_layout(tmp_path):
    """The store is below v1/local, for its owner only, and the directory is tagged as a cache."""
    path = tmp_path / "a" / "cache"
    with LocalStore(path) as store:
        store.put("k", b"x" * 50_000)
        store.put("l", b"x")
    assert sorted(entry.name for entry in path.iterdir()) == ["CACHEDIR.TAG", "v1"]
    assert (path / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((path / "v1").stat().st_mode) == 0o700
    assert [entry.name for entry in (path / "v1").iterdir()] == ["local"]
    for key, size in (("k", 50_000), ("l", 1)):
        (entry,) = path.glob(f"v1/local/??/{key}")
        assert entry.read_bytes() == b"x" * size
    assert len(list(path.glob("v1/local/order-*/cache.db"))) == 1
    assert all(stat.S_IMODE(entry.stat().st_mode) & 0o077 == 0 for entry in path.rglob("*"))


def test_plain_jax_and_shared_files_are_left_alone(tmp_path):
    """Files of plain JAX, of the shared layout and of strangers are never counted, listed, evicted or deleted."""
    path = tmp_path / "cache"
    (path / "v1/entries/ab").mkdir(parents=True)
    (path / "xla_gpu_per_fusion_autotune_cache_dir").mkdir()
    for name in ("jit_f-0123-cache", "jit_f-0123-atime", ".lockfile", "v1/entries/ab/abcd", "v1/journal"):
        (path / name).write_bytes(b"not ours" * 10_000)
    before = tree(path)
    with LocalStore(path, max_size=50_000) as store:
        assert list(store.entries()) == []
        assert store.size() == 0
        for n in range(5):
            store.put(f"k{n}", b"x" * 20_000)
        assert store.get("jit_f-0123-cache") is None
        assert store.delete("jit_f-0123-cache") is False
        assert store.check(fix=True) == []
    after = tree(path)
    assert {name: after[name] for name in before} == before
    assert "CACHEDIR.TAG" in after


def test_directory_with_other_things_is_not_tagged(tmp_path):
    """A directory that holds something else than caches is not tagged: backups would leave it out."""
    (tmp_path / "thesis.tex").write_text("\\begin{document}")
    mode = stat.S_IMODE(tmp_path.stat().st_mode)
    with LocalStore(tmp_path) as store:
        assert store.put("k", b"value")
    assert not (tmp_path / "CACHEDIR.TAG").exists()
    assert (tmp_path / "thesis.tex").exists()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == mode


NO_PLACES = [
    *((file, None, "cache", NotAStoreError, "not a directory") for file in ("cache", "cache/v1", "cache/v1/local")),
    ("cache", None, "cache/below", NotAStoreError, "part of its path is a file"),
    ("loop", "loop", "loop/cache", StoreError, "cannot be used"),
    ("cache", "gone", "cache", StoreUnavailableError, "cache is a symbolic link to gone, which does not exist$"),
    (None, None, "x" * 300, StoreError, "cannot be used"),
    (None, None, "a/" * 3000, StoreError, "cannot be used"),
    *(
        (None, None, name, UntrustedDirectoryError, r"expanded; it .*\)$")
        for name in ("$HOME/cache", "a${HOME}b/cache")
    ),
]
"""What is there, and to what it is a link; the directory that is asked for, the error, and what it says."""


@pytest.mark.parametrize(("there", "link", "asked", "error", "said"), NO_PLACES)
def test_no_place_for_a_store(tmp_path, there, link, asked, error, said):
    """What cannot be a store's directory is refused in one sentence; nothing is made, and what is there stays."""
    if there is not None:
        (tmp_path / there).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / there).symlink_to(link) if link else (tmp_path / there).write_text("not ours")
    before = tree(tmp_path)
    for read_only in (False, True)[: 1 if link == "gone" else 2]:  # for reading only, it is no store yet
        with pytest.raises(error, match=said) as refused:
            LocalStore(tmp_path / asked, read_only=read_only)
        assert "\n" not in str(refused.value)
    assert tree(tmp_path) == before


def test_read_only_leaves_no_trace(tmp_path):
    """What reads, and what is refused, changes no byte and no time of a store that is open for reading only."""
    path = tmp_path / "s"
    with LocalStore(path) as store:
        store.put("k", b"value")
        store.put("large", b"x" * 50_000)
        store.add_counters({"hits": 3})

    def state():
        return tree(path), {entry: entry.stat().st_mtime_ns for entry in path.rglob("*")}

    before = state()
    with LocalStore(path, read_only=True) as store:
        used = {info.key: info.last_used for info in store.entries()}
        assert (store.get("k"), store.peek("large", length=3), store.contains("large")) == (b"value", b"xxx", True)
        assert (store.size(), store.counters(), store.check()) == (50_005, {"hits": 3}, [])
        store.note_used("k")
        store.add_counters({"hits": 1})
        # The other writes are refused as those of any store are.
        for write in (partial(store.put, "m", b""), partial(store.check, fix=True), store.reset_counters):
            with pytest.raises(StoreReadOnlyError):
                write()
        assert {info.key: info.last_used for info in store.entries()} == used
    assert state() == before


def test_reader_follows_a_writer(tmp_path):
    """A store that was opened for reading only, before there was anything, sees what writers do afterwards."""
    path = tmp_path / "s"
    with LocalStore(path, read_only=True) as reader:
        assert reader.get("k") is None
        assert not path.exists()
        for n in range(3):
            with LocalStore(path) as writer:
                writer.put(f"k{n}", b"x" * 20_000 * n)
                assert reader.get(f"k{n}") == b"x" * 20_000 * n
                writer.delete("k1")
                assert reader.contains("k1") is False
            assert reader.get(f"k{n}") == (None if n == 1 else b"x" * 20_000 * n)


def test_deleted_while_open(tmp_path):
    """With its directory gone, a store answers that nothing is there, and the next put makes it again."""
    path = tmp_path / "s"
    with LocalStore(path) as store, LocalStore(path) as other:
        for gone in (path, path / "v1", path / "v1/local"):
            store.put("k", b"value")
            store.put("large", b"x" * 50_000)
            assert other.get("k") == b"value"
            shutil.rmtree(gone)
            assert store.get("k") is None
            assert store.contains("large") is False
            assert list(store.entries()) == []
            assert store.size() == 0
            assert store.delete("k") is False
            assert store.put("k", b"anew") is True
            assert store.get("k") == b"anew"
            assert other.get("k") == b"anew"
            assert other.put("large", b"y" * 50_000) is True
            assert store.get("large") == b"y" * 50_000
            store.delete("k"), store.delete("large")
        assert store.check() == []


@pytest.mark.parametrize("how", ["moved", "cleared"])
def test_a_put_after_that(tmp_path, caplog, how):
    """The first put makes the directory again, and says nothing."""
    path = tmp_path / "s"
    with LocalStore(path) as store:
        store.put("k", b"value")
        if how == "moved":
            path.rename(tmp_path / "moved")
        else:
            with LocalStore(path) as other:
                other.clear()
        assert store.put("new", b"n") is True
        assert store.get("new") == b"n"
        assert store.get("k") is None
        assert len(list(path.glob("v1/local/order-*"))) == 1
        assert store.check() == []
    assert caplog.messages == []


def test_an_earlier_format_is_told(tmp_path):
    """A cache of the format with an index is not used, and one sentence says how to remove it."""
    path = tmp_path / "s"
    (path / "v1/local/g-0123456789abcdef").mkdir(parents=True)
    (path / "v1/local/format").write_text("1\n")
    for read_only in (False, True):
        with pytest.raises(NotAStoreError, match=rf"earlier ejcache.*`rm -r {path}/v1/local` removes it$"):
            LocalStore(path, read_only=read_only)
    shutil.rmtree(path / "v1/local")
    assert LocalStore(path).put("k", b"x")


def _delete(order):
    shutil.rmtree(order)


def _truncate(order):
    database = order / "cache.db"
    os.truncate(database, database.stat().st_size // 2)


def _flip(order):
    database = order / "cache.db"
    data = bytearray(database.read_bytes())
    for place in range(100, len(data), 97):
        data[place] ^= 0x55
    database.write_bytes(data)


def _make_foreign(order):
    (order / "cache.db").unlink()
    with contextlib.closing(sqlite3.connect(order / "cache.db")) as other:
        other.execute("CREATE TABLE theirs (a)")
        other.commit()


def _make_directory(order):
    (order / "cache.db").unlink()
    (order / "cache.db").mkdir()


def _copy_from_elsewhere(order):
    other = order.parents[3] / "elsewhere"
    with LocalStore(other) as store:
        store.put("theirs", bytes(500))
    (theirs,) = other.glob("v1/local/order-*")
    shutil.rmtree(order)
    shutil.copytree(theirs, order)


@pytest.mark.parametrize(
    "damage", [_delete, _truncate, _flip, _make_foreign, _make_directory, _copy_from_elsewhere],
    ids=["deleted", "truncated", "flipped", "foreign", "a directory", "copied from elsewhere"],
)  # fmt: skip
def test_a_damaged_order(tmp_path, damage, caplog):
    """No damage of the order costs a hit; the next forty puts are stored, with limit, sum and order right."""
    path, now = tmp_path / "s", time.time()
    with LocalStore(path, max_size=60_000) as store:
        for n in range(40):
            store.put(f"old-{n}", bytes(1000))
    for n in range(40):
        (file,) = path.glob(f"v1/local/??/old-{n}")
        os.utime(file, (now - 1000 + n, now - 1000 + n))
    (order,) = path.glob("v1/local/order-*")
    damage(order)
    with LocalStore(path, max_size=60_000) as store:
        for n in range(40):
            assert store.get(f"old-{n}") == bytes(1000)
        store.note_used("old-0")
        for n in range(40):
            assert store.put(f"new-{n}", bytes(1000)) is True
        assert store.size() == 60_000
        left = {info.key for info in store.entries()}
        assert left == {"old-0", *(f"old-{n}" for n in range(21, 40)), *(f"new-{n}" for n in range(40))}
        assert store.check() == []
    assert len(list(path.glob("v1/local/order-*"))) == 1
    assert len(caplog.messages) <= 1


COPIES = {
    "cp -a": "cp -a one two",
    "cp -r": "cp -r one two",
    "rsync -a": "rsync -a one/ two",
    "tar": "mkdir two && tar -c -C one . | tar -x -C two",
}


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=needs("rsync") if how.startswith("rsync") else ()) for how in COPIES]
)
def test_a_copy_is_a_cache(tmp_path, how):
    """A copied directory has every entry, in the order of their use where times are copied, and its own order."""
    with LocalStore(tmp_path / "one", max_size=50_000) as store:
        for number in range(5):
            store.put(f"k{number}", bytes(10_000))
        store.note_used("k0")
    subprocess.run(COPIES[how], shell=True, cwd=tmp_path, check=True)
    (theirs,) = (tmp_path / "one").glob("v1/local/order-*")
    with LocalStore(tmp_path / "two", max_size=50_000) as store:
        assert all(store.get(f"k{number}") for number in range(5))
        store.put("new", bytes(10_000))
        kept = {info.key for info in store.entries()}
        assert len(kept) == 5
        assert "new" in kept
        assert kept == {"k0", "k2", "k3", "k4", "new"} or how in ("cp -r", "tar")  # tar has whole seconds
        assert store.check() == []
    (ours,) = (tmp_path / "two").glob("v1/local/order-*")
    assert ours.name != theirs.name


def test_replaced_by_a_file_while_open(tmp_path):
    """With a file where its directory was, a store raises its own error, and leaves the file."""
    path = tmp_path / "s"
    with LocalStore(path) as store:
        store.put("k", b"value")
        shutil.rmtree(path)
        path.write_text("not ours")
        with pytest.raises(NotAStoreError):
            store.put("k", b"value")
        with pytest.raises(NotAStoreError):
            store.get("k")
        assert path.read_text() == "not ours"


@contextlib.contextmanager
def limited(kind, value):
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def fill(store):
    for n in range(2_000):
        store.put(f"fill{n}", b"")


def test_no_room(tmp_path):
    """Where files cannot grow, a put raises and leaves nothing of itself, hits go on, and later all is well."""
    path = tmp_path / "s"
    with LocalStore(path) as store:
        store.put("small", b"small")
        store.put("large", b"l" * 40_000)
        with limited(resource.RLIMIT_FSIZE, 60_000):
            with pytest.raises(
                StoreError, match=r"cannot become that large.* 60000 bytes at most, `ulimit -f`"
            ) as caught:
                store.put("new", b"n" * 70_000)
            assert isinstance(caught.value.__cause__, OSError)
            assert caught.value.__cause__.errno == errno.EFBIG
            with pytest.raises(StoreError, match=r"no room is left for the order.* at most, `ulimit -f`"):
                fill(store)
            assert store.get("small") == b"small"
            assert store.get("large") == b"l" * 40_000
            assert store.contains("new") is False
            store.close()
            with LocalStore(path) as other:
                assert other.get("large") == b"l" * 40_000
            LocalStore(tmp_path / "other").close()
        assert store.put("new", b"n" * 70_000) is True
        assert store.check() == []
        assert list(path.glob("v1/local/tmp/*")) == []


@pytest.mark.parametrize("others", [True, False], ids=["among other files", "in a directory of its own"])
def test_made_on_a_full_disk(tmp_path, others):
    """A store that a full disk kept from being made has its limit and its tag when there is room, not empty ones."""
    path = tmp_path / "s"
    if others:
        path.mkdir()
        (path / "notes").touch()
    with limited(resource.RLIMIT_FSIZE, 0):
        for _ in range(2):
            with pytest.raises(StoreError, match=r"no room|that large"):
                LocalStore(path, max_size=None)
    with LocalStore(path, max_size=None) as store:
        limit = store.max_size
    assert limit > 0
    with LocalStore(path, max_size=None) as store:
        assert store.max_size == limit
    tag = path / "CACHEDIR.TAG"
    assert tag.exists() is not others
    assert others or tag.read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")
    assert list(path.rglob("*.tmp")) == []


@needs("root", "mount")
@pytest.mark.parametrize("options", ["size=1m", "size=8m,nr_inodes=150"])
def test_full_file_system(tmp_path, options):
    """On a full disk the oldest entries make room, whether it lacks blocks or files, and the sum is right."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], check=True)
    try:
        with LocalStore(disk / "store") as store:
            for size in (100_000, 20_000, 3_000, 10):
                for n in range(90 if "inodes" in options else 60):
                    assert store.put(f"{size}-{n}", b"x" * size) is True
                    assert store.get(f"{size}-{n}") == b"x" * size
                assert store.check() == []
            with pytest.raises(StoreError, match="no room"):
                store.put("large", b"x" * 9_000_000)
            assert store.check() == []
            kept = {info.key for info in store.entries()}
            assert kept
            store.clear()
            assert list(store.entries()) == []
            assert store.put("after", b"a" * 200_000)
        os.system(f"mount -o remount,ro {disk}")
        with LocalStore(disk / "store") as store:
            assert store.read_only
            assert store.get("after") == b"a" * 200_000
            with pytest.raises(StoreReadOnlyError):
                store.put("k", b"")
        with LocalStore(disk) as store:
            assert store.read_only
            assert store.get("k") is None
    finally:
        os.system(f"umount {disk}")


@needs("root", "mount")
@pytest.mark.parametrize("where", ["two file systems", "one file system"])
def test_hits_copy_nothing_of_an_image(tmp_path, where):
    """Uses of entries in a lower layer of an overlay are lost, those of entries that were stored since are noted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk], check=True)
    image = (disk if where == "one file system" else tmp_path) / "image"
    for name in (image, disk / "upper", disk / "work", disk / "merged"):
        name.mkdir()
    with LocalStore(image / "cache") as store:
        for number in range(100):
            store.put(f"k{number}", bytes(100_000))
    layers = f"lowerdir={image},upperdir={disk}/upper,workdir={disk}/work"
    try:
        if subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", disk / "merged"], check=False).returncode:
            pytest.skip("no overlay can be mounted here")
        with LocalStore(disk / "merged/cache") as store:
            before = {info.key: info.last_used for info in store.entries()}
            for number in range(100):
                assert store.get(f"k{number}") == bytes(100_000)
                store.note_used(f"k{number}")
            assert {info.key: info.last_used for info in store.entries()} == before
            written = sum(each.lstat().st_size for each in (disk / "upper").rglob("*") if each.is_file())
            assert written < 10_000
            store.put("new", b"x")
            used = {info.key: info.last_used for info in store.entries()}["new"]
            store.note_used("new")
            assert {info.key: info.last_used for info in store.entries()}["new"] > used
    finally:
        os.system(f"umount {disk}/merged {disk} 2> /dev/null")


def test_out_of_descriptors(tmp_path):
    """Out of file descriptors, every call raises our error, and nothing is taken for damage."""
    path = tmp_path / "s"
    with LocalStore(path) as store:
        store.put("k", b"value")
        store.close()
        taken = []
        # More than other tests have left open in this process.
        with limited(resource.RLIMIT_NOFILE, 40 + max(int(path.name) for path in Path("/dev/fd").iterdir())):
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            for _ in range(8):
                with contextlib.suppress(StoreError):
                    store.get("k")
                store.close()
                os.close(taken.pop())
        for descriptor in taken:
            os.close(descriptor)
        assert store.get("k") == b"value"
        assert store.counters() == {}


@needs_root
def test_unwritable_directory(open_place, run_forked):
    """A user who may read, but not write, reads; what is empty reads as empty; writes say why not."""
    path = open_place / "s"
    with LocalStore(path) as store:
        store.put("k", b"value")
        store.put("large", b"x" * 50_000)
    open_place.chmod(0o755)
    (open_place / "empty").mkdir()
    for entry in [path, *path.rglob("*")]:
        entry.chmod(0o755 if entry.is_dir() else 0o644)
    run_forked(
        AS_NOBODY
        + """
store = LocalStore(sys.argv[1])
assert store.read_only
assert store.get("k") == b"value"
assert store.get("large") == b"x" * 50_000
assert len(list(store.entries())) == 2
assert "cannot be written" in said(StoreReadOnlyError, store.put, "k2", b"x")
store.add_counters({"hits": 1})
empty = LocalStore(sys.argv[2])
assert empty.read_only and empty.get("k") is None and list(empty.entries()) == []
said(StoreReadOnlyError, empty.put, "k", b"x")
message = said(StoreUnavailableError, LocalStore, sys.argv[3])
assert "Permission denied" in message and "belongs to the user with id 0" in message, message
""",
        str(path),
        str(open_place / "empty"),
        str(open_place / "new"),
    )
    with LocalStore(path) as writer:
        writer.put("live", b"x")
        run_forked(AS_NOBODY + "assert LocalStore(sys.argv[1]).get('k') == b'value'\n", str(path))
        assert writer.check() == []


@needs_root
def test_two_users(open_place, run_forked):
    """The second user of a directory is told whose it is, and nothing of the first one's is lost."""
    path = open_place / "s"
    with LocalStore(path) as store:
        store.put("k", b"value")
    path.chmod(0o777)
    before = tree(path)
    run_forked(
        AS_NOBODY
        + """
for read_only in (False, True):
    message = said(StoreUnavailableError, lambda: LocalStore(sys.argv[1], read_only=read_only))
    assert "id 0" in message and "0700" in message, message
""",
        str(path),
    )
    assert tree(path) == before


@needs_root
def test_user_without_a_name(open_place, run_forked):
    """A user id that no file knows a name of, without a home, has a store like anybody else."""
    run_forked(
        AS_NOBODY
        + """
with open_store(sys.argv[1], max_size="1MB") as store:
    store.put("k", b"value")
    assert store.get("k") == b"value"
message = said(UsageError, open_store, "~/cache")
assert "home directory" in message, message
""",
        str(open_place / "s"),
    )
    assert (open_place / "s").stat().st_uid == 12345


def test_explanation_of_a_failure(tmp_path):
    """What cannot be used is explained by the nearest thing that can be looked at."""
    exc = failures.explain_failure(tmp_path / "a" / "b", OSError(errno.EIO, "Input/output error"))
    assert "Input/output error" in str(exc)
    assert str(tmp_path) in str(exc)
