"""What JAX looks at before it traces a call, as JSON that is equal in any process with the same devices.

    signature := an object of:
      name         of the function
      leaves       a list of texts, one for each leaf: "float32[3,4]" and what follows
                     "~" for a weak type, " @2" for an argument that is bound to a place: the number in `places`
      places       a list of [sharding, layout]
      names        of the arguments that were given by keyword, in their order
      statics      [position | name, …] of the static arguments
      devices      [kind, …] of the backend, in the order of its devices
    device    := its position among the devices of the backend
    mesh      := [[device, …], [size, …], [name, …], [type, …]]
    spec      := [null | name | [name, …] | {}, …]         {} is a dimension without a constraint
    sharding  := ["single", device, memory] | ["named", mesh, spec, memory]
    memory    := null | name of a kind of memory
    layout    := null | [[axis, …], tiles | null, bits]

The trees of the arguments, static arguments, options of `jax.jit` and JAX's settings are described with the function.
NumPy arrays, Python's numbers, and arrays that are bound to no device are one class: JAX compiles the same for them.
Everything else is refused when it is written, and damage when it is read.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from jax.experimental.layout import Layout
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from ejcache.direct.describing.names import kind_name
from ejcache.direct.records import checked_list, checked_number, checked_text
from ejcache.errors import EntryCorruptError
from ejcache.jax_integration.seam.direct.fastpath import has_logical_devices, key_type_name, leaf_aval
from ejcache.jax_integration.seam.direct.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ejcache.jax_integration.seam.direct.fastpath import ParsedCall

__all__ = [
    "Devices",
    "argument_names",
    "call_signature",
    "decode_layout",
    "decode_spec",
    "encode_layout",
    "encode_spec",
]

_MOST: Final = 1 << 16


# -- places --------------------------------------------------------------------------------------------------------


class Devices:
    """The devices of a backend, and what is placed on them, by positions.

    Args:
        backend: the PJRT client.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self._devices = tuple(backend.devices())
        self._positions = {device: position for position, device in enumerate(self._devices)}

    def encode_devices(self, devices: Iterable[Any]) -> list[int]:
        """The positions of devices, in their order.

        Raises:
            RefusedError: one belongs to another backend.
        """
        try:
            return [self._positions[device] for device in devices]
        except KeyError as exc:
            raise RefusedError(f"{exc.args[0]} is no device of the backend {self.backend.platform}") from exc

    def decode_devices(self, value: Any) -> tuple[Any, ...]:
        """The devices at these positions, of which none is there twice."""
        devices = tuple(self._devices[checked_number(each, len(self._devices))] for each in checked_list(value))
        if not devices or len(set(devices)) != len(devices):
            raise EntryCorruptError("a list of devices is empty, or names a device twice")
        return devices

    def encode(self, sharding: Any) -> list[Any]:
        """A sharding.

        Raises:
            RefusedError: it is of another kind, or its devices belong to another backend.
        """
        memory = sharding.memory_kind
        if type(sharding) is SingleDeviceSharding:
            return ["single", *self.encode_devices(sharding.device_set), memory]
        mesh: Any = getattr(sharding, "mesh", None)
        if type(sharding) is not NamedSharding or type(mesh) is not Mesh or has_logical_devices(sharding):
            raise RefusedError(f"a sharding is a {type(sharding).__name__}")
        sizes, kinds = list(map(int, mesh.axis_sizes)), [kind.name for kind in mesh.axis_types]
        written = [self.encode_devices(mesh.devices.flat), sizes, list(map(_axis_name, mesh.axis_names)), kinds]
        return ["named", written, encode_spec(sharding.spec), memory]

    def decode(self, value: Any) -> Any:
        """The sharding that `encode` wrote.

        Raises:
            EntryCorruptError: it is none. Other errors of Python say the same.
        """
        match checked_list(value):
            case ["single", device, None | str() as memory]:
                return SingleDeviceSharding(*self.decode_devices([device]), memory_kind=memory)
            case ["named", [devices, shape, names, types], spec, None | str() as memory]:
                here = self.decode_devices(devices)
                array = np.empty(len(here), dtype=object)
                array[:] = here
                kinds = tuple(AxisType[checked_text(name)] for name in checked_list(types))
                sizes = [checked_number(size, _MOST) for size in checked_list(shape)]
                names = tuple(map(checked_text, checked_list(names)))
                mesh = Mesh(array.reshape(sizes), names, axis_types=kinds)
                return NamedSharding(mesh, decode_spec(spec), memory_kind=memory)
        raise EntryCorruptError("a sharding of an unknown kind")


def encode_spec(spec: PartitionSpec) -> list[Any]:
    """Which axes of a mesh divide each dimension.

    Raises:
        RefusedError: it says more than that.
    """
    if spec.unreduced or spec.reduced:
        raise RefusedError("a sharding has axes that are still to be reduced")
    return [
        {} if axes is PartitionSpec.UNCONSTRAINED
        else [_axis_name(name) for name in axes] if isinstance(axes, tuple)
        else None if axes is None
        else _axis_name(axes)
        for axes in spec
    ]  # fmt: skip


def decode_spec(value: Any) -> PartitionSpec:
    """The `PartitionSpec` that `encode_spec` wrote.

    Raises:
        EntryCorruptError: it is none.
    """
    return PartitionSpec(*[
        PartitionSpec.UNCONSTRAINED if axes == {}
        else tuple(map(checked_text, axes)) if isinstance(axes, list)
        else None if axes is None
        else checked_text(axes)
        for axes in checked_list(value)
    ])  # fmt: skip


def _axis_name(name: Any) -> str:
    if type(name) is not str:
        raise RefusedError(f"an axis of a mesh is named by a {type(name).__name__}")
    return name


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


def decode_layout(value: Any) -> Layout | None:
    """The layout that `encode_layout` wrote.

    Raises:
        EntryCorruptError: it is none.
    """
    if value is None:
        return None
    axes, tiles, bits = checked_list(value)
    order = tuple(checked_number(axis, 64) for axis in checked_list(axes))
    if sorted(order) != list(range(len(order))):
        raise EntryCorruptError("a layout that orders no axes")
    numbers = None if tiles is None else [[checked_number(size, 1 << 32) for size in tile] for tile in tiles]
    return Layout(order, None if numbers is None else tuple(map(tuple, numbers)), checked_number(bits, 65))


# -- the call ------------------------------------------------------------------------------------------------------


def call_signature(call: ParsedCall, devices: Devices) -> str:
    """The signature of a call, as a text.

    Args:
        call: for which `why_plain` has found no reason.
        devices: of JAX's default backend.

    Raises:
        RefusedError: an argument has no description.
    """
    places: dict[Any, Any] = {}
    usual_memory = {None, devices.backend.local_devices()[0].default_memory().kind}
    # Of most calls many arguments are alike.
    alike = {(leaf.shape, leaf.dtype): leaf for leaf in call.leaves if type(leaf) is np.ndarray}
    texts = {about: _type_text(leaf) for about, leaf in alike.items()}

    def leaf_text(leaf: Any) -> str:
        if type(leaf) is np.ndarray:
            return texts[leaf.shape, leaf.dtype]
        text = _type_text(leaf)
        committed = getattr(leaf, "committed", None)
        if committed is None:
            return text
        sharding = leaf.sharding
        if committed:
            place = sharding, getattr(leaf.format, "layout", None)
            return f"{text} @{places.setdefault(place, len(places))}"
        if sharding.num_devices != 1 or sharding.memory_kind not in usual_memory:
            raise RefusedError("an argument is bound to no device, and yet on several or in another memory")
        return text

    leaves = list(map(leaf_text, call.leaves))
    document = {
        "name": call.name,
        "leaves": leaves,
        "places": [[devices.encode(sharding), encode_layout(layout)] for sharding, layout in places],
        "names": list(call.names),
        "statics": [*call.static_positions, *call.static_names],
        "devices": [f"{device.platform} {device.device_kind}" for device in devices.backend.devices()],
    }
    return json.dumps(document, separators=(",", ":"))


def argument_names(call: ParsedCall) -> list[str]:
    """The names of the arguments whose trees a call has, in the order of the trees."""
    count = len(call.trees) - len(call.names) + len(call.static_positions)
    dynamic = [number for number in range(count) if number not in call.static_positions]
    return [f"argument {name}" for name in (*dynamic, *call.names)]


def _type_text(leaf: Any) -> str:
    try:
        return _aval_text(leaf_aval(leaf))
    except (TypeError, OverflowError) as exc:
        raise RefusedError(f"an argument is {kind_name(leaf)}, which JAX takes for no array") from exc


@functools.lru_cache(maxsize=1024)
def _aval_text(aval: Any) -> str:
    name = aval.dtype.name if isinstance(aval.dtype, np.dtype) else key_type_name(aval.dtype)
    if name is None:
        raise RefusedError(f"an argument is of {aval.dtype}, whose implementation JAX does not know by name")
    kind = name if isinstance(aval.dtype, np.dtype) else f"key<{name}>"
    return f"{kind}[{','.join(map(str, aval.shape))}]{'~' if aval.weak_type else ''}"
