"""What JAX looks at before it traces a call, as a text that is equal in any process with the same devices.

Settings and meshes of the trace, the options of `jax.jit`, and of the arguments: types with weak types, trees,
shardings, layouts, whether they are arrays or NumPy's, and the values of static ones.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental.layout import Layout
from jax.sharding import AbstractMesh, Mesh, PartitionSpec, Sharding

from ejcache.jax_integration.seam.reuse.calls import leaf_aval, trace_settings
from ejcache.jax_integration.seam.reuse.lowering import (
    array_layout,
    dtype_text,
    encode_layout,
    encode_spec,
    is_unspecified,
)
from ejcache.jax_integration.seam.reuse.refusal import RefusedError
from ejcache.reuse.values import ValuePlace, class_name, kind_name, plain_data

if TYPE_CHECKING:
    from ejcache.jax_integration.seam.reuse.calls import ParsedCall
    from ejcache.jax_integration.seam.reuse.lowering import DevicePlaces


def call_texts(call: ParsedCall, places: DevicePlaces) -> dict[str, str]:
    """Return the text of a call, by what a person calls its parts.

    Raises:
        RefusedError: a part of it cannot be written.
    """
    settings = {name: _jax_text(value, places, f"JAX's {name}") for name, value in sorted(trace_settings().items())}
    options = {name: _jax_text(value, places, f"the option {name}") for name, value in sorted(call.options.items())}
    shapes: dict[Any, str] = {}
    arguments = [[_leaf_text(leaf, places, shapes) for leaf in call.leaves], *map(tree_text, call.trees), *call.names]
    statics = [plain_data(each, ValuePlace.STATIC, "a static argument") for each in call.statics]
    return {
        "the arguments": json.dumps(arguments),
        "the static arguments": json.dumps([*call.static_positions, *call.static_names, *statics]),
        "the options of jit": json.dumps(options),
        "JAX's settings": json.dumps(settings),
    }


def tree_text(tree: Any) -> str:
    """Return the structure of a tree, with the classes of its nodes and what they hold besides leaves."""
    node = tree.node_data()
    if node is None:
        return "*"
    kind, data = node
    below = ", ".join(map(tree_text, tree.children()))
    return f"{class_name(kind)}[{json.dumps(plain_data(data, ValuePlace.NODE, 'a node'))}]({below})"


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


def _jax_text(value: Any, places: DevicePlaces, where: str) -> str:
    """Return a value of a setting or an option, strictly: what is not known by content is refused."""
    if value is None:
        return "none"
    if isinstance(value, (Mesh, AbstractMesh)):
        return f"mesh {places.encode_mesh(value)}"
    if is_unspecified(value):
        return "unspecified"
    if isinstance(value, Sharding):
        return f"sharding {places.encode(value)}"
    if isinstance(value, PartitionSpec):
        return f"spec {encode_spec(value)}"
    if isinstance(value, jax.Device):
        return f"device {places.positions([value])}"
    if isinstance(value, Layout):
        return f"layout {encode_layout(value)}"
    if hasattr(value, "node_data") and hasattr(value, "num_leaves"):
        return f"tree {tree_text(value)}"
    if type(value) in {tuple, list}:
        return f"({', '.join(_jax_text(each, places, where) for each in value)})"
    return json.dumps(plain_data(value, ValuePlace.WORD, where))
