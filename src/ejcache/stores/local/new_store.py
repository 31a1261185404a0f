"""What a local store is made with: whether its directory is marked as one of caches, and its limit."""

from __future__ import annotations

import contextlib
import re
import shutil
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_LARGEST_LIMIT: Final = 20 * 10**9
_SHARE_OF_DISK: Final = 10
"""The limit of a cache is at most a tenth of its disk."""
_PLAIN_JAX: Final = r".*-(cache|atime)|\.lockfile|xla_gpu_.*"


def default_limit(root: Path) -> int:
    """Return the bytes that a new cache may hold where nobody sets a limit: a tenth of its disk, at most 20 GB."""
    for path in (root, *root.parents):
        with contextlib.suppress(OSError):
            return min(_LARGEST_LIMIT, shutil.disk_usage(path).total // _SHARE_OF_DISK)
    return _LARGEST_LIMIT


def holds_caches_only(root: Path) -> bool:
    """True if all that is in the directory was made by a cache: ours, or JAX's own."""
    with contextlib.suppress(OSError):
        names = (path.name for path in root.iterdir())
        return all(name in {"v1", "CACHEDIR.TAG"} or re.fullmatch(_PLAIN_JAX, name) for name in names)
    return False
