"""The signature of a call: what JAX looks at before it traces, as JSON that is equal in any process.

    signature := an object of:
      version      1
      name         of the function
      leaves       a list of texts, one for each leaf: "float32[3,4]" and what follows
                     "~" for a weak type, " @2" for an argument that is bound to a place: the number in `places`
      places       a list of [sharding, layout]; see `shardings`, layout := null | [[axis, …], tiles, bits]
      trees        of the positional arguments and of those by keyword, see `trees`
      names        of those by keyword, in their order
      statics      [position | name, …] of the static arguments, whose content the fingerprint has
      options      what was given to `jax.jit`
      settings     [[name, value], …] of JAX that decide the program
      devices      [[kind, how many], …] of the backend, in the order of its devices

NumPy arrays, Python's numbers, and arrays that are bound to no device are one class: JAX compiles the same for them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import jax
import numpy as np
from jax.experimental.layout import Layout

from ejcache.direct.call.trees.encoding import write_tree
from ejcache.direct.call.trees.names import type_name
from ejcache.direct.call.trees.node_data import DataWriter, canonical_text
from ejcache.jax_integration.seam.direct.fastpath import key_type_name, leaf_aval
from ejcache.jax_integration.seam.direct.plain_calls import program_settings
from ejcache.jax_integration.seam.direct.refusal import RefusedError
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from ejcache.direct.call.shardings import Devices
    from ejcache.jax_integration.seam.direct.fastpath import ParsedCall

__all__ = ["Signature", "call_signature"]

_VERSION: Final = 1
_OPTIONS: Final = ("in_shardings", "out_shardings", "in_layouts", "out_layouts")
_PLAIN_OPTIONS: Final = (
    "static_argnums",
    "static_argnames",
    "donate_argnums",
    "donate_argnames",
    "backend",
    "keep_unused",
    "use_resource_env",
    "compiler_options_kvs",
)


class Signature(NamedTuple):
    """The signature of a call, and what it does not describe.

    Attributes:
        document: JSON; see the module.
        text: the document in canonical form.
        parts: what the trees of the arguments hold and only the fingerprint can describe, by the place where it is.
        classes: the classes of the nodes, whose registrations the fingerprint has to cover.
    """

    document: dict[str, Any]
    text: str
    parts: dict[str, Any]
    classes: tuple[type, ...]


def call_signature(call: ParsedCall, devices: Devices) -> Signature:
    """The signature of a call.

    Args:
        call: for which `why_plain` has found no reason.
        devices: of JAX's default backend.

    Raises:
        RefusedError: an argument or a setting has no description.
    """
    parts: dict[str, Any] = {}
    classes: dict[type, None] = {}

    def other(value: Any, where: str) -> Any:
        place = where if where not in parts else f"{where} ({len(parts)})"
        parts[place] = value
        if isinstance(value, type):
            classes[value] = None
            return ["class", f"{value.__module__}:{value.__qualname__}"]
        return ["part", type_name(value)]

    writer = DataWriter(devices, other, by_name=False)
    places = _Places(devices)
    names = [f"argument {number}" for number in _dynamic_positions(call)] + [f"argument {name}" for name in call.names]
    document = {
        "version": _VERSION,
        "name": str(getattr(call.jitted, "__name__", "")),
        "leaves": [places.leaf_text(leaf) for leaf in call.leaves],
        "places": places.written,
        "trees": [write_tree(tree, writer, where) for tree, where in zip(call.trees, names, strict=True)],
        "names": list(call.names),
        "statics": [*call.static_positions, *call.static_names],
        "options": _options(call.info, writer, devices),
        "settings": _settings(devices),
        "devices": _kinds(devices.backend),
    }
    return Signature(document, canonical_text(document), parts, tuple(classes))


def _dynamic_positions(call: ParsedCall) -> list[int]:
    count = len(call.trees) - len(call.names)
    positions = (number for number in range(count + len(call.static_positions)))
    return [number for number in positions if number not in call.static_positions]


# -- leaves --------------------------------------------------------------------------------------------------------


class _Places:
    """The places that arguments are bound to, numbered in the order of the arguments."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._usual_memory = _default_memory(devices.backend)
        self._numbers: dict[Any, int] = {}
        self.written: list[Any] = []

    def leaf_text(self, leaf: Any) -> str:
        try:
            text = _aval_text(leaf_aval(leaf))
        except (TypeError, OverflowError) as exc:
            raise RefusedError(f"an argument is a {type_name(leaf)}, which JAX takes for no array") from exc
        committed = getattr(leaf, "committed", None)
        if committed is None:
            return text
        sharding = leaf.sharding
        if not committed:
            if sharding.num_devices == 1 and sharding.memory_kind in self._usual_memory:
                return text
            raise RefusedError("an argument is bound to no device, and yet on several or in another memory")
        return f"{text} @{self._number(sharding, leaf)}"

    def _number(self, sharding: Any, leaf: Any) -> int:
        layout = getattr(leaf.format, "layout", None)
        key = (sharding, layout)
        if key not in self._numbers:
            self._numbers[key] = len(self.written)
            self.written.append([self._devices.encode(sharding), encode_layout(layout)])
        return self._numbers[key]


@functools.lru_cache(maxsize=8)
def _default_memory(backend: Any) -> frozenset[str | None]:
    return frozenset({None, backend.local_devices()[0].default_memory().kind})


@functools.lru_cache(maxsize=1024)
def _aval_text(aval: Any) -> str:
    sizes = ",".join(map(str, aval.shape))
    return f"{_dtype_text(aval.dtype)}[{sizes}]{'~' if aval.weak_type else ''}"


def _dtype_text(dtype: Any) -> str:
    """The name of a type of elements; keys by the name of their implementation."""
    if isinstance(dtype, np.dtype):
        return str(dtype.name)
    name = key_type_name(dtype)
    if name is None:
        raise RefusedError(f"an argument is of {dtype}, whose implementation JAX does not know by name")
    return f"key<{name}>"


def encode_layout(layout: Any) -> Any:
    """A layout of an array in memory; None for the default one.

    Raises:
        RefusedError: it is left to the compiler.
    """
    if layout is None:
        return None
    if not isinstance(layout, Layout):
        raise RefusedError("a layout is left to the compiler")
    tiles = None if layout.tiling is None else [list(map(int, tile)) for tile in layout.tiling]
    return [list(map(int, layout.major_to_minor)), tiles, int(layout.sub_byte_element_size_in_bits)]


# -- options and settings ------------------------------------------------------------------------------------------


def _options(info: Any, writer: DataWriter, devices: Devices) -> dict[str, Any]:
    options = {name: writer.encode(getattr(info, name), f"the option {name} of jax.jit") for name in _PLAIN_OPTIONS}
    options["device"] = None if info.device is None else devices.encode_device(info.device)
    for name in _OPTIONS:
        tree = getattr(info, f"{name}_treedef")
        leaves = [_option_leaf(each, name, writer) for each in getattr(info, f"{name}_leaves")]
        options[name] = [write_tree(tree, writer, f"the option {name} of jax.jit"), leaves]
    return options


def _option_leaf(value: Any, name: str, writer: DataWriter) -> Any:
    if type(value).__name__ == "UnspecifiedValue":
        return "unspecified"
    if isinstance(value, Layout):
        return ["layout", *encode_layout(value)]
    if type(value).__name__ == "AutoLayoutSingleton":
        return "automatic"
    return writer.encode(value, f"the option {name} of jax.jit")


def _settings(devices: Devices) -> list[list[Any]]:
    """JAX's settings, each as `node_data` writes it; equal in all processes with the same settings."""

    def other(value: Any, where: str) -> Any:
        if isinstance(value, jax.Device):
            return ["device", devices.encode_device(value)]
        if _is_enumerated(value):
            return ["enum", type(value).__name__, value.name]
        raise RefusedError(f"{where} is a {type_name(value)}")

    writer = DataWriter(devices, other, by_name=False)
    settings = sorted(program_settings().items())
    return [[name, writer.encode(value, f"the setting {name} of JAX")] for name, value in settings]


def _is_enumerated(value: Any) -> bool:
    members = getattr(type(value), "__members__", {})
    return members.get(getattr(value, "name", None)) is value


def _kinds(backend: Any) -> list[list[Any]]:
    kinds: list[list[Any]] = []
    for device in backend.devices():
        kind = f"{device.platform} {device.device_kind}"
        if kinds and kinds[-1][0] == kind:
            kinds[-1][1] += 1
        else:
            kinds.append([kind, 1])
    return kinds
