"""The Python functions with which classes are registered as pytrees: JAX calls them to take arguments apart.

Read for this: jax 0.10.2 and 0.12.0.1, `tree_util.py`.
"""

from __future__ import annotations

from typing import Final

from jax._src import tree_util as jax_trees

__all__ = ["registered_functions"]

_REGISTRY: Final = "_registry"
_FIELDS: Final = ("to_iter", "from_iter")


def registered_functions(kind: type) -> tuple[object, ...]:
    """What JAX calls to take apart and put together an object of this class, as far as Python can see it."""
    if type(kind).__hash__ is not type.__hash__:
        return ()  # a metaclass of the user's would be asked
    entry = getattr(jax_trees, _REGISTRY, {}).get(kind)
    fields = entry if isinstance(entry, tuple) else [getattr(entry, name, None) for name in _FIELDS]
    return tuple(field for field in fields if callable(field))
