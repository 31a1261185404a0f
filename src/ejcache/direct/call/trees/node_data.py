"""What the nodes of a tree hold besides their children, as JSON.

    value := null | true | false | number below 2**53 | text
           | ["int", hex] | ["float", hex] | ["complex", hex, hex] | ["bytes", base64] | ["..."]
           | ["tuple", value, …] | ["list", value, …] | ["set", value, …] | ["frozenset", value, …]
           | ["dict", [value, value], …] | ["slice", value, value, value] | ["range", value, value, value]
           | ["name", "module:qualified.name"]         a class, a function or another object of an imported module
           | ["singleton", "module:NAME"]              an object without content that a module has
           | ["enum", "module:qualified.name", member]
           | ["dtype", name] | ["prng", name] | ["mesh", mesh] | ["spec", spec] | ["sharding", sharding]
           | ["ref", number, …]                        an object of the call's arguments, see `CallObjects`
           | ["tree", tree]                            a treedef, see `encoding`
           | ["fields", class, [name, value], …]       an object that consists of these attributes
           | ["tuple of", class, value, …]             a named tuple

Numbers and texts are of exactly these types: a subclass of `int` is none of them. Sets are in the order of their texts.
"""

from __future__ import annotations

import abc
import base64
import enum
import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from jax.sharding import PartitionSpec, Sharding

from ejcache.direct.call.shardings import Devices, decode_spec, encode_spec, is_mesh
from ejcache.direct.object_names import MISSING, name_of, named, singleton, singleton_name, type_name
from ejcache.errors import EntryCorruptError
from ejcache.jax_integration.seam.direct.fastpath import prng_implementation, prng_name
from ejcache.jax_integration.seam.direct.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ejcache.direct.call.trees.call_objects import CallObjects

__all__ = ["DataReader", "DataWriter", "canonical_text"]

_MAX_DEPTH: Final = 32
_EXACT: Final = 1 << 53
_METACLASSES: Final = frozenset({type, abc.ABCMeta})
_NOT_DATA: Final = frozenset({"__dict__", "__weakref__"})
_SEQUENCES: Final[dict[type, str]] = {tuple: "tuple", list: "list"}
_SETS: Final[dict[type, str]] = {set: "set", frozenset: "frozenset"}


def canonical_text(value: Any) -> str:
    """JSON that is equal for equal values."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


class DataWriter:
    """Writes the data of nodes.

    Args:
        devices: of the backend.
        other: writes an object that is of no kind below, or raises `RefusedError`; given the object and its place.
    """

    def __init__(self, devices: Devices, other: Callable[[Any, str], Any]) -> None:
        self._devices = devices
        self._other = other

    def encode(self, value: Any, where: str, depth: int = 0) -> Any:
        """`value` as JSON.

        Args:
            value: what a node holds.
            where: its place, for messages.
            depth: of containers around it.

        Raises:
            RefusedError: there is no way to describe it.
        """
        if depth > _MAX_DEPTH:
            raise RefusedError(f"{where} is too deep")
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -_EXACT < value < _EXACT else ["int", hex(value)]
        if kind is float:
            return ["float", value.hex()]
        if kind is complex:
            return ["complex", value.real.hex(), value.imag.hex()]
        if kind is bytes:
            return ["bytes", base64.b64encode(value).decode()]
        if value is Ellipsis:
            return ["..."]
        if kind in _SEQUENCES:
            return [_SEQUENCES[kind], *self._each(value, where, depth)]
        if kind in _SETS:
            return [_SETS[kind], *sorted(self._each(value, where, depth), key=canonical_text)]
        if kind is dict:
            pairs = zip(self._each(value, where, depth), self._each(value.values(), where, depth), strict=True)
            return ["dict", *(list(pair) for pair in pairs)]
        if kind is slice or kind is range:
            return [kind.__name__, *self._each((value.start, value.stop, value.step), where, depth)]
        return self._encode_object(value, where)

    def _each(self, values: Iterable[Any], where: str, depth: int) -> list[Any]:
        return [self.encode(each, where, depth + 1) for each in values]

    def _encode_object(self, value: Any, where: str) -> Any:
        if isinstance(value, np.dtype) and _dtype_named(value.name) == value:
            return ["dtype", value.name]
        implementation = prng_name(value)
        if implementation is not None:
            return ["prng", implementation]
        if is_mesh(value):
            return ["mesh", self._devices.encode_mesh(value)]
        if isinstance(value, PartitionSpec):
            return ["spec", encode_spec(value)]
        if isinstance(value, Sharding):
            return ["sharding", self._devices.encode(value)]
        if isinstance(value, enum.Enum):
            name = name_of(type(value))
            if name is not None and type(value).__members__.get(value.name) is value:
                return ["enum", name, value.name]
        name = name_of(value)
        if name is not None:
            return ["name", name]
        return self._other(value, where)

    def encode_fields(self, value: Any, where: str) -> Any:
        """A named tuple or another object by what it consists of, which is the last resort.

        Raises:
            RefusedError: nobody could tell whether a copy equals it, or one of its parts cannot be described.
        """
        kind = type(value)
        name = singleton_name(value)
        if name is not None:
            return ["singleton", name]
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return ["tuple of", self.encode(kind, where), *self._each(value, where, 0)]
        if name_of(kind) is None or not _consists_of_attributes(kind):
            raise RefusedError(f"{where} is a {type_name(value)}, which is in no argument")
        fields = sorted(_attributes(value).items())
        pairs = [[name, self.encode(each, f"{where}.{name}")] for name, each in fields]
        return ["fields", self.encode(kind, where), *pairs]


def _consists_of_attributes(kind: type) -> bool:
    """Whether Python's attributes are all that an object of this class has, and two with the same ones can be equal."""
    if getattr(kind, "__eq__", None) is object.__eq__:
        return False
    try:
        object.__new__(kind)
    except TypeError:
        return False  # it extends a class of C, or is abstract
    return type(kind) in _METACLASSES


def _attributes(value: Any) -> dict[str, Any]:
    slots = [name for base in type(value).__mro__ for name in _slots(base) if name not in _NOT_DATA]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return found | dict(getattr(value, "__dict__", {}))


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


class DataReader:
    """Reads what a `DataWriter` wrote.

    Args:
        devices: of the backend.
        objects: of the call that is to be served.
        read_tree: reads a treedef among the data, given how deep it is.
    """

    def __init__(self, devices: Devices, objects: CallObjects, read_tree: Callable[[Any, int], Any]) -> None:
        self._read_tree = read_tree
        self._devices = devices
        self._objects = objects

    def decode(self, value: Any, depth: int = 0) -> Any:
        """The value that was written.

        Raises:
            EntryCorruptError: this was not written so.
            RefusedError: it names an object that this process or this call does not have.
        """
        if value is None or type(value) in {bool, str, int}:
            return value
        if depth > _MAX_DEPTH or type(value) is not list or not value or type(value[0]) is not str:
            raise EntryCorruptError("the data of a node is not a value")
        try:
            return self._decode_tagged(value[0], value[1:], depth + 1)
        except (ValueError, TypeError, AttributeError, LookupError) as exc:
            raise EntryCorruptError(f"the data of a node is no {value[0]:.20}") from exc

    def _decode_tagged(self, tag: str, rest: list[Any], depth: int) -> Any:
        match tag, rest:
            case "int", [str(text)]:
                return int(text, 16)
            case "float", [str(text)]:
                return float.fromhex(text)
            case "complex", [str(real), str(imaginary)]:
                return complex(float.fromhex(real), float.fromhex(imaginary))
            case "bytes", [str(text)]:
                return base64.b64decode(text, validate=True)
            case "...", []:
                return Ellipsis
            case "tuple", _:
                return tuple(self.decode(each, depth) for each in rest)
            case "list", _:
                return [self.decode(each, depth) for each in rest]
            case "set", _:
                return {self.decode(each, depth) for each in rest}
            case "frozenset", _:
                return frozenset(self.decode(each, depth) for each in rest)
            case "dict", _:
                return {self.decode(key, depth): self.decode(each, depth) for key, each in rest}
            case "slice", [start, stop, step]:
                return slice(self.decode(start, depth), self.decode(stop, depth), self.decode(step, depth))
            case "range", [int(start), int(stop), int(step)]:
                return range(start, stop, step)
        return self._decode_object(tag, rest, depth)

    def _decode_object(self, tag: str, rest: list[Any], depth: int) -> Any:
        match tag, rest:
            case "name", [str(name)]:
                return _present(named(name), name)
            case "tree", [tree]:
                return self._read_tree(tree, depth)
            case "singleton", [str(name)]:
                return _present(singleton(name), name)
            case "enum", [str(name), str(member)]:
                kind = _present(named(name), name)
                if not isinstance(kind, enum.EnumMeta) or member not in kind.__members__:
                    raise RefusedError(f"{name} has no member {member}")
                return kind.__members__[member]
            case "dtype", [str(name)]:
                return np.dtype(name)
            case "prng", [str(name)]:
                implementation = prng_implementation(name)
                return _present(MISSING if implementation is None else implementation, name)
            case "mesh", [mesh]:
                return self._devices.decode_mesh(mesh)
            case "spec", [spec]:
                return decode_spec(spec)
            case "sharding", [sharding]:
                return self._devices.decode(sharding)
            case "ref", [*path] if all(type(step) is int for step in path):
                return _present(self._objects.at(path), "such object among the arguments")
            case "tuple of", [kind, *values]:
                return self._made_tuple(self.decode(kind, depth), [self.decode(each, depth) for each in values])
            case "fields", [kind, *pairs]:
                fields = {name: self.decode(each, depth) for name, each in pairs}
                return self._made_object(self.decode(kind, depth), fields)
        raise EntryCorruptError(f"the data of a node is no {tag:.20}")

    @staticmethod
    def _made_tuple(kind: Any, values: list[Any]) -> Any:
        if (
            not isinstance(kind, type)
            or not issubclass(kind, tuple)
            or len(getattr(kind, "_fields", ())) != len(values)
        ):
            raise EntryCorruptError("a named tuple with other fields than its class")
        return tuple.__new__(kind, values)

    @staticmethod
    def _made_object(kind: Any, fields: dict[str, Any]) -> Any:
        if not isinstance(kind, type) or not _consists_of_attributes(kind):
            raise EntryCorruptError("attributes of what does not consist of them")
        made: Any = object.__new__(kind)
        for name, each in fields.items():
            object.__setattr__(made, name, each)
        return made


def _present(value: Any, name: str) -> Any:
    if value is MISSING:
        raise RefusedError(f"there is no {name:.200}")
    return value


def _dtype_named(name: str) -> np.dtype[Any] | None:
    try:
        return np.dtype(name)
    except TypeError:
        return None
