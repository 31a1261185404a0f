"""Describes what JAX looks at before it traces a call, as plain data that names no particular device.

Settings and meshes of the trace, the options of `jax.jit`, and of the arguments: types with weak types, trees,
shardings, layouts, whether they are arrays or NumPy's, and the values of static ones.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ejcache.jax_integration.seam.reuse.calls import RefusedError, leaf_aval, trace_settings
from ejcache.jax_integration.seam.reuse.placements import array_layout, dtype_text, encode_layout, encode_spec
from ejcache.values.names import kind_name
from ejcache.values.plain_data import WholeValues

if TYPE_CHECKING:
    from ejcache.jax_integration.seam.reuse.calls import ParsedCall
    from ejcache.jax_integration.seam.reuse.placements import DevicePlaces


def call_data(call: ParsedCall, places: DevicePlaces) -> dict[str, Any]:
    """Return what counts of a call as plain data, by what a person calls its parts.

    Raises:
        NotWholeError: a part of it cannot be compared.
        RefusedError: a type, sharding or layout of an argument cannot be written.
    """
    walk = WholeValues()
    shapes: dict[Any, str] = {}
    leaves = [_leaf_text(leaf, places, shapes) for leaf in call.leaves]
    trees = [walk.data(tree, "an argument") for tree in call.trees]
    statics = [walk.data(each, "a static argument") for each in call.statics]
    return {
        "the arguments": [leaves, trees, call.names],
        "the static arguments": [call.static_positions, call.static_names, statics],
        "the options of jit": [[name, walk.data(value, name)] for name, value in sorted(call.options.items())],
        "JAX's settings": [[name, walk.data(value, name)] for name, value in sorted(trace_settings().items())],
    }


def _leaf_text(leaf: Any, places: DevicePlaces, shapes: dict[Any, str]) -> str:
    kind = type(leaf).__name__
    if isinstance(leaf, jax.Array):
        layout = array_layout(leaf)
        place = leaf.sharding, layout, leaf.committed
        if place not in shapes:
            shapes[place] = json.dumps([places.encode(leaf.sharding), encode_layout(layout), leaf.committed])
        return f"array {_aval_text(leaf.aval)} {shapes[place]}"
    # All arrays of NumPy with one type and shape are one to JAX, and a state often has hundreds.
    about = (leaf.dtype, leaf.shape) if type(leaf) is np.ndarray else None
    if about in shapes:
        return shapes[about]
    try:
        text = _aval_text(leaf_aval(leaf))
    except (TypeError, OverflowError) as exc:
        raise RefusedError(f"an argument is {kind_name(leaf)}, which JAX takes for no array") from exc
    text = f"{kind} {leaf.dtype.str if isinstance(leaf, (np.ndarray, np.generic)) else ''} {text}"
    if about is not None:
        shapes[about] = text
    return text


@functools.lru_cache(maxsize=1024)
def _aval_text(aval: Any) -> str:
    sharding = getattr(aval, "sharding", None)
    typed = "" if sharding is None or sharding.mesh.empty else f" {sharding.mesh!r} {encode_spec(sharding.spec)}"
    shape = ",".join(map(str, aval.shape))
    return f"{dtype_text(aval.dtype)}[{shape}]{'~' if aval.weak_type else ''}{typed} {aval.memory_space.name}"
