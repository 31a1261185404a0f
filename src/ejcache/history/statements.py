"""What source lines do: which could be one function, which make the function that is called, and which are loops."""

from __future__ import annotations

import ast
import functools
import warnings
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    Lines = Callable[[str], Sequence[str]]
    """The lines of a source file by its path; none if they are not known."""

PURE: Final = frozenset(
    "chex diffrax distrax einops equinox flax haiku jaxopt lineax optax optimistix rlax".split()  # noqa: SIM905
)
"""Libraries whose functions may run under `jit`; of the operations of others nothing is said."""
_PLAIN: Final = frozenset(
    "collections copy dataclasses functools itertools jax jaxlib jaxtyping math ml_dtypes numpy operator typing".split()  # noqa: SIM905
)
"""Modules whose functions are called within jitted functions."""
_ABOVE: Final = 4
"""Directories above a file in which a module of the same program is looked for."""
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
        """Return the number of the block of statements that has this line; 0 if it is in none, or the file is not
        known.

        A block is what one function could hold instead: statements one after another, of which none is there for its
        effect alone, as a call of `print` is, none calls a library of which nobody knows whether it may run under
        `jit`, as a plot does, and none decides what runs next.
        """
        return self._blocks(file).get(line, 0)

    def maker(self, file: str, line: int) -> int:
        """Return the line that gives the function which this line calls its name, `step` or `self.step`; 0 if there is
        none.

        Of a name it is in the same function, of an attribute in the same class.
        """
        calls = [
            call.func
            for each in ast.walk(self._scope(file, line))
            if isinstance(each, ast.stmt) and _holds(each, line) and not isinstance(each, _DEFINITIONS)
            for call in ast.walk(each)
            if isinstance(call, ast.Call) and _holds(call, line)
        ]
        made = [
            each
            for called in {*map(_spelled, calls)} - {""}
            for each in ast.walk(self._scope(file, line, of=(ast.ClassDef,) if "." in called else _DEFINITIONS))
            if isinstance(each, ast.Assign) and called in map(_spelled, each.targets)
        ]
        return made[0].lineno if len(made) == 1 and isinstance(made[0].value, ast.Call) else 0

    def reads_from_outside(self, file: str, line: int) -> bool:
        """True if this line reads a variable of the module or of a function around its own, other than a number."""
        around = [each for each in self._scopes(file, line) if not isinstance(each, ast.ClassDef)]
        *outer, scope = around
        read = {
            each.id
            for statement in ast.walk(scope)
            if isinstance(statement, ast.stmt) and not hasattr(statement, "body") and _holds(statement, line)
            for each in ast.walk(statement)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
        }
        return not (read - _variables(scope)).isdisjoint(set[str]().union(*map(_variables, outer)))

    def loops(self, file: str, line: int) -> list[int]:
        """Return the lines of the loops in the function whose definition begins here, without those in another loop."""
        defined = (each for each in ast.walk(self._tree(file)) if isinstance(each, ast.FunctionDef))
        return [
            loop
            for each in defined
            if min([each.lineno, *(decorator.lineno for decorator in each.decorator_list)]) == line
            for statement in each.body
            for loop in _outermost_loops(statement)
        ]

    def _scope(self, file: str, line: int, of: tuple[type[ast.AST], ...] = _DEFINITIONS) -> ast.AST:
        """Return the innermost function or class that has a line, or the module."""
        return [each for each in self._scopes(file, line) if isinstance(each, (ast.Module, *of))][-1]

    def _scopes(self, file: str, line: int) -> list[ast.AST]:
        """Return the module, and the functions and classes that have a line, the innermost last."""
        tree = self._tree(file)
        inside = (each for each in ast.walk(tree) if isinstance(each, _DEFINITIONS) and _holds(each, line))
        return [tree, *sorted(inside, key=lambda each: each.lineno)]

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
        tree = self._tree(file)
        foreign = _foreign(tree, lambda name: name in PURE or name in _PLAIN or self._is_beside(file, name))
        for body in _bodies(tree):
            number += 1
            for statement in body:
                if isinstance(statement, _NO_OPERATIONS):
                    continue
                if _is_apart(statement, foreign):
                    number += 1
                else:
                    found.update(dict.fromkeys(range(statement.lineno, _end(statement) + 1), number))
        return found

    def _is_beside(self, file: str, module: str) -> bool:
        """True if a module is one of the program that has this file: its source lies in a directory above it."""
        above = [str(each).rstrip("/") for each in PurePosixPath(file).parents[:_ABOVE]]
        return any(self._lines(f"{each}/{module}{end}") for each in above for end in (".py", "/__init__.py"))


def _foreign(tree: ast.Module, is_known: Callable[[str], bool]) -> set[str]:
    """Return the names in a file that stand for modules that are not known, or always for what these return, such as
    axes.
    """
    found = set[str]()
    given: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {
                each.asname or each.name.partition(".")[0]
                for each in node.names
                if not is_known(each.name.partition(".")[0])
            }
        elif isinstance(node, ast.ImportFrom):
            if not node.level and not is_known((node.module or "").partition(".")[0]):
                found |= {each.asname or each.name for each in node.names}
        else:
            for target, value in _assignments(node):
                for name in ast.walk(target):
                    if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                        given.setdefault(name.id, set()).add(_root(value))
    while more := {name for name, roots in given.items() if name not in found and roots <= found}:
        found |= more
    return found


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each target of a statement, and what it is given, or an element of."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, (ast.NamedExpr, ast.AnnAssign, ast.AugAssign)):
        yield node.target, node.value or ast.Constant(value=None)  # `x: int` gives nothing
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield node.target, node.iter
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr


def _root(node: ast.expr) -> str:
    """Return the name whose attribute, element or call, however deep, an expression is; empty if it is none."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call, ast.Await)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


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


def _is_apart(statement: ast.stmt, foreign: AbstractSet[str]) -> bool:
    """True if a function that JAX compiles could not hold the statement as it is: an effect, or Python's control.

    `foreign` are names whose calls leave for a library of which nobody knows whether it may run under `jit`.
    """
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, (ast.Call, ast.Await))
    if isinstance(statement, (ast.Assert, ast.Raise, ast.Delete)) or hasattr(statement, "body"):
        return True
    if any(isinstance(each, ast.Call) and _root(each) in foreign for each in ast.walk(statement)):
        return True
    texts = (each for each in ast.walk(statement) if isinstance(each, ast.JoinedStr))
    return any(isinstance(each, _COMPUTE) for text in texts for each in ast.walk(text))


def _spelled(node: ast.AST) -> str:
    """Spell a name, `step`, or an attribute of one, `self.step`; anything else is empty."""
    if isinstance(node, ast.Attribute):
        return f"{node.value.id}.{node.attr}" if isinstance(node.value, ast.Name) else ""
    return node.id if isinstance(node, ast.Name) else ""


def _variables(scope: ast.AST) -> set[str]:
    """Return the names to which a function or module gives values itself, other than numbers, and the function's
    arguments.
    """
    found = set[str]()
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
            found.add(node.arg if isinstance(node, ast.arg) else node.id)
        is_number = isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        if not is_number and not isinstance(node, (*_DEFINITIONS, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)
    return found


def _holds(node: ast.stmt | ast.expr, line: int) -> bool:
    return node.lineno <= line <= _end(node)


def _end(node: ast.stmt | ast.expr) -> int:
    return node.end_lineno or node.lineno
