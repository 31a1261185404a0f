"""Finds the directories of tuned records that installed packages ship.

They name them in the group `ejcache.seeds` of entry points:

    [project.entry-points."ejcache.seeds"]
    my_kernels = "my_kernels.tuned"

The value names a directory of the package, here `my_kernels/tuned`, in the form that `ejcache tuned push` writes.
The package is found and not imported: a program that does not use it must not pay for it, and its import may fail.
Source of the form: https://packaging.python.org/en/latest/specifications/entry-points/
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from functools import cache
from pathlib import Path
from typing import Final

from ejcache.autotune.log import warn_once

GROUP: Final = "ejcache.seeds"


@cache
def package_seeds() -> tuple[tuple[str, str | None], ...]:
    """Return (name of the entry, directory) of the installed packages, ordered by name; None for one that has no
    directory.

    One warning for each of these says why. This reads the metadata of all installed packages, once in a process.
    """
    try:
        points = {(point.name, point.value) for point in importlib.metadata.entry_points(group=GROUP)}
    except Exception as exc:
        warn_once(GROUP, "the packages that ship tuned configurations cannot be listed: %r", exc)
        return ((GROUP, None),)
    return tuple((name, _directory_of(name, value)) for name, value in sorted(points))


def _directory_of(name: str, value: str) -> str | None:
    try:
        return _directory(value)
    except Exception as exc:
        # Finding a package runs the import hooks of others, which may raise anything.
        warn_once(f"{GROUP} {name}", "the tuned configurations of %s = %r are not used: %s", name, value, exc)
        return None


def _directory(value: str) -> str:
    """Return the directory that an entry names; raises for one that does not exist."""
    package, *inner = value.strip().split(".")
    if not all(part.isidentifier() for part in (package, *inner)):
        raise ValueError("it is not the name of a package and a directory in it, separated by dots")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"there is no package {package}")
    for place in spec.submodule_search_locations:
        directory = Path(place, *inner)
        if directory.is_dir():
            return str(directory)
    raise FileNotFoundError(f"{package} has no directory {'/'.join(inner) or '.'}")
