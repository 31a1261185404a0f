"""Whether a directory can hold a cache, a local or a shared one.

Checks that write use a temporary directory inside it, which is deleted again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.errors import StoreError
from ejcache.keys.key import is_side_key
from ejcache.maintenance.doctor.checks import Check, CheckVerdict, failed, fine, skipped, warning
from ejcache.stores.filesystems import detect_filesystem, detect_network_filesystem
from ejcache.stores.local.layout import Layout
from ejcache.stores.local.store import LocalStore
from ejcache.util.units import format_age, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

_LITTLE: Final = 1 << 30
_ENTRY: Final = b"ejcache doctor" * 4096
_SLOW: Final = 0.1
_AHEAD: Final = 60.0
"""Seconds that a use may lie in the future."""


def check_local_directory(
    path: Path, *, max_size: int = -1, read_only: bool = False, trusted: bool = False
) -> Iterator[Check]:
    """Try what a local cache needs of its directory. A missing directory is not created.

    Args:
        path: of the directory.
        max_size: bytes that the cache may hold; -1 for no limit.
        read_only: only read.
        trusted: programs use it even if other users could have put code there.
    """
    there, directory = _directory(path, read_only=read_only)
    yield directory
    trust = _trust(path, trusted=trusted)
    yield trust
    if there is None:
        yield from (skipped(name, "there is no directory to try it in") for name in ("free space", "locks", "store"))
        return
    yield _space(there, wanted=max_size, held=_held(path))
    if (path / "v1" / "local").is_dir():
        if trust.verdict is CheckVerdict.OK:
            yield from _structures(path, trusted=trusted)
        else:
            yield skipped("structures", "programs do not use them")
    if read_only:
        yield from (skipped(name, "the cache is read-only") for name in ("locks", "store"))
        return
    try:
        with tempfile.TemporaryDirectory(prefix=".ejcache-doctor-", dir=there) as scratch:
            yield _locks(Path(scratch))
            yield _store(Path(scratch))
    except OSError as exc:
        yield failed("store", f"{there} cannot be written to: {exc.strerror or exc}", _WRITABLE)


def check_shared_directory(path: Path) -> Iterator[Check]:
    """Check the permissions and the free space of a directory that hosts share.

    `check_bucket` checks everything else.
    """
    there, directory = _directory(path, read_only=False)
    yield directory
    if there is not None:
        yield _space(there, wanted=-1, held=0)


def check_tier(directory: Path | None, *, max_size: int) -> Iterator[Check]:
    """Check whether this host can keep copies of the entries of a shared cache.

    Args:
        directory: of the copies; None if this host has no local disk.
        max_size: bytes of copies; 0 for no copies, -1 for no limit.
    """
    name = "local tier"
    if max_size == 0:
        yield fine(name, "switched off: every process downloads every entry it needs")
        return
    if directory is None:
        yield warning(
            name,
            "there is no local disk for copies, so every process downloads every entry it needs",
            "set EJCACHE_LOCAL_DIR to a directory on a local disk",
        )
        return
    there, check = _directory(directory, read_only=False)
    if there is None:
        yield warning(name, check.detail, "set EJCACHE_LOCAL_DIR to a directory on a local disk that can be written to")
        return
    space = _space(there, wanted=max_size, held=_held(directory))
    pending = sum(1 for marker in (directory / "scratch" / "spool").glob("*/*") if marker.parent.name != "present")
    waiting = f", {pending} uploads pending" if pending else ""
    yield Check(name, space.verdict, f"{directory}: {space.detail}{waiting}", space.advice and f"{space.advice} there")


_WRITABLE: Final = "make the directory this user's own (chown, chmod u+rwx), or set EJCACHE_READ_ONLY=1 to read only"


def _directory(path: Path, *, read_only: bool) -> tuple[Path | None, Check]:
    """The directory, or the one in which it would be created; None if it cannot be used."""
    name = "directory"
    try:
        about = path.stat()
    except FileNotFoundError:
        return _parent(path)
    except OSError as exc:
        return None, failed(name, f"{path} cannot be looked at: {exc.strerror or exc}", "check the path")
    if not stat.S_ISDIR(about.st_mode):
        return None, failed(name, f"{path} is not a directory", "name a directory")
    mode = stat.S_IMODE(about.st_mode)
    if not os.access(path, os.R_OK | os.X_OK):
        return None, failed(name, f"{path} cannot be read by this user (mode {mode:04o})", _WRITABLE)
    if not read_only and not os.access(path, os.W_OK):
        return path, warning(name, f"{path} can be read, not written, by this user (mode {mode:04o})", _WRITABLE)
    if mode & 0o002:
        return path, warning(
            name,
            f"{path} can be written to by everybody (mode {mode:04o})",
            "chmod o-w: entries are code, and everybody who can write there can make other users run it",
        )
    where = "on a network, as other hosts may see it" if detect_network_filesystem(path) else "on a disk of this host"
    return path, fine(name, f"{path} (mode {mode:04o}, {detect_filesystem(path)[0] or 'a file system'} {where})")


def _trust(path: Path, *, trusted: bool) -> Check:
    why, _, advice = Layout(path).why_untrusted().partition("; it is not used. ")
    if not why:
        return fine("trust", "only this user, root and the groups of the mode could put code there")
    if trusted:
        return fine("trust", f"{why}; programs load code from it because EJCACHE_TRUST_DIR is set")
    return warning("trust", f"{why}; programs use a directory of their own instead", advice)


def _parent(path: Path) -> tuple[Path | None, Check]:
    for parent in path.parents:
        if parent.is_dir():
            if os.access(parent, os.W_OK | os.X_OK):
                return parent, fine("directory", f"{path} does not exist yet, and can be created")
            return None, failed("directory", f"{path} does not exist, and {parent} cannot be written to", _WRITABLE)
    return None, failed("directory", f"{path} does not exist", "check the path")


def _space(there: Path, *, wanted: int, held: int) -> Check:
    name = "free space"
    try:
        free = shutil.disk_usage(there).free
    except OSError as exc:
        return skipped(name, f"not known: {exc.strerror or exc}")
    if wanted > 0 and free < wanted - held:
        return warning(
            name,
            f"{format_size(free)} free, and the cache may grow by {format_size(wanted - held)}",
            "lower the limit or free space: an entry that does not fit is counted as an error, and not stored",
        )
    if free < _LITTLE:
        return warning(name, f"{format_size(free)} free", "free space on the disk")
    return fine(name, f"{format_size(free)} free")


def _held(path: Path) -> int:
    if not (path / "v1" / "local").is_dir():
        return 0
    try:
        with LocalStore(path, read_only=True) as store:
            return store.size()
    except StoreError:
        return 0


def _structures(path: Path, *, trusted: bool) -> Iterator[Check]:
    name = "structures"
    try:
        with LocalStore(path, read_only=True, trusted=trusted) as store:
            problems = store.check()
            entries = list(store.entries())
    except StoreError as exc:
        yield failed(name, exc, "run `ejcache verify --fix`")
        return
    if problems:
        yield warning(name, "; ".join(problems[:3]), "run `ejcache verify --fix`")
    else:
        count = sum(not is_side_key(info.key) for info in entries)
        yield fine(name, f"{count} entries, and the index is intact")
    yield _clock(max((info.last_used for info in entries), default=0.0))


def _clock(last_used: float) -> Check:
    """A directory of this host has no other clock to compare with, but what was written there has times."""
    ahead = last_used - time.time()
    if ahead > _AHEAD:
        return warning(
            "clock",
            f"an entry was used {format_age(ahead)} from now: the clock was ahead then, or is behind now",
            "set this host's clock (NTP): ages and the order of eviction depend on it",
        )
    return fine("clock", "no entry is from the future")


def _locks(scratch: Path) -> Check:
    name = "locks"
    place = scratch / "lock"
    with place.open("w") as first, place.open("w") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            return failed(name, f"files cannot be locked here: {exc.strerror or exc}", "use a local disk")
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return fine(name, "a second lock is refused")
        return failed(name, "two processes can hold one lock at once", "use a local disk")


def _store(scratch: Path) -> Check:
    name = "store"
    started = time.perf_counter()
    try:
        with LocalStore(scratch / "cache") as store:
            put = store.put("doctor", _ENTRY)
            same = store.get("doctor") == _ENTRY
            gone = store.delete("doctor") and not store.contains("doctor")
    except StoreError as exc:
        return failed(name, exc, "free space, or use another directory")
    seconds = time.perf_counter() - started
    if not (put and same and gone):
        return failed(name, "a stored entry could not be read again", "use another disk")
    text = f"created, written, read and deleted in {seconds * 1000:.0f} ms"
    return fine(name, text) if seconds < _SLOW * 10 else warning(name, text, "use a faster disk")
