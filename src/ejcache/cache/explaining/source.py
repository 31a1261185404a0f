"""The variable behind a constant, looked up in the user's source: `learning_rate = 0.01` on line 3 of train.py."""

from __future__ import annotations

import ast
import functools
import os
import re
import struct
from typing import TYPE_CHECKING, Final

from ejcache.cache.explaining.locations import NOWHERE, Place
from ejcache.util.safe_files import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["SourceFiles"]

_LARGEST: Final = 2_000_000
_ORDINARY: Final = frozenset({"0", "1", "2", "-1", "0.5", "true", "false"})
"""Values that a program holds for many reasons, so that they need a name on the very line."""


class SourceFiles:
    """The source files of a program, as they are now.

    Args:
        until: seconds since the epoch; a file that changed later may hold another program and is not read.
    """

    def __init__(self, *, until: float) -> None:
        self._until = until
        self._trees = functools.lru_cache(maxsize=32)(self._tree)

    def are_older(self, files: Iterable[str], time: float) -> bool:
        """Whether all of these files exist and have not changed since `time`, in seconds since the epoch."""
        try:
            return all(os.stat(path).st_mtime <= time for path in files)  # noqa: PTH116
        except (OSError, ValueError):
            return False

    def lack(self, file: str, word: str) -> bool:
        """Whether a file is known and has no such word."""
        _, lines = self._trees(file)
        return bool(lines) and not any(re.search(rf"\b{re.escape(word)}\b", line) for line in lines)

    def line(self, place: Place) -> str:
        """The text of that line; empty if it is not known."""
        _, lines = self._trees(place.file)
        return lines[place.line - 1].strip() if 0 < place.line <= len(lines) else ""

    def variable(self, value: str, place: Place) -> tuple[str, Place]:
        """The variable, keyword or default that gave a constant its value, and its place.

        It is one that the line of the constant names. If there is none, but the file gives this value to one name only,
        the answer is no name, and a place whose `function` is that name: it may be the one. Otherwise ("", NOWHERE).
        """
        tree, _ = self._trees(place.file)
        if tree is None:
            return "", NOWHERE
        named = {
            part
            for node in ast.walk(tree)
            if getattr(node, "lineno", 0) <= place.line <= (getattr(node, "end_lineno", 0) or 0)
            and isinstance(node, ast.Name | ast.Attribute | ast.keyword | ast.Constant)
            for part in (getattr(node, name, None) for name in ("id", "attr", "arg", "value"))
            if isinstance(part, str)
        }
        found = {(name, Place(place.file, line)) for name, given, line in _assignments(tree) if _is_value(given, value)}
        close = {each for each in found if each[0] in named}
        if len(close) == 1:
            return close.pop()
        if value not in _ORDINARY and len({name for name, _ in found}) == 1:
            name, where = min(found, key=lambda each: each[1].line)
            return "", Place(where.file, where.line, name)
        return "", NOWHERE

    def _tree(self, path: str) -> tuple[ast.Module | None, list[str]]:
        try:
            if not path.startswith("/") or os.stat(path).st_mtime > self._until + 1.0:  # noqa: PTH116
                return None, []
            text = read_regular(path, max_size=_LARGEST).decode()
            return ast.parse(text), text.splitlines()
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            return None, []


def _assignments(tree: ast.Module) -> Iterator[tuple[str, object, int]]:
    """Names that get a literal number: assignments, keywords of calls, defaults, items of dictionaries."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                targets = target.elts if isinstance(target, ast.Tuple) else [target]
                for each, value in zip(targets, values, strict=False):
                    name = getattr(each, "id", None) or getattr(each, "attr", None)
                    if name:
                        yield name, _literal(value), node.lineno
        elif isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name):
            yield node.target.id, _literal(node.value), node.lineno
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg, _literal(node.value), node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            given = node.args
            positional = [*given.posonlyargs, *given.args][::-1]
            pairs = [
                *zip(positional, given.defaults[::-1], strict=False),
                *zip(given.kwonlyargs, given.kw_defaults, strict=True),
            ]
            for argument, default in pairs:
                if default is not None:
                    yield argument.arg, _literal(default), argument.lineno
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, _literal(value), value.lineno


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _is_value(given: object, value: str) -> bool:
    """Whether a literal is the constant that a program's text shows, in single or double precision."""
    if isinstance(given, bool):
        return str(given).lower() == value
    if not isinstance(given, int | float):
        return False
    try:
        wanted = float(value)
        single = struct.unpack("f", struct.pack("f", given))[0]
    except (ValueError, OverflowError, struct.error):
        return False
    return wanted == given or abs(wanted - single) <= abs(single) * 1e-6
