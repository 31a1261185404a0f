"""python -m bench.programs.dead_mount DIRECTORY …: as shared_jits, with DIRECTORY on a mount whose server can die.

From when `DIRECTORY is dead` exists, no call of the operating system below DIRECTORY returns any more, as with a hard
mount of NFS: neither by path nor relative to a descriptor of a directory there. Until then it is a mount of NFS.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.programs import shared_jits
from ejcache.stores import sharing_detection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CALLS = (
    *("open", "stat", "lstat", "access", "mkdir", "unlink", "remove", "rmdir", "rename", "replace", "link", "symlink"),
    *("readlink", "listdir", "scandir", "statvfs", "utime", "chmod", "truncate", "close", "fstat", "read", "write"),
    *("pread", "fsync", "ftruncate", "lseek", "fdopen"),
)


class Mount:
    """Calls of the operating system, watched for those that concern one directory."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._mark = Path(f"{place} is dead")
        self._descriptors: set[int] = set()
        self._exists = os.path.exists
        self._stat = os.stat

    def concerns(self, arguments: Any) -> bool:
        """Whether a path or a descriptor of a call is below the directory."""
        for argument in arguments:
            if isinstance(argument, int) and not isinstance(argument, bool) and argument in self._descriptors:
                return True
            if isinstance(argument, str | os.PathLike) and os.fspath(argument).startswith(self._place):
                return str(argument) != str(self._mark)
        return False

    def is_dead(self) -> bool:
        """Whether its server does not answer any more."""
        try:
            self._stat(self._mark)
        except OSError:
            return False
        return True

    def watch(self, name: str) -> None:
        """Let `os.<name>` wait for ever once the server is dead."""
        function: Callable[..., Any] = getattr(os, name)

        def watched(*arguments: Any, **named: Any) -> Any:
            concerned = self.concerns((*arguments, *named.values()))
            if concerned and self.is_dead():
                threading.Event().wait()
            result = function(*arguments, **named)
            if name == "open":
                (self._descriptors.add if concerned else self._descriptors.discard)(result)
            return result

        setattr(os, name, watched)


def main() -> None:
    place = sys.argv.pop(1)
    mount = Mount(place)
    for name in _CALLS:
        mount.watch(name)
    mounts = list(sharing_detection.mounts())

    def with_the_mount(mountinfo: str | None = None) -> Iterator[tuple[str, str, str]]:
        return iter([*mounts, (place, "nfs4", mountinfo or "rw")])

    sharing_detection.mounts = with_the_mount
    shared_jits.main()


if __name__ == "__main__":
    main()
