"""Which code belongs to the interpreter and its installed packages, and which is the user's.

Library code is below this interpreter's directories for packages and for the standard library, and is not installed as
editable. User code is walked deeply before and after the trace; library code is guarded function by function.
"""

from __future__ import annotations

import functools
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


@functools.cache
def is_library_file(path: str) -> bool:
    """Whether a source file belongs to a library. Frozen modules do; code from `exec` does not."""
    return path.startswith(("<frozen ", *_roots()))


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
