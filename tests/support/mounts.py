"""A network file system where there is none: the table of mounts says so."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ejcache.stores import sharing_detection

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["mount_nfs"]


def mount_nfs(path: Path | str, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
    """Have `path` be on a network file system for whoever asks this process's table of mounts.

    Args:
        path: what is mounted.
        monkeypatch: undoes it; none in a process that ends.
    """
    mounts, mount = sharing_detection.mounts, (os.path.realpath(path), "nfs4", "rw")
    (monkeypatch or pytest.MonkeyPatch()).setattr(
        sharing_detection, "mounts", lambda mountinfo=None: [*mounts(mountinfo), *([] if mountinfo else [mount])]
    )
    sharing_detection.forget_filesystems()
