"""The project's files: what no installed distribution owns of the loaded modules, and what lies beside them.

The project is made of the directories of the main file and of loaded modules that belong to no distribution from an
index. A file directly in a library's directory counts alone. Of these directories and those below them count:

* code, as a complete set: a file more or less is a difference;
* configuration, as it was when the record was made, and files that were added to the directories of then.

docs/reuse.md has the endings, and which directories are left out.
"""

from __future__ import annotations

import functools
import glob
import operator
import os
import re
import stat
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache.jax_integration.seam.reuse.refusal import RefusedError
from ejcache.reuse.inputs.files import CODE, content, ending, entries_of, is_code, is_younger, was_made_since
from ejcache.reuse.inputs.packages import install_paths, is_in_library, root_of, roots
from ejcache.settings.start import DIRECTORY, identity
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator, Mapping

CONFIGURATION: Final = frozenset({
    *(".yaml", ".yml", ".toml", ".json", ".json5", ".jsonc", ".jsonnet", ".libsonnet", ".ini", ".cfg", ".conf"),
    *(".properties", ".xml", ".csv", ".tsv", ".gin", ".txt", ".pbtxt", ".textproto", ".j2", ".jinja", ".model"),
    ".vocab",
})  # fmt: skip
_ENDINGS_OF_CODE: Final = tuple(CODE)
_ENDINGS_OF_CONFIGURATION: Final = tuple(CONFIGURATION)
_ARCHIVES: Final = (".zip", ".egg", ".pyz")
NOT_DESCENDED: Final = frozenset({"__pycache__", "node_modules"})
OUTPUTS: Final = frozenset({"outputs", "runs", "logs", "wandb", "mlruns", "lightning_logs", "checkpoints", "results"})
_CUSTOMIZE: Final = frozenset({"sitecustomize", "usercustomize"})
_MOST: Final = 20_000
_LIBRARY: Final = "library/"
_OWN: Final = "ejcache:"
_HERE: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120
"""The directory that ejcache is in: where it belongs to no index, its code counts, and not where it lies."""
_INSTALLED: Final = ("site-packages/", "dist-packages/")


class Project(NamedTuple):
    """The counted files of a project.

    Attributes:
        code: digests by path, as `label` writes it.
        configuration: the same.
        directories: those that were looked into for configuration.
        changed: a counted file that changed after this process began; empty if none did.
    """

    code: Mapping[str, str] = {}
    configuration: Mapping[str, str] = {}
    directories: frozenset[str] = frozenset()
    changed: str = ""


def module_files() -> list[str]:
    """The files of the loaded modules. No module is asked for it: some import what they are a place for.

    Of packages they are their directories, too, but for that of the package's own file: a namespace package has
    directories alone, and others have added some.
    """
    found: dict[object, None] = {}
    for module in tuple(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        path = names.get("__file__")
        found[path] = None
        places: Any = names.get("__path__")
        if isinstance(places, (list, tuple)) or type(places).__name__ == "_NamespacePath":
            own = os.path.dirname(path) if type(path) is str else None  # noqa: PTH120
            others = [each for each in places if type(each) is str and each != own]
            found.update((os.path.join(each, ""), None) for each in others if own is None or os.path.isdir(each))  # noqa: PTH112, PTH118
    # A relative path is the work of a loader that is not Python's.
    return [
        path if path.startswith(os.sep) else os.path.join(DIRECTORY, path)  # noqa: PTH118
        for path in found
        if type(path) is str and (path.startswith(os.sep) or os.path.isfile(path))  # noqa: PTH113
    ]


def project_places(main: str, files: Iterable[str], given: str = "") -> tuple[list[str], list[str]]:
    """The directories of the project, none below another, and the files that count alone.

    Args:
        main: the file of the main module.
        files: of loaded modules that belong to no distribution from an index.
        given: the main file as the command line has it, which may be a link from another directory.

    Raises:
        RefusedError: a module was loaded from what is neither a file nor an archive.
    """
    directories: set[str] = set()
    alone: set[str] = set()
    scripts = os.path.realpath(install_paths()["scripts"])
    known: dict[str, str] = {}
    for path in (main, *files):
        root = root_of(path)
        if root is not None and path.endswith(os.sep):
            continue  # of a namespace package: its modules are looked at
        if root is not None:
            top = f"{root}{path[len(root) :].partition(os.sep)[0]}"
            (alone if top == path else directories).add(top)
            if path == main == top and not root.endswith(_INSTALLED):
                directories.add(os.path.dirname(path))  # noqa: PTH120  # somebody put packages beside a program
            if not is_code(path):
                alone.add(path)
            continue
        if is_in_library(path):
            if "customize" in path and os.path.basename(path).partition(".")[0] in _CUSTOMIZE:  # noqa: PTH119
                alone.add(path)
            continue
        real = _real(path, known)  # a path may go through links, or up again with `..`
        if os.path.dirname(real) == scripts:  # noqa: PTH120
            alone.add(real)
        elif os.path.isfile(real):  # noqa: PTH113
            directories.add(os.path.dirname(real))  # noqa: PTH120
            if not is_code(real):
                alone.add(real)  # somebody's own loader, or a script without an ending
        elif os.path.isdir(real):  # noqa: PTH112
            directories.add(real)  # of a namespace package
        else:
            archive = _archive_of(real)
            alone.add(archive)
            if path == main:
                directories.add(os.path.dirname(archive))  # noqa: PTH120
    beside = os.path.realpath(os.path.dirname(given)) if given else ""  # noqa: PTH120
    if beside and beside != scripts and root_of(os.path.join(beside, "")) is None and not is_in_library(beside):  # noqa: PTH118
        directories.add(beside)
    kept = sorted(each for each in directories if not any(_is_reached(each, other) for other in directories))
    alone.update(_searched(sys.path, kept))
    return kept, sorted(alone)


def _real(path: str, known: dict[str, str]) -> str:
    """`os.path.realpath`, which looks at each directory once for all files in it.

    Args:
        path: absolute.
        known: what was found out about directories; it is added to.
    """
    directory, _, name = path.rpartition(os.sep)
    if name in {"", ".", ".."} or os.path.islink(path):  # noqa: PTH114
        return os.path.realpath(path)
    if directory not in known:
        known[directory] = os.path.realpath(f"{directory}{os.sep}")
    return os.path.join(known[directory], name)  # noqa: PTH118


def _searched(search: Iterable[str], directories: Collection[str]) -> Iterator[str]:
    """The code that an import would find, whether it is loaded or not: a trace may import what no module did before.

    It is what lies directly in a directory of the search path, and directly in the packages there, but for Python's
    own library and installed packages.

    Args:
        search: entries of the search path.
        directories: of the project, where all code counts.

    Raises:
        RefusedError: there are more than 20,000 entries.
    """
    found = 0
    for place in dict.fromkeys(search):
        path = os.path.realpath(place)  # of "", the directory in which the program is
        if is_in_library(os.path.join(path, "")):  # noqa: PTH118
            continue
        is_library = os.path.join(place, "") in roots() or f"{path}/".endswith(_INSTALLED)  # noqa: PTH118
        if not is_library and any(path == each or _is_reached(path, each) for each in directories):
            continue
        archive = path
        while not os.path.exists(archive):  # noqa: PTH110
            archive = os.path.dirname(archive)  # noqa: PTH120  # a directory in it can be searched, too
        if os.path.isfile(archive):  # noqa: PTH113  # whatever its ending
            yield archive
        waiting = [place if is_library else path]
        while waiting:
            here = waiting.pop()
            is_top = here == path and not is_library
            for entry in entries_of(here):
                found += 1
                if found > _MOST:
                    raise RefusedError(f"{place}, in which Python looks for modules, has more than {_MOST:,} entries")
                if is_code(entry.name):
                    yield entry.path
                elif is_top and entry.path not in directories and _is_package(entry):
                    waiting.append(entry.path)


def _is_package(entry: os.DirEntry[str]) -> bool:
    return entry.name.isidentifier() and entry.is_dir() and _is_descended(entry.name, entry.path)


def link_that_changed(paths: Iterable[str]) -> str:
    """A link on the way to one of these files that was made after this process began; empty if there is none.

    A release is often changed by a link to its directory. The process has loaded files of the one before then. Of
    Python's library and of ejcache, whose files do not count, only the directories are looked at.
    """
    looked: set[str] = set()
    for path in paths:
        above = os.path.dirname(path) if is_in_library(path) else path  # noqa: PTH120
        while above not in looked and len(above) > 1:
            looked.add(above)
            try:
                status = os.lstat(above)
            except OSError:
                break
            if stat.S_ISLNK(status.st_mode) and is_younger(status):
                return above
            above = os.path.dirname(above)  # noqa: PTH120
    return ""


def _archive_of(path: str) -> str:
    above = path
    while len(above) > 1:
        above = os.path.dirname(above)  # noqa: PTH120
        if os.path.isfile(above) and above.endswith(_ARCHIVES):  # noqa: PTH113
            return above
    raise RefusedError(f"a module was loaded from {path}, which is not a file")


def _is_reached(path: str, other: str) -> bool:
    """True if reading the directory `other` reads the directory `path`, too."""
    if path == other or not path.startswith(os.path.join(other, "")):  # noqa: PTH118
        return False
    above = other.rstrip(os.sep)
    for name in Path(path).relative_to(other).parts:
        above = f"{above}{os.sep}{name}"
        if not _is_descended(name, above):
            return False
    return True


def _is_descended(name: str, path: str) -> bool:
    return (
        name not in NOT_DESCENDED and name.isidentifier() and not os.path.exists(f"{path}/pyvenv.cfg")  # noqa: PTH110
    )


class ProjectPlaces(NamedTuple):
    """What a project is made of.

    Attributes:
        directories: none below another.
        alone: files that count alone.
    """

    directories: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()


class ProjectReader:
    """Reads a project's files, each directory once in a process.

    Args:
        main: the file of the main module.
        ignored: globs of files that do not count, as `label` writes them.
        ours: directories that hold a cache, and no project.
        given: the main file as the command line has it.
    """

    def __init__(self, main: str, ignored: Iterable[str] = (), *, ours: Iterable[str] = (), given: str = "") -> None:
        self._main = main
        self._given = given
        self._ours = {identity(each) for each in ours}
        self.base = os.path.dirname(main)  # noqa: PTH120
        self._ignored = tuple(ignored)
        self._read: dict[str, Project] = {}
        self._stamps: dict[str, tuple[tuple[int, ...], bool]] = {}
        self._counted = 0
        self._beginnings: dict[str, str] = {}

    def places(self, files: Iterable[str]) -> ProjectPlaces:
        """Find the directories and single files that make up the project, given the files of loaded modules.

        Raises:
            RefusedError: a module was loaded from what is neither a file nor an archive.
        """
        directories, alone = project_places(self._main, files, self._given)
        return ProjectPlaces(tuple(directories), tuple(alone))

    def searched(self, search: Iterable[str]) -> Project:
        """Read the code that an import finds in these entries of the search path, as it is now.

        Raises:
            RefusedError: they have more than 20,000 entries.
        """
        return self.read(ProjectPlaces((), tuple(_searched(search, ()))))

    def read(self, places: ProjectPlaces) -> Project:
        """The files of these places, as they were when each was read first.

        Raises:
            RefusedError: they have more than 20,000 entries.
        """
        for path in places.alone:
            if path not in self._read:
                self._read[path] = self._file(path)
        for directory in places.directories:
            if directory not in self._read:
                self._read[directory] = self._directory(directory)
        found = [self._read[place] for place in (*places.alone, *places.directories)]
        return Project(
            {name: digest for each in found for name, digest in each.code.items()},
            {name: digest for each in found for name, digest in each.configuration.items()},
            frozenset(name for each in found for name in each.directories),
            next((each.changed for each in found if each.changed), ""),
        )

    def changed_since(self) -> str:
        """A counted file that was changed since it was read; empty if none was."""
        for path, (stamp, is_linked) in self._stamps.items():
            try:
                now = _stamp(os.stat(path), is_linked=is_linked)  # noqa: PTH116
            except OSError:
                now = ()
            if now != stamp:
                return label(path, self.base)
        return ""

    def _count(self, path: str, name: str, into: dict[str, str], status: os.stat_result) -> bool:
        """Digest a file; True if it was changed after this process began."""
        if any(fnmatchcase(name, pattern) for pattern in self._ignored):
            return False
        is_linked = name.startswith(_LIBRARY)
        self._stamps[path] = _stamp(status, is_linked=is_linked), is_linked
        into[name] = content(path, status)
        return is_younger(status, linked=is_linked)

    def _beginning(self, directory: str) -> str:
        """Return the beginning of the `label` of each file in a directory."""
        found = self._beginnings.get(directory)
        if found is None:
            here = label(directory, self.base)
            found = self._beginnings[directory] = "" if here == "." else here if here == _OWN else f"{here}/"
        return found

    def _file(self, path: str) -> Project:
        code: dict[str, str] = {}
        directory, name = os.path.split(path)
        name = label(path, self.base) if root_of(path) is not None else f"{self._beginning(directory)}{name}"
        try:
            changed = self._count(path, name, code, os.stat(path))  # noqa: PTH116
        except OSError:
            return Project()  # a link that leads nowhere
        return Project(code, changed=name if changed else "")

    def _directory(self, top: str) -> Project:
        code: dict[str, str] = {}
        configuration: dict[str, str] = {}
        looked: set[str] = set()
        changed = ""
        seen: set[tuple[int, int]] = set()
        waiting = [(top, False)]
        while waiting:
            directory, is_output = waiting.pop()
            beginning = self._beginning(directory)
            here = beginning.removesuffix("/") or "."
            settings: list[tuple[str, str, os.stat_result, bool]] = []
            links: dict[str, str] = {}
            young = True
            # In a fixed order: of two names of one directory, the first one counts.
            for entry in sorted(entries_of(directory), key=_name_of):
                self._counted += 1
                if self._counted > _MOST:
                    raise RefusedError(f"the project in {top} has more than {_MOST:,} entries")
                try:
                    name = f"{beginning}{entry.name}"
                    is_new = entry.is_symlink() and is_younger(entry.stat(follow_symlinks=False))
                    if entry.is_dir():
                        to = os.path.relpath(os.path.realpath(entry.path), self.base) if entry.is_symlink() else ""
                        is_written = is_output or not OUTPUTS.isdisjoint((entry.name, *Path(to).parts))
                        below = _descended(entry, seen, self._ours)
                        if below:
                            waiting.append((below, is_written))
                        elif to and not is_written and _is_descended(entry.name, entry.path):
                            links[name] = f"a link to {to}"  # which is read under another name
                        if is_new and not is_written and (below or name in links):
                            changed = changed or name
                        continue
                    status = entry.stat()
                except OSError:
                    continue
                young = young and was_made_since(status, surely=True)
                last = ending(entry.name)
                if last in CODE:
                    if self._count(entry.path, name, code, status) or is_new:
                        changed = changed or name
                elif last in CONFIGURATION or entry.name.lower().startswith(".env"):
                    settings.append((entry.path, name, status, is_new))
            if is_output:
                continue
            about = _status(directory)  # after its entries: it may be replaced while they are read
            # To write an old file anew is no sign that this or another run made the directory.
            if young and settings and about is not None and was_made_since(about, surely=True):
                continue
            looked.add(here)
            if not changed and about is not None and _was_moved(about):
                changed = here
            configuration.update(links)
            for path, name, status, is_new in settings:
                if self._count(path, name, configuration, status) or is_new:
                    changed = changed or name
        return Project(code, configuration, frozenset(looked), changed)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116
    except OSError:
        return None


def _was_moved(status: os.stat_result) -> bool:
    """True if a directory got its name after this process began: what the process has read of it was another one's.

    A file that comes or goes changes both times of a directory. An overlay, as containers have it, changes one when
    a file comes to a directory below.

    Args:
        status: of the directory.
    """
    return (
        was_made_since(status)
        and status.st_ctime_ns != status.st_mtime_ns
        and f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}" not in _overlays()
    )


@functools.cache
def _overlays() -> frozenset[str]:
    """The devices of this process's overlay file systems."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(line.split()[2] for line in lines if " - overlay " in line)


def _stamp(status: os.stat_result, *, is_linked: bool) -> tuple[int, ...]:
    stamp = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    return stamp if is_linked else (*stamp, status.st_ctime_ns)


def from_label(name: str, base: str) -> str:
    """The path of a `label`, in this process."""
    if name.startswith(_OWN):
        return os.path.normpath(os.path.join(_HERE, name.removeprefix(_OWN)))  # noqa: PTH118
    if not name.startswith(_LIBRARY):
        return os.path.normpath(os.path.join(base, name))  # noqa: PTH118
    rest = name.removeprefix(_LIBRARY)
    paths = [f"{root}{rest}" for root in roots()]
    return next(filter(os.path.exists, paths), paths[0] if paths else rest)


def _descended(entry: os.DirEntry[str], seen: set[tuple[int, int]], ours: Container[object]) -> str:
    """The path of a directory that counts; empty for one that does not, or that was seen under another name."""
    status = entry.stat()
    this = status.st_dev, status.st_ino
    if this in seen or this in ours or not _is_descended(entry.name, entry.path):
        return ""
    seen.add((status.st_dev, status.st_ino))
    return entry.path


_name_of: Final = operator.attrgetter("name")


def label(path: str, base: str) -> str:
    """A path as records have it: from the main file's directory, or from the library's or ejcache's that it is in."""
    root = root_of(path)
    if root is not None:
        return f"{_LIBRARY}{path[len(root) :]}"
    if path == _HERE or path.startswith(f"{_HERE}{os.sep}"):
        return f"{_OWN}{path[len(_HERE) + 1 :]}"
    return os.path.relpath(path, base)


def difference(recorded: Project, now: Project) -> tuple[str, str] | None:
    """The first file that differs, as a sentence and as a glob for `reuse_ignore`; None if none does.

    Names of outputs often have a number or a date, so the glob of a file that is new or gone has an asterisk for it.
    """
    for before, after in ((recorded.code, now.code), (recorded.configuration, now.configuration)):
        for name in sorted(before.keys() | after.keys()):
            # An additional file of configuration counts in the directories of then only.
            is_counted = after is now.code or name in before or (os.path.dirname(name) or ".") in recorded.directories  # noqa: PTH120
            if before.get(name) == after.get(name) or not is_counted:
                continue
            pattern = glob.escape(name)
            if not any(letter in pattern for letter in "/.*?["):
                pattern = f"./{pattern}"  # a word alone may be the name of anything
            if name in before and name in after:
                return f"the file {name} changed", pattern
            return f"the file {name} is {'gone' if name in before else 'new'}", _NUMBER.sub("*", pattern)
    return None


_NUMBER: Final = re.compile(r"\d{4,}")
"""Digits that are no version but a date, a time or a step."""
