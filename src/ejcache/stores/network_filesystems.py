"""Whether hosts share a directory: by the file system that it is on, and by two names that may be in it.

SQLite relies on the file system's locks and on memory that all users of its write-ahead log map. Neither works between
machines: on a network file system each host would believe that it alone writes (sqlite.org/wal.html, section 1).

Every function here does I/O, and `detect_shared_storage` remembers its answer: a mount whose server is down costs one
deadline per process, not one for each part that asks. Where the table of mounts says that nothing waits for a server,
no thread is needed to look with a deadline.
"""

from __future__ import annotations

import functools
import os
import re
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.stores.location import Location

_LOOK_SECONDS: Final = 5.0
_NETWORK: Final = (
    "9p", "acfs", "afs", "autofs", "beegfs", "ceph", "cifs", "coda", "davfs", "dvs", "fakeowner", "fhgfs", "gfs",
    "gfs2", "glusterfs", "gpfs", "lustre", "mfs", "ncpfs", "nfs", "nfs3", "nfs4", "ocfs2", "orangefs", "panfs",
    "prl_fs", "pvfs2", "smb", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs", "wekafs",
)  # fmt: skip
_DISKS: Final = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "tmpfs", "ramfs")
"""File systems in which no name waits for another machine."""
_LOCAL_FUSE: Final = (
    "fuseblk", "fuse.bindfs", "fuse.encfs", "fuse.ext4", "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.mergerfs",
    "fuse.ntfs-3g", "fuse.unionfs", "fuse.unionfs-fuse", "fuse.zfs-fuse",
)  # fmt: skip
_ESCAPE: Final = r"\\([0-7]{3})"


def detect_shared_storage(location: Location) -> bool:
    """True if hosts share the storage at `location`: a bucket, or a directory that more than one host uses.

    Of a directory the file system and two names below it are looked at, for at most five seconds. The answer is
    remembered for this process.
    """
    if location.kind == "directory":
        return _detect_shared_directory(location.path)
    return location.kind != "memory"


@functools.lru_cache(maxsize=256)
def _detect_shared_directory(path: str) -> bool:
    if _is_on_disks_alone(path):
        return False
    from ejcache.util.threads import CallTimeoutError, call_with_timeout  # where a server might not answer

    try:
        return call_with_timeout(f"looking at {path}", lambda: _look_at_directory(path), _LOOK_SECONDS)
    except CallTimeoutError:
        # The mount's server is down. Shared storage is used with deadlines, a local directory without; and the first
        # read need not wait for the same server again.
        from ejcache.bucket.breaker import breaker_for

        breaker_for(f"file://{path}").fail(seconds=_LOOK_SECONDS)
        return True


def forget_filesystems() -> None:
    """Look at each directory again when it is next asked about: for tests."""
    _detect_shared_directory.cache_clear()


def _is_on_disks_alone(path: str) -> bool:
    """True if that is certain, and hosts do not share the directory: then nothing has hung on the way to the answer.

    The names of `path` are looked at one after the other. Before each, the table of mounts says that it is on a disk of
    this machine; a link, which may lead elsewhere, ends it, and so does what `_look_at_directory` has to look at.
    """
    kinds = {point: kind for point, kind, _ in mounts()}  # of two mounts on one point the later one is on top
    part, is_disk = "", kinds.get("/") in (*_DISKS, "overlay")  # the root of a container, from which this process runs
    for name in f"{path}/v1/entries".strip("/").split("/"):
        part = f"{part}/{name}"
        is_disk = kinds[part] in _DISKS if part in kinds else is_disk
        if not is_disk:
            return False
        try:
            if stat.S_ISLNK(os.lstat(part).st_mode):
                return False
        except FileNotFoundError:
            return True
        except OSError:
            return False
    return False


def mounts(mountinfo: str | None = None) -> Iterator[tuple[str, str, str]]:
    """Yield the point, the type and the super block options of each mount of this process, in their order.

    Args:
        mountinfo: the text of /proc/self/mountinfo (proc(5)), which is read if this is not given.
    """
    if mountinfo is None:
        try:
            with open("/proc/self/mountinfo", errors="surrogateescape") as file:  # noqa: PTH123 (in every start)
                mountinfo = file.read()
        except OSError:
            return
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(" "), right.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = fields[4]
        if "\\" in point:
            point = re.sub(_ESCAPE, lambda match: chr(int(match[1], 8)), point)
        yield point, kinds[0], kinds[2] if len(kinds) > 2 else ""


def _look_at_directory(path: str) -> bool:
    if detect_network_filesystem(path):
        return True
    # The server of a network file system sees its own directories as local ones, so their content decides.
    # os.path, because pathlib raises for a directory that this user may not look into.
    return os.path.isdir(f"{path}/v1/entries") and not os.path.isdir(f"{path}/v1/local")  # noqa: PTH112


def detect_network_filesystem(path: str | os.PathLike[str], *, mountinfo: str | None = None) -> bool:
    """True if `path`, which need not exist, is on a file system that other machines may have mounted too.

    A FUSE file system counts as such unless it is known to be local: most are a bucket or another host.

    Args:
        path: where a store would be.
        mountinfo: the text of /proc/self/mountinfo (proc(5)), which is read if this is not given. Without either, as
            on macOS, the answer is False.
    """
    kind, options = detect_filesystem(path, mountinfo=mountinfo)
    if kind == "9p":
        # A gVisor sandbox sees its own root as 9p over inherited descriptors ("trans=fd"): one kernel, local locks.
        # Windows' drives under WSL look the same, but their options name drvfs.
        return "trans=fd" not in options or any("drvfs" in option for option in options)
    return kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE and kind != "fusectl")


def detect_filesystem(path: str | os.PathLike[str], *, mountinfo: str | None = None) -> tuple[str, frozenset[str]]:
    """Find the type and the super block options of the file system that holds `path`; ("", nothing) if unknown."""
    target = os.path.realpath(path)
    best, found = -1, ("", frozenset[str]())
    for point, kind, options in mounts(mountinfo):
        inside = point in ("/", target) or target.startswith(point + "/")
        # Of two mounts on one point the later one is on top.
        if inside and len(point) >= best:
            best, found = len(point), (kind, frozenset(options.split(",") if options else ()))
    return found
