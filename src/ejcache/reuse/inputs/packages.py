"""The installed distributions: name, version and `RECORD`, which has a digest of each file, and files changed since.

All that are installed count, whether they are imported or not: which modules happen to be imported when a question is
asked differs from one start to the next. A module whose file has another size than its `RECORD` says, or is younger
than it, or is another file than the installer wrote, was changed by hand: it counts by its content. So does code that
no `RECORD` names, directly in the directories of loaded modules, and in directories beside the packages.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.reuse.inputs.files import content, entries_of, is_code, is_younger, was_made_since
from ejcache.reuse.inputs.memo import memo_of_host
from ejcache.util.distributions import distributions_in, normalised_name
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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


@functools.cache
def _installed(root: str) -> dict[str, Distribution]:
    """Return the distributions in a directory, by name."""
    return {
        each.name: Distribution(each.name, each.version, root, root + each.metadata) for each in distributions_in(root)
    }


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
    guess = installed.get(normalised_name(name.partition("/")[0].partition(".")[0]))
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
    """Digest the `RECORD`, or metadata and entry points where an operating system has left none."""
    path = f"{directory}/RECORD"
    memo = memo_of_host()
    try:
        status = os.stat(path)  # noqa: PTH116
        _stamps[path] = _stamp(status)
        if is_younger(status, linked=True) or was_made_since(os.stat(directory)):  # noqa: PTH116
            _changed[os.path.basename(directory)] = None  # noqa: PTH119
        digest = memo.known(f"record {path}", status)
        if digest is None:
            digest = hashlib.sha256(_record(directory)).hexdigest()[:32]
            memo.keep(f"record {path}", status, digest)
    except OSError:
        return " ".join(content(f"{directory}/{name}") for name in ("METADATA", "entry_points.txt"))
    return digest


_stamps: Final[dict[str, tuple[int, ...]]] = {}
"""By the path of a `RECORD`: what told it from others when it was read."""
_changed: Final[dict[str, None]] = {}
"""What of the packages was changed after this process began."""


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def changed_package() -> str:
    """Name a package that was changed after this process began, which may run other code; empty if none was."""
    for path, stamp in tuple(_stamps.items()):
        try:
            is_same = _stamp(os.stat(path)) == stamp  # noqa: PTH116
        except OSError:
            is_same = False
        if not is_same:
            _changed[os.path.basename(os.path.dirname(path))] = None  # noqa: PTH119, PTH120
    return next(iter(_changed), "")


_examined: Final[dict[str, tuple[str, str] | None]] = {}
"""By path: the name of a module's file, and to what it was edited; None for what is no package's."""


def sort_files(files: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Pick the module files that belong to no distribution from an index, and those of the others that were edited.

    The second is the content of those that are not as the `RECORD` of their distribution says, by name. A directory
    that no `RECORD` names is there with an empty text, and a separator at its end. A file is looked at once in a
    process: what counts is what it was when its module was loaded.
    """
    others: list[str] = []
    edited: dict[str, str] = {}
    directories = dict.fromkeys(roots())
    for path in files:
        if path not in _examined:
            _examined[path] = _examine(path)
        found = _examined[path]
        if found is None:
            others.append(path)
            continue
        directories[path[: path.rindex(os.sep) + 1]] = None
        if found[1]:
            edited[found[0]] = found[1]
    for directory in directories:
        for path in _added(directory):
            name = path[len(root_of(path) or "") :].replace(os.sep, "/")
            edited[name] = "" if path.endswith(os.sep) else content(path)
    return others, edited


@functools.cache
def _added(directory: str) -> list[str]:
    """Find the code that no `RECORD` names, directly in a directory of a library and directly in directories there.

    Of the library's own directory it is that of the directories there: what lies directly in it counts as a whole. The
    directories are found, too, each with a separator behind it.
    """
    root = root_of(directory)
    if root is None:
        return []
    memo = memo_of_host()
    what = f"added {directory}"
    try:
        status = os.stat(directory)  # noqa: PTH116
    except OSError:
        return []
    said = memo.known(what, status)
    records = _records_digest(root)
    if said is None or said.partition("\t")[0] != records:
        below = [*_unlisted(root, directory)]
        said = "\t".join((records, *below))
        if all(each.isprintable() for each in below):
            memo.keep(what, status, said)
    found: list[str] = []
    for path in said.split("\t")[1:]:
        found.append(path)
        if path.endswith(os.sep):
            found += sorted(each.path for each in entries_of(path) if is_code(each.name))
    for path in found:
        with contextlib.suppress(OSError):
            if not path.endswith(os.sep):
                _note_change(path, os.stat(path))  # noqa: PTH116
    return found


def _unlisted(root: str, directory: str) -> Iterator[str]:
    """Yield the files of code and the directories that no `RECORD` names; directories end with a separator."""
    for entry in sorted(entries_of(directory), key=lambda entry: entry.name):
        name = _name_in_root(root, entry.path)
        if entry.name.isidentifier() and entry.name != "__pycache__" and entry.is_dir():
            path, name = os.path.join(entry.path, ""), f"{name}/"  # noqa: PTH118
        elif directory != root and is_code(entry.name):
            path = entry.path
        else:
            continue
        if not any(name in _listed(each.directory) for each in _installed(root).values()):
            yield path


@functools.cache
def _listed(directory: str) -> frozenset[str]:
    """Return the files that a `RECORD` names, and their directories, each with a separator behind it."""
    found: set[str] = set()
    for line in _record(directory).decode("utf-8", "replace").split("\n"):
        path = line.partition(",")[0].strip('"')
        found.add(path)
        while "/" in path:
            path = path.rpartition("/")[0]
            if f"{path}/" in found:
                break
            found.add(f"{path}/")
    return frozenset(found)


@functools.cache
def _records_digest(root: str) -> str:
    """Digest what is installed in a directory: who owns a file there follows from it."""
    records = sorted(f"{each.directory} {_record_digest(each.directory)}" for each in _installed(root).values())
    return hashlib.sha256("\n".join(records).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _note_change(path: str, status: os.stat_result) -> None:
    """Note a file that was changed after this process began, and perhaps after it was imported."""
    if is_younger(status, linked=status.st_nlink > 1):
        _changed[path] = None


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
    if path.endswith(os.sep):
        # Of a namespace package. Python writes byte code into it; the code that lies there is looked at by itself.
        return name, ""
    now = content(path, status) if _is_edited(owner.directory, name, path, status) else ""
    if now:
        _note_change(path, status)
    memo.keep(f"module {path}", status, "\t".join((owner.directory, _record_digest(owner.directory), name, now)))
    return name, now


def _earlier_finding(path: str, said: str) -> tuple[str, str] | None:
    """Take what an earlier start found out about a module's file; None if its distribution is another one now."""
    directory, record, name, now = said.split("\t")
    root = directory[: directory.rindex(os.sep) + 1]
    is_same = root in roots() and record == _record_digest(directory) and not _is_project(directory)
    return (name, now) if is_same and path.startswith(root) else None


def _name_in(owner: Distribution, path: str) -> str:
    return _name_in_root(owner.root, path)


def _name_in_root(root: str, path: str) -> str:
    return path[len(root) :].replace(os.sep, "/")


def _is_edited(directory: str, name: str, path: str, status: os.stat_result) -> bool:
    """True if a module's file is not the one that the installer wrote.

    A copy that keeps the times of its source may be older. It is a file of its own and got its name later, and is read.
    """
    said = _said_of_files(directory).get(name)
    written, named = _installed_at(directory)
    if said is None or status.st_mtime_ns > written or status.st_size != said[1]:
        return True
    if status.st_nlink > 1 or status.st_ctime_ns <= named or not said[0].startswith("sha256="):
        return False
    now = content(path, status, largest=None)
    try:
        return said[0] != f"sha256={base64.urlsafe_b64encode(bytes.fromhex(now)).rstrip(b'=').decode()}"
    except ValueError:
        return True  # it cannot be read


@functools.cache
def _installed_at(directory: str) -> tuple[int, int]:
    """Find when a `RECORD` was written, and when it got its name, as the last of its distribution's files."""
    try:
        status = os.stat(os.path.join(directory, "RECORD"))  # noqa: PTH116, PTH118
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_ctime_ns


@functools.cache
def _said_of_files(directory: str) -> dict[str, tuple[str, int]]:
    """Return digest and size of each module, as the `RECORD` says."""
    found: dict[str, tuple[str, int]] = {}
    for line in _record(directory).decode("utf-8", "replace").split("\n"):
        name, _, size = line.rstrip("\r").rpartition(",")
        if size.isdigit():
            name, _, digest = name.rpartition(",")
            found[name.strip('"')] = digest, int(size)
    return found
