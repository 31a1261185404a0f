"""Finds the commit of a checkout in the files in which git keeps it; git itself is not run.

.git       := a directory, or in a worktree a file "gitdir: " path; with HEAD, refs and perhaps commondir
HEAD       := commit | "ref: " name
name       := a file below refs with the commit, or a line of packed-refs: commit " " name
commondir  := the path of the directory with the refs of a worktree
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from pathlib import Path
from typing import Final

from ejcache.util.files import read_regular
from ejcache.util.store_keys import is_hex

_DIGITS: Final = (40, 64)
"""Of a commit by SHA-1 and by SHA-256."""
_SHOWN: Final = 12
_LARGEST: Final = 4_000_000
_DEEPEST: Final = 24
"""Directories above a program in which a checkout is looked for."""
_NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@functools.lru_cache(8)
def commit_of(directory: str | Path) -> str:
    """Return the first digits of the commit that is checked out around this directory; empty if there is none."""
    place = os.fspath(directory)
    try:
        for _ in range(_DEEPEST):
            git = os.path.join(place, ".git")  # noqa: PTH118  # each process asks, as it ends
            mode = _mode(git)
            if stat.S_ISDIR(mode):
                return _head(Path(git))
            if stat.S_ISREG(mode):
                return _head(Path(place, _text(Path(git)).removeprefix("gitdir: ")))
            above = os.path.dirname(place)  # noqa: PTH120
            if above == place:
                break
            place = above
    except (OSError, ValueError):
        pass
    return ""


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode  # noqa: PTH116
    except OSError as exc:
        if exc.errno in _NOT_THERE:
            return 0
        raise


def _head(git: Path) -> str:
    head = _text(git / "HEAD")
    if head.startswith("ref: "):
        head = _reference(git, head.removeprefix("ref: "))
    return head[:_SHOWN] if any(is_hex(head, digits) for digits in _DIGITS) else ""


def _reference(git: Path, name: str) -> str:
    common = git / _text(git / "commondir") if (git / "commondir").is_file() else git
    for place in (git, common):
        if (place / name).is_file():
            return _text(place / name)
    lines = _text(common / "packed-refs").splitlines()
    return next((line.partition(" ")[0] for line in lines if line.partition(" ")[2] == name), "")


def _text(path: Path) -> str:
    return read_regular(path, max_size=_LARGEST).decode().strip()
