"""Shares the cache in a directory with a group or with everybody, and notes it in its policy."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from ejcache.bucket.files import FileBucket
from ejcache.errors import StoreUnavailableError
from ejcache.maintenance.stored_policy import change_policy
from ejcache.util.directory_access import OURS, POLICY, PRIVATE, SHARED, Access, user_name
from ejcache.util.files import inherited_mode, missing_directories

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        with _undone_on_failure(root):
            _share(root, how)
            with FileBucket(root, local=True, documents=True) as bucket:
                change_policy(bucket, {"shared": how if how in ("group", "everybody") else None})
        return _share(root, how)  # the policy, too, which was written like any other file
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


def _share(root: Path, how: str) -> int:
    """Give what ejcache has below `root` the permissions of a cache that is shared with those, and the root's group.

    What ejcache makes there later follows. Directories of the user's own at the root are left alone, and so are the
    quarantined copies, which stay private.

    Args:
        root: of a cache; it is made if it does not exist, in directories that everybody can pass through.
        how: a key of `SHARED`.

    Returns:
        How many files and directories of other users could not be changed.

    Raises:
        OSError: the root itself cannot be made or changed, and has to be.
    """
    mode, failed = SHARED[how], 0
    for above in missing_directories(root.parent):
        above.mkdir(mode=0o755, exist_ok=True)
        above.chmod(PRIVATE if how == "none" else 0o755)
    Access(root).make()
    about = root.stat()
    gid = about.st_gid
    if os.geteuid() in (about.st_uid, 0) or not _is_open(about.st_mode, how):
        os.chmod(root, mode)  # noqa: PTH101 (follows a link to the root)
    Access(root).make("v1")
    for top in OURS:
        for folder, _, names in os.walk(root / top, onerror=None):
            failed += not _give(Path(folder), mode, gid)
            for name in () if Path(folder).name == "quarantine" else names:
                # Who can change the policy decides whom its readers trust.
                writable = 0o644 if f"{top}/{name}" == POLICY else 0o666
                failed += not _give(Path(folder, name), mode & writable | 0o600, gid)
    return failed


def _is_open(root_mode: int, how: str) -> bool:
    """True if the root need not be changed. That of another user may be open to more than those; its owner decides."""
    needed = 0 if how == "none" else SHARED[how] & 0o777
    return root_mode & needed == needed


@contextlib.contextmanager
def _undone_on_failure(root: Path) -> Iterator[None]:
    """Give `root` its permissions back, and remove the directories that were made for it, if the block fails."""
    mode = stat.S_IMODE(root.stat().st_mode) if root.is_dir() else None
    parents = reversed([*missing_directories(root.parent)])
    made = [path for path in (root / "v1", root, *parents) if not path.exists()]
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            if mode is not None:
                os.chmod(root, mode)  # noqa: PTH101 (follows a link to the root)
        for path in made:
            with contextlib.suppress(OSError):  # it was not made
                path.rmdir()
        raise


def why_out_of_reach(root: Path) -> str:
    """Return why others cannot use a root that is shared with them, as a sentence; "" if they can reach it."""
    real = Path(os.path.realpath(root))
    for part in real.parents:
        about = part.stat()
        if not about.st_mode & (stat.S_IXOTH | stat.S_IXGRP):
            return f"{part} is closed to others (mode {stat.S_IMODE(about.st_mode):04o}), and {root} is below it"
    return ""


def _give(path: Path, mode: int, gid: int | None) -> bool:
    """Give a file or directory of this user these permissions and this group; False if it cannot be changed."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return path.is_symlink()
    try:
        about = os.fstat(fd)
        if gid is not None and about.st_gid != gid:
            with contextlib.suppress(OSError):  # of a group that this user is not in
                os.fchown(fd, -1, gid)
        os.fchmod(fd, inherited_mode(mode) if stat.S_ISDIR(about.st_mode) else mode)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
