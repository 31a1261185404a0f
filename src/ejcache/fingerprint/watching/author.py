"""Whose code runs: the user's, the interpreter's, JAX's, another package's, or ejcache's own."""

from __future__ import annotations

import gc
import os
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache.fingerprint.library import is_library_file, is_library_module

if TYPE_CHECKING:
    from types import CodeType, FrameType

__all__ = [
    "CO_OPTIMIZED",
    "Author",
    "author_of_file",
    "author_of_frame",
    "belongs_to_listener",
    "imports",
    "listens_to_collections",
    "nearest",
    "owner_of",
    "short_name",
]


class Author(Enum):
    """Who wrote a piece of code."""

    USER = "user"
    STDLIB = "stdlib"
    JAX = "jax"
    """JAX and what JAX computes with: code that is known to read no clock and no file while it traces."""
    PACKAGE = "package"
    OURS = "ours"


_HERE: Final = Path(__file__).resolve().parents[2]
_OURS: Final = (
    str(_HERE) + os.sep,
    str(_HERE.parent / "ejcache_jax_plugin"),
    str(_HERE.parent / "jax_plugins" / "ejcache"),
)
_JAX_PACKAGES: Final = frozenset({"jax", "jaxlib", "jax_plugins", "ml_dtypes", "numpy", "opt_einsum"})
_JAX_PREFIXES: Final = ("jax_cuda", "jax_rocm")
_PACKAGE_DIRECTORIES: Final = ("site-packages", "dist-packages")

CO_OPTIMIZED: Final = 0x1
"""The flag of code objects that are functions, and no bodies of modules or classes and no texts that are evaluated."""

_GENERATED: Final = "<generated_"
"""How Equinox names the code that it generates for a class to flatten its instances."""

_authors: Final[dict[str, Author]] = {}


_LISTENED: Final = "jax._src.monitoring"
"""The module that calls the program's listeners to JAX's events (`jax.monitoring`)."""


def belongs_to_listener(frame: FrameType | None) -> bool:
    """Whether a frame is below a call of a listener, which does not belong to what is traced.

    Listeners are told of JAX's events, or of garbage collections: Hypothesis has one that reads a clock.
    """
    told = listens_to_collections()
    while frame is not None:
        if frame.f_globals.get("__name__") == _LISTENED or frame.f_code in told:
            return True
        frame = frame.f_back
    return False


def listens_to_collections() -> frozenset[CodeType]:
    """The code of the functions that Python calls at the start and the stop of each garbage collection."""
    codes = (getattr(each, "__code__", None) or getattr(type(each).__call__, "__code__", None) for each in gc.callbacks)
    return frozenset(filter(None, codes))


def author_of_file(path: str) -> Author:
    """Who wrote the code of a source file. Code without a file is the user's."""
    found = _authors.get(path)
    if found is None:
        found = _authors[path] = _author(path)
    return found


def _author(path: str) -> Author:
    if path.startswith(_OURS):
        return Author.OURS
    if not is_library_file(path):
        return Author.USER
    parts = path.split(os.sep)  # noqa: PTH206  # a `Path` for each module takes longer than its guards
    for directory in _PACKAGE_DIRECTORIES:
        if directory in parts[:-1]:
            package = parts[len(parts) - parts[::-1].index(directory)].partition(".")[0]
            known = package in _JAX_PACKAGES or package.startswith(_JAX_PREFIXES)
            return Author.JAX if known else Author.PACKAGE
    return Author.STDLIB


def author_of_frame(frame: FrameType) -> Author:
    """Who wrote the code that a frame runs.

    Code that a library generates has no file: it belongs to the module whose names it reads (dataclasses), or else to
    the class of its first argument (named tuples, attrs).
    """
    path = frame.f_code.co_filename
    author = author_of_file(path)
    if author is not Author.USER or not path.startswith("<"):
        return author
    name = frame.f_globals.get("__name__")
    if isinstance(name, str) and is_library_module(name):
        return author_of_module(name)
    owner = owner_of(frame)
    if owner is not None and is_library_module(str(owner[0].__module__)):
        return author_of_module(str(owner[0].__module__))
    caller = frame.f_back
    if not frame.f_code.co_flags & CO_OPTIMIZED and caller is not None:
        caller = nearest(caller)  # a text that is evaluated belongs to who evaluates it
        return Author.USER if caller is None else author_of_frame(caller)
    return Author.USER


def author_of_module(name: str) -> Author:
    """Who wrote a module that is known to belong to a library."""
    path = getattr(sys.modules.get(name), "__file__", None)
    return author_of_file(path) if isinstance(path, str) else Author.STDLIB


def owner_of(frame: FrameType) -> tuple[type[Any], str] | None:
    """The class that holds the code of a frame, found through the first argument, and the name of the attribute.

    The name is empty for code that is registered for a class, and not held by it.
    """
    code = frame.f_code
    if not code.co_argcount:
        return None
    first = frame.f_locals.get(code.co_varnames[0])
    kind = first if isinstance(first, type) else type(first)
    if code.co_filename.startswith(_GENERATED) and "__name__" not in frame.f_globals:
        return kind, ""
    for owner in kind.__mro__:
        for name, value in vars(owner).items():
            if getattr(getattr(value, "__func__", value), "__code__", None) is code:
                return owner, name
    return None


def nearest(frame: FrameType | None) -> FrameType | None:
    """The nearest frame, this one or a caller, that runs no code of the standard library."""
    while frame is not None and author_of_frame(frame) is Author.STDLIB:
        frame = frame.f_back
    return frame


def imports(frame: FrameType | None) -> bool:
    """Whether a frame runs because a library imports a part of itself, or of another library."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORTING):
            caller = nearest(frame)
            return caller is not None and author_of_frame(caller) is not Author.USER
        if author_of_frame(frame) is Author.USER:
            return False
        frame = frame.f_back
    return False


_IMPORTING: Final = "<frozen importlib._bootstrap"


def short_name(frame: FrameType) -> str:
    """A function as messages name it."""
    return frame.f_code.co_qualname
