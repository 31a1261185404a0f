"""Serialised topologies: the memory of a device, and one topology of all processes of a job."""

from __future__ import annotations

import contextlib
from typing import Final

from ejcache.errors import EjcacheError
from ejcache.keys.gpu_topology import GPU, canonical_gpu_topology
from ejcache.keys.protobuf_fields import Field, join, split
from ejcache.keys.xla_messages import edit

_GPU_MEMORY: Final = (*GPU, 14)
"""Where a topology has the bytes of a GPU's memory."""
_CPU_DEVICES: Final = 1
_CPU_TOPOLOGY: Final = (9, 2)


def device_memory(topology: bytes) -> int:
    """Return the bytes of memory of a GPU, from a serialised topology; 0 if it does not say."""
    message, value = topology, 0
    with contextlib.suppress(ValueError, StopIteration):
        for number in _GPU_MEMORY[:-1]:
            message = next(field.value for field in split(message) if field.number == number)
        encoded = next(field.value for field in split(message) if field.number == _GPU_MEMORY[-1])
        value = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(encoded))
    return value


def gathered_topology(topologies: list[bytes], platform: str) -> bytes:
    """Return one topology of all processes, from what each of them has: on CPU each has its own devices only.

    Raises:
        EjcacheError: the processes have different kinds of devices.
    """
    first = topologies[0]
    if platform != "cpu":
        if len(set(map(canonical_gpu_topology, topologies))) > 1:
            raise EjcacheError("target save: the ranks of this job have different topologies, which no target can say")
        return first
    devices = [field for topology in topologies for field in _cpu_devices(topology)]
    return edit(
        first,
        _CPU_TOPOLOGY,
        lambda topology: join([*devices, *(field for field in split(topology) if field.number != _CPU_DEVICES)]),
    )


def _cpu_devices(topology: bytes) -> list[Field]:
    message = topology
    for number in _CPU_TOPOLOGY:
        message = next(field.value for field in split(message) if field.number == number)
    return [field for field in split(message) if field.number == _CPU_DEVICES]
