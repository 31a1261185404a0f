"""What is known of a function by itself: its name, its bytecode, and the source of its module.

The same is known of each function that it wraps: behind `__wrapped__`, a partial, a bound method, and `__call__` of an
object. What these hold besides code, in closures, arguments, defaults or `self`, is what the user's word is for. JAX's
own transformations hold which one they are, and of what, in a closure: that counts, too.
"""

from __future__ import annotations

import functools
import types
from typing import Any, Final

from ejcache.reuse.sources import SourceFile, read_source, why_unknown
from ejcache.reuse.values import ValuePlace, class_name, code_digest_of, digest_of, plain_data
from ejcache.util.tuples import NamedTuple

_MOST: Final = 64
"""Functions that one wraps, at most."""


class KnownFunction(NamedTuple):
    """A function, as it was when it was made.

    Attributes:
        name: module and qualified name.
        code: digest of all bytecode and source.
        sources: the files.
        is_bare: True if it holds nothing, so that another one with the same code is the same.
        why_unknown: why it has no source, as the end of a sentence; empty if it has.
    """

    name: str
    code: str
    sources: tuple[SourceFile, ...]
    is_bare: bool
    why_unknown: str

    def why_changed(self) -> str:
        """Say why this may not be the function that its files have; empty if it is."""
        changed = (each.why_changed() for each in self.sources)
        return self.why_unknown or why_unknown() or next(filter(None, changed), "")


def function_name(fun: Any) -> str:
    """Return module and qualified name of a function, or of the class of another callable."""
    while not isinstance(getattr(fun, "__qualname__", None), str) and hasattr(fun, "func"):
        fun = fun.func  # of a partial
    named = fun if isinstance(getattr(fun, "__qualname__", None), str) else type(fun)
    return f"{named.__module__}.{named.__qualname__}"


def know(fun: Any) -> KnownFunction:
    """Find out what is known of a function."""
    name = function_name(fun)
    chain = _chain(fun)
    functions = [each for each in chain if isinstance(each, types.FunctionType)]
    why = "" if functions else f"{name} is no Python function"
    sources: dict[str, SourceFile] = {}
    for each in functions:
        path = each.__code__.co_filename
        source = sources.get(path) or read_source(path)
        if source is None:
            why = why or f"{name} has no Python source file, as code of a console, a notebook or exec"
        else:
            sources[path] = source
    code = digest_of([list(map(_about, chain)), [each.digest for each in sources.values()]])
    return KnownFunction(name, code, tuple(sources.values()), all(map(_is_bare, chain)), why)


def _about(fun: Any) -> list[Any]:
    if not isinstance(fun, types.FunctionType):
        return [class_name(type(fun))]
    held = [plain_data(each, ValuePlace.NODE, "a closure") for each in _held_by_jax(fun) if not callable(each)]
    return [code_digest_of(fun.__code__), held]


def _held_by_jax(fun: types.FunctionType) -> list[Any]:
    """List what is in the closure of a function of JAX."""
    is_of_jax = str(fun.__globals__.get("__name__")).partition(".")[0] == "jax"
    found: list[Any] = []
    for cell in (fun.__closure__ or ()) if is_of_jax else ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            continue  # an empty one
    return found


def _is_bare(fun: Any) -> bool:
    return isinstance(fun, types.FunctionType) and not (fun.__closure__ or fun.__defaults__ or fun.__kwdefaults__)


def _chain(fun: Any) -> list[Any]:
    """Return a function and all that it wraps, in a fixed order."""
    found: list[Any] = []
    waiting = [fun]
    while waiting and len(found) < _MOST:
        each = waiting.pop()
        if any(each is other for other in found):
            continue
        found.append(each)
        if isinstance(each, functools.partial):
            waiting.append(each.func)
        elif isinstance(each, types.MethodType):
            waiting.append(each.__func__)
        elif isinstance(each, types.FunctionType):
            waiting += filter(callable, _held_by_jax(each))
        elif not isinstance(each, (types.BuiltinFunctionType, type)):
            call = getattr(each, "__call__", None)  # noqa: B004 (what it is, and not whether it is there)
            waiting += [] if isinstance(call, types.MethodWrapperType) or call is None else [call]
        wrapped = getattr(each, "__wrapped__", None)
        waiting += [] if wrapped is None else [wrapped]
    return found
