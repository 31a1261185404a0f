"""Says whether hosts share the storage at a location, by the table of mounts and what is in a directory."""

from __future__ import annotations

import functools
import os
import re
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ejcache.stores.location import Location

_DISKS: Final = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "tmpfs", "ramfs")
"""File systems in which no name waits for another machine."""
_ESCAPE: Final = r"\\([0-7]{3})"


def detect_shared_storage(location: Location) -> bool:
    """True if hosts share the storage at `location`: a bucket, or a directory that more than one host uses.

    Of a directory the file system and two names below it are looked at, for at most five seconds. The answer is
    remembered for this process: a mount whose server is down costs one deadline, not one for each part that asks. Where
    the table of mounts says that nothing waits for a server, no thread is needed to look with a deadline.
    """
    if location.kind == "directory":
        return _detect_shared_directory(location.path)
    return location.kind != "memory"


@functools.lru_cache(maxsize=256)
def _detect_shared_directory(path: str) -> bool:
    table = list(mounts())
    if _is_on_disks_alone(path, table):
        return False

    from ejcache.stores.network_filesystems import detect_sharing  # the door to shared storage

    return detect_sharing(path, table)


def forget_filesystems() -> None:
    """Look at each directory again when it is next asked about: for tests."""
    _detect_shared_directory.cache_clear()


def _is_on_disks_alone(path: str, table: Iterable[tuple[str, str, str]]) -> bool:
    """True if that is certain, and hosts do not share the directory: then nothing has hung on the way to the answer.

    The names of `path` are looked at one after the other. Before each, the table of mounts says that it is on a disk of
    this machine; a link, which may lead elsewhere, ends it, and so does what `detect_sharing` has to look at.
    """
    kinds = {point: kind for point, kind, _ in table}  # of two mounts on one point the later one is on top
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
