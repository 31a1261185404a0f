"""Describes what is known of a function with a word: all that it holds, and the files in which it was made.

The files are its own, those of the functions and classes that it holds (what it wraps, what its closure and `self`
have), and the one with the call of `ejit`. Installed files count by the RECORD of their distribution, and the user's by
their content. A function of the user's must be what its file compiles to: code of `exec`, and of a module that an
import hook has changed, is traced.
"""

from __future__ import annotations

import functools
import inspect
import sys
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ejcache.values.code_files import CodeFile, read_code_file, why_unknown
from ejcache.values.distributions import distribution_of
from ejcache.values.plain_data import NotWholeError, WholeValues

if TYPE_CHECKING:
    from types import FrameType

_OUR_FRAMES: Final = ("ejcache.", "functools")


class CallPlace(NamedTuple):
    """Where `ejit` was called.

    Attributes:
        module: name of the module.
        path: of its file.
    """

    module: str
    path: str


def place_of_call() -> CallPlace:
    """Return where the function of ours that the program has called was called from."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_OUR_FRAMES):
        frame = frame.f_back
    if frame is None:
        return CallPlace("", "")
    return CallPlace(str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename)


def function_name(fun: Any) -> str:
    """Return module and qualified name of a function, or of the class of another callable."""
    while not isinstance(getattr(fun, "__qualname__", None), str) and hasattr(fun, "func"):
        fun = fun.func  # of a partial
    named = fun if isinstance(getattr(fun, "__qualname__", None), str) else type(fun)
    return f"{named.__module__}.{named.__qualname__}"


class KnownFunction:
    """A function with a word. What it holds is looked at whenever it is asked for.

    Args:
        fun: the function.
        place: where `ejit` was called.

    Attributes:
        name: module and qualified name.
    """

    def __init__(self, fun: Any, place: CallPlace) -> None:
        self.name = function_name(fun)
        self._fun = fun
        self._place = place

    def data(self) -> list[Any]:
        """Return all that counts of the function, as plain data.

        Raises:
            NotWholeError: a part of it cannot be compared, or may not be what its file has.
        """
        walk = WholeValues()
        held = walk.data(self._fun, self.name.rpartition(".")[2])
        files = dict(walk.files)
        if distribution_of(self._place.module) is None:
            self._add(files, self._place.path, "ejit was called")
        for each in walk.functions:
            module = str(each.__globals__.get("__name__"))
            if distribution_of(module) is None:
                self._add(files, each.__code__.co_filename, f"{each.__qualname__} was defined")
                _check_made_by_file(each, module)
        unknown = why_unknown()
        if unknown:
            raise NotWholeError(unknown, self._fun)
        return [held, sorted(file.digest for file in files.values())]

    def _add(self, files: dict[str, CodeFile], path: str, what: str) -> None:
        file = files.get(path) or read_code_file(path)
        if file is None:
            raise NotWholeError(f"{what} in {path}, which is no source file: a console, a notebook or exec", self._fun)
        changed = file.why_changed()
        if changed:
            raise NotWholeError(changed, self._fun)
        files[path] = file


def _check_made_by_file(function: FunctionType, module: str) -> None:
    """Refuse a function that its module's file does not compile to."""
    found = sys.modules.get(module)
    name, path = function.__qualname__, function.__code__.co_filename
    if found is None or vars(found) is not function.__globals__ or getattr(found, "__file__", None) != path:
        raise NotWholeError(f"{name} was made by exec, and not by the file of its module", function)
    loader = getattr(getattr(found, "__spec__", None), "loader", None) or getattr(found, "__loader__", None)
    # `runpy.run_path`, by which many launchers run a script, has no loader: it compiles the file itself.
    is_script = loader is None and module == "__main__"
    if type(loader) is not SourceFileLoader and not is_script:
        kind = type(loader)
        raise NotWholeError(
            f"{path} was imported by the hook {kind.__module__}.{kind.__qualname__}, which can change what it has",
            function,
        )
    if function.__code__ not in _codes_of(path):
        raise NotWholeError(f"{name} has other code than its file {path}", function)


@functools.lru_cache(maxsize=256)
def _codes_of(path: str) -> frozenset[CodeType]:
    """Return all code objects that a file compiles to, which the caller has found unchanged since the process began."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            whole = compile(file.read(), path, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    found: set[CodeType] = set()
    waiting = [whole]
    while waiting:
        code = waiting.pop()
        found.add(code)
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
    return frozenset(found)
