"""The Python functions with which classes are registered as pytrees: JAX calls them to take arguments apart.

Read for this: jax 0.10.2 and 0.12.0.1, `tree_util.py`.
"""

from __future__ import annotations

from typing import Any, Final

from jax._src import tree_util as jax_trees

__all__ = ["node_types", "registered_functions"]

_REGISTRY: Final = "_registry"
_FIELDS: Final = ("to_iter", "from_iter")
_BUILT_IN: Final = frozenset({tuple, list, dict, type(None)})


def node_types(tree: Any) -> set[type]:
    """The classes of the nodes of a tree, without those that are Python's own."""
    found: set[type] = set()
    pending = [tree]
    while pending:
        node = pending.pop()
        data = node.node_data()
        if data is None:
            continue
        if data[0] not in _BUILT_IN:
            found.add(data[0])
        pending.extend(node.children())
    return found


def registered_functions(kind: type) -> tuple[object, ...]:
    """What JAX calls to take apart and put together an object of this class, as far as Python can see it."""
    entry = getattr(jax_trees, _REGISTRY, {}).get(kind)
    fields = entry if isinstance(entry, tuple) else [getattr(entry, name, None) for name in _FIELDS]
    return tuple(field for field in fields if callable(field))
