"""What a call looks like from outside: fast enough to ask every time, and in full where a record is looked up."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ejcache.autotune.measure_device import device_of, environment_of
from ejcache.autotune.measure_inputs import is_array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["fingerprint", "place_of"]


def fingerprint(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Something hashable that is equal for calls of one process that have the same key; None where there is none.

    It need not be the same for all calls with the same key: a call that is not recognised is only looked at in full.
    """
    import jax

    leaves, treedef = jax.tree_util.tree_flatten((args, kwargs))
    parts: list[Any] = [treedef]
    place = None
    for leaf in leaves:
        # Most of what is no array is found out by the cheaper question.
        dtype = getattr(leaf, "dtype", None)
        if dtype is None or not is_array(leaf):
            parts += (type(leaf), leaf)
            continue
        parts += (leaf.shape, dtype)
        if place is None and not isinstance(leaf, jax.core.Tracer):
            place = getattr(leaf, "sharding", None)
    parts.append(place)
    if place is None:
        parts.append(jax.config.jax_default_device)
    found = tuple(parts)
    try:
        hash(found)
    except TypeError:
        return None
    return found


def place_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The device kind and the environment that the call runs in."""
    jax = sys.modules["jax"]
    leaves = [leaf for leaf in jax.tree_util.tree_leaves((tuple(args), dict(kwargs))) if is_array(leaf)]
    device = device_of(leaves)
    return str(device.device_kind), environment_of(device)
