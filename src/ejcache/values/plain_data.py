"""Writes everything that a value holds as plain data, equal in every process, or refuses the value and names the part.

    value  := null | true | false | text
            | [kind, part, …]      a list, and its kind says what follows
            | ["again", number]    the object of this number, counted from the first: cycles end

What counts:

* None, booleans, numbers, texts, bytes, types of elements and arrays of NumPy by exact type and value: 1 and True, 0.0
  and -0.0 are different. A container counts by its type and content, a set without its order.
* An enumeration member counts by its class, name, value and attributes.
* A Python object counts by its class, all of its `__dict__` and slots, and what it holds as a tuple, list, dict or set.
* A function counts by its name, bytecode, closure, defaults and attributes; a bound method by function and object; a
  partial by its parts; a function of `jax.jit` by the function and the options.
* JAX's own types that compare by value count by what they hold: partition specs, shardings, meshes, devices, trees.
* A class, a function or an object without a state that an installed distribution has under its own name counts by that
  name and the distribution (`distributions.py` says which content that has). A class of the user's counts by its name,
  its fields, its base classes, and the content of the files in which they are.

Anything else is refused, with the name of the part: an object of C, an array of JAX, a class that is found under no
name. No attribute makes a value a known kind.
"""

from __future__ import annotations

import collections
import enum
import functools
import hashlib
import json
import struct
import sys
import types
from decimal import Decimal
from fractions import Fraction
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from ejcache.errors import EjcacheError
from ejcache.jax_integration.seam.jitted_functions import jitted_parts
from ejcache.values.code_files import ChangedCode, CodeFile, read_code_file
from ejcache.values.distributions import distribution_of
from ejcache.values.names import MISSING, class_name, global_name, kind_name, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    Write: TypeAlias = Callable[["WholeValues", Any], Any]

_DEEPEST: Final = 200
_HEAP_TYPE: Final = 1 << 9
"""A flag of a class that Python code has defined (Py_TPFLAGS_HEAPTYPE); some of C have it, too."""
_POINTER: Final = struct.calcsize("P")
_PATHS: Final = frozenset({PosixPath, PurePosixPath, WindowsPath, PureWindowsPath})
_CONTAINERS: Final = (collections.OrderedDict, collections.defaultdict, tuple, list, dict, set, frozenset)
"""Those of Python that a class can be derived from, the derived ones first."""
_UNORDERED: Final = frozenset({set, frozenset})
_OF_ENUM: Final = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_"})
_NO_STATE: Final = frozenset({"__weakref__", "__dict__"})


class NotWholeError(EjcacheError):
    """A value holds a part that cannot be compared with one of another process.

    Args:
        reason: which part, as the end of a sentence: "state.tx is an _io.TextIOWrapper".
        value: the part.
        is_changed_file: True if a file was changed since the process began, and nothing is wrong with the value.
    """

    def __init__(self, reason: str, value: object, *, is_changed_file: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.value = value
        self.is_changed_file = is_changed_file


def digest_of(content: Any) -> str:
    """Return a digest of plain data."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


# -- names -----------------------------------------------------------------------------------------------------------


# -- classes ---------------------------------------------------------------------------------------------------------


class _Form(NamedTuple):
    """What objects of one class consist of.

    Attributes:
        container: the class of Python whose content they have; None if they have none.
        slots: names of attributes that are not in the `__dict__`, sorted.
        strange: a class of C among the bases, whose content nobody can see; None if there is none.
    """

    container: type | None
    slots: tuple[str, ...]
    strange: type | None


@functools.lru_cache(maxsize=4096)
def _form_of(kind: type) -> _Form:
    of_c = [base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE]
    container = next((each for each in _CONTAINERS if each in of_c), None)
    known = {object, *(container.__mro__ if container else ())}
    slots: set[str] = set()
    for base in kind.__mro__:
        declared = base.__dict__.get("__slots__", ())
        names = (declared,) if isinstance(declared, str) else declared
        slots.update(_mangled(base, name) for name in names if name not in _NO_STATE)
    strange = next((base for base in of_c if base not in known), None) or next(
        filter(_hides_content, kind.__mro__), None
    )
    return _Form(container, tuple(sorted(slots)), strange)


def _hides_content(kind: type) -> bool:
    """True if objects of a class have memory besides what their base, their slots and their `__dict__` need.

    Classes of C can have the flag of those that Python code has defined.
    """
    base = kind.__base__
    if base is None or not kind.__flags__ & _HEAP_TYPE:
        return False
    declared = kind.__dict__.get("__slots__", ())
    names = {declared} if isinstance(declared, str) else set(declared)
    pointers = len(names - _NO_STATE)
    pointers += kind.__dictoffset__ != 0 and base.__dictoffset__ == 0  # negative for a tuple, before Python 3.12
    pointers += kind.__weakrefoffset__ > 0 and base.__weakrefoffset__ == 0
    return kind.__basicsize__ - base.__basicsize__ > pointers * _POINTER


def _mangled(kind: type, name: str) -> str:
    is_private = name.startswith("__") and not name.endswith("__")
    return f"_{kind.__name__.lstrip('_')}{name}" if is_private else name


def _fields_of(kind: type) -> list[str]:
    """List the names of the fields of a named tuple or a dataclass, in order; none for another class."""
    fields = getattr(kind, "_fields", ()) if issubclass(kind, tuple) else ()
    declared = getattr(kind, "__dataclass_fields__", {})
    return [str(each) for each in (*fields, *declared)]


# -- the walk --------------------------------------------------------------------------------------------------------


class WholeValues:
    """Writes values as plain data, objects that several of them hold once. For one question, and one thread.

    Attributes:
        files: those in which the user's classes are, by path; their content is a part of the data.
        functions: the user's functions among all that was written.
    """

    def __init__(self) -> None:
        self.files: dict[str, CodeFile] = {}
        self.functions: list[types.FunctionType] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[object] = []  # an object that is gone would leave its number to another one
        self._classes: dict[type, Any] = {}
        self._path: list[str] = []

    def data(self, value: Any, where: str) -> Any:
        """Return everything that counts of a value.

        Args:
            value: any object.
            where: what an error calls it.

        Raises:
            NotWholeError: a part of it cannot be compared, or it is nested too deeply.
        """
        self._path = [where]
        try:
            return self._of(value)
        except RecursionError:
            raise NotWholeError(f"{where} is nested too deeply", value) from None

    def _refuse(self, value: object, what: str = "") -> NoReturn:
        raise NotWholeError(f"{''.join(self._path)} is {what or kind_name(value)}", value)

    def _part(self, value: Any, name: str) -> Any:
        """Write a part of the current value."""
        self._path.append(name)
        if len(self._path) > _DEEPEST:
            raise NotWholeError(f"{self._path[0]} is nested too deeply", value)
        found = self._of(value)
        self._path.pop()
        return found

    def _of(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        write = _BY_TYPE.get(kind)
        if write is not None:
            return write(self, value)
        if isinstance(value, type):
            return self.class_data(value)
        if isinstance(value, np.generic) and not value.dtype.hasobject:
            return ["numpy", class_name(kind), _dtype_name(value.dtype), value.tobytes().hex()]
        if isinstance(value, np.dtype):
            return ["dtype", _dtype_name(value)]
        if kind is ChangedCode:
            raise NotWholeError(value.reason, value, is_changed_file=True)
        for each, write in _BY_BASE:
            if isinstance(value, each):
                return write(self, value)
        number = self._numbers.setdefault(id(value), len(self._numbers))
        if number < len(self._kept):
            return ["again", number]
        self._kept.append(value)
        return self._object(value)

    # -- containers --------------------------------------------------------------------------------------------------

    def _content(self, value: Any, kind: type) -> list[Any]:
        """Write what a container holds, by the methods of Python's own class."""
        if issubclass(kind, dict):
            default = [self._part(value.default_factory, ".default_factory")] if kind is collections.defaultdict else []
            pairs = [
                [self._part(key, f" key {key!r:.40}"), self._part(each, _index(key))] for key, each in dict.items(value)
            ]
            return [*default, pairs]
        parts = [self._part(each, f"[{number}]") for number, each in enumerate(kind.__iter__(value))]  # type: ignore[attr-defined]
        return sorted(parts, key=json.dumps) if kind in _UNORDERED else parts

    def container(self, value: Any) -> Any:
        kind = type(value)
        if kind is not tuple and kind is not frozenset:
            number = self._numbers.setdefault(id(value), len(self._numbers))
            if number < len(self._kept):
                return ["again", number]
            self._kept.append(value)
        return [kind.__name__, self._content(value, kind)]

    def bounds(self, value: Any) -> Any:
        """Write a range or a slice."""
        parts = [self._part(each, "") for each in (value.start, value.stop, value.step)]
        return [type(value).__name__, parts]

    def proxy(self, value: Any) -> Any:
        """Write a read-only dict."""
        return ["mapping proxy", self._part(dict(value), "")]

    def namespace(self, value: types.SimpleNamespace) -> Any:
        """Write a namespace."""
        return ["namespace", self._attributes(vars(value))]

    # -- objects -----------------------------------------------------------------------------------------------------

    def _object(self, value: Any) -> Any:
        kind = type(value)
        installed = self._installed_object(value)
        if installed is not None:
            return installed
        if isinstance(value, enum.Enum):
            held = {name: each for name, each in vars(value).items() if name not in _OF_ENUM}
            parts = [self._part(value.value, ".value"), self._attributes(held)]
            return ["enum", self.class_data(kind), value.name, *parts]
        jitted = jitted_parts(value)
        if jitted is not None:
            return ["jit", self._part(jitted.function, ".__wrapped__"), self._attributes(jitted.options)]
        if isinstance(value, types.ModuleType):
            found = _of_distribution(f"{value.__name__}:") if sys.modules.get(value.__name__) is value else None
            return found or self._refuse(value, f"the module {value.__name__}")
        form = _form_of(kind)  # type: ignore[arg-type]  # mypy: no class is hashable
        if form.strange is not None:
            self._refuse(value)
        content = [] if form.container is None else self._content(value, form.container)
        held = dict(getattr(value, "__dict__", ()))
        slots = {name: found for name in form.slots if (found := _slot(value, name)) is not MISSING}
        return ["object", self.class_data(kind), content, self._attributes(slots), self._attributes(held)]

    def _attributes(self, held: dict[Any, Any]) -> list[Any]:
        return [[name, self._part(held[name], f".{name}")] for name in sorted(held, key=str)]

    def _installed_object(self, value: Any) -> Any:
        """Return the name of a function or of an object without a state that a distribution has; None for others."""
        is_function = isinstance(value, (types.FunctionType, types.BuiltinFunctionType)) or callable(value)
        name = (name_of(value) if is_function else None) or (
            global_name(value) if is_function or not _has_state(value) else None
        )
        return None if name is None else _of_distribution(name)

    def class_data(self, kind: type) -> Any:
        """Write a class: by its name and distribution, or by its name, fields, bases and files if it is the user's.

        Raises:
            NotWholeError: no module has it under its own name, or its file cannot be read.
        """
        known = self._classes.get(kind)
        if known is not None:
            return known
        name = name_of(kind)
        if name is None and kind in {types.NoneType, types.EllipsisType, types.FunctionType, types.MethodType}:
            name = f"builtins:{kind.__name__}"
        if name is None:
            self._refuse(kind, f"the class {kind.__qualname__}, which its module does not have under this name")
        found = _of_distribution(name) or self._class_of_user(kind, name)
        self._classes[kind] = found
        return found

    def _class_of_user(self, kind: type, name: str) -> Any:
        bases = [self.class_data(base) for base in kind.__bases__]
        return ["class", name, self._file_of(kind), bases, _fields_of(kind)]

    def _file_of(self, kind: type) -> str:
        path = getattr(sys.modules.get(kind.__module__), "__file__", None)
        source = self.files.get(path) if isinstance(path, str) else None
        if source is None and isinstance(path, str):
            source = read_code_file(path)
        if source is None:
            self._refuse(kind, f"the class {kind.__qualname__}, which has no source file")
        changed = source.why_changed()
        if changed:
            raise NotWholeError(changed, kind, is_changed_file=True)
        self.files[source.path] = source
        return source.digest

    # -- functions ---------------------------------------------------------------------------------------------------

    def function(self, value: types.FunctionType) -> Any:
        number = self._numbers.setdefault(id(value), len(self._numbers))
        if number < len(self._kept):
            return ["again", number]
        self._kept.append(value)
        name = name_of(value)
        installed = None if name is None else _of_distribution(name)
        if installed is not None:
            return installed
        self.functions.append(value)
        names = value.__code__.co_freevars
        cells = [self._cell(*pair) for pair in zip(names, value.__closure__ or (), strict=True)]
        return [
            "function",
            value.__module__,
            value.__qualname__,
            self._part(value.__code__, ""),
            cells,
            self._part(value.__defaults__, "'s defaults"),
            self._part(value.__kwdefaults__, "'s defaults"),
            self._attributes(vars(value)),
        ]

    def _cell(self, name: str, cell: types.CellType) -> Any:
        try:
            held = cell.cell_contents
        except ValueError:
            return ["empty"]
        return [self._part(held, f"'s {name}")]

    def code(self, value: types.CodeType) -> Any:
        return ["code", _code_digest(value)]

    def method(self, value: types.MethodType) -> Any:
        return ["method", self._part(value.__func__, ""), self._part(value.__self__, ".__self__")]

    def partial(self, value: functools.partial[Any]) -> Any:
        parts = [self._part(each, name) for each, name in ((value.func, ".func"), (value.args, ".args"))]
        held = [self._attributes(value.keywords), self._attributes(vars(value))]
        return ["partial", self.class_data(type(value)), *parts, *held]

    # -- of Python, NumPy and JAX ------------------------------------------------------------------------------------

    def array(self, value: np.ndarray[Any, Any]) -> Any:
        if value.dtype.hasobject:
            self._refuse(value, "an array of Python objects")
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return ["array", _dtype_name(value.dtype), list(value.shape), content]

    def mesh(self, value: Mesh) -> Any:
        devices = [None if each is None else self.device(each) for each in value.devices.flat]  # none in an empty one
        return ["mesh", devices, list(value.devices.shape), *self._axes(value)]

    def abstract_mesh(self, value: AbstractMesh) -> Any:
        device = self._part(getattr(value, "abstract_device", None), ".abstract_device")
        return ["abstract mesh", list(value.axis_sizes), device, *self._axes(value)]

    def _axes(self, mesh: Any) -> list[Any]:
        types_of_axes = getattr(mesh, "axis_types", None)
        return [self._part(mesh.axis_names, ".axis_names"), self._part(types_of_axes, ".axis_types")]

    def device(self, value: Any) -> Any:
        return ["device", value.platform, value.device_kind, value.id, value.process_index]

    def spec(self, value: PartitionSpec) -> Any:
        held = [self._part(getattr(value, name, None), f".{name}") for name in ("unreduced", "reduced")]
        return ["spec", [self._part(each, f"[{number}]") for number, each in enumerate(value)], *held]

    def named_sharding(self, value: NamedSharding) -> Any:
        parts = [self._part(value.mesh, ".mesh"), self._part(value.spec, ".spec"), value.memory_kind]
        return ["named sharding", *parts, self._part(getattr(value, "_logical_device_ids", None), "")]

    def single_sharding(self, value: SingleDeviceSharding) -> Any:
        return ["single sharding", self.device(next(iter(value.device_set))), value.memory_kind]

    def shape(self, value: jax.ShapeDtypeStruct) -> Any:
        names = ("shape", "dtype", "weak_type", "sharding", "vma", "is_ref")
        held = [self._part(getattr(value, name, None), f".{name}") for name in names]
        return ["shape", class_name(type(value)), *held]

    def tree(self, value: Any) -> Any:
        """Write the structure of a tree, with the classes of its nodes and what they hold besides leaves."""
        node = value.node_data()
        if node is None:
            return "leaf"
        kind, data = node
        held = self._part(data, f" (the data of a {kind.__qualname__})")
        return ["tree", self.class_data(kind), _fields_of(kind), held, [self.tree(child) for child in value.children()]]


def _index(key: object) -> str:
    return f"[{key!r:.80}]" if isinstance(key, (str, int)) else "[…]"


def _slot(value: Any, name: str) -> Any:
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return MISSING


def _has_state(value: Any) -> bool:
    form = _form_of(type(value))  # type: ignore[arg-type]  # as above
    is_held = form.container is not None or bool(getattr(value, "__dict__", None))
    return is_held or any(_slot(value, name) is not MISSING for name in form.slots)


def _of_distribution(name: str) -> Any:
    """Write a name of an installed distribution, of Python or of JAX; None for one of the user's."""
    distribution = distribution_of(name.partition(":")[0])
    return None if distribution is None else ["installed", name, distribution]


def _dtype_name(dtype: np.dtype[Any]) -> str:
    """Return its bytes, and its name, which tells one type of eight bits from another and has the names of fields."""
    return f"{dtype.str} {dtype}"


@functools.lru_cache(maxsize=4096)
def _code_digest(code: types.CodeType) -> str:
    """Return a digest of bytecode and of the functions that are defined in it, without lines and files."""
    return digest_of(_code_data(code))


def _code_data(code: types.CodeType) -> list[Any]:
    constants = WholeValues()
    parts = [
        _code_data(each) if isinstance(each, types.CodeType) else constants.data(each, "a constant")
        for each in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return [code.co_qualname, code.co_code.hex(), code.co_exceptiontable.hex(), parts, names, counts]


def _as_text(kind: str, write: Callable[[Any], str]) -> Write:
    return lambda _, value: [kind, write(value)]


_BY_TYPE: Final[dict[type, Write]] = {
    int: _as_text("int", "{:x}".format),
    float: _as_text("float", lambda value: struct.pack("<d", value).hex()),
    complex: _as_text("complex", lambda value: struct.pack("<dd", value.real, value.imag).hex()),
    bytes: _as_text("bytes", bytes.hex),
    bytearray: _as_text("bytearray", bytearray.hex),
    Decimal: _as_text("Decimal", repr),
    Fraction: _as_text("Fraction", repr),
    types.EllipsisType: _as_text("ellipsis", repr),
    types.NotImplementedType: _as_text("not implemented", repr),
    range: WholeValues.bounds,
    slice: WholeValues.bounds,
    **{kind: _as_text(kind.__name__, str) for kind in _PATHS},
    **dict.fromkeys(_CONTAINERS, WholeValues.container),
    types.MappingProxyType: WholeValues.proxy,
    types.SimpleNamespace: WholeValues.namespace,
    types.FunctionType: WholeValues.function,
    types.MethodType: WholeValues.method,
    types.CodeType: WholeValues.code,
    np.ndarray: WholeValues.array,
    Mesh: WholeValues.mesh,
    AbstractMesh: WholeValues.abstract_mesh,
    PartitionSpec: WholeValues.spec,
    NamedSharding: WholeValues.named_sharding,
    SingleDeviceSharding: WholeValues.single_sharding,
    jax.ShapeDtypeStruct: WholeValues.shape,
    jax.tree_util.PyTreeDef: WholeValues.tree,
}
"""Exactly these classes; a class that is derived from one of them counts by another rule, or is refused."""

_BY_BASE: Final[tuple[tuple[type, Write], ...]] = (
    (functools.partial, WholeValues.partial),
    (jax.Device, WholeValues.device),
)


def whole_data(value: Any, where: str) -> Any:
    """Return everything that counts of one value, as plain data.

    Args:
        value: any object.
        where: what an error calls it.

    Raises:
        NotWholeError: a part of it cannot be compared.
    """
    return WholeValues().data(value, where)


def whole_digest(value: Any, where: str) -> str:
    """Return a digest of everything that counts of one value, see `whole_data`."""
    return digest_of(whole_data(value, where))
