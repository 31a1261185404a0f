"""What JAX's and NumPy's values contribute to a function's fingerprint.

Arrays are read by content. Functions that JAX transformed are read as the function inside and JAX's options.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final

import jax
import numpy as np

from ejcache.direct.describing.code import identity
from ejcache.direct.describing.graph import Description
from ejcache.jax_integration.seam.direct.rules import rules_of
from ejcache.jax_integration.seam.direct.traces import registered_functions

if TYPE_CHECKING:
    from collections.abc import Callable

    Handler = Callable[[Any], Description | None]

__all__ = ["describe_value"]

_UNREAD_OPTIONS: Final = frozenset({"fun_sourceinfo", "fun_signature"})
"""Options of a jitted function that say where it is written, or what the function inside says."""
_COPIED: Final = frozenset(
    {"__annotations__", "__doc__", "__module__", "__name__", "__qualname__", "__type_params__", "_fun", "_jit_info"}
    | {"__wrapped__", "eval_shape", "lower", "trace"}
)
"""Attributes of a jitted function that repeat those of the function inside, or that direct mode has put there."""


def describe_value(value: object) -> Description | None:
    """What a value of JAX or NumPy is, or None: it is neither's. Of a class of the user's, what JAX knows of it."""
    kind = type(value)
    if type.__subclasscheck__(type, kind):
        return _registered(value)
    handler = _handlers().get(identity(kind))
    if handler is None:
        handler = _handler_of_bases(kind)
    return None if handler is None else handler(value)


def _registered(kind: Any) -> Description | None:
    functions = registered_functions(kind)
    if not functions:
        return None
    children = tuple((f" as a pytree[{place}]", each) for place, each in enumerate(functions))
    return Description(b"registered", children, everything=True)


@functools.cache
def _handlers() -> dict[int, Handler]:
    """By the identity of the exact type. The types that JAX does not name are those of values that it makes."""
    by_type: dict[type, Handler] = {
        np.ndarray: _numpy_array,
        np.memmap: _numpy_array,
        np.ufunc: _ufunc,
        type(np.concatenate): _array_function,
        np.random.Generator: _generator,
        np.random.RandomState: _random_state,
        type(jax.jit(_tree_handlers)): _jitted,
        jax.tree_util.PyTreeDef: _tree,
        jax.sharding.Mesh: _mesh,
        jax.sharding.PartitionSpec: _partition_spec,
        jax.sharding.AbstractMesh: _abstract_mesh,
        type(jax.config): _config,
    }
    return {identity(kind): handler for kind, handler in by_type.items()}


def _tree_handlers() -> None:
    """A function to find the type of jitted functions by."""


def _handler_of_bases(kind: type) -> Handler | None:
    for base, handler in _BASES:
        # By the real bases: a metaclass of the user's is not asked.
        if type.__subclasscheck__(base, kind):
            return handler
    module, name = _module_of(kind), _name_of(kind)
    if name == "cython_function_or_method":
        return _cython_function
    return _BY_NAME.get(name) if isinstance(module, str) and module.startswith("jax") else None


_module_of: Final = dict[str, Any](vars(type))["__module__"].__get__
_name_of: Final = dict[str, Any](vars(type))["__name__"].__get__


def _tracer(value: Any) -> Description:
    del value
    return Description(refusal="is a value of a trace that is going on or has ended")


def _any_array(value: Any) -> Description:
    name = _name_of(type(value))
    if name == "ArrayImpl":
        return _array(value)
    return _key_array(value) if name == "PRNGKeyArray" else Description(refusal=f"is an array of the type {name}")


def _array(value: Any) -> Description:
    if value.is_deleted():
        return Description(refusal="is an array that was deleted or donated")
    if not value.is_fully_addressable:
        return Description(refusal="is an array with parts in other processes")
    # Arrays may share a dtype or a sharding or have equal ones; no program sees a difference.
    sharding = _sharding_text(value.sharding)
    if sharding is None:
        return Description(refusal=f"is an array with a {_name_of(type(value.sharding))}")
    committed = getattr(value, "_committed", None)
    token = repr((value.shape, _dtype_text(value.dtype), value.aval.weak_type, committed, sharding))
    return _with_content(b"jax array" + token.encode(), value)


_MAX_BYTES: Final = 16 << 20


def _with_content(token: bytes, value: Any) -> Description:
    if value.nbytes > _MAX_BYTES:
        size = f"{value.nbytes >> 20} MiB"
        limit = f"at most {_MAX_BYTES >> 20} MiB are read: make it an argument"
        return Description(refusal=f"is an array of {size}, and {limit}")
    return Description(token + _content_digest(value))


def _content_digest(value: Any) -> bytes:
    found = _arrays.get(identity(value))
    if found is not None and found[0]() is value:
        return found[1]
    array = np.ascontiguousarray(value)
    digest = hashlib.sha256(array.reshape(-1).view(np.uint8).data if array.size else b"").digest()
    if isinstance(value, jax.Array):
        place = identity(value)
        _arrays[place] = (weakref.ref(value, lambda _: _arrays.pop(place, None)), digest)
    return digest


_arrays: Final[dict[int, tuple[weakref.ref[Any], bytes]]] = {}
"""Digests of JAX's arrays, whose content does not change, by their identities."""


def _key_array(value: Any) -> Description:
    data = jax.random.key_data(value) if not hasattr(value, "_base_array") else value._base_array  # noqa: SLF001
    return Description(b"key array" + str(value.dtype).encode(), children=(("", data),))


def _numpy_array(value: Any) -> Description:
    token = (
        b"numpy array" + repr((value.shape, value.strides, _dtype_text(value.dtype), value.flags.writeable)).encode()
    )
    if value.dtype.hasobject:
        if value.dtype != np.dtype(object):
            return Description(refusal="is an array with fields of Python objects")
        items = tuple((f"[{index}]", item) for index, item in enumerate(value.ravel(order="C").tolist()))
        return Description(token, children=items)
    return _with_content(token, value)


def _dtype(value: Any) -> Description:
    return Description(b"dtype" + _dtype_text(value).encode())


def _dtype_text(dtype: Any) -> str:
    return repr((dtype.str, dtype.name, repr(dtype), repr(dtype.metadata), dtype.alignment))


def _extended_dtype(value: Any) -> Description:
    return Description(b"extended dtype" + str(value).encode())


def _scalar(value: Any) -> Description:
    if isinstance(value, np.object_):
        return Description(refusal="is a scalar of NumPy that holds a Python object")
    return Description(b"numpy scalar" + value.tobytes() + _dtype_text(value.dtype).encode())


def _ufunc(value: Any) -> Description:
    if value.types and all(set(each) <= set("O->") for each in value.types):
        return Description(refusal="is a NumPy function made of a Python function, which it does not show")
    return Description(b"ufunc" + repr((value.__name__, value.nin, value.nout, value.types)).encode())


def _array_function(value: Any) -> Description:
    return Description(b"function of NumPy", children=(("", value._implementation),))  # noqa: SLF001


def _cython_function(value: Any) -> Description | None:
    if not str(value.__module__).startswith("numpy."):
        return None
    return Description(b"function of NumPy" + f"{value.__module__}:{value.__qualname__}".encode())


def _generator(value: Any) -> Description:
    return Description(b"generator", children=((".bit_generator", value.bit_generator),))


def _bit_generator(value: Any) -> Description:
    return Description(b"bit generator" + type(value).__name__.encode(), children=((".state", value.state),))


def _random_state(value: Any) -> Description:
    module = sys.modules.get("numpy.random.mtrand")
    if value is getattr(module, "_rand", None):
        return Description(b"numpy.random")  # which numbers it gives is not compared
    return Description(b"random state", children=((".get_state()", value.get_state(legacy=False)),))


def _jitted(value: Any) -> Description:
    own = [(f".{name}", each) for name, each in vars(value).items() if name not in _COPIED]
    return Description(b"jitted", children=(("", value._fun), ("", value._jit_info), *own))  # noqa: SLF001


def _jit_options(value: Any) -> Description:
    """The options of `jax.jit`, most of which are nothing in most programs."""
    plain: list[object] = []
    children: list[tuple[str, object]] = []
    for name in sorted(set(value._fields) - _UNREAD_OPTIONS):
        option = getattr(value, name)
        if isinstance(option, jax.tree_util.PyTreeDef):
            option = "*" if option == _LEAF else option
        elif isinstance(option, enum.Enum):
            option = option.name
        elif isinstance(option, tuple):
            option = tuple("unspecified" if _name_of(type(each)) == "UnspecifiedValue" else each for each in option)
        if _is_plain(option):
            plain.append((name, option))
        else:
            children.append((f".{name}", option))
    return Description(b"options of jit" + repr(plain).encode(), children=tuple(children))


_LEAF: Final = jax.tree_util.tree_structure(0)
_PLAIN: Final = (bool, int, str, type(None))


def _is_plain(option: object) -> bool:
    kind = type(option)
    if type(option) is tuple:
        return all(_is_plain(each) for each in option)
    return any(kind is each for each in _PLAIN)


def _program(value: Any) -> Description:
    return Description(refusal=f"is a {_name_of(type(value))}")


def _primitive(value: Any) -> Description:
    own = tuple((f".{name}", each) for name, each in vars(value).items())
    return Description(b"primitive", children=(*own, *rules_of(value)))


def _memoised(value: Any) -> Description:
    return Description(b"memoised", children=(("", getattr(value, "__wrapped__", None)),))


def _tree(value: Any) -> Description:
    token: list[object] = []
    held: list[tuple[str, object]] = []
    waiting = [value]
    while waiting:
        tree = waiting.pop()
        node = tree.node_data()
        if node is None:
            token.append(tree.num_leaves)
            continue
        kind, data = node
        below = tree.children()
        waiting += reversed(below)
        plain = data is None or (type(data) is list and all(type(each) is str for each in data))
        token.append((_name_of(kind), len(below), data if plain else None))
        if kind not in _BUILT_IN_NODES:
            held.append((f".node_type[{len(token)}]", kind))
        if not plain:
            held.append((f".aux_data[{len(token)}]", data))
    return Description(b"tree" + repr(token).encode(), children=tuple(held))


_BUILT_IN_NODES: Final = frozenset({tuple, list, dict, type(None)})


def _device(value: Any) -> Description:
    return Description(b"device" + _device_text(value).encode())


def _device_text(device: Any) -> str:
    return repr((device.platform, device.device_kind, device.id, device.process_index))


def _mesh(value: Any) -> Description:
    return Description(b"mesh" + _mesh_text(value).encode())


def _mesh_text(mesh: Any) -> str:
    devices = [] if mesh.empty else [_device_text(each) for each in mesh.devices.ravel().tolist()]
    return repr((mesh.axis_names, mesh.devices.shape, str(getattr(mesh, "axis_types", None)), devices))


def _abstract_mesh(value: Any) -> Description:
    token = repr((value.axis_names, value.axis_sizes, str(value.axis_types)))
    return Description(b"abstract mesh" + token.encode())


def _partition_spec(value: Any) -> Description:
    return Description(b"partition spec" + _partition_text(value).encode())


def _partition_text(spec: Any) -> str:
    apart = [sorted(map(str, getattr(spec, name, None) or ())) for name in ("unreduced", "reduced")]
    return repr((type(spec).__name__, tuple(spec), apart))


def _sharding(value: Any) -> Description:
    text = _sharding_text(value)
    if text is None:
        return Description(refusal=f"is a {_name_of(type(value))}")
    return Description(b"sharding" + text.encode())


def _sharding_text(sharding: Any) -> str | None:
    kind = type(sharding)
    if kind is jax.sharding.SingleDeviceSharding:
        (device,) = sharding.device_set
        return repr(("one device", _device_text(device), sharding.memory_kind))
    if kind is jax.sharding.NamedSharding and type(sharding.mesh) is jax.sharding.Mesh:
        return repr(("named", _mesh_text(sharding.mesh), _partition_text(sharding.spec), sharding.memory_kind))
    return None


def _config(value: Any) -> Description:
    # All flags, also those that decide no program: the function asks for one of them.
    flags = value.values
    return Description(b"configuration of JAX", children=tuple((f".{name}", flags[name]) for name in sorted(flags)))


def _flag(value: Any) -> Description | None:
    """A flag that a function sets for a block, or that a program has made; other classes have that name as well."""
    if not hasattr(value, "name"):
        return None
    return Description(b"flag of JAX" + repr(value.name).encode(), children=((".value", value.value),))


_BASES: Final[tuple[tuple[type, Handler], ...]] = (
    (jax.core.Tracer, _tracer),
    (jax.Array, _any_array),
    (np.dtype, _dtype),
    (np.generic, _scalar),
    (np.random.BitGenerator, _bit_generator),
    (jax.Device, _device),
    (jax.sharding.Sharding, _sharding),
)
_BY_NAME: Final[dict[str, Handler]] = {
    "KeyTy": _extended_dtype,
    "State": _flag,
    "PjitInfo": _jit_options,
    "Primitive": _primitive,
    "WeakrefLRUCache": _memoised,
    "Jaxpr": _program,
    "ClosedJaxpr": _program,
}
