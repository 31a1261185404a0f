"""The code before and after lines of a program become one function, in the names that they have."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SHOWN: Final = 4
"""Lines of code to show of those before."""


def made_one_function(
    body: Sequence[ast.stmt], scope: ast.AST, *, name: str, span: str, lines: Sequence[str]
) -> tuple[str, str]:
    """Return the lines of statements, and what takes their place: a function, and its call.

    The function's arguments are the names that the statements read and the scope has given a value elsewhere. It
    returns those that they give a value and the scope reads elsewhere.

    Args:
        body: statements that follow each other.
        scope: the function or module that they are in.
        name: of the function to make.
        span: says which lines these are.
        lines: of the file.
    """
    last = body[-1].end_lineno or body[-1].lineno
    before = [line.strip() for line in lines[body[0].lineno - 1 : last] if line.strip()]
    inside = {id(node) for statement in body for node in ast.walk(statement)}
    others = [node for node in _names(scope) if id(node) not in inside]
    ours = [node for statement in body for node in _names(statement)]
    given = {node.id for node in others if isinstance(node.ctx, ast.Store)} | _arguments(scope)
    read = {node.id for node in others if isinstance(node.ctx, ast.Load)}
    arguments = _unique(node.id for node in ours if isinstance(node.ctx, ast.Load) and node.id in given)
    made = _unique(node.id for node in ours if isinstance(node.ctx, ast.Store) and node.id in read)
    call = f"{name}({', '.join(arguments)})"
    head = f"@jax.jit\ndef {call}:\n    \N{HORIZONTAL ELLIPSIS}  # {span}\n"
    if any(isinstance(statement, ast.Return) for statement in body):
        after = f"{head}return {call}"
    else:
        results = ", ".join(made)
        after = f"{head}    return {results}\n{results} = {call}" if made else f"{head}{call}"
    if len(before) > _SHOWN:
        before = [*before[: _SHOWN - 1], "\N{HORIZONTAL ELLIPSIS}"]
    return "\n".join(before), after


def _names(node: ast.AST) -> list[ast.Name]:
    return [each for each in ast.walk(node) if isinstance(each, ast.Name)]


def _arguments(scope: ast.AST) -> set[str]:
    if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return set()
    return {each.arg for each in ast.walk(scope.args) if isinstance(each, ast.arg)}


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
