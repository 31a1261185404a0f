"""Says whether a directory is on a network file system, or holds a cache that hosts share.

SQLite relies on the file system's locks and on memory that all users of its write-ahead log map. Neither works between
machines: on a network file system each host would believe that it alone writes (sqlite.org/wal.html, section 1).

`sharing_detection` asks, and remembers the answer; a cache on a local disk does without.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from ejcache.util.threads import CallTimeoutError, call_with_timeout

if TYPE_CHECKING:
    from collections.abc import Iterable

_LOOK_SECONDS: Final = 5.0
_NETWORK: Final = (
    "9p", "acfs", "afs", "autofs", "beegfs", "ceph", "cifs", "coda", "davfs", "dvs", "fakeowner", "fhgfs", "gfs",
    "gfs2", "glusterfs", "gpfs", "lustre", "mfs", "ncpfs", "nfs", "nfs3", "nfs4", "ocfs2", "orangefs", "panfs",
    "prl_fs", "pvfs2", "smb", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs", "wekafs",
)  # fmt: skip
_LOCAL_FUSE: Final = (
    "fuseblk", "fuse.bindfs", "fuse.encfs", "fuse.ext4", "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.mergerfs",
    "fuse.ntfs-3g", "fuse.unionfs", "fuse.unionfs-fuse", "fuse.zfs-fuse",
)  # fmt: skip


def detect_sharing(path: str, table: Iterable[tuple[str, str, str]]) -> bool:
    """True if hosts share the directory, or if its file system does not say so for five seconds.

    Args:
        path: the directory.
        table: the mounts of this process (`sharing_detection.mounts`).
    """
    try:
        return call_with_timeout(f"looking at {path}", lambda: _look_at_directory(path, table), _LOOK_SECONDS)
    except CallTimeoutError:
        # The mount's server is down. Shared storage is used with deadlines, a local directory without; and the first
        # read need not wait for the same server again.
        from ejcache.bucket.breaker import breaker_for  # a room that no hit needs

        breaker_for(f"file://{path}").fail(seconds=_LOOK_SECONDS)
        return True


def _look_at_directory(path: str, table: Iterable[tuple[str, str, str]]) -> bool:
    if detect_network_filesystem(path, table):
        return True
    # The server of a network file system sees its own directories as local ones, so their content decides.
    # os.path, because pathlib raises for a directory that this user may not look into.
    return os.path.isdir(f"{path}/v1/entries") and not os.path.isdir(f"{path}/v1/local")  # noqa: PTH112


def detect_network_filesystem(path: str | os.PathLike[str], table: Iterable[tuple[str, str, str]]) -> bool:
    """True if `path`, which need not exist, is on a file system that other machines may have mounted too.

    A FUSE file system counts as such unless it is known to be local: most are a bucket or another host.

    Args:
        path: where a store would be.
        table: the mounts of this process (`sharing_detection.mounts`). Without any, as on macOS, the answer is False.
    """
    kind, options = detect_filesystem(path, table)
    if kind == "9p":
        # A gVisor sandbox sees its own root as 9p over inherited descriptors ("trans=fd"): one kernel, local locks.
        # Windows' drives under WSL look the same, but their options name drvfs.
        return "trans=fd" not in options or any("drvfs" in option for option in options)
    return kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE and kind != "fusectl")


def detect_filesystem(
    path: str | os.PathLike[str], table: Iterable[tuple[str, str, str]]
) -> tuple[str, frozenset[str]]:
    """Find the type and the super block options of the file system that holds `path`; ("", nothing) if unknown."""
    target = os.path.realpath(path)
    best, found = -1, ("", frozenset[str]())
    for point, kind, options in table:
        inside = point in ("/", target) or target.startswith(point + "/")
        # Of two mounts on one point the later one is on top.
        if inside and len(point) >= best:
            best, found = len(point), (kind, frozenset(options.split(",") if options else ()))
    return found
