"""Serialised compile options and topologies, without the fields that do not change the executable.

The flags of `XLA_FLAGS` appear a second time in the options, as fields of `DebugOptions`. The numbers below were found
in jaxlib 0.10.2 and 0.12.0.1 by setting each flag and comparing the bytes; `tests/keys/test_keys_options.py` repeats
that for all of them.

    CompileOptionsProto: 3 executable_build_options, 7 env_option_overrides
    ExecutableBuildOptionsProto: 3 debug_options
    PjRtTopologyDescriptionProto: 1 fingerprint, 9 platform_specific_topology (Any: 2 value)
    CpuTopologyProto: 1 cpu_devices
    GpuTopologyProto: 9 host_target_machine_options
"""

from __future__ import annotations

import functools
from typing import Final

from ejcache.keys.protobuf import edit, join, split

__all__ = ["canonical_gpu_topology", "canonical_options", "canonical_topology", "without_cache_paths"]

_DEBUG_OPTIONS: Final = (3, 3)
_ENV_OPTION_OVERRIDES: Final = 7

_DROPPED: Final = frozenset(
    {
        61,  # xla_gpu_cuda_data_dir
        102,  # xla_force_host_platform_device_count; the devices are a component of their own
        *range(109, 117),  # xla_dump_to, …_hlo_module_re, …_hlo_pass_re, …_as_text, …_proto, …_dot, …_url, …_html
        118,  # xla_dump_hlo_snapshots
        131,  # xla_dump_include_timestamp
        132,  # xla_dump_max_hlo_modules
        144,  # xla_dump_module_metadata
        149,  # xla_dump_fusion_visualization
        151,  # xla_dump_compress_protos
        153,  # xla_dump_disable_metadata
        154,  # xla_dump_hlo_pipeline_re
        164,  # xla_dump_hlo_as_long_text
        182,  # xla_dump_latency_hiding_schedule
        185,  # xla_dump_enable_mlir_pretty_form
        222,  # xla_gpu_dump_autotune_results_to
        290,  # xla_dump_large_constants
        292,  # xla_gpu_dump_autotune_logs_to
        306,  # xla_gpu_kernel_cache_file
        310,  # xla_gpu_per_fusion_autotune_cache_dir
        381,  # xla_dump_full_hlo_config
        407,  # xla_gpu_experimental_autotuner_cache_dir (jaxlib 0.10)
        433,  # xla_dump_emitter_re
        436,  # xla_enable_scoped_logging_timers
        447,  # xla_hlo_print_inline_stack_frames
        454,  # xla_gpu_print_compilation_stats
        466,  # xla_dump_buffer_assignment_analysis
        495,  # xla_dump_compact_gte
        498,  # xla_dump_hlo_as_riegeli
        502,  # xla_dump_hlo_to_subfolder
    }
)
"""The paths of dumps and caches, and what is logged."""

_CACHE_PATHS: Final = frozenset({306, 310, 407})
"""The paths of XLA's own caches, which each process has for itself."""

_SETS: Final = frozenset(
    {
        30,  # xla_disable_hlo_passes
        124,  # xla_enable_hlo_passes_only
    }
)
"""Repeated names, whose order and repetition do not count."""

_MAPS: Final = frozenset(
    {
        357,  # xla_gpu_analytical_latency_estimator_options
        474,  # xla_gpu_experimental_cost_model_gemm_tiling_options
        500,  # xla_backend_extra_options
    }
)
"""Maps, which protobuf writes in no fixed order."""

_REMEMBERED: Final = 32
"""Results to remember: reading options takes half the time of a key. The programs of a process share one topology and
their debug options; the other options differ by the number of arguments and results."""


@functools.lru_cache(maxsize=_REMEMBERED)
def canonical_options(serialized: bytes) -> bytes:
    """The options that count, in a fixed order.

    Args:
        serialized: a `CompileOptionsProto`. Its overrides are left out: they are a component of their own.

    Raises:
        ValueError: it is not such a message.
    """
    rest = join(field for field in split(serialized) if field.number != _ENV_OPTION_OVERRIDES)
    return edit(rest, _DEBUG_OPTIONS, _canonical_debug_options)


@functools.lru_cache(maxsize=_REMEMBERED)
def without_cache_paths(serialized: bytes) -> bytes:
    """A `CompileOptionsProto` without the paths of XLA's own caches, which no executable is loaded by.

    Raises:
        ValueError: it is not such a message.
    """
    return edit(serialized, _DEBUG_OPTIONS, _debug_options_without_cache_paths)


@functools.lru_cache(maxsize=_REMEMBERED)
def canonical_topology(serialized: bytes) -> bytes:
    """The machine that a CPU topology describes (its triple, CPU and features), without this process's devices.

    In a CPU job, the topology of each process names its own devices, so the ranks would have different keys.

    Args:
        serialized: a `PjRtTopologyDescriptionProto`.

    Raises:
        ValueError: it is not such a message.
    """
    rest = join(field for field in split(serialized) if field.number != 1)
    return edit(rest, (9, 2), lambda topology: join(field for field in split(topology) if field.number != 1))


@functools.lru_cache(maxsize=_REMEMBERED)
def canonical_gpu_topology(serialized: bytes) -> bytes:
    """The GPUs that a topology describes and how they are grouped, without the host that the process runs on.

    Args:
        serialized: a `PjRtTopologyDescriptionProto`.

    Raises:
        ValueError: it is not such a message.
    """
    rest = join(field for field in split(serialized) if field.number != 1)
    return edit(rest, (9, 2), lambda topology: join(field for field in split(topology) if field.number != 9))


@functools.lru_cache(maxsize=_REMEMBERED)
def _debug_options_without_cache_paths(serialized: bytes) -> bytes:
    return join(field for field in split(serialized) if field.number not in _CACHE_PATHS)


@functools.lru_cache(maxsize=_REMEMBERED)
def _canonical_debug_options(serialized: bytes) -> bytes:
    kept = [field for field in split(serialized) if field.number not in _DROPPED]
    unordered = _SETS | _MAPS
    sets = {field for field in kept if field.number in _SETS}
    maps = [field for field in kept if field.number in _MAPS]
    ordered = [field for field in kept if field.number not in unordered]
    return join([*ordered, *sorted([*sets, *maps], key=lambda field: (field.number, field.value))])
