"""Finds the installed distributions: which has a module, what their RECORD files say, what came in this process.

RECORD is pip's list of the files of a distribution with their digests, so it differs where anything was installed with
another content. A distribution without one, and an editable one, whose RECORD does not name its modules, have no
installed modules: those are the user's own files.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import sysconfig
from typing import Final

from ejcache.util.dist_info import InstalledDistribution, distributions_in, normalised_name
from ejcache.values.code_files import is_younger_than_process

_RECORD: Final = "RECORD"
_DIST: Final = ".dist-info"
_EGG: Final = ".egg-info"
_PYTHON: Final = "python"
_SITES: Final = ("site-packages", "dist-packages")


# -- of a module -----------------------------------------------------------------------------------------------------


def distribution_of(module: str) -> str | None:
    """Return the name of the installed distribution that has a loaded module; None for one of the user's.

    Args:
        module: full name. Modules of Python itself are of "python".
    """
    if module in sys.builtin_module_names:
        return _PYTHON
    found = sys.modules.get(module)
    origin = getattr(getattr(found, "__spec__", None), "origin", None)
    if origin in {"built-in", "frozen"}:
        return _PYTHON
    path = getattr(found, "__file__", None)
    return _distribution_with(path) if isinstance(path, str) else None


@functools.lru_cache(maxsize=4096)
def _distribution_with(path: str) -> str | None:
    for directory in dict.fromkeys(sys.path):
        if not directory or not path.startswith(directory + os.sep):
            continue
        name = path.removeprefix(directory + os.sep).replace(os.sep, "/")
        owner = _owner(directory, name)
        if owner is not None:
            return owner
    is_site = any(f"{os.sep}{each}{os.sep}" in path for each in _SITES)
    return _PYTHON if not is_site and path.startswith(_places_of_python()) else None


def _owner(directory: str, name: str) -> str | None:
    """Return the distribution whose RECORD names a file; the one that is called as its first part is asked first."""
    first = normalised_name(name.partition("/")[0].removesuffix(".py"))
    line = b"\n" + os.fsencode(name) + b","
    for each in sorted(_installed_in(directory), key=lambda each: each.name != first):
        if line in b"\n" + _record(directory, each):
            return each.name
    return None


@functools.cache
def _installed_in(directory: str) -> tuple[InstalledDistribution, ...]:
    return tuple(distributions_in(directory))


def _record(directory: str, distribution: InstalledDistribution) -> bytes:
    try:
        with open(os.path.join(directory, distribution.metadata, _RECORD), "rb") as file:  # noqa: PTH118, PTH123
            return file.read()
    except OSError:
        return b""


@functools.cache
def _places_of_python() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({paths[name] + os.sep for name in ("stdlib", "platstdlib")})


# -- of a process ----------------------------------------------------------------------------------------------------


def distributions_digest() -> str:
    """Return a digest of all that is installed where this process looks for modules, by name, version and RECORD."""
    return _digest(tuple(sys.path))


@functools.lru_cache(maxsize=16)
def _digest(search: tuple[str, ...]) -> str:
    found = hashlib.sha256()
    for directory in dict.fromkeys(search):
        for each in distributions_in(directory or "."):
            content = hashlib.sha256(_record(directory, each)).hexdigest()
            found.update(f"{each.name} {each.version} {content}\n".encode("utf-8", "surrogatepass"))
        for name in _entries(directory, _EGG):
            found.update(f"{name} {_egg_version(os.path.join(directory, name))}\n".encode("utf-8", "surrogatepass"))  # noqa: PTH118
    return found.hexdigest()


def _entries(directory: str, ending: str) -> list[str]:
    try:
        return sorted(each for each in os.listdir(directory or ".") if each.endswith(ending))  # noqa: PTH208
    except OSError:
        return []


def _egg_version(path: str) -> str:
    """Return a digest of the metadata of an old installation, which often has no version in its name."""
    for file in (path, os.path.join(path, "PKG-INFO")):  # noqa: PTH118
        try:
            with open(file, "rb") as opened:  # noqa: PTH123
                return hashlib.sha256(opened.read()).hexdigest()
        except OSError:
            continue
    return ""


def why_packages_changed() -> str:
    """Say that something was installed after this process began, as the end of a sentence; empty if nothing was."""
    for directory in sys.path:
        try:
            # An installation changes the directory; only then is there anything to look for in it.
            if not is_younger_than_process(os.stat(directory or ".")):  # noqa: PTH116
                continue
            for name in _entries(directory, _DIST):
                if is_younger_than_process(os.stat(os.path.join(directory, name))):  # noqa: PTH116, PTH118
                    return f"{name.removesuffix(_DIST)} was installed after the process began"
        except OSError:
            continue
    return ""
