"""Values of JAX and NumPy: arrays by content, and functions that JAX has transformed as the function inside.

Shardings, meshes, types of elements, generators of random numbers and the like are written as they would be pickled.
"""

from __future__ import annotations

import hashlib
import weakref
from typing import TYPE_CHECKING, Any, Final

import jax
import numpy as np

from ejcache.direct.describing.code import identity
from ejcache.direct.describing.standard import write_sequence
from ejcache.jax_integration.seam.direct.rules import rules_of

if TYPE_CHECKING:
    from ejcache.direct.describing.graph import Handler, Node

__all__ = ["BASES", "BY_NAME", "HANDLERS"]

_UNREAD_OPTIONS: Final = frozenset({"fun_sourceinfo", "fun_signature"})
"""Options of a jitted function that say where it is written, or what the function inside says."""
_COPIED: Final = frozenset(
    {"__annotations__", "__doc__", "__module__", "__name__", "__qualname__", "__type_params__", "_fun", "_jit_info"}
    | {"__wrapped__", "eval_shape", "lower", "trace"}
)
"""Attributes of a jitted function that repeat those of the function inside, or that direct mode has put there."""
_MAX_BYTES: Final = 16 << 20


def _tracer(node: Node, value: Any) -> None:
    del value
    node.refuse("is a value of a trace that is going on or has ended")


def _array(node: Node, value: Any) -> None:
    """An array of JAX."""
    kind = type(value).__name__
    if kind == "PRNGKeyArray":
        node.write(b"key array", str(value.dtype).encode())
        node.child("", jax.random.key_data(value) if not hasattr(value, "_base_array") else value._base_array)  # noqa: SLF001
        return
    if kind != "ArrayImpl" or value.is_deleted() or not value.is_fully_addressable:
        node.refuse("is an array that was deleted or donated, or that has parts in other processes")
    # Arrays may share a type or a sharding or have equal ones; no program sees a difference.
    devices = [_device_text(each) for each in value.sharding.devices_indices_map(value.shape)]
    placed = (value.aval.weak_type, value.committed, repr(value.sharding), devices)
    node.write(b"jax array", repr((value.shape, _dtype_text(value.dtype), *placed)).encode())
    _write_content(node, value)


def _write_content(node: Node, value: Any) -> None:
    if value.nbytes > _MAX_BYTES:
        size = f"{value.nbytes >> 20} MiB"
        node.refuse(f"is an array of {size}, and at most {_MAX_BYTES >> 20} MiB are read: make it an argument")
    place = identity(value)
    found = _arrays.get(place)
    if found is None or found[0]() is not value:
        array = np.ascontiguousarray(value)
        digest = hashlib.sha256(array.reshape(-1).view(np.uint8).data if array.size else b"").digest()
        found = weakref.ref(value, lambda _: _arrays.pop(place, None)), digest
        if isinstance(value, jax.Array):
            _arrays[place] = found
    node.write(found[1])


_arrays: Final[dict[int, tuple[weakref.ref[Any], bytes]]] = {}
"""Digests of JAX's arrays, whose content does not change, by their identities."""


def _numpy_array(node: Node, value: Any) -> None:
    about = (value.shape, value.strides, _dtype_text(value.dtype), value.flags.writeable)
    node.write(b"numpy array", repr(about).encode())
    if value.dtype == np.dtype(object):
        write_sequence(node, value.ravel(order="C").tolist())
    elif value.dtype.hasobject:
        node.refuse("is an array with fields of Python objects")
    else:
        _write_content(node, value)


def _dtype_text(dtype: Any) -> str:
    return repr((dtype.str, dtype.name, repr(dtype), repr(dtype.metadata), dtype.alignment))


def _dtype(node: Node, value: Any) -> None:
    node.write(b"dtype", _dtype_text(value).encode())


def _ufunc(node: Node, value: Any) -> None:
    del value
    node.refuse("is a function of NumPy that is not found by its name, and does not show what it is made of")


def _jitted(node: Node, value: Any) -> None:
    node.write(b"jitted")
    node.child("", value._fun)  # noqa: SLF001
    _jit_options(node, value._jit_info)  # noqa: SLF001
    for name, each in vars(value).items():
        if name not in _COPIED:
            node.child(f".{name}", each)


def _jit_options(node: Node, value: Any) -> None:
    for name in sorted(set(value._fields) - _UNREAD_OPTIONS):
        node.child(f".{name}", getattr(value, name))


def _primitive(node: Node, value: Any) -> None:
    node.write(b"primitive")
    for name, each in (*vars(value).items(), *rules_of(value)):
        node.child(f".{name}", each)


def _memoised(node: Node, value: Any) -> None:
    node.write(b"memoised")
    node.child("", getattr(value, "__wrapped__", None))


def _tree(node: Node, value: Any) -> None:
    plain: list[object] = []
    waiting = [value]
    while waiting:
        tree = waiting.pop()
        about = tree.node_data()
        if about is None:
            plain.append("a leaf")
            continue
        kind, data = about
        below = tree.children()
        waiting += reversed(below)
        is_plain = kind in _BUILT_IN and (data is None or all(type(key) is str for key in data))
        plain.append((kind.__name__, len(below), data if is_plain else None))
        if not is_plain:
            node.child(f".node_type[{len(plain)}]", kind)
            node.child(f".aux_data[{len(plain)}]", data)
    node.write(b"tree", repr(plain).encode())


_BUILT_IN: Final = frozenset({tuple, list, dict, type(None)})


def _device(node: Node, value: Any) -> None:
    node.write(b"device", _device_text(value).encode())


def _device_text(device: Any) -> str:
    return repr((device.platform, device.device_kind, device.id, device.process_index))


def _config(node: Node, value: Any) -> None:
    # All flags, also those that decide no program: the function asks for one of them.
    node.write(b"configuration of JAX")
    for name, each in sorted(value.values.items()):
        node.child(f".{name}", each)


def _flag(node: Node, value: Any) -> None:
    """A flag that a function sets for a block, or that a program has made."""
    node.write(b"flag of JAX", repr(value.name).encode())
    node.child(".value", value.value)


def _some_function() -> None:
    """A function to find the type of jitted functions by."""


HANDLERS: Final[dict[type, Handler]] = {
    np.ndarray: _numpy_array,
    np.memmap: _numpy_array,
    np.ufunc: _ufunc,
    type(jax.jit(_some_function)): _jitted,
    jax.tree_util.PyTreeDef: _tree,
    type(jax.config): _config,
}
BASES: Final[tuple[tuple[type, Handler], ...]] = (
    (jax.core.Tracer, _tracer),
    (jax.Array, _array),
    (np.dtype, _dtype),
    (jax.Device, _device),
)
BY_NAME: Final[dict[str, Handler]] = {
    "State": _flag,
    "PjitInfo": _jit_options,
    "Primitive": _primitive,
    "WeakrefLRUCache": _memoised,
}
"""By the name of a class of JAX that has no public one."""
