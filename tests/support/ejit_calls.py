"""Finds the calls of `ejit` and its companions in the source of a package, by their syntax.

    python tests/support/ejit_calls.py DIRECTORY

It prints the forms, without any code of the package. A form is the way in which the function is called, how many
arguments have no name, and for each named argument the kind of expression that is written there.
`tests/data/ejit_calls.json` has the forms of the releases that it names.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = frozenset({"ejit", "load_cached_functions", "smart_compile"})


def forms_in(package: Path) -> dict[str, int]:
    """How often each form occurs in the package, but for the definitions of the functions themselves."""
    found: Counter[str] = Counter()
    for path in sorted(package.rglob("*.py")):
        found.update(_forms(ast.parse(path.read_text())))
    return dict(sorted(found.items()))


def parsed(form: str) -> tuple[str, str, int, dict[str, str]]:
    """(function, way, arguments without a name, kinds of the named ones) of a form."""
    function, way, unnamed, *named = form.split(" ")
    return function, way, int(unnamed), dict(argument.split("=") for argument in named)


def _forms(tree: ast.AST) -> Iterator[str]:
    nodes = list(_outside(tree))
    decorators = [item for node in nodes for item in getattr(node, "decorator_list", ())]
    for item in decorators:
        if _name(item) in NAMES:
            yield f"{_name(item)} decorator-itself 0"
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        way = "decorator" if any(node is item for item in decorators) else "call"
        function, arguments = _name(node.func), node.args
        if function == "partial" and arguments:
            function, arguments, way = _name(arguments[0]), arguments[1:], f"partial-{way}"
        if function in NAMES:
            named = " ".join(f"{keyword.arg}={_kind(keyword.value)}" for keyword in node.keywords)
            yield f"{function} {way} {len(arguments)} {named}".strip()


def _outside(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes outside the definitions of the functions."""
    yield tree
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.FunctionDef) and node.name in NAMES):
            yield from _outside(node)


def _name(node: ast.AST) -> str:
    return str(getattr(node, "id", getattr(node, "attr", "")))


def _kind(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value) if node.value is None or isinstance(node.value, bool) else type(node.value).__name__
    if isinstance(node, ast.Tuple | ast.List):
        return f"{type(node).__name__.lower()}[{','.join(sorted({_kind(item) for item in node.elts}))}]"
    return "expression"


if __name__ == "__main__":
    print(json.dumps(forms_in(Path(sys.argv[1])), indent=1))
