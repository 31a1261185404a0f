"""Whether code may be loaded from a directory: who could have put it there.

A directory that ejcache makes has mode 0700. One that it finds may belong to another user, or be writable by others;
both could have put an executable of their own into it, which would then run as this user. Trusted are

* directories of this user and of root. Of the directories above them, only those are refused that any user may change
  and that have no sticky bit (`why_replaceable`). There, another user can exchange a directory while it is in use. A
  member of a group that may change a directory above, or its owner, can do that as well; but group directories are
  where many clusters keep all their data, so they are accepted;
* group permissions, if no other user is known to be in the group: the private group that Debian and Red Hat give each
  user, with a umask of 002, and the `fsGroup` that Kubernetes gives a volume;
* for root inside a container, directories of any user: a bind mount belongs to a user of the host. Inside any
  container, directories above are not examined: an `emptyDir` of Kubernetes has mode 0777, and the users in a container
  belong to one job.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path
from typing import Final

_CONTAINER_MARKS: Final = ("/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io")


def why_untrusted(path: str | os.PathLike[str], about: os.stat_result, *, in_container: bool | None = None) -> str:
    """Why a directory may hold code of another user, as a sentence; "" if it is trusted.

    Args:
        path: the directory, for the sentence.
        about: its status; not that of a link.
        in_container: whether this process runs in a container, found out if not given.
    """
    user = os.geteuid()
    if about.st_uid not in (user, 0):
        inside = _in_container() if in_container is None else in_container
        if user != 0 or not inside:
            return f"{os.fspath(path)} belongs to {_user_name(about.st_uid)}, who could have put code there"
    if about.st_mode & stat.S_IWOTH:
        return f"any user can write to {os.fspath(path)} (mode {stat.S_IMODE(about.st_mode):04o}) and put code there"
    if about.st_mode & stat.S_IWGRP and not _is_private_group(about.st_gid, user, in_container=in_container):
        return (
            f"the group {_group_name(about.st_gid)} can write to {os.fspath(path)}"
            f" (mode {stat.S_IMODE(about.st_mode):04o}) and put code there"
        )
    return ""


def why_replaceable(path: str | os.PathLike[str], *, in_container: bool | None = None) -> str:
    """Why any user could replace the directory at `path`, as a sentence; "" if only few users, or none, could.

    Args:
        path: the directory, which need not exist. Links to it are followed.
        in_container: as for `why_untrusted`.
    """
    real = Path(os.path.realpath(path))
    for part in (real, *real.parents):
        try:
            mode = part.stat().st_mode
        except OSError:
            continue  # not there yet, or behind a directory that is not for this user
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            if _in_container() if in_container is None else in_container:
                return ""
            return f"any user can rename what is in {part} (mode {stat.S_IMODE(mode):04o}) and put code in its place"
    return ""


def _in_container() -> bool:
    if any(Path(mark).exists() for mark in _CONTAINER_MARKS):
        return True
    try:
        # In a user namespace, as rootless containers have it, "root" is an ordinary user of the host.
        return Path("/proc/self/uid_map").read_text().split()[:2] != ["0", "0"]
    except OSError:
        return False


def _is_private_group(gid: int, user: int, *, in_container: bool | None) -> bool:
    try:
        group = grp.getgrgid(gid)
    except (KeyError, OSError):
        # In a container, the group of a volume has no name. Elsewhere, the directory of users may be out of reach.
        return _in_container() if in_container is None else in_container
    try:
        name = pwd.getpwuid(user).pw_name
    except (KeyError, OSError):
        name = str(user)
    return set(group.gr_mem) <= {name} and (gid == user or group.gr_name == name)


def _user_name(uid: int) -> str:
    try:
        return f"the user {pwd.getpwuid(uid).pw_name} (id {uid})"
    except (KeyError, OSError):
        return f"the user with id {uid}"


def _group_name(gid: int) -> str:
    try:
        return f"{grp.getgrgid(gid).gr_name} (id {gid})"
    except (KeyError, OSError):
        return f"with id {gid}"
