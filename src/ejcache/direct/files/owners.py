"""Which modules are the project's, and which belong to Python or to a distribution from an index.

A function of the project is compared by content, and one of a distribution by its name. A distribution is compared by
its name, its version and its `RECORD`, which has a digest of each file, as long as the imported files have the sizes
of the record and are not younger than it. A file that was changed since is compared by its content.

A distribution that came from a directory, a file or a repository (PEP 610), or of which nobody knows where it came
from, is the project's, as it is in a container. So is the package of the decorated function, however it was
installed, unless it is a well-known library, and what `EJCACHE_PROJECT` names.
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

from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FunctionType


__all__ = [
    "ALWAYS_LIBRARIES",
    "Distribution",
    "Owners",
    "distribution_named",
    "distribution_of",
    "distribution_state",
    "loaded_distributions",
    "module_file",
]

ALWAYS_LIBRARIES: Final = frozenset({"ejcache", "jax", "jaxlib", "ml-dtypes", "numpy", "opt-einsum", "scipy"})
"""What every key names, however it was installed."""
_PACKAGERS: Final = frozenset({"conda"})
"""Installers that build each package from a directory, and say so in its provenance."""
_PROVENANCE: Final = frozenset({"archive_info", "dir_info", "vcs_info"})


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
        """Whether nothing says that it came from an index."""
        return _is_project(self.name, self.directory)

    def top(self, path: str) -> str:
        """The top-level module of one of its files."""
        return path[len(self.root) :].partition(os.sep)[0].partition(".")[0]


def _normalised(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


@functools.cache
def _installed(root: str) -> dict[str, Distribution]:
    """The distributions in a directory, by name."""
    found: dict[str, Distribution] = {}
    with contextlib.suppress(OSError):
        for each in os.listdir(root):
            if each.endswith(".dist-info"):
                raw, _, version = each.removesuffix(".dist-info").partition("-")
                name = _normalised(raw)
                found[name] = Distribution(name, version, root, root + each)
    return found


@functools.cache
def _is_project(name: str, place: str) -> bool:
    if name in ALWAYS_LIBRARIES:
        return False
    directory = Path(place)
    try:
        installer = directory.joinpath("INSTALLER").read_text(encoding="utf-8").strip()
    except OSError:
        return True
    if installer in _PACKAGERS or not directory.joinpath("direct_url.json").exists():
        return False
    with contextlib.suppress(OSError, ValueError):
        about = json.loads(directory.joinpath("direct_url.json").read_text(encoding="utf-8"))
        return isinstance(about, dict) and not _PROVENANCE.isdisjoint(about)
    return True


@functools.cache
def _record(directory: str) -> bytes:
    """The `RECORD`, with a line end before each line; a line end alone if there is none."""
    try:
        return b"\n" + Path(directory, "RECORD").read_bytes()
    except OSError:
        return b"\n"


@functools.cache
def _roots(search: tuple[str, ...]) -> list[str]:
    """Those of the search path's directories in which distributions are installed, with separators."""
    return [root for each in search if each and _installed(root := os.path.join(each, ""))]


@functools.cache
def _root_of(directory: str) -> str | None:
    """The one of these directories that a directory is below or is."""
    inside = os.path.join(directory, "")
    return next((root for root in _roots(tuple(sys.path)) if inside.startswith(root)), None)


@functools.cache
def _package_of(directory: str) -> str:
    """The directory of the top-level package that a directory belongs to; empty for none, and for a namespace."""
    root = _root_of(directory)
    top = "" if root is None else f"{directory}{os.sep}"[len(root) :].partition(os.sep)[0]
    return f"{root}{top}{os.sep}" if top and os.path.exists(f"{root}{top}{os.sep}__init__.py") else ""


@functools.cache
def _distribution_at(path: str) -> Distribution | None:
    root = _root_of(path.rpartition(os.sep)[0])
    if root is None:
        return None
    name = path[len(root) :].replace(os.sep, "/")
    beginning = f"\n{name}".encode()
    installed = _installed(root)
    guess = installed.get(_normalised(name.partition("/")[0].partition(".")[0]))
    if guess is not None and (guess.is_project or beginning in _record(guess.directory)):
        return guess
    return next((each for each in installed.values() if beginning in _record(each.directory)), None)


def distribution_of(path: str) -> Distribution | None:
    """The distribution that has installed a file; None if none has."""
    # Of a namespace package, each file may be another distribution's.
    return _distribution_at(_package_of(path.rpartition(os.sep)[0]) or path)


def distribution_named(name: str) -> Distribution | None:
    """The distribution of a normalised name that imports would find first."""
    for each in sys.path:
        found = _installed(os.path.join(each, "")).get(name) if each else None
        if found is not None:
            return found
    return None


def loaded_distributions() -> dict[str, tuple[Distribution, list[str]]]:
    """The distributions from an index of which modules are imported, by name, each with the files of those modules."""
    found: dict[str, tuple[Distribution, list[str]]] = {}
    for module in tuple(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if type(path) is str and (distribution := distribution_of(path)) is not None:
            found.setdefault(distribution.name, (distribution, []))[1].append(path)
    return found


_states: Final[dict[tuple[str, int], str]] = {}


def distribution_state(distribution: Distribution, files: list[str]) -> str:
    """A digest of what a distribution is, and of those of its imported files that were changed since.

    Args:
        distribution: an installed one.
        files: of its modules that are imported now.
    """
    key = (distribution.directory, len(files))
    if key not in _states:
        _states[key] = _state(distribution, files)
    return _states[key]


def _state(distribution: Distribution, files: list[str]) -> str:
    record = _record(distribution.directory)
    hasher = hashlib.sha256(f"{distribution.name} {distribution.version}\n".encode() + record)
    installed = 0
    with contextlib.suppress(OSError):
        installed = os.stat(os.path.join(distribution.directory, "RECORD")).st_mtime_ns
    lines = {line.partition(b",")[0]: line for line in record.split(b"\n")}
    for path in sorted(set(files)):
        name = path[len(distribution.root) :].replace(os.sep, "/").encode()
        try:
            status = os.stat(path)
        except OSError:
            hasher.update(b"%b is gone\n" % name)
            continue
        if status.st_mtime_ns > installed or not lines.get(name, b"").rstrip().endswith(b",%d" % status.st_size):
            hasher.update(b"%b %b\n" % (name, str(file_digest(path)).encode()))
    return hasher.hexdigest()


_digests: Final[dict[tuple[str, int, int, int], str]] = {}
"""By path, size, time of the last change and inode."""


def file_digest(path: str) -> str | None:
    """The SHA-256 of a file in hex; None if it cannot be read."""
    try:
        status = os.stat(path)
        key = (path, status.st_size, status.st_mtime_ns, status.st_ino)
        if key not in _digests:
            with open(path, "rb", buffering=0) as file:
                _digests[key] = hashlib.file_digest(file, "sha256").hexdigest()
        return _digests[key]
    except OSError:
        return None


def directory_digest(path: str) -> str | None:
    """A digest of the names in a directory; None if it cannot be read."""
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return None
    return hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest()


_NAMES: Final = {"ejcache": os.sep, "ejcache_jax_plugin": ".py", "jax_plugins": os.sep}
_PACKAGE: Final = Path(__file__).parents[2]
_OURS: Final = tuple(str(_PACKAGE.with_name(name)) + end for name, end in _NAMES.items())
"""ejcache runs while a function is traced, and does not belong to the program, also if it is installed as editable."""


@functools.cache
def _standard_library() -> tuple[str, ...]:
    named = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")}
    return tuple({each + os.sep for path in named for each in (path, os.path.realpath(path))})


def module_file(name: str) -> str | None:
    """The source file or the library of an imported module; None if it has none."""
    path = getattr(sys.modules.get(name), "__file__", None)
    return path if type(path) is str else None


class Owners:
    """Tells the project's modules from those of libraries.

    Args:
        own: top-level packages, modules or directories that are the project's, whatever installed them.
    """

    def __init__(self, own: Iterable[str]) -> None:
        names = set(own)
        self._names = frozenset(name for name in names if os.sep not in name)
        self._directories = tuple(os.path.join(os.path.abspath(name), "") for name in names - self._names)
        self._files: dict[str, bool] = {}
        self._modules: dict[str, bool] = {}

    def is_project_file(self, path: str) -> bool:
        """Whether a file is the project's; code that `exec` made has none, and belongs to its module."""
        found = self._files.get(path)
        if found is None:
            found = self._files[path] = self._is_project_file(path)
        return found

    def _is_project_file(self, path: str) -> bool:
        if path.startswith(("<frozen ", *_OURS)):
            return False
        if self._directories and path.startswith(self._directories):
            return True
        distribution = distribution_of(path)
        if distribution is not None:
            return distribution.is_project or distribution.top(path) in self._names
        return not path.startswith(_standard_library()) or "site-packages" in path or "dist-packages" in path

    def is_project_module(self, name: str) -> bool:
        """Whether a module is the project's: by its file, or without one by its name."""
        path = module_file(name)
        if path is not None:
            return self.is_project_file(path) or name.partition(".")[0] in self._names
        found = self._modules.get(name)
        if found is None:
            top = name.partition(".")[0]
            known = top in sys.stdlib_module_names or top in sys.builtin_module_names
            above = name.rpartition(".")[0]
            # What was loaded without a file belongs to the package above: C++ code makes such modules.
            found = name == "__main__" or not (known or (above and not self.is_project_module(above)))
            self._modules[name] = found
        return found

    def is_project_function(self, function: FunctionType, *, unknown: bool = True) -> bool:
        """Whether a function is the project's: by its file, or if it was generated by the module that it says.

        Args:
            function: the function.
            unknown: whether it is if it was generated and says no module.
        """
        path = function.__code__.co_filename
        if path.startswith("<") and not path.startswith("<frozen "):
            module = function.__globals__.get("__name__") or function.__module__
            return unknown if type(module) is not str or module == "builtins" else self.is_project_module(module)
        return self.is_project_file(path)

    def is_data_file(self, path: str) -> bool:
        """Whether the content of a file that a trace reads counts: it is not a library's own."""
        return not path.endswith(".pyc") and self.is_project_file(path)

    def modules(self) -> list[str]:
        """The names of the project's imported modules that have files."""
        found = [name for name in tuple(sys.modules) if module_file(name) is not None]
        return sorted(name for name in found if self.is_project_module(name))
