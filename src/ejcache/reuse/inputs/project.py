"""The project's files: what no installed distribution owns of the loaded modules, and what lies beside them.

The project is made of the directories of the main file and of loaded modules that belong to no distribution from an
index. A file directly in a library's directory counts alone. Of these directories and those below them count:

* code, as a complete set: a file more or less is a difference;
* configuration, as it was when the record was made, and files that were added to the directories of then.

docs/reuse.md has the endings, and which directories are left out.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import glob
import operator
import os
import re
import stat
import sys
from importlib.machinery import FileFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache.jax_integration.seam.reuse.refusal import RefusedError
from ejcache.reuse.inputs.files import CODE, content, ending, entries_of, is_code, is_younger, was_made_since
from ejcache.reuse.inputs.packages import install_paths, is_in_library, root_of, roots
from ejcache.settings.start import DIRECTORY, identity
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping

CONFIGURATION: Final = frozenset({
    *(".yaml", ".yml", ".toml", ".json", ".json5", ".jsonc", ".jsonnet", ".libsonnet", ".ini", ".cfg", ".conf"),
    *(".properties", ".xml", ".csv", ".tsv", ".gin", ".txt", ".pbtxt", ".textproto", ".j2", ".jinja", ".model"),
    ".vocab",
})  # fmt: skip
_ARCHIVES: Final = (".zip", ".egg", ".pyz")
NOT_DESCENDED: Final = frozenset({"__pycache__", "node_modules"})
_OF_ENVIRONMENTS: Final = "pyvenv.cfg"
"""A file of each virtual environment."""
OUTPUTS: Final = frozenset({"outputs", "runs", "logs", "wandb", "mlruns", "lightning_logs", "checkpoints", "results"})
_CUSTOMIZE: Final = frozenset({"sitecustomize", "usercustomize"})
_MOST: Final = 20_000
_MOST_LINKS: Final = 40
"""On the way to a file; Linux follows no more."""
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
    nothing: dict[str, Any] = {}
    for module in tuple(sys.modules.values()):
        names = getattr(module, "__dict__", nothing)
        path = names.get("__file__")
        found[path] = None
        places: Any = names.get("__path__")
        if places is None:
            continue
        if isinstance(places, (list, tuple)) or type(places).__name__ == "_NamespacePath":
            own = path.rpartition(os.sep)[0] if type(path) is str else None
            for each in places:
                if each != own and type(each) is str and (own is None or os.path.isdir(each)):  # noqa: PTH112
                    found[os.path.join(each, "")] = None  # noqa: PTH118
    # A relative path is the work of a loader that is not Python's.
    return [
        path if path.startswith(os.sep) else os.path.join(DIRECTORY, path)  # noqa: PTH118
        for path in found
        if type(path) is str and (path.startswith(os.sep) or os.path.isfile(path))  # noqa: PTH113
    ]


class _Placement(NamedTuple):
    """What the file of a module adds to the project.

    Attributes:
        directory: that is read; empty if none is.
        alone: files that count alone.
    """

    directory: str = ""
    alone: tuple[str, ...] = ()


_NOWHERE: Final = _Placement()


@functools.cache
def _placement(path: str, roots_then: tuple[str, ...], *, is_main: bool = False) -> _Placement:
    """Find what a module's file adds to the project, once in a process: as it was when it was first looked at.

    If a link on the way to the file is changed later, or the file goes, `link_that_changed` finds it.

    Args:
        path: of the file.
        roots_then: see `packages.roots`.
        is_main: True for the main module's.

    Raises:
        RefusedError: a module was loaded from what is neither a file nor an archive.
    """
    del roots_then  # which `root_of` looks at
    root = root_of(path)
    if root is not None:
        if path.endswith(os.sep):
            return _NOWHERE  # of a namespace package: its modules are looked at
        top = f"{root}{path[len(root) :].partition(os.sep)[0]}"
        other = () if is_code(path) else (path,)
        if top != path:
            return _Placement(top, other)
        beside = is_main and not root.endswith(_INSTALLED)  # somebody put packages beside a program
        return _Placement(os.path.dirname(path) if beside else "", (top, *other))  # noqa: PTH120
    if is_in_library(path):
        counts = "customize" in path and os.path.basename(path).partition(".")[0] in _CUSTOMIZE  # noqa: PTH119
        return _Placement("", (path,)) if counts else _NOWHERE
    real = _real(path)  # a path may go through links, or up again with `..`
    directory = os.path.dirname(real)  # noqa: PTH120
    if directory == _scripts():
        return _Placement("", (real,))
    if os.path.isfile(real):  # noqa: PTH113
        return _Placement(directory, () if is_code(real) else (real,))  # somebody's own loader, or a script
    if os.path.isdir(real):  # noqa: PTH112
        return _Placement(real)  # of a namespace package
    archive = _archive_of(real)
    return _Placement(os.path.dirname(archive) if is_main else "", (archive,))  # noqa: PTH120


@functools.cache
def _scripts() -> str:
    return os.path.realpath(install_paths()["scripts"])


def place_ahead(files: Iterable[str]) -> None:
    """Find out where the files of modules lie, before the first question.

    Args:
        files: of loaded modules that belong to no distribution from an index.
    """
    now = tuple(roots())
    for path in files:
        _first_looked(path)
        with contextlib.suppress(RefusedError):
            _placement(path, now)


def looked_into(places: ProjectPlaces, search: Iterable[str]) -> list[str]:
    """Find where else Python has looked for modules: what was on the search path for a while, too.

    Its library, installed packages and the project are left out.

    Args:
        places: of the project.
        search: entries of the search path that are known.
    """
    found = dict.fromkeys(sys.path)
    for entry, finder in tuple(sys.path_importer_cache.items()):
        found[finder.path if isinstance(finder, FileFinder) else entry] = None
    known = {*map(os.path.realpath, search), *places.search}
    outside = [each for each in found if _is_outside(each)]
    return [
        each
        for each in dict.fromkeys(map(os.path.realpath, outside))
        if each not in known
        and _is_outside(each)
        and not any(each == other or _is_reached(each, other) for other in (*places.directories, *places.search))
    ]


def _is_outside(directory: str) -> bool:
    return root_of(os.path.join(directory, "")) is None and not is_in_library(os.path.join(directory, ""))  # noqa: PTH118


def project_places(
    main: str, files: Iterable[str], given: str = "", *, known: Iterable[str] = (), search: Iterable[str] = ()
) -> ProjectPlaces:
    """Find what a project is made of.

    Args:
        main: the file of the main module.
        files: of loaded modules that belong to no distribution from an index.
        given: the main file as the command line has it, which may be a link from another directory.
        known: further directories of the project.
        search: further directories in which Python looks for modules.

    Raises:
        RefusedError: a module was loaded from what is neither a file nor an archive.
    """
    now = tuple(roots())
    placements = {_placement(main, now, is_main=True), *[_placement(path, now) for path in files]}
    directories = {*known, *[each.directory for each in placements if each.directory]}
    alone = {path for each in placements for path in each.alone}
    beside = os.path.realpath(os.path.dirname(given)) if given else ""  # noqa: PTH120
    if beside and beside != _scripts() and root_of(os.path.join(beside, "")) is None and not is_in_library(beside):  # noqa: PTH118
        directories.add(beside)
    kept = outermost(directories)
    around, code = _searched((*sys.path, *search), kept)
    return ProjectPlaces(tuple(kept), tuple(sorted(alone.union(code))), tuple(sorted(around)), tuple(search))


def outermost(directories: Collection[str]) -> list[str]:
    """Leave out the directories that are read with another one of them."""
    found = []
    for each in sorted(directories):
        below, above = each, os.path.dirname(each)  # noqa: PTH120
        while below != above and not (above in directories and _is_reached(each, above)):
            below, above = above, os.path.dirname(above)  # noqa: PTH120
        if below == above:
            found.append(each)
    return found


def _real(path: str) -> str:
    """`os.path.realpath`, which looks at each directory once for all files in it."""
    directory, _, name = path.rpartition(os.sep)
    if name in {"", ".", ".."} or os.path.islink(path):  # noqa: PTH114
        return os.path.realpath(path)
    return os.path.join(_real_directory(directory), name)  # noqa: PTH118


@functools.cache
def _real_directory(directory: str) -> str:
    return os.path.realpath(f"{directory}{os.sep}")


def _searched(search: Iterable[str], directories: Collection[str]) -> tuple[list[str], list[str]]:
    """The code that an import would find, whether it is loaded or not: a trace may import what no module did before.

    It is what lies directly in a directory of the search path, and directly in the directories there, but for Python's
    own library and installed packages. The first are these directories, the second the files.

    Args:
        search: entries of the search path.
        directories: of the project, where all code counts.

    Raises:
        RefusedError: there are more than 20,000 entries.
    """
    found = 0
    beside: list[str] = []
    code: list[str] = []
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
            code.append(archive)
        waiting = [place if is_library else path]
        while waiting:
            here = waiting.pop()
            is_top = here == path and not is_library
            for entry in entries_of(here):
                found += 1
                if found > _MOST:
                    raise RefusedError(f"{place}, in which Python looks for modules, has more than {_MOST:,} entries")
                if is_code(entry.name):
                    code.append(entry.path)
                elif is_top and entry.path not in directories and _is_package(entry):
                    waiting.append(entry.path)
                    beside.append(entry.path)
    return beside, code


def made_since(directories: Iterable[str]) -> list[str]:
    """Those of these directories that were made, or got something new, after this process began."""
    return [each for each in directories if (about := _status(each)) is not None and was_made_since(about)]


def _is_package(entry: os.DirEntry[str]) -> bool:
    return entry.name.isidentifier() and entry.is_dir() and _is_descended(entry.name, entry.path)


def with_code(directories: Iterable[str]) -> str:
    """The first directory in which code lies, however deep; empty if there is none.

    One with more than 20,000 entries is not looked through, and taken for one.
    """
    for directory in directories:
        seen: set[tuple[int, int]] = set()
        waiting = [directory]
        found = 0
        while waiting:
            here = waiting.pop()
            entries = entries_of(here)
            if here != directory and _is_environment(entries):
                continue
            for entry in entries:
                found += 1
                if is_code(entry.name) or found > _MOST:
                    return directory
                with contextlib.suppress(OSError):
                    below = _descended(entry, seen, ()) if entry.is_dir() else ""
                    waiting += [below] if below else []
    return ""


def link_that_changed(paths: Iterable[str]) -> str:
    """A link on the way to one of these files that was made after this process began; empty if there is none.

    A release is often changed by a link to its directory. The process has loaded files of the one before then. A file
    that is gone counts as changed, too. Of Python's library and of ejcache, whose files do not count, only the
    directories are looked at.
    """
    looked: set[str] = set()
    for path in paths:
        above = _first_looked(path)
        while above not in looked and len(above) > 1:
            looked.add(above)
            try:
                status = os.lstat(above)
                if stat.S_ISLNK(status.st_mode):
                    if is_younger(status):
                        return above
                    if above == path:
                        os.stat(above)  # noqa: PTH116  # what it leads to may be gone
            except FileNotFoundError:
                if above == path and os.path.isabs(path):  # noqa: PTH117
                    return path
                break
            except OSError:
                break  # it is in an archive
            above = os.path.dirname(above)  # noqa: PTH120
    return ""


@functools.cache
def _first_looked(path: str) -> str:
    return os.path.dirname(path) if is_in_library(path) else path  # noqa: PTH120


def _archive_of(path: str) -> str:
    above = path
    while len(above) > 1:
        above = os.path.dirname(above)  # noqa: PTH120
        if os.path.isfile(above) and (above.endswith(_ARCHIVES) or above in map(os.path.realpath, sys.path)):  # noqa: PTH113
            return above
    raise RefusedError(f"a module was loaded from {path}, which is not a file")


def _is_reached(path: str, other: str) -> bool:
    """True if reading the directory `other` reads the directory `path`, too."""
    if path == other or not path.startswith(os.path.join(other, "")):  # noqa: PTH118
        return False
    above = other.rstrip(os.sep)
    for name in path[len(above) + 1 :].split(os.sep):  # noqa: PTH206 (pathlib takes ten times as long)
        above = f"{above}{os.sep}{name}"
        if not _is_descended(name, above):
            return False
    return True


def _is_descended(name: str, path: str) -> bool:
    return _has_a_name_to_descend(name) and not os.path.exists(f"{path}/{_OF_ENVIRONMENTS}")  # noqa: PTH110


def _is_environment(entries: Iterable[os.DirEntry[str]]) -> bool:
    """True if these are the entries of a virtual environment; a link that leads nowhere makes none."""
    return any(each.name == _OF_ENVIRONMENTS and os.path.exists(each.path) for each in entries)  # noqa: PTH110


def _has_a_name_to_descend(name: str) -> bool:
    return name not in NOT_DESCENDED and name.isidentifier()


class ProjectPlaces(NamedTuple):
    """What a project is made of.

    Attributes:
        directories: none below another.
        alone: files that count alone.
        beside: directories in those of the search path: of them the code counts that lies directly there. If there is
            one more, all of its code counts.
        search: directories that were on the search path while a function was traced.
    """

    directories: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    search: tuple[str, ...] = ()

    def joined(self, other: ProjectPlaces) -> ProjectPlaces:
        """Both, and no directory twice."""
        directories = outermost({*self.directories, *other.directories})
        others = [tuple(sorted({*one, *two})) for one, two in zip(self[1:], other[1:], strict=True)]
        return ProjectPlaces(tuple(directories), *others)


_NO_PLACES: Final = ProjectPlaces()


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
        self._ignored = re.compile("|".join(map(fnmatch.translate, ignored)) or "(?!)").match
        self._read: dict[str, Project] = {}
        self._counted_as: dict[str, tuple[os.stat_result, bool]] = {}
        self._counted = 0
        self._beginnings: dict[str, str] = {}

    def places(self, files: Iterable[str], known: ProjectPlaces = _NO_PLACES) -> ProjectPlaces:
        """Find the directories and single files that make up the project, given the files of loaded modules.

        Args:
            files: of loaded modules that belong to no distribution from an index.
            known: places that were found before, and are the project's, too.

        Raises:
            RefusedError: a module was loaded from what is neither a file nor an archive.
        """
        return known.joined(
            project_places(self._main, files, self._given, known=known.directories, search=known.search)
        )

    def searched(self, search: Iterable[str]) -> Project:
        """Read the code that an import finds in these entries of the search path, and the directories, as they are now.

        Raises:
            RefusedError: they have more than 20,000 entries.
        """
        beside, alone = _searched(search, ())
        found = self.read(ProjectPlaces((), tuple(alone)))
        return found._replace(code={**found.code, **{f"{label(each, self.base)}/": "" for each in beside}})

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
        code: dict[str, str] = {}
        configuration: dict[str, str] = {}
        for each in found:
            code.update(each.code)
            configuration.update(each.configuration)
        return Project(
            code,
            configuration,
            frozenset(name for each in found for name in each.directories),
            next((each.changed for each in found if each.changed), ""),
        )

    def changed_since(self) -> str:
        """A counted file that was changed since it was read; empty if none was."""
        for path, (before, is_linked) in self._counted_as.items():
            try:
                is_same = _stamp(os.stat(path), is_linked=is_linked) == _stamp(before, is_linked=is_linked)  # noqa: PTH116
            except OSError:
                is_same = False
            if not is_same:
                return label(path, self.base)
        return ""

    def _count(self, path: str, name: str, into: dict[str, str], status: os.stat_result) -> bool:
        """Digest a file; True if it was changed after this process began."""
        if self._ignored(name):
            return False
        is_linked = name.startswith(_LIBRARY)
        self._counted_as[path] = status, is_linked
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
            settings: list[tuple[os.DirEntry[str], str, os.stat_result]] = []
            links: dict[str, str] = {}
            young = True
            entries = entries_of(directory)
            if directory != top and _is_environment(entries):
                continue
            # In a fixed order: of two names of one directory, the first one counts.
            for entry in sorted(entries, key=_name_of):
                self._counted += 1
                if self._counted > _MOST:
                    raise RefusedError(f"the project in {top} has more than {_MOST:,} entries")
                try:
                    name = f"{beginning}{entry.name}"
                    if entry.is_dir():
                        is_written, below = self._below(entry, seen, is_output=is_output)
                        if below:
                            waiting.append((below, is_written))
                        elif entry.is_symlink() and not is_written and _is_descended(entry.name, entry.path):
                            links[name] = f"a link to {self._target(entry)}"  # which is read under another name
                        if not is_written and (below or name in links) and _is_new_link(entry):
                            changed = changed or name
                        continue
                    status = entry.stat()
                except OSError:
                    if entry.is_symlink() and _is_descended(entry.name, entry.path) and not is_output:
                        links[name] = "a link to nothing"  # a directory may come there
                    continue
                young = young and was_made_since(status, surely=True)
                last = ending(entry.name)
                if last in CODE:
                    if self._count(entry.path, name, code, status) or _is_new_link(entry):
                        changed = changed or name
                elif last in CONFIGURATION or entry.name.lower().startswith(".env"):
                    settings.append((entry, name, status))
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
            for entry, name, status in settings:
                if self._count(entry.path, name, configuration, status) or _is_new_link(entry):
                    changed = changed or name
        return Project(code, configuration, frozenset(looked), changed)

    def _below(self, entry: os.DirEntry[str], seen: set[tuple[int, int]], *, is_output: bool) -> tuple[bool, str]:
        """Return whether a directory is one of outputs, by its name or by where it leads, and its `_descended`."""
        names = (entry.name, *Path(self._target(entry)).parts) if entry.is_symlink() else (entry.name,)
        return is_output or not OUTPUTS.isdisjoint(names), _descended(entry, seen, self._ours)

    def _target(self, link: os.DirEntry[str]) -> str:
        return os.path.relpath(os.path.realpath(link.path), self.base)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116
    except OSError:
        return None


def _is_new_link(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and is_new_way(entry.path)


def is_new_way(path: str) -> bool:
    """True if a link on the way to a file was made, or a directory got its name, after this process began.

    The file that the process has read may be another one then: volumes and releases are changed by a link, which leads
    to files that are old.
    """
    here = os.sep
    waiting = os.path.join(os.getcwd(), path).split(os.sep)[::-1]  # noqa: PTH109, PTH118, PTH206
    links = 0
    while waiting:
        name = waiting.pop()
        if name in {"", "."}:
            continue
        if name == "..":
            here = os.path.dirname(here)  # noqa: PTH120  # there is no link in it
            continue
        step = os.path.join(here, name)  # noqa: PTH118
        try:
            status = os.lstat(step)
            to = os.readlink(step) if stat.S_ISLNK(status.st_mode) else ""  # noqa: PTH115
        except OSError:
            return False
        if not to:
            here = step
            if stat.S_ISDIR(status.st_mode) and _was_moved(status):
                return True
            continue
        links += 1
        if is_younger(status) or links > _MOST_LINKS:
            return True
        here = os.sep if to.startswith(os.sep) else here
        waiting += to.split(os.sep)[::-1]  # noqa: PTH206
    return False


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
    return path_in_library(name.removeprefix(_LIBRARY))


def path_in_library(name: str) -> str:
    """The path of a file that is installed, in the first library that has it."""
    paths = [f"{root}{name}" for root in roots()]
    return next(filter(os.path.exists, paths), paths[0] if paths else name)


def _descended(entry: os.DirEntry[str], seen: set[tuple[int, int]], ours: Container[object]) -> str:
    """The path of a directory that counts; empty for one that does not, or that was seen under another name.

    Whether a directory that is no link is a virtual environment is seen when it is read.
    """
    if not (_is_descended(entry.name, entry.path) if entry.is_symlink() else _has_a_name_to_descend(entry.name)):
        return ""
    status = entry.stat()
    this = status.st_dev, status.st_ino
    if this in seen or this in ours:
        return ""
    seen.add(this)
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
