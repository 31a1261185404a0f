"""Devices, meshes and shardings as JSON: equal texts for equal ones in any process with the same devices.

    device    := its position among the devices of the backend
    mesh      := {"devices": [device, …] | null, "shape": [size, …], "names": [name, …], "types": [name, …],
                  "kind": [text, …]}                     an abstract mesh has no devices, but the kind of its devices
    spec      := [null | name | [name, …] | {}, …]         {} is a dimension without a constraint
    sharding  := ["single", device, memory]
               | ["named", mesh, spec, memory]
               | ["gspmd", [device, …], proto in base64, memory]
    memory    := null | name of a kind of memory

Everything else is refused when it is written, and damage when it is read.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from ejcache.direct.call.checked import checked_list, checked_text
from ejcache.errors import EntryCorruptError
from ejcache.jax_integration.seam.direct.fastpath import (
    gspmd_devices,
    gspmd_proto,
    gspmd_sharding,
    has_logical_devices,
    is_gspmd,
)
from ejcache.jax_integration.seam.direct.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Devices"]

_MAX_DEVICES: Final = 1 << 16
_MAX_DIMENSIONS: Final = 64
_UNCONSTRAINED: Final[dict[str, Any]] = {}


class Devices:
    """The devices of a backend, and what is placed on them, by positions.

    Args:
        backend: the PJRT client.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self._devices = tuple(backend.devices())
        self._positions = {device: position for position, device in enumerate(self._devices)}

    # -- devices and meshes ----------------------------------------------------------------------------------------

    def encode_device(self, device: Any) -> int:
        """The position of a device.

        Raises:
            RefusedError: it belongs to another backend.
        """
        found = self._positions.get(device)
        if found is None:
            raise RefusedError(f"{device} is no device of the backend {self.backend.platform}")
        return found

    def decode_device(self, value: Any) -> Any:
        """The device at a position.

        Raises:
            EntryCorruptError: there is none.
        """
        if type(value) is not int or not 0 <= value < len(self._devices):
            raise EntryCorruptError(f"there is no device {value!r:.40}")
        return self._devices[value]

    def encode_devices(self, devices: Sequence[Any]) -> list[int]:
        """The positions of devices, in their order."""
        return [self.encode_device(device) for device in devices]

    def decode_devices(self, value: Any) -> tuple[Any, ...]:
        """The devices at these positions, of which none is there twice."""
        positions = checked_list(value, most=_MAX_DEVICES)
        devices = tuple(self.decode_device(position) for position in positions)
        if not devices or len(set(devices)) != len(devices):
            raise EntryCorruptError("a list of devices is empty, or names a device twice")
        return devices

    def encode_mesh(self, mesh: Any) -> dict[str, Any]:
        """A mesh or an abstract mesh.

        Raises:
            RefusedError: its axes have names that are not texts, or its devices belong to another backend.
        """
        about: dict[str, Any] = {
            "shape": [int(size) for size in mesh.axis_sizes],
            "names": [_name(name) for name in mesh.axis_names],
            "types": [kind.name for kind in mesh.axis_types],
        }
        if isinstance(mesh, Mesh):
            about["devices"] = self.encode_devices(mesh.devices.flat) if mesh.devices.size and mesh.axis_names else []
        else:
            kind = mesh.abstract_device
            about["devices"] = None
            about["kind"] = None if kind is None else [str(kind.device_kind), str(kind.num_cores), str(kind.platform)]
        return about

    def decode_mesh(self, value: Any) -> Mesh:
        """The mesh of these devices.

        Raises:
            EntryCorruptError: it is not one that `encode_mesh` wrote, or an abstract one.
        """
        about = _fields(value, "devices", "shape", "names", "types")
        devices = self.decode_devices(about["devices"])
        shape, names, types = (checked_list(about[name], most=_MAX_DIMENSIONS) for name in ("shape", "names", "types"))
        try:
            array = np.empty(len(devices), dtype=object)
            array[:] = devices
            kinds = tuple(AxisType[checked_text(name)] for name in types)
            sizes = [_size(size) for size in shape]
            return Mesh(array.reshape(sizes), tuple(map(checked_text, names)), axis_types=kinds)
        except (ValueError, KeyError, TypeError) as exc:
            raise EntryCorruptError("a mesh that cannot be") from exc

    # -- shardings -------------------------------------------------------------------------------------------------

    def encode(self, sharding: Any) -> list[Any]:
        """A sharding.

        Raises:
            RefusedError: it is of another kind, or its devices belong to another backend.
        """
        memory = sharding.memory_kind
        if type(sharding) is SingleDeviceSharding:
            (device,) = sharding.device_set
            return ["single", self.encode_device(device), memory]
        if type(sharding) is NamedSharding and not has_logical_devices(sharding):
            return ["named", self.encode_mesh(sharding.mesh), encode_spec(sharding.spec), memory]
        if is_gspmd(sharding):
            proto = base64.b64encode(gspmd_proto(sharding)).decode()
            return ["gspmd", self.encode_devices(gspmd_devices(sharding)), proto, memory]
        raise RefusedError(f"a sharding is a {type(sharding).__name__}")

    def decode(self, value: Any) -> Any:
        """The sharding that `encode` wrote.

        Raises:
            EntryCorruptError: it is none.
        """
        written = checked_list(value, most=4)
        memory = written[-1] if written else None
        if memory is not None:
            checked_text(memory)
        try:
            match written:
                case ["single", device, _]:
                    return SingleDeviceSharding(self.decode_device(device), memory_kind=memory)
                case ["named", mesh, spec, _]:
                    return NamedSharding(self.decode_mesh(mesh), decode_spec(spec), memory_kind=memory)
                case ["gspmd", devices, str(proto), _]:
                    return gspmd_sharding(self.decode_devices(devices), base64.b64decode(proto, validate=True), memory)
        except (ValueError, TypeError, RuntimeError) as exc:
            raise EntryCorruptError("a sharding that cannot be") from exc
        raise EntryCorruptError("a sharding of an unknown kind")


def encode_spec(spec: PartitionSpec) -> list[Any]:
    """Which axes of a mesh divide each dimension.

    Raises:
        RefusedError: it says more than that.
    """
    if spec.unreduced or spec.reduced:
        raise RefusedError("a sharding has axes that are still to be reduced")
    return [_partition(each) for each in spec]


def decode_spec(value: Any) -> PartitionSpec:
    """The `PartitionSpec` that `encode_spec` wrote.

    Raises:
        EntryCorruptError: it is none.
    """
    return PartitionSpec(*[_axes(each) for each in checked_list(value, most=_MAX_DIMENSIONS)])


def _partition(axes: Any) -> Any:
    if axes is None:
        return None
    if axes is PartitionSpec.UNCONSTRAINED:
        return dict(_UNCONSTRAINED)
    return [_name(name) for name in axes] if isinstance(axes, tuple) else _name(axes)


def _axes(value: Any) -> Any:
    if value is None:
        return None
    if value == _UNCONSTRAINED:
        return PartitionSpec.UNCONSTRAINED
    return (
        tuple(checked_text(name) for name in checked_list(value, most=_MAX_DIMENSIONS))
        if isinstance(value, list)
        else checked_text(value)
    )


def _name(name: Any) -> str:
    if type(name) is not str:
        raise RefusedError(f"an axis of a mesh is named by a {type(name).__name__}")
    return name


def is_mesh(value: Any) -> bool:
    """Whether a value is a mesh, with or without devices."""
    return isinstance(value, Mesh | AbstractMesh)


# -- checked reading -----------------------------------------------------------------------------------------------


def _size(value: Any) -> int:
    if type(value) is not int or not 0 < value <= _MAX_DEVICES:
        raise EntryCorruptError("a size is missing")
    return value


def _fields(value: Any, *names: str) -> dict[str, Any]:
    if type(value) is not dict or set(value) != set(names):
        raise EntryCorruptError(f"the fields {names} are missing, or there are others")
    return value
