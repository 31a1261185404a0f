"""Reads and edits serialised compile options and topologies of XLA, and removes fields that change no executable.

    CompileOptionsProto: 3 executable_build_options, 7 env_option_overrides
    ExecutableBuildOptionsProto: 3 debug_options
    PjRtTopologyDescriptionProto: 1 fingerprint, 9 platform_specific_topology (Any: 2 value)
    CpuTopologyProto: 1 cpu_devices
    GpuTopologyProto: 8 gpu_target_config, 9 host_target_machine_options
    GpuTargetConfigProto: 1 gpu_device_info; its fields 20 and 21 hold maps

Python has no schema of them, so they are read as the wire format of protocol buffers:

    message := field*
    field   := tag value;  tag is the varint (number << 3 | kind)
    value   := varint (kind 0) | 8 bytes (kind 1) | varint length and as many bytes (kind 2) | 4 bytes (kind 5)

Source: protobuf.dev, "Encoding". Groups (kinds 3 and 4) are not used by XLA and are refused. Most of a message stays
as it is, so a hit on a CPU finds fields by their places; `split` and `join` take messages apart and make them.

The options have the flags of `XLA_FLAGS` a second time, as fields of `DebugOptions`. The tables here have the flags
that are not compared as they are, `name:number` where they have a field. The numbers were found in jaxlib 0.10.2 and
0.12.0.1 by setting each flag and comparing the bytes; `tests/keys/test_keys_options.py` repeats that for all of them.
All other flags are in `flags`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

# JAX itself leaves these out of its key (jax/_src/cache_key.py, 0.12.0). `xla_tpu_compiler_variant`, which JAX
# leaves out since 0.11, is not here: nothing shows that two variants make the same executable.
_BY_JAX: Final = """
    xla_dump_compress_protos:151 xla_dump_disable_metadata:153 xla_dump_fusion_visualization:149
    xla_dump_hlo_as_dot:114 xla_dump_hlo_as_html:116 xla_dump_hlo_as_long_text:164 xla_dump_hlo_as_proto:113
    xla_dump_hlo_as_text:112 xla_dump_hlo_as_url:115 xla_dump_hlo_module_re:110 xla_dump_hlo_pass_re:111
    xla_dump_hlo_pipeline_re:154 xla_dump_hlo_snapshots:118 xla_dump_include_timestamp:131
    xla_dump_max_hlo_modules:132 xla_dump_module_metadata:144 xla_dump_to:109
    xla_force_host_platform_device_count:102 xla_gpu_cuda_data_dir:61 xla_gpu_experimental_autotune_cache_mode
    xla_tpu_sdc_checker_enable_coresweep_ng_callbacks xla_tpu_sdc_checker_enable_sdc_event_callbacks
    xla_tpu_sdc_checker_no_logging_if_callbacks_are_present xla_tpu_sdc_checker_streamz_metric
"""

# What is written beside the executable, and log lines. The GPU ones are read in XLA where a finished result is
# written out, nowhere else. `xla_dump_hlo_unoptimized_snapshots` and the dumps of GPU executables are not here:
# they change what the executable carries.
_DUMPS: Final = """
    xla_detailed_logging:252 xla_dump_buffer_assignment_analysis:466 xla_dump_compact_gte:495 xla_dump_emitter_re:433
    xla_dump_enable_mlir_pretty_form:185 xla_dump_full_hlo_config:381 xla_dump_hlo_as_riegeli:498
    xla_dump_hlo_to_subfolder:502 xla_dump_large_constants:290 xla_dump_latency_hiding_schedule:182
    xla_enable_scoped_logging_timers:436 xla_gpu_dump_autotune_logs_to:292 xla_gpu_dump_autotune_results_to:222
    xla_gpu_print_compilation_stats:454 xla_hlo_print_inline_stack_frames:447
"""

# Where caches lie. What they hold is a result that the compiler would otherwise have computed.
CACHE_PATHS: Final = """
    xla_gpu_experimental_autotuner_cache_dir:407 xla_gpu_kernel_cache_file:306
    xla_gpu_per_fusion_autotune_cache_dir:310
"""

DROPPED: Final = _BY_JAX + _DUMPS + CACHE_PATHS
"""They do not change the executable."""
SETS: Final = "xla_disable_hlo_passes:30 xla_enable_hlo_passes_only:124"
"""`HloPassPipeline` makes hash sets of these two: neither the order nor the repetition of their names counts."""
MAPS: Final = """
    xla_backend_extra_options:500 xla_gpu_analytical_latency_estimator_options:357
    xla_gpu_experimental_cost_model_gemm_tiling_options:474
"""
"""Protobuf writes maps in no fixed order."""


def fields_of(flags: str) -> tuple[int, ...]:
    """Return the numbers in a table of flags."""
    return tuple(int(number) for flag in flags.split() if (number := flag.partition(":")[2]))


BYTES: Final = 2
"""The kind of a field with a length: bytes, a text, or a message."""

DEBUG_OPTIONS: Final = (3, 3)
_ENV_OPTION_OVERRIDES: Final = 7
TOPOLOGY: Final = (9, 2)

_IN_SETS: Final = fields_of(SETS)
_IN_MAPS: Final = fields_of(MAPS)
_NOT_AS_THEY_ARE: Final = dict.fromkeys((*fields_of(DROPPED), *_IN_SETS, *_IN_MAPS))

REMEMBERED: Final = 32
"""Results to remember: reading options takes a fifth of the time of a key. The programs of a process share one topology
and their debug options; the other options differ by the number of arguments and results, and are short."""


def canonical_options(serialized: bytes) -> bytes:
    """Return the options that count, in a fixed order.

    Args:
        serialized: a `CompileOptionsProto`. Its overrides are left out: they are a component of their own.

    Raises:
        ValueError: it is not such a message.
    """
    return edit(without(serialized, (_ENV_OPTION_OVERRIDES,)), DEBUG_OPTIONS, _canonical_debug_options)


@functools.lru_cache(maxsize=REMEMBERED)
def _canonical_debug_options(serialized: bytes) -> bytes:
    found = places(serialized)
    ordered = [serialized[begin:end] for number, begin, _, end in found if number not in _NOT_AS_THEY_ARE]
    sets, maps = (
        [
            (number, serialized[value:end], serialized[begin:end])
            for number, begin, value, end in found
            if number in those
        ]
        for those in (_IN_SETS, _IN_MAPS)
    )
    return b"".join([*ordered, *(field for _, _, field in sorted([*set(sets), *maps]))])


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
    return edit(without(serialized, (1,)), TOPOLOGY, lambda topology: without(topology, (field,)))


def places(message: bytes) -> list[tuple[int, int, int, int]]:
    """Return of each field its number, and where it, its value and the next field begin.

    The value is without the length of kind 2.

    Raises:
        ValueError: it is not a message.
    """
    found = []
    begin, size = 0, len(message)
    while begin < size:
        # The options have hundreds of fields, most of them with a tag of two bytes and a value of one.
        if begin + 2 < size and message[begin] >= 0x80 > message[begin + 1]:
            tag, value = message[begin] & 0x7F | message[begin + 1] << 7, begin + 2
        else:
            tag, value = _varint(message, begin)
        kind = tag & 7
        if kind == 0:
            end = value + 1 if value < size and message[value] < 0x80 else _varint(message, value)[1]
        elif kind == BYTES:
            length, value = _varint(message, value)
            end = value + length
        elif kind == 5:
            end = value + 4
        elif kind == 1:
            end = value + 8
        else:
            raise ValueError(f"a field of kind {kind}")
        if end > size or tag < 8:
            raise ValueError("not a message")
        found.append((tag >> 3, begin, value, end))
        begin = end
    return found


def without(message: bytes, numbers: Container[int]) -> bytes:
    """Return `message` without its fields of these numbers.

    Raises:
        ValueError: it is not a message.
    """
    return b"".join([message[begin:end] for number, begin, _, end in places(message) if number not in numbers])


def edit(message: bytes, path: tuple[int, ...], change: Callable[[bytes], bytes]) -> bytes:
    """Return `message` with `change` applied to every message at `path` (field numbers from the top).

    Raises:
        ValueError: it is not a message.
    """
    if not path:
        return change(message)
    parts: list[bytes] = []
    for number, begin, value, end in places(message):
        if number == path[0] and message[begin] & 7 == BYTES:
            changed = edit(message[value:end], path[1:], change)
            parts += varint(number << 3 | BYTES), varint(len(changed)), changed
        else:
            parts.append(message[begin:end])
    return b"".join(parts)


def varint(value: int) -> bytes:
    """Encode a number that is not negative."""
    if value <= 0x7F:  # as most lengths are
        return bytes((value,))
    if value <= 0x3FFF:  # as most tags are
        return bytes((value & 0x7F | 0x80, value >> 7))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("not a message")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


_FIELDS: Final = fields_of(CACHE_PATHS)


@functools.lru_cache(maxsize=REMEMBERED)
def without_cache_paths(serialized: bytes) -> bytes:
    """Return a `CompileOptionsProto` without the paths of XLA's own caches, which no executable is loaded by.

    Raises:
        ValueError: it is not such a message.
    """
    return edit(serialized, DEBUG_OPTIONS, _debug_options_without_cache_paths)


@functools.lru_cache(maxsize=REMEMBERED)
def _debug_options_without_cache_paths(serialized: bytes) -> bytes:
    return without(serialized, _FIELDS)


class Field(NamedTuple):
    """One field: its number, its kind on the wire, and its value's bytes (without the length of kind 2)."""

    number: int
    kind: int
    value: bytes


def split(message: bytes) -> list[Field]:
    """Return the fields of `message`, in their order.

    Raises:
        ValueError: it is not a message.
    """
    return [Field(number, message[begin] & 7, message[value:end]) for number, begin, value, end in places(message)]


def join(fields: Iterable[Field]) -> bytes:
    """Return the message that `split` took apart."""
    parts = []
    for field in fields:
        parts.append(varint(field.number << 3 | field.kind))
        if field.kind == BYTES:
            parts.append(varint(len(field.value)))
        parts.append(field.value)
    return b"".join(parts)
