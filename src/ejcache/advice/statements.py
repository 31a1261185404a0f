"""What source lines do: which could be one function, which make the function that is called, and which are loops."""

from __future__ import annotations

import ast
import functools
import warnings
from typing import TYPE_CHECKING, Final

from ejcache.advice.one_function import made_one_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Lines = Callable[[str], Sequence[str]]
    """The lines of a source file by its path; none if they are not known."""

_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_NO_OPERATIONS: Final = (*_DEFINITIONS, ast.Import, ast.ImportFrom, ast.Pass, ast.Global, ast.Nonlocal)
_COMPUTE: Final = (ast.Call, ast.Subscript, ast.BinOp, ast.Compare, ast.UnaryOp)


class Statements:
    """The statements of source files. Each file is parsed once.

    Args:
        lines: of the files.
    """

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._tree = functools.cache(self._parsed)
        self._blocks = functools.cache(self._numbered)

    def block(self, file: str, line: int) -> int:
        """The number of the block of statements that has this line; 0 if it is in none, or the file is not known.

        A block is what one function could hold instead: statements one after another, of which none is there for its
        effect alone, as a call of `print` or of a plot is, and none decides what runs next.
        """
        return self._blocks(file).get(line, 0)

    def maker(self, file: str, line: int) -> int:
        """The line that gives the function which this line calls its name, in the same function; 0 if there is none."""
        scope = self._scope(file, line)
        inside = [each for each in ast.walk(scope) if isinstance(each, ast.stmt)]
        called = {
            call.func.id
            for each in inside
            if _holds(each, line) and not isinstance(each, _DEFINITIONS)
            for call in ast.walk(each)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and _holds(call, line)
        }
        made = [
            each
            for each in inside
            if isinstance(each, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id in called for target in each.targets)
        ]
        return made[0].lineno if len(made) == 1 and isinstance(made[0].value, ast.Call) else 0

    def one_function(self, file: str, first: int, last: int, *, name: str, span: str) -> tuple[str, str] | None:
        """Return the code of these lines, and the same as a function of this name; None unless they are one block."""
        number = self.block(file, first)
        if not number or number != self.block(file, last):
            return None
        scope = self._scope(file, first)
        found = [
            [each for each in body if each.lineno <= last and _end(each) >= first]
            for body in _bodies(scope)
            if any(_holds(each, first) for each in body)
        ]
        innermost = found[-1] if found else []
        if not innermost or any(self.block(file, each.lineno) != number for each in innermost):
            return None
        return made_one_function(innermost, scope, name=name, span=span, lines=self._lines(file))

    def loops(self, file: str, line: int) -> list[int]:
        """The lines of the loops in the function whose definition begins here, without those in another loop."""
        defined = (each for each in ast.walk(self._tree(file)) if isinstance(each, ast.FunctionDef))
        return [
            loop
            for each in defined
            if min([each.lineno, *(decorator.lineno for decorator in each.decorator_list)]) == line
            for statement in each.body
            for loop in _outermost_loops(statement)
        ]

    def _scope(self, file: str, line: int) -> ast.AST:
        """The innermost function or class that has a line, or the module."""
        tree = self._tree(file)
        return max(
            (each for each in ast.walk(tree) if isinstance(each, _DEFINITIONS) and _holds(each, line)),
            key=lambda each: each.lineno,
            default=tree,
        )

    def _parsed(self, file: str) -> ast.Module:
        try:
            with warnings.catch_warnings():  # Python warns of these itself when the program imports the file
                warnings.simplefilter("ignore")
                return ast.parse("\n".join(self._lines(file)))
        except (SyntaxError, ValueError, RecursionError):  # an older file, or one of another Python
            return ast.Module(body=[], type_ignores=[])

    def _numbered(self, file: str) -> dict[int, int]:
        found: dict[int, int] = {}
        number = 0
        for body in _bodies(self._tree(file)):
            number += 1
            for statement in body:
                if isinstance(statement, _NO_OPERATIONS):
                    continue
                if _is_apart(statement):
                    number += 1
                else:
                    found.update(dict.fromkeys(range(statement.lineno, _end(statement) + 1), number))
        return found


def _bodies(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield each list of statements that run one after another."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                yield body


def _outermost_loops(node: ast.AST) -> Iterator[int]:
    if isinstance(node, (ast.For, ast.While)):
        yield node.lineno
    else:
        for child in ast.iter_child_nodes(node):
            yield from _outermost_loops(child)


def _is_apart(statement: ast.stmt) -> bool:
    """True if a function that JAX compiles could not hold the statement as it is: an effect, or Python's control."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, (ast.Call, ast.Await))
    if isinstance(statement, (ast.Assert, ast.Raise, ast.Delete)) or hasattr(statement, "body"):
        return True
    texts = (each for each in ast.walk(statement) if isinstance(each, ast.JoinedStr))
    return any(isinstance(each, _COMPUTE) for text in texts for each in ast.walk(text))


def _holds(node: ast.stmt | ast.expr, line: int) -> bool:
    return node.lineno <= line <= _end(node)


def _end(node: ast.stmt | ast.expr) -> int:
    return node.end_lineno or node.lineno
