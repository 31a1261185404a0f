"""The traces that JAX remembers: which functions they are of. Makes JAX trace libraries' functions again.

JAX remembers the trace of each function that it has traced, such as `jnp.var`, and the results of primitives' rules. A
function whose trace it remembers does not run when another function that calls it is traced.

Read for this: jax 0.10.2 and 0.12.0.1, `pjit.py`, `interpreters/partial_eval.py`, `util.py`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from jax._src import pjit as jax_pjit
from jax._src.interpreters import partial_eval

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

__all__ = ["forget_traces", "remembered_traces", "retracing_mismatches"]

_CACHES: Final = ((partial_eval, "trace_to_jaxpr"), (jax_pjit, "_infer_params_cached"))
"""Traces by function, and what JAX knows of a function's parameters, which leads to its trace."""
_RULES: Final = ((partial_eval, "_cached_abstract_eval"),)
"""The types of primitives' results."""


def retracing_mismatches() -> list[str]:
    """How this JAX differs from what is cleared here; empty if it does not."""
    needed: list[tuple[Any, str, tuple[str, ...]]] = [
        (module, name, ("cache_keys", "evict_weakref")) for module, name in _CACHES
    ]
    needed += [(module, name, ("cache_clear",)) for module, name in _RULES]
    return [
        f"{module.__name__}.{name} has no {method}"
        for module, name, methods in needed
        for method in methods
        if not hasattr(getattr(module, name, None), method)
    ]


def remembered_traces(wanted: Callable[[Any], bool]) -> list[tuple[Any, frozenset[tuple[int, ...]]]]:
    """The wanted ones of the functions of which JAX remembers traces, each with what tells its traces apart."""
    found: dict[int, tuple[Any, set[tuple[int, ...]]] | None] = {}
    for number, (module, name) in enumerate(_CACHES):
        for key in getattr(module, name).cache_keys():
            function = key[0]()
            if function is None:
                continue
            if id(function) not in found:
                found[id(function)] = (function, set()) if wanted(function) else None
            entry = found[id(function)]
            if entry is not None:
                # JAX keeps the arguments with the trace, so no later one has the same identities meanwhile.
                entry[1].add((number, *map(id, key[2])))
    return [(entry[0], frozenset(entry[1])) for entry in found.values() if entry is not None]


def forget_traces(wanted: Callable[[CodeType], bool]) -> None:
    """Let JAX forget the traces of the functions whose code is wanted, and the rules' results; no executable is lost.

    The traces of other functions stay: the program may rely on a function being traced once.
    """
    for module, name in _CACHES:
        cache = getattr(module, name)
        functions = {id(function): function for key in cache.cache_keys() if (function := key[0]()) is not None}
        for function in functions.values():
            code = _code_of(function)
            if code is not None and wanted(code):
                cache.evict_weakref(function)
    for module, name in _RULES:
        getattr(module, name).cache_clear()


def _code_of(function: Any) -> CodeType | None:
    """The code of a function, or of the one inside a partial or a bound method."""
    while isinstance(function, functools.partial):
        function = function.func
    code: CodeType | None = getattr(getattr(function, "__func__", function), "__code__", None)
    return code
