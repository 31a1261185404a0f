"""The installed distributions: name, version and `RECORD`, which has a digest of each file, and files changed since.

All that are installed count, whether they are imported or not: which modules happen to be imported when a question is
asked differs from one start to the next. A module whose file has another size than its `RECORD` says, or is younger
than it, was changed by hand: it counts by its content.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.reuse.inputs.files import content
from ejcache.reuse.inputs.memo import memo_of_host
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_LOCAL: Final = frozenset({"dir_info", "archive_info", "vcs_info"})
_PACKAGERS: Final = frozenset({"conda"})
"""Installers that build each package from a directory, and say so in its provenance."""


class Distribution(NamedTuple):
    """An installed distribution.

    Attributes:
        name: normalised, as in "ml-dtypes".
        version: as its directory says.
        root: the directory that it is installed in, with a separator.
        directory: its `.dist-info`.
    """

    name: str
    version: str
    root: str
    directory: str

    @property
    def is_project(self) -> bool:
        """True if it came from a directory, a file or a repository, or nobody knows where it came from."""
        return _is_project(self.directory)


def normalised(name: str) -> str:
    """Return a distribution's name as all its spellings have it."""
    return name.lower().replace("_", "-").replace(".", "-")


@functools.cache
def _installed(root: str) -> dict[str, Distribution]:
    """Return the distributions in a directory, by name."""
    found: dict[str, Distribution] = {}
    with contextlib.suppress(OSError):
        for each in sorted(os.listdir(root)):  # noqa: PTH208
            if each.endswith(".dist-info"):
                raw, _, version = each.removesuffix(".dist-info").partition("-")
                name = normalised(raw)
                found[name] = Distribution(name, version, root, root + each)
    return found


@functools.cache
def _is_project(place: str) -> bool:
    if not os.path.exists(f"{place}/direct_url.json"):  # noqa: PTH110 (for each distribution, at each start)
        return not os.path.exists(f"{place}/INSTALLER")  # noqa: PTH110
    directory = Path(place)
    with contextlib.suppress(OSError):
        if directory.joinpath("INSTALLER").read_text(encoding="utf-8").strip() in _PACKAGERS:
            return False
        with contextlib.suppress(ValueError):
            about = json.loads(directory.joinpath("direct_url.json").read_text(encoding="utf-8"))
            return isinstance(about, dict) and not _LOCAL.isdisjoint(about)
    return True


@functools.cache
def _record(directory: str) -> bytes:
    """Return the `RECORD`, with a line end before each line; a line end alone if there is none."""
    try:
        with open(f"{directory}/RECORD", "rb", buffering=0) as file:  # noqa: PTH123
            return b"\n" + file.read()
    except OSError:
        return b"\n"


@functools.cache
def install_paths() -> dict[str, str]:
    """Return where this Python has its library, its packages and their commands, as `sysconfig` names them."""
    return sysconfig.get_paths()


@functools.cache
def library_directories() -> tuple[str, ...]:
    """Return the directories of Python's own library, with separators."""
    named = {install_paths()[name] for name in ("stdlib", "platstdlib")}
    return tuple({os.path.join(each, "") for path in named for each in (path, os.path.realpath(path))})  # noqa: PTH118


def is_in_library(path: str) -> bool:
    """True if a file belongs to Python itself."""
    return path.startswith(library_directories()) and "site-packages" not in path and "dist-packages" not in path


def roots() -> list[str]:
    """Return those of the search path's directories in which distributions are installed, with separators."""
    return _roots(tuple(sys.path))


@functools.cache
def _roots(search: tuple[str, ...]) -> list[str]:
    found = [root for each in search if each and _installed(root := os.path.join(each, ""))]  # noqa: PTH118
    return list(dict.fromkeys(found))


def root_of(path: str) -> str | None:
    """Return the one of these directories that a path is below."""
    for root in roots():  # for each file: a generator takes twice as long
        if path.startswith(root):
            return root
    return None


def distribution_of(path: str) -> Distribution | None:
    """Return the distribution that has installed a file; None if none has."""
    root = root_of(path)
    if root is None:
        return None
    top = path[len(root) :].partition(os.sep)[0]
    package = f"{root}{top}"
    if os.path.exists(f"{package}{os.sep}__init__.py"):  # noqa: PTH110
        return _owner(root, f"{top}/__init__.py")
    return _owner(root, path[len(root) :].replace(os.sep, "/"))  # of a namespace package, or a single file


@functools.cache
def _owner(root: str, name: str) -> Distribution | None:
    line = f"\n{name},".encode()
    installed = _installed(root)
    guess = installed.get(normalised(name.partition("/")[0].partition(".")[0]))
    if guess is not None and line in _record(guess.directory):
        return guess
    return next((each for each in installed.values() if line in _record(each.directory)), None)


def installed() -> list[Distribution]:
    """Return the distributions that imports would find, by name."""
    found: dict[str, Distribution] = {}
    for root in roots():
        found = {**_installed(root), **found}
    return [found[name] for name in sorted(found)]


def packages() -> dict[str, str]:
    """Version and digest of the `RECORD` of each installed distribution: programs ask for the project's, too.

    Older installers leave an `.egg-info`, which has no `RECORD`: its metadata and entry points count.
    """
    found = {each.name: f"{each.version} {_record_digest(each.directory)}" for each in installed()}
    return {**found, **_without_record(tuple(sys.path))}


@functools.cache
def _without_record(search: tuple[str, ...]) -> dict[str, str]:
    """Collect what counts of each `.egg-info` in these directories."""
    found: dict[str, str] = {}
    for place in search:
        if not place or is_in_library(os.path.join(place, "")):  # noqa: PTH118
            continue
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(place)):  # noqa: PTH208
                if name.endswith(".egg-info"):
                    path = os.path.join(place, name)  # noqa: PTH118
                    files = [path, f"{path}/PKG-INFO", f"{path}/entry_points.txt"]
                    found.setdefault(name, " ".join(map(content, files)))
    return found


@functools.cache
def _record_digest(directory: str) -> str:
    path = f"{directory}/RECORD"
    memo = memo_of_host()
    try:
        status = os.stat(path)  # noqa: PTH116
        digest = memo.known(f"record {path}", status)
        if digest is None:
            digest = hashlib.sha256(_record(directory)).hexdigest()[:32]
            memo.keep(f"record {path}", status, digest)
    except OSError:
        return "none"
    return digest


_examined: Final[dict[str, tuple[str, str] | None]] = {}
"""By path: the name of a module's file, and to what it was edited; None for what is no package's."""


def sort_files(files: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Pick the module files that belong to no distribution from an index, and those of the others that were edited.

    The second is the content of those that are not as the `RECORD` of their distribution says, by name. A file is
    looked at once in a process: what counts is what it was when its module was loaded.
    """
    others: list[str] = []
    edited: dict[str, str] = {}
    for path in files:
        if path not in _examined:
            _examined[path] = _examine(path)
        found = _examined[path]
        if found is None:
            others.append(path)
        elif found[1]:
            edited[found[0]] = found[1]
    return others, edited


def _examine(path: str) -> tuple[str, str] | None:
    memo = memo_of_host()
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        owner = distribution_of(path)  # it is in an archive, or gone
        return None if owner is None or owner.is_project else (_name_in(owner, path), "gone")
    said = memo.known(f"module {path}", status)
    found = None if said is None else _earlier_finding(path, said)
    if found is not None:
        return found
    owner = distribution_of(path)
    if owner is None or owner.is_project:
        return None
    name = _name_in(owner, path)
    is_edited = status.st_mtime_ns > _installed_at(owner.directory) or status.st_size != _sizes(owner.directory).get(
        name
    )
    now = content(path, status) if is_edited else ""
    memo.keep(f"module {path}", status, "\t".join((owner.directory, _record_digest(owner.directory), name, now)))
    return name, now


def _earlier_finding(path: str, said: str) -> tuple[str, str] | None:
    """Take what an earlier start found out about a module's file; None if its distribution is another one now."""
    directory, record, name, now = said.split("\t")
    root = directory[: directory.rindex(os.sep) + 1]
    is_same = root in roots() and record == _record_digest(directory) and not _is_project(directory)
    return (name, now) if is_same and path.startswith(root) else None


def _name_in(owner: Distribution, path: str) -> str:
    return path[len(owner.root) :].replace(os.sep, "/")


@functools.cache
def _installed_at(directory: str) -> int:
    try:
        return os.stat(os.path.join(directory, "RECORD")).st_mtime_ns  # noqa: PTH116, PTH118
    except OSError:
        return 0


@functools.cache
def _sizes(directory: str) -> dict[str, int]:
    """Return the size of each module, as the `RECORD` says."""
    found: dict[str, int] = {}
    for line in _record(directory).decode("utf-8", "replace").split("\n"):
        name, _, size = line.rstrip("\r").rpartition(",")
        if size.isdigit():
            found[name.rpartition(",")[0].strip('"')] = int(size)
    return found
