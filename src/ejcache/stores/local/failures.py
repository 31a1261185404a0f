"""Says in a sentence why the files of a local store cannot be read or written."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from ejcache.errors import (
    StoreError,
    StoreReadOnlyError,
    StoreUnavailableError,
)

if TYPE_CHECKING:
    from pathlib import Path


def explain_failure(path: Path, exc: OSError) -> StoreUnavailableError:
    """Return the error, of one sentence, that says why `path` cannot be used."""
    reason = exc.strerror or str(exc)
    for part in (path, *path.parents):
        try:
            about = part.stat()
        except OSError as failure:
            with contextlib.suppress(OSError):
                if failure.errno != errno.ENOENT:
                    continue
                why = f"{part} is a symbolic link to {part.readlink()}, which does not exist"
                return StoreUnavailableError(f"{path} cannot be used as a cache directory: {why}")
            continue
        owner = "" if about.st_uid == os.geteuid() else f"; it belongs to the user with id {about.st_uid}"
        where = "" if part == path else f" ({part} has mode {stat.S_IMODE(about.st_mode):04o}{owner})"
        if part == path:
            where = f" (mode {stat.S_IMODE(about.st_mode):04o}{owner})"
        return StoreUnavailableError(f"{path} cannot be used as a cache directory: {reason}{where}")
    return StoreUnavailableError(f"{path} cannot be used as a cache directory: {reason}")


def explain_error(exc: OSError, root: Path) -> StoreError:
    """Return the ejcache error for a failure to read or write below `root`, which another attempt would not change."""
    if exc.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        why = "is on a file system that is mounted read-only" if exc.errno == errno.EROFS else "is closed to this user"
        return StoreReadOnlyError(f"{root} {why}: {exc.filename or ''}")
    what = "no room is left for the entry" if exc.errno in (errno.ENOSPC, errno.EDQUOT) else "the storage failed"
    if exc.errno == errno.EFBIG:
        what = "a file cannot become that large"
    limit = file_size_limit() if exc.errno == errno.EFBIG else ""
    return StoreError(f"{root}: {what}: {exc.strerror or exc}{limit}")


def file_size_limit() -> str:
    """Say that this process may only write small files; empty if it may write large ones."""
    import resource  # by what fails only

    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most == resource.RLIM_INFINITY:
        return ""
    return f" (this process may make files of {most} bytes at most, `ulimit -f`)"
