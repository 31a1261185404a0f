"""The rules that JAX keeps for each primitive: how it is differentiated, batched and lowered.

Read for this: jax 0.10.2 and 0.12.0.1, `interpreters/ad.py`, `batching.py`, `mlir.py`, `partial_eval.py`.
"""

from __future__ import annotations

import functools
import os
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jax._src.interpreters import ad, batching, mlir, partial_eval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["rules_of", "rules_that"]

_TABLES: Final = (
    (ad, ("fancy_transposes", "primitive_jvps", "primitive_linearizations", "primitive_transposes")),
    (batching, ("fancy_primitive_batchers",)),
    (mlir, ("_lowerings",)),
    (partial_eval, ("custom_partial_eval_rules", "custom_staging_rules", "dce_rules", "forwarding_rules")),
    (partial_eval, ("const_fold_rules", "partial_eval_jaxpr_custom_rules")),
)
_JAX: Final = f"{Path(ad.__file__).parents[2]}{os.sep}"
_identity: Final = object.__hash__
"""`id` and `__code__` tell Python's audit hooks of every call, and take ten times as long as what is used here."""
_known: Final[dict[int, object]] = {}
"""The rules that were looked at, by identity; held, so that the identity lasts."""
_from: Final[dict[tuple[str, str], types.FunctionType]] = {}
"""A function that is or was in a rule for each file and module that such functions are from: they are few."""


def _tables() -> Iterator[tuple[str, Mapping[Any, Any]]]:
    for module, names in _TABLES:
        for name in names:
            yield name, getattr(module, name, {})
    for platform, table in mlir._platform_specific_lowerings.items():
        yield f"_lowerings on {platform}", table


def rules_of(primitive: Any) -> tuple[tuple[str, object], ...]:
    """The rules of a primitive, by the names of their tables."""
    return tuple((f".{name}", _rule(table[primitive])) for name, table in _tables() if primitive in table)


def rules_that(are_meant: Callable[[types.FunctionType], bool]) -> dict[str, object]:
    """The rules that are such functions, or lead to one directly, by table and primitive."""
    for _, table in _tables():
        for entry in tuple(table.values()):
            if _identity(entry) not in _known:
                _known[_identity(entry)] = entry
                for each in _functions_in(_rule(entry)):
                    if not str(each.__globals__.get("__file__")).startswith(_JAX):
                        _from[_place(each)] = each
    places = {place for place, function in tuple(_from.items()) if are_meant(function)}
    if not places:
        return {}
    rules = [(f"{name} of {each}", _rule(entry)) for name, table in _tables() for each, entry in tuple(table.items())]
    return {name: rule for name, rule in rules if not places.isdisjoint(map(_place, _functions_in(rule)))}


def _place(function: types.FunctionType) -> tuple[str, str]:
    return function.__code__.co_filename, function.__module__


def _rule(entry: Any) -> object:
    return getattr(entry, "rule", entry)


def _functions_in(rule: Any) -> tuple[types.FunctionType, ...]:
    """A rule, what is inside of partial functions, and what it closes over, as `mlir.lower_fun` makes rules."""
    while type(rule) is functools.partial:
        rule = rule.func
    if type(rule) is not types.FunctionType:
        return ()
    closure = rule.__closure__
    return (rule, *(cell.cell_contents for cell in closure if _is_function(cell))) if closure else (rule,)


def _is_function(cell: types.CellType) -> bool:
    try:
        return isinstance(cell.cell_contents, types.FunctionType)
    except ValueError:
        return False  # nothing is in it yet
