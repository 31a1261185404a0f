"""Decides whether ejcache may use a directory, and who else may read and write what it keeps there.

A directory that is used is of one of three kinds, and everything below its root is of the same kind:

    private    this user's alone: mode 0700 whatever the umask, as is each missing directory above it
    shared     on purpose, with a group or with everybody: modes and group follow the root
    readable   this user, or root, fills it; others may only read

Entries are code, so the question is who could have put one there. Trusted are

* directories of this user and of root. Of the directories above them, only those are refused that any user may change
  and that have no sticky bit (`why_replaceable`). There, another user can exchange a directory while it is in use. A
  member of a group that may change a directory above, or its owner, can do that as well; but group directories are
  where many clusters keep all their data, so they are accepted;
* group permissions, if no other user is known to be in the group: the private group that Debian and Red Hat give each
  user, with a umask of 002, and the `fsGroup` that Kubernetes gives a volume;
* for root inside a container, directories of any user: a bind mount belongs to a user of the host. Inside any
  container, the root of a cache and the directories above it are not examined for other owners and for permissions of
  everybody: an `emptyDir` of Kubernetes has mode 0777, and the users in a container belong to one job.

Everybody else who can write there is trusted on purpose or not at all: by the setting `trust_dir`, by which the
user who reads trusts them; by `shared=group` or `shared=everybody` in the policy of the cache (`v1/policy.json`), if
this user or root wrote that file and nobody else can; or because hosts share the directory, which is named like a
bucket. Nothing of a directory that is refused is read or written. `docs/trust.md` has the table of all cases.
"""

# pathlib's methods cost as much as the calls that they make, and these are on the path of every hit.
# ruff: noqa: PTH116, PTH118, PTH120

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.errors import MALFORMED
from ejcache.util.files import (
    inherited_mode,
    make_below,
    make_private,
    make_with_mode,
    read_regular,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PRIVATE: Final = 0o700
SHARED: Final = {"none": PRIVATE, "readers": 0o755, "group": 0o2770, "everybody": 0o777}
"""With whom a cache can be shared, and the permissions of its directories then."""
OURS: Final = ("v1", "autotune", "autotune-recorded", "targets")
"""What a cache has at its root. Other files there are the user's."""
POLICY: Final = "v1/policy.json"
_CACHE: Final = "EJCACHE_DIR"

_LOOK: Final = os.R_OK | os.X_OK
_CHANGE: Final = os.W_OK | os.X_OK
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
TRUST: Final = "or set EJCACHE_TRUST_DIR=1 if you trust them"
_POLICY_BYTES: Final = 64 << 10
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
    """Return the key of `SHARED` that says with whom a directory of this mode is shared."""
    by_mode = ((stat.S_IWOTH, "everybody"), (stat.S_IWGRP, "group"), (stat.S_IROTH | stat.S_IRGRP, "readers"))
    return next((how for bits, how in by_mode if mode & bits), "none")


class Access(NamedTuple):
    """The decision about a root.

    Attributes:
        root: the directory.
        mode: the permissions of the root if it is made, and of what is made directly in it. Deeper down, everything
            has those of the directory that it is in (`make_below`).
        others: other users who can write there are trusted.
        why: why it is not used, as a sentence without its end; "" if it is used.
        mend: what mends it, as the beginning of a sentence.
        closed: it is not used because this user cannot, whomever he trusts.
    """

    root: Path
    mode: int = PRIVATE
    others: bool = False
    why: str = ""
    mend: str = ""
    closed: bool = False

    def make(self, name: str = "") -> None:
        """Make the root, or the directory `name` below it, with those above it that are missing.

        Raises:
            OSError: it cannot be made.
        """
        if (self.root / name).is_dir():
            return

        mode = inherited_mode(self.mode)
        if not self.root.is_dir():
            make_private(self.root.parent)
            make_with_mode(self.root, mode)
        top, _, rest = name.partition("/")
        if top and not (self.root / top).is_dir():
            make_with_mode(self.root / top, mode, gid=self.root.stat().st_gid)
        if rest:
            make_below(self.root / name)


def decide_access(
    root: str | os.PathLike[str],
    *,
    trusted: bool | None = False,
    hosts_share: bool = False,
    writing: bool = True,
    names: Iterable[str] = OURS,
    setting: str = _CACHE,
) -> Access:
    """Decide whether the directory `root` is used, and as what. Nothing is made or changed.

    Args:
        root: the directory, which need not exist; it may be reached through links.
        trusted: this user trusts everybody who can write there; None where nobody else is ever trusted.
        hosts_share: hosts share the directory, and a user who names it trusts those who can write there.
        writing: this process would write there; otherwise a directory without anything to read may be used.
        names: relative paths of the directories that ejcache has below the root, those above before those below.
        setting: the variable that chooses the directory, for the advice; that of a cache allows its policy to declare
            it shared.
    """
    path, another = Path(root), f"choose another directory ({setting})"
    try:
        about = path.stat()
    except FileNotFoundError:
        return _decide_absent(path, consent=bool(trusted) or hosts_share, writing=writing, another=another)
    except PermissionError:
        return Access(path, why=f"{path} is below a directory that is closed to {me()}", mend=another, closed=True)
    except (OSError, ValueError):
        return Access(path)  # opening it says what is wrong
    if not stat.S_ISDIR(about.st_mode):
        return Access(path)
    top = os.fspath(path)
    found = {top: about, **_existing(top, names)}
    for each, status in found.items():
        if stat.S_ISLNK(status.st_mode):
            return Access(path, why=f"{each} is a symbolic link", mend=f"delete it, or {another}")
        if stat.S_ISDIR(status.st_mode) and not _may(each, _LOOK):
            return Access(path, why=is_closed(each, status), mend=opened_by_owner(path, status, another), closed=True)
    why, each = _why_foreign(found, top, named=trusted is not None)
    others = bool(trusted) or hosts_share
    if why and not others:
        others = setting == _CACHE and is_declared(path / POLICY, found.values())
        if not others:
            mend = kept_or_shared(path, found[each], another, of_cache=setting == _CACHE, trusted=trusted)
            return Access(path, why=why, mend=mend)
    made = next((status for each, status in found.items() if each != top == os.path.dirname(each)), None)
    if made is not None:
        return Access(path, made.st_mode & 0o777, others)
    if writing and not _may(path, _CHANGE):
        mend = opened_by_owner(path, about, another)
        return Access(path, why=why_no_cache(path, about), mend=mend, closed=True)
    return Access(path, _mode_for_new(about, hosts_share=hosts_share) if others else PRIVATE, others)


def _why_foreign(found: Mapping[str, os.stat_result], top: str, *, named: bool) -> tuple[str, str]:
    """Return why, and in which directory, another user could have put code; empty texts if none could."""
    for each, status in found.items():
        if why := why_untrusted(each, status, named=named and each == top):
            return why, each
    return why_replaceable(top), top


def _mode_for_new(about: os.stat_result, *, hosts_share: bool = False) -> int:
    """Return the mode of a cache in a directory whose users are trusted."""
    follows = shares(about) or (hosts_share and not about.st_mode & stat.S_ISVTX)
    return about.st_mode & 0o777 if follows else PRIVATE


def _existing(root: str, names: Iterable[str]) -> dict[str, os.stat_result]:
    found = {}
    for place in [os.path.join(root, name) for name in names]:
        with contextlib.suppress(OSError):  # not there, or below a directory that is closed
            found[place] = os.lstat(place)
    return found


def _decide_absent(path: Path, *, consent: bool, writing: bool, another: str) -> Access:
    above = next((each for each in path.parents if os.path.lexists(each)), path.parent)
    if not consent and (why := why_replaceable(path)):
        return Access(path, why=why, mend=f"`chmod +t` of that directory mends it, or {another}, {TRUST}")
    try:
        about = above.stat()
    except OSError:
        return Access(path)
    if writing and stat.S_ISDIR(about.st_mode) and not _may(above, _CHANGE):
        why = f"{path} does not exist, and {me()} cannot write to {above} ({owner(about)})"
        return Access(path, why=why, mend=another, closed=True)
    return Access(path, _mode_for_new(about) if consent else PRIVATE, consent)


def _may(path: str | os.PathLike[str], what: int) -> bool:
    return os.access(path, what, effective_ids=os.access in os.supports_effective_ids)


def why_untrusted(path: str | os.PathLike[str], about: os.stat_result, *, named: bool = False) -> str:
    """Return why a directory may hold code of another user, as a sentence; "" if it is trusted.

    Args:
        path: the directory, for the sentence.
        about: its status; not that of a link.
        named: it is the root of a cache, which a user names. Then `why_replaceable` judges what everybody may do in it,
            as in the directories above it.
    """
    if about.st_uid in (os.geteuid(), 0) and not about.st_mode & _OTHERS_WRITE:
        return ""

    return why_foreign(path, about, named=named and stat.S_ISDIR(about.st_mode))


def why_replaceable(path: str | os.PathLike[str]) -> str:
    """Return why any user could replace the directory at `path`, as a sentence; "" if only few users, or none, could.

    Args:
        path: the directory, which need not exist. Links to it are followed.
    """
    part, below = os.path.realpath(path), ""
    while part != below:
        mode = 0
        with contextlib.suppress(OSError):  # not there yet, or behind a directory that is not for this user
            mode = os.stat(part).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            if is_in_container():
                return ""
            return f"any user can rename what is in {part} (mode {stat.S_IMODE(mode):04o}) and put code in its place"
        part, below = os.path.dirname(part), part
    return ""
