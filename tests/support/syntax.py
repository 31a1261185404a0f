"""Syntax trees of modules, for tests that read our own source."""

from __future__ import annotations

import ast
from functools import cache


@cache
def parsed(source: str) -> ast.Module:
    """The syntax tree of a module, made once for all tests."""
    return ast.parse(source)


@cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All parts of a module that was parsed, found once for all tests."""
    return tuple(ast.walk(tree))


@cache
def defined(tree: ast.Module) -> tuple[str, ...]:
    """The names of the functions and classes of a module, those within others, too."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return tuple(node.name for node in nodes(tree) if isinstance(node, kinds))


def dotted(node: ast.AST) -> str:
    """`a.b.c` of an expression that is nothing but names; empty for any other, which `ast.unparse` would spell out."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
