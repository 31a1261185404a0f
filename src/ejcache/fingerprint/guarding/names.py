"""Which names library code reads, without taking its bytecode apart: the names that it mentions and that exist."""

from __future__ import annotations

import builtins
import sys
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from ejcache.fingerprint.guarding.tokens import nested_codes
from ejcache.fingerprint.watching.author import Author, author_of_file

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ALL_NAMES", "HIDDEN", "PROCESS", "WARNING_FILTERS", "computed_names", "names_read"]

ALL_NAMES: Final = "*"
"""In place of a name: which names a module has."""

HIDDEN: Final = "-"
"""In place of a name: which built-in names a module hides."""

WARNING_FILTERS: Final = ("warnings", "filters")
"""The module and the name of what decides which warnings are shown, and which are errors."""

_COMPUTING: Final = frozenset({"getattr", "hasattr", "setattr"})
_WHOLE: Final = frozenset({"vars", "__dict__", "dir"})
PROCESS: Final = frozenset({"builtins", "sys"})
"""Modules that hold the state of the process."""


def names_read(code: CodeType, namespace: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The (module, name) pairs that a function may read: its globals, and names of the modules among them."""
    mentioned: set[str] = set()
    for each in nested_codes(code):
        mentioned.update(each.co_names)
    here = namespace["__name__"]
    built_in = vars(builtins)
    # JAX computes no name that it does not have.
    own = author_of_file(code.co_filename) is not Author.PACKAGE
    computed = set() if own or not mentioned & _COMPUTING else computed_names(code)
    yield here, HIDDEN
    for name in mentioned & namespace.keys():
        yield here, name
        value = namespace[name]
        if isinstance(value, ModuleType):
            yield from _of_module(value, mentioned, computed, 0)
    if not own:
        # `from package.part import name` in a function mentions both.
        for name in (mentioned - namespace.keys()) & sys.modules.keys():
            yield from _of_module(sys.modules[name], mentioned, computed, 3)
    for name in (mentioned & built_in.keys()) - namespace.keys():
        yield "builtins", name
    if "globals" in mentioned:
        yield here, ALL_NAMES
        yield from ((here, name) for name in list(namespace) if not name.startswith("__"))


def _of_module(module: ModuleType, mentioned: set[str], computed: set[str], depth: int) -> Iterator[tuple[str, str]]:
    name = module.__name__
    if sys.modules.get(name) is not module or depth > 3:
        return
    own = module.__dict__
    used = mentioned & own.keys()
    for each in used:
        yield name, each
        value = own[each]
        if isinstance(value, ModuleType) and value is not module:
            yield from _of_module(value, mentioned, computed, depth + 1)
    for each in computed:
        yield name, each
    if (not used or mentioned & _WHOLE) and name not in PROCESS:
        # The module itself is a value here, and any of its names may be read from it.
        yield name, ALL_NAMES
        yield from ((name, each) for each in list(own) if not each.startswith("__"))


def computed_names(code: CodeType) -> set[str]:
    """The texts in a function that may be names of attributes: `getattr(config, "K", 3)`."""
    found: set[str] = set()
    for each in nested_codes(code):
        found.update(text for text in each.co_consts if type(text) is str and text.isidentifier())
    return found
