"""Lines of code by subpackage, the longest functions, and import circles of `src/ejcache`.

A line counts if a token other than a comment or a docstring begins or ends on it. Compare two checkouts with

    python tools/size.py [SOURCE_DIRECTORY …]
"""

from __future__ import annotations

import argparse
import ast
import collections
import tokenize
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "ejcache"

_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def docstring_lines(tree: ast.AST) -> set[int]:
    """Lines of strings that stand alone: docstrings, of attributes too."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def code_lines(path: Path, tree: ast.AST) -> int:
    """How many lines of code the module at `path` has."""
    with path.open("rb") as file:
        tokens = [token for token in tokenize.tokenize(file.readline) if token.type not in _LAYOUT]
    return len({line for token in tokens for line in (token.start[0], token.end[0])} - docstring_lines(tree))


def functions(path: Path, tree: ast.AST) -> list[tuple[int, str]]:
    """(lines, name) of every function in the module."""
    return [
        ((node.end_lineno or node.lineno) - node.lineno + 1, f"{path.name}:{node.name}")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def report(source: Path) -> None:
    """Print the table of one source directory."""
    rooms: collections.Counter[str] = collections.Counter()
    files: collections.Counter[str] = collections.Counter()
    found: list[tuple[int, str]] = []
    largest: collections.Counter[str] = collections.Counter()
    for path in sorted(source.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        parts = path.relative_to(source).parts
        room = parts[0] if len(parts) > 1 else "(top level)"
        rooms[room] += code_lines(path, tree)
        files[room] += 1
        largest[str(path.parent.relative_to(source))] += 1
        found += functions(path, tree)
    found.sort(reverse=True)
    print(f"{source.parent.parent.name}: {rooms.total()} lines of code in {files.total()} files")
    for room, lines in rooms.most_common():
        print(f"  {room:18}{lines:7}{files[room]:5} files")
    directory, modules = largest.most_common(1)[0]
    print(f"  largest directory: {directory}, {modules} modules")
    print(f"  functions: {len(found)}, 90th percentile {found[len(found) // 10][0]} lines, longest: {found[:3]}")


def main() -> None:
    """Print a table for each directory given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="*", type=Path, default=[SOURCE])
    for source in parser.parse_args().source:
        report(source)


if __name__ == "__main__":
    main()
