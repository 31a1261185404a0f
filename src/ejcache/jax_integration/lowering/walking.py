"""Walks over MLIR modules so that an interrupt ends the walk as it ends other code of the program.

MLIR makes a RuntimeError of what a Python function raises that it calls back, which hides Ctrl-C and whatever else the
handler of a signal raises. So it calls functions of the interpreter's own C code here, in which no handler runs. The
operations are looked at after the walk.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import repeat
from typing import Any

from jaxlib.mlir import ir


def operations_in(operation: Any) -> list[Any]:
    """Return `operation` and all operations in it, each after those inside of it."""
    found: defaultdict[Any, Any] = defaultdict(repeat(ir.WalkResult.ADVANCE).__next__)
    operation.operation.walk(found.__getitem__)  # makes a key of each, and answers that the walk goes on
    return list(found)


def count_symbol_tables(operation: Any) -> int:
    """Return how many operations in `operation`, itself included, have symbols of their own, as modules have."""
    found: dict[Any, Any] = {}
    ir.SymbolTable.walk_symbol_tables(operation.operation, True, found.setdefault)
    return len(found)
