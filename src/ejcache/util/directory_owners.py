"""Who else may use a directory: owners, groups and containers; and the sentences that say so.

`directory_access` decides, and asks here only where a directory is not this user's or root's alone.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.errors import MALFORMED
from ejcache.util.files import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterable

TRUST: Final = "or set EJCACHE_TRUST_DIR=1 if you trust them"
_POLICY_BYTES: Final = 64 << 10
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_CONTAINER_MARKS: Final = ("/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io")


def shares(about: os.stat_result) -> bool:
    """True if a directory is open to others on purpose: who writes there may also change what others have written."""
    if about.st_mode & stat.S_ISVTX:
        return False
    # Trust was given: then a group is one whether or not it has a name.
    by_group = about.st_mode & stat.S_IWGRP and not _is_private_group(about.st_gid, os.geteuid(), nameless=False)
    return bool(by_group or about.st_mode & stat.S_IWOTH)


def is_declared(policy: Path, found: Iterable[os.stat_result]) -> bool:
    """True if this user or root, and nobody else, has declared the cache shared with those who can write to it."""
    try:
        about = policy.lstat()
        if about.st_uid not in (os.geteuid(), 0) or about.st_mode & _OTHERS_WRITE:
            return False
        shared = json.loads(read_regular(policy, max_size=_POLICY_BYTES)).get("shared")
    except (OSError, *MALFORMED):
        return False
    by_everybody = any(status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX for status in found)
    return shared == "everybody" or (shared == "group" and not by_everybody)


def kept_or_shared(root: Path, about: os.stat_result, another: str, *, of_cache: bool, trusted: bool | None) -> str:
    """Return what mends that others can write there, as the beginning of a sentence."""
    trust = "" if trusted is None else f", {TRUST}"
    if about.st_uid != os.geteuid():
        return another + trust
    shared = f", `ejcache config set --dir {root} shared=group` (or everybody) shares it" if of_cache else ""
    return f"`chmod -R go-w {root}` keeps it for you alone{shared}{trust}"


def opened_by_owner(root: Path, about: os.stat_result, another: str) -> str:
    """Return what opens it to this user, as the beginning of a sentence."""
    if about.st_uid == os.geteuid():
        return f"`chmod u+rwx {root}` mends it"
    return f"its owner opens it by `ejcache config set --dir {root} shared=readers` (or group, everybody); or {another}"


def is_closed(path: str, about: os.stat_result) -> str:
    """Return that this user may not look into it, as a sentence."""
    return f"{path} is closed to {me()} ({owner(about)})"


def why_no_cache(path: Path, about: os.stat_result) -> str:
    """Return that a directory holds no cache and this user can make none in it, as a sentence."""
    return f"{path} holds no cache, and {me()} cannot write to it ({owner(about)})"


def owner(about: os.stat_result) -> str:
    """Return whose it is, for parentheses."""
    return f"it belongs to {user_name(about.st_uid)}, mode {stat.S_IMODE(about.st_mode):04o}"


def me() -> str:
    """Name this user."""
    return user_name(os.geteuid())


def why_foreign(path: str | os.PathLike[str], about: os.stat_result, *, named: bool) -> str:
    """Return why a directory may hold code of another user, as a sentence; "" if it is trusted.

    Args:
        path: the directory, for the sentence.
        about: its status; not that of a link.
        named: it is a root that a user names. Then it does not count that everybody can write there, nor, in a
            container, whose it is.
    """
    user = os.geteuid()
    if about.st_uid not in (user, 0) and not ((named or user == 0) and is_in_container()):
        return f"{os.fspath(path)} belongs to {user_name(about.st_uid)}, who could have put code there"
    if named and about.st_uid not in (user, 0):
        return ""
    if about.st_mode & stat.S_IWOTH:
        if named:
            return ""
        return f"any user can write to {os.fspath(path)} (mode {stat.S_IMODE(about.st_mode):04o}) and put code there"
    if about.st_mode & stat.S_IWGRP and not _is_private_group(about.st_gid, user):
        return (
            f"the group {_group_name(about.st_gid)} can write to {os.fspath(path)}"
            f" (mode {stat.S_IMODE(about.st_mode):04o}) and put code there"
        )
    return ""


def is_in_container() -> bool:
    """True if this process runs in a container, or in another user namespace than the host's."""
    if any(Path(mark).exists() for mark in _CONTAINER_MARKS):
        return True
    try:
        # In a user namespace, as rootless containers have it, "root" is an ordinary user of the host.
        return Path("/proc/self/uid_map").read_text().split()[:2] != ["0", "0"]
    except OSError:
        return False


def _is_private_group(gid: int, user: int, *, nameless: bool = True) -> bool:
    """True if no other user is known to be in the group; in a container also, if `nameless`, of one without a name."""
    import grp  # by what is shared only, as `pwd`
    import pwd

    try:
        group = grp.getgrgid(gid)
    except (KeyError, OSError):
        # In a container, the group of a volume has no name. Elsewhere, the directory of users may be out of reach.
        return nameless and is_in_container()
    try:
        name = pwd.getpwuid(user).pw_name
    except (KeyError, OSError):
        name = str(user)
    return set(group.gr_mem) <= {name} and (gid == user or group.gr_name == name)


def user_name(uid: int) -> str:
    """Name a user of this host, with the number."""
    import pwd

    try:
        return f"the user {pwd.getpwuid(uid).pw_name} (id {uid})"
    except (KeyError, OSError):
        return f"the user with id {uid}"


def _group_name(gid: int) -> str:
    import grp

    try:
        return f"{grp.getgrgid(gid).gr_name} (id {gid})"
    except (KeyError, OSError):
        return f"with id {gid}"


def refusal(why: str, mend: str) -> str:
    """Return why a directory is not used, and what mends it, in one message; "" for one that is used."""
    return f"{why}; it is not used. {mend[0].upper()}{mend[1:]}" if why else ""


def audience_of(mode: int) -> str:
    """Return the key of `directory_access.SHARED` that says with whom a directory of this mode is shared."""
    by_mode = ((stat.S_IWOTH, "everybody"), (stat.S_IWGRP, "group"), (stat.S_IROTH | stat.S_IRGRP, "readers"))
    return next((how for bits, how in by_mode if mode & bits), "none")
