"""Which code belongs to the interpreter and its installed packages, and which is the user's.

Library code is below this interpreter's directories for packages and for the standard library. A distribution there is
the user's project all the same if it comes from a directory, a file or a repository (PEP 610), as in containers.
User code is walked deeply before and after the trace; library code is guarded function by function.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import CodeType

__all__ = ["is_library_code", "is_library_file", "is_library_module"]

_SCHEMES: Final = ("stdlib", "platstdlib", "purelib", "platlib")


@functools.cache
def _roots() -> tuple[str, ...]:
    """The directories of library code, as they are written and with links resolved, longest first."""
    named = {sysconfig.get_paths()[name] for name in _SCHEMES}
    # A virtual environment may show the packages of another directory, which a `.pth` file adds to the search path.
    named |= {path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}}
    # ejcache runs while a function is traced, and does not belong to it, also where it is installed as editable.
    named.add(str(Path(__file__).parent.parent))
    return tuple(sorted({each + os.sep for path in named for each in (path, os.path.realpath(path))}, key=len))[::-1]


_NEVER_PROJECTS: Final = frozenset({"ejcache", "jax", "jaxlib", "ml_dtypes", "numpy", "opt_einsum", "scipy"})
"""Distributions whose version and files are in every key, however they were installed."""
_PACKAGERS: Final = frozenset({"conda"})
"""Installers that build each package from a directory, and say so in its provenance."""


@functools.cache
def _projects() -> tuple[str, ...]:
    """The files, and the directories with a separator, of installed distributions that did not come from an index."""
    found: set[str] = set()
    for root in _roots():
        for provenance in Path(root).glob("*.dist-info/direct_url.json"):
            with contextlib.suppress(OSError, ValueError):
                if _is_project(provenance):
                    found |= {root + name for name in _top_names(provenance.parent)}
    return tuple(sorted(found))


def _is_project(provenance: Path) -> bool:
    """Whether this provenance is that of a project.

    Raises `OSError` or `ValueError` where it cannot be read.
    """
    installer = provenance.with_name("INSTALLER")
    name = provenance.parent.name.partition("-")[0].lower()
    if name in _NEVER_PROJECTS or (installer.exists() and installer.read_text().strip() in _PACKAGERS):
        return False
    about = json.loads(provenance.read_text(encoding="utf-8"))
    return isinstance(about, dict) and not {"archive_info", "dir_info", "vcs_info"}.isdisjoint(about)


def _top_names(information: Path) -> set[str]:
    """The files and directories beside its `.dist-info` that a distribution has installed."""
    names: set[str] = set()
    for line in information.joinpath("RECORD").read_text(encoding="utf-8").splitlines():
        first, separator, _ = line.partition(",")[0].strip('"').partition("/")
        if first and first not in {"..", information.name, "__pycache__"}:
            names.add(first + os.sep if separator else first)
    return names


@functools.cache
def is_library_file(path: str) -> bool:
    """Whether a source file belongs to a library. Frozen modules do; code from `exec` does not."""
    return path.startswith(("<frozen ", *_roots())) and not path.startswith(_projects())


def is_library_code(code: CodeType) -> bool:
    """Whether a code object was compiled from a file of a library."""
    return is_library_file(code.co_filename)


def is_library_module(name: str) -> bool:
    """Whether an imported module belongs to a library: by its file, or, without one, as a built-in module."""
    module = sys.modules.get(name)
    if module is None:
        return False
    path = getattr(module, "__file__", None)
    if isinstance(path, str):
        return is_library_file(path)
    return name.partition(".")[0] in sys.stdlib_module_names and name != "__main__"
