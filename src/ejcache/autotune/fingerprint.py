"""Makes a value by which a call is found again in this process without describing it."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.descriptions import DEEPEST, NAMED, is_reference
from ejcache.autotune.value_kinds import is_array, is_scalar

if TYPE_CHECKING:
    from collections.abc import Sequence

_OWN_NODES: Final = 3
"""Inner nodes in the tree of each call: the pair, the arguments, and the keyword arguments."""

_PLAIN: Final = frozenset({int, str, bool, bytes, type(None)})
_LIBRARIES: Final = frozenset({"jax", "jaxlib", "numpy", "ml_dtypes"})
_SNAPSHOT_VALUES: Final = 2_000


def fingerprint(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return a hashable value that is equal in this process only for calls with the same key; None if there is none.

    Calls with the same key may have different fingerprints. Such a call is looked up by its key.
    """
    import jax

    from ejcache.jax_integration.seam.autotune.tracing import (  # JAX itself
        is_differentiated,
        mapped_axes,
        trace_fingerprint,
    )

    place = None
    snapshot = _Snapshot()
    try:
        leaves, treedef = jax.tree_util.tree_flatten((args, kwargs))
        parts: list[Any] = [treedef]
        if treedef.num_nodes - treedef.num_leaves > _OWN_NODES:
            parts.append(snapshot.of_nodes(treedef))
        for leaf in leaves:
            # Most leaves that are not arrays have no dtype, and asking for that is the cheaper test.
            dtype = getattr(leaf, "dtype", None)
            if dtype is None or not is_array(leaf):
                parts.append(snapshot.of(leaf))
                continue
            if is_reference(leaf):
                return None
            parts += (leaf.shape, dtype)
            if place is None and not isinstance(leaf, jax.core.Tracer):
                place = getattr(leaf, "sharding", None)
        # The trace context has the default device, which counts for a call without a placed array.
        parts += (place, trace_fingerprint(), mapped_axes(leaves), is_differentiated(leaves))
        found = tuple(parts)
        hash(found)
    except (TypeError, ValueError):
        return None
    return found


class _Snapshot:
    """The state of the values of one call, hashable, and equal only for values that have the same description.

    Python's `==` does not say that: `1 == True`, `0.0 == -0.0`, fields of dataclasses may have `compare=False`, a class
    may define it, and an object that has changed is equal to itself.
    """

    def __init__(self) -> None:
        self._left = _SNAPSHOT_VALUES

    def of(self, value: Any, depth: int = 0) -> Any:
        """Return the state of one value; raises `TypeError` for one that is too large or refers to itself."""
        kind = type(value)
        self._left -= 1
        if self._left < 0 or depth > DEEPEST:
            raise TypeError("the call has too many values")
        if kind in _PLAIN:
            return kind, value
        if kind in {float, complex}:
            return kind, repr(value)
        if is_reference(value):
            raise TypeError("a reference has no key")
        if is_array(value):
            return kind, value.shape, value.dtype
        if is_scalar(value):
            return kind, value.tobytes()
        if isinstance(value, list | tuple):
            return kind, tuple([self.of(item, depth + 1) for item in value])
        if isinstance(value, set | frozenset):
            return kind, frozenset([self.of(item, depth + 1) for item in value])
        if isinstance(value, dict):
            return kind, self._fields(value, depth)
        if isinstance(value, functools.partial):
            return kind, self.of((value.func, value.args, value.keywords), depth + 1)
        if isinstance(value, types.MethodType):
            return kind, value.__func__, self.of(value.__self__, depth + 1)
        if isinstance(value, NAMED) or kind.__module__.partition(".")[0] in _LIBRARIES:
            return kind, value
        slots = {name: getattr(value, name, None) for name in _slots(kind)}  # type: ignore[arg-type]  # mypy: no class is hashable
        state = self._fields(slots | getattr(value, "__dict__", {}), depth)
        # Also by the value itself: the state of a class of C code cannot be seen.
        return (kind, state, value) if isinstance(value, Hashable) else (kind, state)

    def of_nodes(self, treedef: Any) -> tuple[Any, ...]:
        """Return the static parts of a tree, which the tree compares by `==`."""
        parts, waiting = [], [treedef]
        while waiting:
            node = waiting.pop()
            data = node.node_data()
            if data is not None and data[0] not in {tuple, list, None}:
                parts.append((data[0], self.of(data[1])))
            waiting += node.children()
        return tuple(parts)

    def _fields(self, fields: Mapping[Any, Any], depth: int) -> Any:
        return tuple([(self.of(name, depth + 1), self.of(item, depth + 1)) for name, item in fields.items()])


@functools.lru_cache(maxsize=1_000)
def _slots(kind: type) -> tuple[str, ...]:
    """Return the names of the attributes that objects of a class have beside their `__dict__`."""
    declared = [getattr(each, "__slots__", ()) for each in kind.__mro__]
    names = itertools.chain.from_iterable((each,) if isinstance(each, str) else each for each in declared)
    return tuple(name for name in names if not name.startswith("__"))
