"""Writes devices, shardings, layouts and types of arrays as plain data, and reads them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import jax
import numpy as np
from jax._src import core as jax_core
from jax._src import mesh as jax_mesh
from jax._src import sharding_impls
from jax._src.interpreters import pxla
from jax.experimental.layout import Layout
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from ejcache.jax_integration.seam.reuse.calls import RefusedError, has_logical_devices, key_type, key_type_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class DevicePlaces:
    """The devices of a backend, and what is placed on them, by positions.

    Args:
        backend: the PJRT client.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self._devices = tuple(backend.devices())
        self._positions = {device: position for position, device in enumerate(self._devices)}
        self._avals: dict[str, Any] = {}

    def positions(self, devices: Iterable[Any]) -> list[int]:
        """Return the positions of devices, in their order.

        Raises:
            RefusedError: one belongs to another backend.
        """
        try:
            return [self._positions[device] for device in devices]
        except KeyError as exc:
            raise RefusedError(f"{exc.args[0]} is not a device of the backend {self.backend.platform}") from exc

    def at(self, positions: Sequence[int]) -> tuple[Any, ...]:
        """Return the devices at these positions, of which none is there twice."""
        devices = tuple(self._devices[each] for each in positions if each >= 0)
        if not devices or len(set(devices)) != len(positions):
            raise ValueError("a list of devices is empty, or names a device twice")
        return devices

    def encode(self, sharding: Any) -> list[Any] | None:
        """Write a sharding as plain data; None where JAX leaves it open.

        Raises:
            RefusedError: it is of another kind, or its devices belong to another backend.
        """
        if isinstance(sharding, sharding_impls.UnspecifiedValue):
            return None
        memory = sharding.memory_kind
        if type(sharding) is SingleDeviceSharding:
            return ["single", *self.positions(sharding.device_set), memory]
        if type(sharding) is sharding_impls.GSPMDSharding and sharding.is_fully_replicated:
            return ["replicated", memory]
        if type(sharding) is not NamedSharding or has_logical_devices(sharding):
            raise RefusedError(f"a sharding is a {type(sharding).__name__}")
        return ["named", self.encode_mesh(sharding.mesh), encode_spec(sharding.spec), memory]

    def decode(self, value: Any, devices: Sequence[Any]) -> Any:
        """Return the sharding that `encode` wrote; `devices` are those of the program."""
        match value:
            case None:
                return sharding_impls.UNSPECIFIED
            case ["single", device, memory]:
                return SingleDeviceSharding(*self.at([device]), memory_kind=memory)
            case ["replicated", memory]:
                devices_of = pxla._create_device_list(tuple(devices))
                return sharding_impls.GSPMDSharding.get_replicated(devices_of, memory_kind=memory)
            case ["named", mesh, spec, memory]:
                return NamedSharding(self.decode_mesh(mesh), decode_spec(spec), memory_kind=memory)
        raise ValueError("a sharding of an unknown kind")

    def encode_mesh(self, mesh: Any) -> list[Any] | None:
        """Write a mesh as plain data; None for none.

        Raises:
            RefusedError: its axes have no names, or its devices belong to another backend.
        """
        if mesh is None:
            return None
        kinds = [kind.name for kind in mesh.axis_types]
        sizes, names = list(map(int, mesh.axis_sizes)), list(map(_axis_name, mesh.axis_names))
        if isinstance(mesh, Mesh):
            if mesh.empty:
                return ["empty"]
            return ["concrete", self.positions(mesh.devices.flat), sizes, names, kinds]
        if not isinstance(mesh, AbstractMesh):
            raise RefusedError(f"a mesh is a {type(mesh).__name__}")
        device: Any = getattr(mesh, "abstract_device", None)
        about = None if device is None else [getattr(device, name) for name in _DEVICE if hasattr(device, name)]
        return ["abstract", sizes, names, kinds, about]

    def decode_mesh(self, value: Any) -> Any:
        """Return the mesh that `encode_mesh` wrote."""
        match value:
            case None:
                return None
            case ["empty"]:
                return jax_mesh.empty_concrete_mesh
            case ["concrete", devices, sizes, names, kinds]:
                here = self.at(devices)
                array = np.empty(len(here), dtype=object)
                array[:] = here
                types = tuple(AxisType[kind] for kind in kinds)
                return Mesh(array.reshape(sizes), tuple(names), axis_types=types)
            case ["abstract", sizes, names, kinds, about]:
                types = tuple(AxisType[kind] for kind in kinds)
                device = None if about is None else jax_mesh.AbstractDevice(*about)
                return AbstractMesh(tuple(sizes), tuple(names), axis_types=types, abstract_device=device)
        raise ValueError("a mesh of an unknown kind")

    def encode_aval(self, aval: Any) -> list[Any]:
        """Return the type of an array.

        Raises:
            RefusedError: it says more than that.
        """
        if type(aval) is not jax_core.ShapedArray:
            raise RefusedError(f"an argument or a result is a {type(aval).__name__}")
        layout = getattr(aval, "layout", None)
        manual = getattr(aval, "manual_axis_type", None) or getattr(aval, "vma", None)
        if (manual is not None and not getattr(manual, "empty", not manual)) or isinstance(layout, Layout):
            raise RefusedError("the type of an array has a layout or manual axes")
        return [
            dtype_text(aval.dtype),
            list(map(_size, aval.shape)),
            int(aval.weak_type),
            self.encode_mesh(aval.sharding.mesh),
            encode_spec(aval.sharding.spec),
            aval.memory_space.name,
        ]

    def decode_aval(self, value: Any) -> Any:
        """Return the type that `encode_aval` wrote; many arguments of a program have one type."""
        text = repr(value)
        if text not in self._avals:
            self._avals[text] = self._aval(value)
        return self._avals[text]

    def _aval(self, value: Any) -> Any:
        dtype, shape, weak, mesh, spec, memory = value
        return jax_core.ShapedArray(
            tuple(shape),
            _dtype(dtype),
            bool(weak),
            sharding=NamedSharding(self.decode_mesh(mesh), decode_spec(spec)),
            memory_space=jax_core.MemorySpace[memory],
        )


def dtype_text(dtype: Any) -> str:
    """Return the name of a type of elements.

    Raises:
        RefusedError: JAX does not know it by name.
    """
    if isinstance(dtype, np.dtype):
        return dtype.name
    name = key_type_name(dtype)
    if name is None:
        raise RefusedError(f"an array is of {dtype}, whose implementation JAX does not know by name")
    return f"key<{name}>"


def _dtype(text: str) -> Any:
    if text.startswith("key<"):
        kind = key_type(text[4:-1])
        if kind is None:  # `np.dtype(None)` is float64
            raise ValueError(f"JAX has no random keys of the kind {text}")
        return kind
    return jax.numpy.dtype(text)


def encode_spec(spec: PartitionSpec) -> list[Any]:
    """Write, for each dimension, the axes of a mesh that divide it.

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
    """Return the `PartitionSpec` that `encode_spec` wrote."""
    return PartitionSpec(*[
        PartitionSpec.UNCONSTRAINED if axes == {} else tuple(axes) if isinstance(axes, list) else axes
        for axes in value
    ])  # fmt: skip


def _axis_name(name: Any) -> str:
    if type(name) is not str:
        raise RefusedError(f"an axis of a mesh is named by a {type(name).__name__}")
    return name


def encode_layout(layout: Any) -> Any:
    """Return a layout of an array in memory; None for the default one.

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
    """Return the layout that `encode_layout` wrote."""
    if value is None:
        return None
    axes, tiles, bits = value
    return Layout(tuple(axes), None if tiles is None else tuple(map(tuple, tiles)), bits)


_DEVICE: Final = tuple(inspect.signature(jax_mesh.AbstractDevice).parameters)
"""What an abstract device says."""


def array_layout(array: Any) -> Any:
    """Return the layout of an array in memory; None for keys, whose own array has one."""
    return None if key_type_name(array.dtype) is not None else getattr(array.format, "layout", None)


def _size(size: Any) -> int:
    if not isinstance(size, (int, np.integer)):
        raise RefusedError("it has shapes that are not numbers")
    return int(size)
