"""Shares the cache in a directory with a group or with everybody, and notes it in its policy."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ejcache.bucket.files import FileBucket
from ejcache.errors import StoreUnavailableError
from ejcache.maintenance.stored_policy import change_policy
from ejcache.util.directory_access import share, undone_on_failure, user_name

if TYPE_CHECKING:
    from ejcache.stores.location import Location


def share_directory(location: Location, how: str) -> int:
    """Share the cache in a directory with a group or with everybody (a key of `SHARED`), and note it in its policy.

    If that fails, the directory is as it was.

    Returns:
        How many files and directories of other users could not be changed.

    Raises:
        StoreError: the directory cannot be made or changed.
    """
    root = Path(location.path)
    try:
        with undone_on_failure(root):
            share(root, how)
            with FileBucket(root, local=True, documents=True) as bucket:
                change_policy(bucket, {"shared": how if how in ("group", "everybody") else None})
        return share(root, how)  # the policy, too, which was written like any other file
    except OSError as exc:
        raise StoreUnavailableError(f"{root} cannot be shared: {exc.strerror or exc}{_who_can(root, exc)}") from exc


def _who_can(root: Path, exc: OSError) -> str:
    """Say who can do what this user may not, as the end of a sentence; "" if that is not what is wrong."""
    with contextlib.suppress(OSError):
        owner = root.stat().st_uid
        if exc.errno in (errno.EPERM, errno.EACCES) and owner != os.geteuid():
            return (
                f"; only its owner, {user_name(owner)}, or root can change its permissions. Who trusts all that can "
                "write there sets EJCACHE_TRUST_DIR=1"
            )
    return ""
