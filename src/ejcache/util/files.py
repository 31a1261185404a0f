"""Replacing a local file atomically."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path
from typing import Final

_TEMPORARY: Final = r"\.ejcache-\d+-[0-9a-f]{16}\.tmp"


def write_atomically(path: str | os.PathLike[str], data: bytes, *, mode: int = 0o600) -> None:
    """Create or replace the file at `path`: a reader sees all of the old content or all of `data`.

    The data is written under a temporary name in the same directory (`is_temporary` recognises it) and renamed. If this
    process is killed in between, the temporary file remains. Of several writers, the last one wins.

    Args:
        path: the file; its directory must exist. A link is replaced, not followed.
        data: the content.
        mode: permissions of the file, further restricted by the umask.

    Raises:
        OSError: the file could not be written; the old one is unchanged.
    """
    target = Path(path)
    temporary = target.with_name(f".ejcache-{os.getpid()}-{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def is_temporary(name: str) -> bool:
    """Whether a file of this name was being written by `write_atomically`."""
    return re.fullmatch(_TEMPORARY, name) is not None
