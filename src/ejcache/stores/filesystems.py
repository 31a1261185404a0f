"""Whether a path is on a file system whose locks do not hold between machines.

SQLite's locks are those of the file system, and so is the memory that the users of its write-ahead log map: on a
network file system two hosts would each believe that they alone write (https://sqlite.org/wal.html, section 1).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

__all__ = ["filesystem_of", "is_network_filesystem"]

_NETWORK: Final = frozenset(
    {
        "9p", "acfs", "afs", "autofs", "beegfs", "ceph", "cifs", "coda", "davfs", "fhgfs", "gfs", "gfs2", "glusterfs",
        "gpfs", "lustre", "mfs", "ncpfs", "nfs", "nfs3", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2",
        "smb", "smb2", "smb3", "smbfs", "vboxsf", "vmhgfs", "wekafs",
    }
)  # fmt: skip
_LOCAL_FUSE: Final = frozenset(
    {
        "fuseblk", "fuse.bindfs", "fuse.encfs", "fuse.ext4", "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.mergerfs",
        "fuse.ntfs-3g", "fuse.unionfs", "fuse.unionfs-fuse", "fuse.zfs-fuse",
    }
)  # fmt: skip
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


def is_network_filesystem(path: str | os.PathLike[str], *, mountinfo: str | None = None) -> bool:
    """Whether `path`, which need not exist, is on a file system that other machines may have mounted too.

    FUSE file systems count as such unless they are known to be local: most are a bucket or another host.

    Args:
        path: where a store would be.
        mountinfo: the text of /proc/self/mountinfo (proc(5)); read from there when it is not given. Without either,
            as on macOS, nothing is known and the answer is False.
    """
    kind, options = filesystem_of(path, mountinfo=mountinfo)
    if kind == "9p":
        # The root of a gVisor sandbox is 9p to its own keeper over inherited descriptors: one kernel, local locks.
        # Windows' drives under WSL come the same way, and are named.
        return "trans=fd" not in options or any("drvfs" in option for option in options)
    return kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE and kind != "fusectl")


def filesystem_of(path: str | os.PathLike[str], *, mountinfo: str | None = None) -> tuple[str, frozenset[str]]:
    """The type and the super block options of the file system that holds `path`; ("", nothing) if unknown."""
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            return "", frozenset()
    target = os.path.realpath(path)
    best, found = -1, ("", frozenset[str]())
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(" "), right.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
        inside = point in ("/", target) or target.startswith(point + "/")
        # Of two mounts on one point the later one is on top.
        if inside and len(point) >= best:
            best, found = len(point), (kinds[0], frozenset(kinds[2].split(",") if len(kinds) > 2 else ()))
    return found
