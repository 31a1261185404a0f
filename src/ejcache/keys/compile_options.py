"""Serialised compile options and topologies, without the fields that do not change the executable.

The options have the flags of `XLA_FLAGS` a second time, as fields of `DebugOptions`: `known_flags` has their numbers.

    CompileOptionsProto: 3 executable_build_options, 7 env_option_overrides
    ExecutableBuildOptionsProto: 3 debug_options
    PjRtTopologyDescriptionProto: 1 fingerprint, 9 platform_specific_topology (Any: 2 value)
    CpuTopologyProto: 1 cpu_devices
    GpuTopologyProto: 8 gpu_target_config, 9 host_target_machine_options
    GpuTargetConfigProto: 1 gpu_device_info; its fields 20 and 21 hold maps
"""

from __future__ import annotations

import functools
from typing import Final

from ejcache.keys.known_flags import CACHE_PATH_FIELDS, FIELDS, Kind
from ejcache.keys.protobuf import edit, join, split

_DEBUG_OPTIONS: Final = (3, 3)
_ENV_OPTION_OVERRIDES: Final = 7
TOPOLOGY: Final = (9, 2)

REMEMBERED: Final = 32
"""Results to remember: reading options takes half the time of a key. The programs of a process share one topology and
their debug options; the other options differ by the number of arguments and results."""


@functools.lru_cache(maxsize=REMEMBERED)
def canonical_options(serialized: bytes) -> bytes:
    """Return the options that count, in a fixed order.

    Args:
        serialized: a `CompileOptionsProto`. Its overrides are left out: they are a component of their own.

    Raises:
        ValueError: it is not such a message.
    """
    rest = join(field for field in split(serialized) if field.number != _ENV_OPTION_OVERRIDES)
    return edit(rest, _DEBUG_OPTIONS, _canonical_debug_options)


@functools.lru_cache(maxsize=REMEMBERED)
def without_cache_paths(serialized: bytes) -> bytes:
    """Return a `CompileOptionsProto` without the paths of XLA's own caches, which no executable is loaded by.

    Raises:
        ValueError: it is not such a message.
    """
    return edit(serialized, _DEBUG_OPTIONS, _debug_options_without_cache_paths)


@functools.lru_cache(maxsize=REMEMBERED)
def canonical_topology(serialized: bytes) -> bytes:
    """Return the machine that a CPU topology describes (its triple, CPU and features), without this process's devices.

    In a CPU job, the topology of each process names its own devices, so the ranks would have different keys.

    Args:
        serialized: a `PjRtTopologyDescriptionProto`.

    Raises:
        ValueError: it is not such a message.
    """
    return topology_without(serialized, field=1)


def topology_without(serialized: bytes, *, field: int) -> bytes:
    """Drop a field of the topology in a description, and from the description the devices of this process."""
    rest = join(each for each in split(serialized) if each.number != 1)
    return edit(rest, TOPOLOGY, lambda topology: join(each for each in split(topology) if each.number != field))


@functools.lru_cache(maxsize=REMEMBERED)
def _debug_options_without_cache_paths(serialized: bytes) -> bytes:
    return join(field for field in split(serialized) if field.number not in CACHE_PATH_FIELDS)


@functools.lru_cache(maxsize=REMEMBERED)
def _canonical_debug_options(serialized: bytes) -> bytes:
    dropped, in_sets, in_maps = (FIELDS[kind] for kind in (Kind.DROPPED, Kind.SET, Kind.MAP))
    kept = [field for field in split(serialized) if field.number not in dropped]
    # Neither the order nor the repetition of the names in a set counts, and protobuf writes maps in no fixed order.
    sets = {field for field in kept if field.number in in_sets}
    maps = [field for field in kept if field.number in in_maps]
    unordered = in_sets | in_maps
    ordered = [field for field in kept if field.number not in unordered]
    return join([*ordered, *sorted([*sets, *maps], key=lambda field: (field.number, field.value))])
