"""Reads files of Python source, and says whether they are what this process runs.

A function runs as its file was when Python read it. Nobody can say what that was, but a file that is older than the
process is still the same. So a file counts by its content only if neither its change time nor its modification time is
younger than the process, looked at whenever it is digested.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from ejcache.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_TICK: Final = 0.01
"""Seconds by which a process can have begun later than `_BEGAN` says: Linux tells it in hundredths of a second."""
_FORKED_AND_NOT_STARTED: Final = 0x40
"""A flag that Linux sets for a process that was forked, and takes away when it starts a program (PF_FORKNOEXEC)."""
_FLAGS: Final = 6
"""The place of a field in `/proc/self/stat`, counted from the state of the process: the third of proc(5)."""
_STARTED: Final = 19
"""The same of another one."""


def _began() -> float | None:
    """Find when this process began, in seconds since the epoch, or when this module was imported if nobody says it.

    None in a process that was forked before that: it has the modules of one that began earlier.
    """
    if sys.platform != "linux":
        return time.time()
    try:
        # The name of the program, in brackets before them, may hold spaces and brackets.
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        if int(fields[_FLAGS]) & _FORKED_AND_NOT_STARTED:
            return None
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[_STARTED]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.time()
    return time.time() - age


_BEGAN: Final = _began()


def why_unknown() -> str:
    """Say why nobody knows what is younger than this process, as the end of a sentence; empty if it is known."""
    return "" if _BEGAN is not None else "the process was forked before, and runs what its parent has read"


def is_younger_than_process(status: os.stat_result) -> bool:
    """True if a file was written, renamed or changed after this process began.

    Of a file with several names only what is in it counts: installers link the files of one package into many
    environments, and each link changes the file's status.
    """
    began = (_BEGAN or 0.0) + _TICK
    return status.st_mtime > began or (status.st_nlink == 1 and status.st_ctime > began)


class CodeFile(NamedTuple):
    """A file of source, as it was when it was read.

    Attributes:
        path: as Python has it.
        digest: of its content.
        status: its identity, size and times.
    """

    path: str
    digest: str
    status: tuple[int, ...]

    def why_changed(self) -> str:
        """Say that the file may differ from what Python read, as the end of a sentence; empty if it cannot."""
        unknown = why_unknown()
        if unknown:
            return unknown
        try:
            now = os.stat(self.path)  # noqa: PTH116
            is_same = _identity(now) == self.status and not is_younger_than_process(now) and not _has_moved(self.path)
        except OSError:
            return f"{self.path} is gone"
        return "" if is_same else f"{self.path} was modified after the process began"


_read: Final[dict[str, CodeFile]] = {}
"""Each file is read once in a process; `why_changed` looks at it again whenever it counts."""


def read_code_file(path: str) -> CodeFile | None:
    """Return a file of source, which is read once in a process; None if there is none."""
    known = _read.get(path)
    if known is not None:
        return known
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            found = CodeFile(path, hashlib.sha256(file.read()).hexdigest(), _identity(status))
    except (OSError, ValueError):  # a name such as "<string>" or one with a zero byte
        return None
    return _read.setdefault(path, found)


def _has_moved(path: str) -> bool:
    """True if a link on the way to a file was switched after this process began.

    Of a directory nobody can say it: a container gives one new times when something is written below it.
    """
    way = (os.lstat(each) for each in _way_to(path))
    return any(stat.S_ISLNK(status.st_mode) and is_younger_than_process(status) for status in way)


def _way_to(path: str) -> Iterator[str]:
    while path and path != os.sep:
        yield path
        path = os.path.dirname(path)  # noqa: PTH120


def _identity(status: os.stat_result) -> tuple[int, ...]:
    changed = status.st_ctime_ns if status.st_nlink == 1 else 0
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, changed


# -- for a word ------------------------------------------------------------------------------------------------------


class ChangedCode(str):  # noqa: SLOT000 (it has an attribute)
    """What `code_digest` returns of a file that this process may not run: a text that no other process has.

    Attributes:
        reason: which file it is, as the end of a sentence.
    """

    reason: str

    def __new__(cls, reason: str) -> Self:
        """Make one."""
        made = super().__new__(cls, f"changed {secrets.token_hex(16)}")
        made.reason = reason
        return made


def code_digest(*modules_or_paths: ModuleType | str | os.PathLike[str]) -> str:
    """Return a digest of Python source, for the word of `reuse_lowering`.

    Each file is read once in a process. If a file was changed after the process began, the process may run what the
    file was before: then the digest is one that no other process has, and functions with it in their words are traced.

    Args:
        modules_or_paths: modules, packages, `.py` files and directories. Of a package and of a directory every `.py`
            below it counts, by its relative path and its content.

    Raises:
        UsageError: one of them has no Python source, or it cannot be read.
    """
    found = hashlib.sha256()
    for each in modules_or_paths:
        places = _places_of(each)
        files = [file for place in places for file in _files_below(place)]
        if not files:
            raise UsageError(f"code_digest: {each!r} has no Python source: {_WHAT_TO_GIVE}")
        found.update(b"%d\n" % len(files))
        for name, path in files:
            file = read_code_file(os.fspath(path))
            if file is None:
                raise UsageError(f"code_digest: {path} cannot be read")
            changed = file.why_changed()
            if changed:
                return ChangedCode(changed)
            encoded = os.fsencode(name)
            found.update(b"%d %s\n" % (len(encoded), file.digest.encode()) + encoded)
        gone = _why_gone(places, {os.fspath(path) for _, path in files})
        if gone:
            return ChangedCode(gone)
    if not modules_or_paths:
        raise UsageError(f"code_digest: {_WHAT_TO_GIVE}")
    return found.hexdigest()


def _why_gone(places: list[Path], files: set[str]) -> str:
    """Say that a module which this process has imported from below these places has no file any more."""
    for module in tuple(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if type(path) is not str or not path.endswith(".py") or path in files:
            continue
        if any(Path(path).is_relative_to(place) for place in places) and not Path(path).exists():
            return f"{path} is gone"
    return ""


_WHAT_TO_GIVE: Final = "give modules, packages, .py files, or directories that have some"


def _places_of(given: object) -> list[Path]:
    if isinstance(given, ModuleType):
        directories = getattr(given, "__path__", None)
        file = getattr(given, "__file__", None)
        return [Path(each) for each in directories or ([file] if isinstance(file, str) else [])]
    if isinstance(given, (str, os.PathLike)):
        return [Path(os.fsdecode(given))]
    return []


def _files_below(place: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of source below a directory, or the file itself, with their relative paths, in a fixed order."""
    if place.suffix == ".py" and place.is_file():
        yield place.name, place
        return
    seen: set[str] = set()
    for directory, names, files in os.walk(place, followlinks=True):
        where = os.path.realpath(directory)
        names[:] = [] if where in seen else sorted(names)
        seen.add(where)
        for name in sorted(files):
            if name.endswith(".py"):
                path = Path(directory, name)
                yield path.relative_to(place).as_posix(), path
