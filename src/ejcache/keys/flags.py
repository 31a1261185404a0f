"""Brings compiler flags into a normal form, in which two lists that mean the same to the compiler are equal.

Only flags of the tables here have one. Everything else is kept: an unknown flag, a word that is not a flag, and a known
flag in a spelling whose meaning is not certain stay verbatim and in their order.

A flag that is not compared as it is appears a second time in the compile options, which a program without flags has,
too. So `xla_messages` has those of the kinds `DROPPED`, `SET` and `MAP`.

`BOOLEAN` and `SCALAR` were measured, not assumed: in jaxlib 0.10.2 and 0.12.0, each of these flags, given in
`XLA_FLAGS`, changes one field of the compile options that no other flag of the tables changes, and of two
occurrences the last one decides (`tests/keys/test_keys_flags_xla.py` repeats the measurement on the installed jaxlib).
Flags of the same parser that failed it (`xla_gpu_enable_command_buffer` adds and removes, `xla_fuel` is a counter)
are left out. `TPU` flags are parsed by libtpu with Abseil flags, where each flag is a variable of its own and the
last occurrence decides. libtpu cannot be measured, so their spelling is not changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import lru_cache
from pathlib import PurePath
from typing import Final

from ejcache.keys.xla_messages import DROPPED, MAPS, SETS


class Kind(StrEnum):
    """How the occurrences of one flag become its effect."""

    BOOLEAN = "boolean"  # the last one wins; a bare name is true
    SCALAR = "scalar"  # the last one wins
    SET = "set"  # comma-separated names that all count; neither order nor repetition does
    MAP = "map"  # comma-separated name=value that all count; the last one of a name wins
    LIST = "list"  # every occurrence counts, in its order
    FILE = "file"  # as SCALAR, but what the compiler reads is the file's content
    FILES = "files"  # as LIST, likewise
    DROPPED = "dropped"  # does not change the executable


_BOOLEAN: Final = """
    xla_allow_excess_precision xla_allow_h2h_copy_when_automatic_host_compute_offload_disabled
    xla_compile_all_supported_configs xla_cpu_copy_insertion_use_region_analysis
    xla_cpu_enable_concurrency_optimized_scheduler xla_cpu_enable_fast_math xla_cpu_enable_fast_min_max
    xla_cpu_enable_platform_dependent_math xla_cpu_enable_xprof_traceme
    xla_cpu_experimental_enable_tiling_propagation xla_cpu_experimental_onednn_custom_call
    xla_cpu_fast_math_honor_division xla_cpu_fast_math_honor_functions xla_cpu_fast_math_honor_infs
    xla_cpu_fast_math_honor_nans xla_cpu_ftz xla_cpu_mock_custom_calls xla_cpu_multi_thread_eigen
    xla_cpu_strict_dot_conv_math xla_cpu_use_acl xla_cpu_use_fusion_emitters xla_cpu_use_new_xtile_lowering
    xla_cpu_use_onednn xla_cpu_use_thunk_runtime xla_cpu_use_xnnpack xla_disable_all_hlo_passes
    xla_disable_automatic_host_compute_offload xla_dump_hlo_unoptimized_snapshots xla_early_exit_with_layouts
    xla_eliminate_hlo_implicit_broadcast xla_embed_ir_in_executable xla_enable_command_buffers_during_profiling
    xla_enable_enzyme_comms_opt xla_enable_fast_math xla_enable_hlo_sharding_v3 xla_enable_rgv3_materialization
    xla_flags_reset xla_gpu_all_reduce_splitter_ignore_profitability_check
    xla_gpu_allow_ragged_all_to_all_nccl_send_recv_fallback xla_gpu_async_dot xla_gpu_collect_cost_model_stats
    xla_gpu_collective_permute_connected_components xla_gpu_command_buffer_unroll_loops
    xla_gpu_copy_insertion_use_region_analysis xla_gpu_crash_on_verification_failures xla_gpu_cublas_fallback
    xla_gpu_default_to_alg_dot_bf16_bf16_f32 xla_gpu_deterministic_ops xla_gpu_disable_gpuasm_optimizations
    xla_gpu_dump_autotuned_gemm_fusions xla_gpu_dump_autotuned_instructions xla_gpu_dump_llvmir
    xla_gpu_enable_all_gather_combine_by_dim xla_gpu_enable_allocator_spatial_partitioning
    xla_gpu_enable_analytical_latency_estimator xla_gpu_enable_analytical_sol_latency_estimator
    xla_gpu_enable_approx_costly_collectives xla_gpu_enable_cub_radix_sort xla_gpu_enable_cublaslt
    xla_gpu_enable_cudnn_fmha xla_gpu_enable_cudnn_int8x32_convolution_reordering xla_gpu_enable_cudnn_layer_norm
    xla_gpu_enable_cupti_multi_subscriber xla_gpu_enable_dus_accumulator_zero_init_elimination
    xla_gpu_enable_dynamic_slice_fusion xla_gpu_enable_fast_min_max xla_gpu_enable_gxl_ragged_all_to_all
    xla_gpu_enable_highest_priority_async_stream xla_gpu_enable_host_memory_offloading
    xla_gpu_enable_latency_hiding_scheduler xla_gpu_enable_libnvjitlink
    xla_gpu_enable_llvm_module_compilation_parallelism xla_gpu_enable_nccl_clique_optimization
    xla_gpu_enable_nccl_comm_splitting xla_gpu_enable_nccl_user_buffers
    xla_gpu_enable_nccl_user_buffers_in_default_space xla_gpu_enable_pdl xla_gpu_enable_pdl_launch
    xla_gpu_enable_persistent_symmetric_memory xla_gpu_enable_pipelined_all_gather
    xla_gpu_enable_pipelined_all_reduce xla_gpu_enable_pipelined_host_offloading xla_gpu_enable_pipelined_p2p
    xla_gpu_enable_pipelined_reduce_scatter xla_gpu_enable_reassociation_for_converted_ar
    xla_gpu_enable_reduce_scatter_combine_by_dim xla_gpu_enable_scatter_determinism_expander
    xla_gpu_enable_triton_gemm xla_gpu_enable_triton_gemm_int4 xla_gpu_enable_while_loop_double_buffering
    xla_gpu_enable_while_loop_reduce_scatter_code_motion xla_gpu_exclude_nondeterministic_ops
    xla_gpu_executable_embed_debug_info xla_gpu_exhaustive_tiling_search
    xla_gpu_experimental_all_fusions_with_triton xla_gpu_experimental_aot_compiled_thunks
    xla_gpu_experimental_collective_start_as_early_as_possible xla_gpu_experimental_cost_model_gemm_tiling_default
    xla_gpu_experimental_disable_binary_libraries xla_gpu_experimental_dump_fdo_profiles
    xla_gpu_experimental_dump_gpu_executable xla_gpu_experimental_dynamic_slice_fusion_verify_offsets
    xla_gpu_experimental_emit_collective_reduce xla_gpu_experimental_enable_alltoall_windowed_einsum
    xla_gpu_experimental_enable_buffer_saver_on_thunks xla_gpu_experimental_enable_checksum_tracing_on_thunks
    xla_gpu_experimental_enable_collective_multi_streaming xla_gpu_experimental_enable_conv_fusion
    xla_gpu_experimental_enable_dynamic_slice_extended_offsets
    xla_gpu_experimental_enable_dynamic_slice_table_offsets xla_gpu_experimental_enable_fusion_autotuner
    xla_gpu_experimental_enable_fusion_block_level_rewriter
    xla_gpu_experimental_enable_heuristic_collective_combining xla_gpu_experimental_enable_nccl_symmetric_buffers
    xla_gpu_experimental_enable_nvshmem xla_gpu_experimental_enable_raft_for_stable_topk
    xla_gpu_experimental_enable_same_shape_multi_output_fusion xla_gpu_experimental_enable_selective_memcpy_overlap
    xla_gpu_experimental_enable_subchannel_dequantisation_fusion xla_gpu_experimental_enable_tensor_ir
    xla_gpu_experimental_enable_tiling_propagation xla_gpu_experimental_enable_triton_heroless_priority_fusion
    xla_gpu_experimental_enable_triton_warp_specialization xla_gpu_experimental_gemm_fusion_v2
    xla_gpu_experimental_pack_dot_operands_along_k_dimension xla_gpu_experimental_ragged_all_to_all_use_barrier
    xla_gpu_experimental_ragged_all_to_all_use_barrier_with_nccl
    xla_gpu_experimental_ragged_all_to_all_use_device_kernel xla_gpu_experimental_ragged_all_to_all_zero_copy
    xla_gpu_experimental_scaled_dot_with_triton xla_gpu_experimental_stream_annotation
    xla_gpu_experimental_thunk_buffer_debug_module_outputs xla_gpu_experimental_use_raft_select_k
    xla_gpu_experimental_use_ragged_dot_fusion xla_gpu_experimental_use_ragged_dot_grouped_gemm
    xla_gpu_experimental_vmm_disabled xla_gpu_fail_ptx_compilation_on_register_spilling
    xla_gpu_filter_kernels_spilling_registers_on_autotuning xla_gpu_force_conv_nchw xla_gpu_force_conv_nhwc
    xla_gpu_ftz xla_gpu_fused_attention_use_cudnn_rng xla_gpu_generate_debug_info xla_gpu_generate_line_info
    xla_gpu_graph_enable_concurrent_region xla_gpu_log_minmax xla_gpu_mock_custom_calls
    xla_gpu_multi_streamed_windowed_einsum xla_gpu_native_emitter_tune_unroll_factor_for_loops
    xla_gpu_nccl_async_execution xla_gpu_nccl_blocking_communicators xla_gpu_nccl_terminate_on_error
    xla_gpu_require_complete_aot_autotune_results xla_gpu_require_exclusive_lock xla_gpu_shard_autotuning
    xla_gpu_strict_conv_algorithm_picker xla_gpu_temp_buffer_use_separate_color xla_gpu_triton_gemm_any
    xla_gpu_unsafe_fallback_to_driver_on_ptxas_not_found xla_gpu_unsupported_enable_all_reduce_decomposer
    xla_gpu_unsupported_enable_ragged_all_to_all_decomposer
    xla_gpu_unsupported_enable_ragged_all_to_all_multi_host_decomposer
    xla_gpu_unsupported_enable_triton_multi_output_fusion xla_gpu_unsupported_use_all_reduce_one_shot_kernel
    xla_gpu_unsupported_use_ragged_all_to_all_one_shot_kernel xla_gpu_use_embeded_device_lib
    xla_gpu_use_inprocess_lld xla_gpu_use_memcpy_local_p2p xla_gpu_use_new_autotune_cache_format
    xla_gpu_use_runtime_fusion xla_gpu_verify_triton_fusion_numerics xla_hlo_evaluator_use_fast_path
    xla_hlo_graph_addresses xla_hlo_graph_sharding_color xla_hlo_pass_fix_detect_cycles xla_hlo_profile
    xla_keep_shardings_after_spmd xla_llvm_disable_expensive_passes xla_llvm_enable_alias_scope_metadata
    xla_llvm_enable_invariant_load_metadata xla_llvm_enable_noalias_metadata xla_llvm_force_inline_before_split
    xla_pjrt_allow_auto_layout_in_hlo xla_sdy_export_all_reduce_scatter
    xla_spmd_enable_dynamic_slice_collective_broadcast xla_syntax_sugar_async_ops xla_test_add_command_buffer_mode
    xla_test_all_input_layouts xla_test_all_output_layouts xla_tpu_detect_inf xla_tpu_detect_nan
    xla_unsupported_crash_on_hlo_pass_fix_max_iterations xla_unsupported_crash_on_hlo_pass_noop_change
    xla_unsupported_crash_on_hlo_pass_silent_hlo_change
"""

_SCALAR: Final = """
    xla_backend_optimization_level xla_cmd_buffer_trace_cache_size xla_cpu_collective_call_terminate_timeout_seconds
    xla_cpu_collective_call_warn_stuck_timeout_seconds xla_cpu_collective_timeout_seconds
    xla_cpu_emitter_verification_level xla_cpu_max_isa xla_cpu_parallel_codegen_split_count
    xla_cpu_prefer_vector_width xla_debug_buffer_assignment_show_max xla_deduplicate_backend_configs_min_size
    xla_force_config xla_gpu_all_gather_combine_threshold_bytes xla_gpu_all_reduce_blueconnect_num_devices_per_host
    xla_gpu_all_reduce_combine_threshold_bytes xla_gpu_async_copy_min_bytes
    xla_gpu_auto_spmd_partitioning_memory_budget_gb xla_gpu_auto_spmd_partitioning_memory_budget_ratio
    xla_gpu_autotune_gemm_rtol xla_gpu_autotune_level xla_gpu_autotune_max_solutions xla_gpu_blas_max_algorithms
    xla_gpu_collective_combine_threshold_count xla_gpu_collective_domain_assignment
    xla_gpu_collective_inflation_factor xla_gpu_collective_permute_combine_threshold_bytes
    xla_gpu_collective_permute_decomposer_threshold xla_gpu_collectives_implementation
    xla_gpu_cudnn_gemm_fusion_level xla_gpu_cudnn_gemm_max_plans xla_gpu_dot_merger_threshold_mb
    xla_gpu_dump_cost_model_top_k_candidates_to xla_gpu_executable_num_communication_streams
    xla_gpu_executable_num_compute_streams xla_gpu_executable_terminate_timeout
    xla_gpu_executable_warn_stuck_timeout xla_gpu_execution_progress_tracking
    xla_gpu_experimental_collective_cse_distance_threshold xla_gpu_experimental_force_split_k
    xla_gpu_experimental_max_unroll_factor xla_gpu_experimental_parallel_async_compute_limit
    xla_gpu_experimental_parallel_collective_overlap_limit
    xla_gpu_experimental_parallel_scale_up_collective_overlap_limit
    xla_gpu_experimental_scheduler_memory_fencing_slack_windows
    xla_gpu_experimental_scheduler_memory_fencing_threshold_bytes
    xla_gpu_first_collective_call_terminate_timeout_seconds xla_gpu_first_collective_call_warn_stuck_timeout_seconds
    xla_gpu_force_compilation_parallelism xla_gpu_fusion_autotune_top_k_configs xla_gpu_gemm_rewrite_size_threshold
    xla_gpu_graph_min_graph_size xla_gpu_gxl_scratch_size_bytes xla_gpu_llvm_verification_level
    xla_gpu_memory_limit_slop_factor xla_gpu_nccl_collective_max_nchannels xla_gpu_nccl_init_max_rank_per_root_ratio
    xla_gpu_nccl_p2p_max_nchannels xla_gpu_nccl_termination_timeout_seconds
    xla_gpu_operand_bytes_threshold_for_windowed_einsum xla_gpu_override_gemm_autotuner
    xla_gpu_reduce_scatter_combine_threshold_bytes xla_gpu_redzone_padding_bytes xla_gpu_rocm_max_trace_events
    xla_gpu_threshold_for_windowed_einsum_mib xla_gpu_trace_annotation_level
    xla_gpu_unsupported_override_fast_interconnect_slice_size xla_multiheap_size_constraint_per_heap
    xla_recognize_reduction_optimization_level xla_reduce_window_rewrite_base_length
    xla_run_hlo_passes_starting_from xla_while_loop_all_reduce_dus_code_motion_max_size_bytes
"""

_TPU: Final = """
    xla_enable_async_all_gather xla_enable_async_all_reduce xla_enable_async_collective_permute
    xla_latency_hiding_scheduler_rerun xla_sc_disable_megacore_partitioning xla_sc_disjoint_spmem
    xla_sc_enable_instruction_fusion xla_tpu_aggressive_opt_barrier_removal
    xla_tpu_data_parallel_opt_different_sized_ops xla_tpu_decompose_all_gather_einsum
    xla_tpu_decompose_einsum_reduce_scatter xla_tpu_enable_ag_backward_pipelining
    xla_tpu_enable_all_experimental_scheduler_features xla_tpu_enable_async_collective_fusion
    xla_tpu_enable_async_collective_fusion_fuse_all_gather xla_tpu_enable_async_collective_fusion_fuse_all_reduce
    xla_tpu_enable_async_collective_fusion_multiple_steps xla_tpu_enable_data_parallel_all_reduce_opt
    xla_tpu_enable_scheduler_memory_pressure_tracking xla_tpu_enable_sparse_core_collective_offload_all_gather
    xla_tpu_enable_sparse_core_collective_offload_all_reduce
    xla_tpu_enable_sparse_core_collective_offload_reduce_scatter xla_tpu_enable_windowed_einsum_for_all_gather
    xla_tpu_enable_windowed_einsum_for_reduce_scatter xla_tpu_host_transfer_overlap_limit
    xla_tpu_megacore_fusion_allow_ags xla_tpu_overlap_compute_collective_tc
    xla_tpu_prefer_async_allgather_to_allreduce xla_tpu_scheduler_percent_shared_memory_limit
    xla_tpu_scoped_vmem_limit_kib xla_tpu_spmd_rng_bit_generator_unsafe xla_tpu_spmd_threshold_for_allgather_cse
    xla_tpu_use_enhanced_launch_barrier
"""

_FILE: Final = """
    xla_candidate_configs_file xla_gpu_algorithm_denylist_path xla_gpu_experimental_collective_perf_table_path
    xla_gpu_experimental_matmul_perf_table_path xla_gpu_gemm_autotuner_override_file
    xla_gpu_load_autotune_results_from xla_gpu_pgle_profile_file_or_directory_path xla_gpu_target_config_filename
    xla_gpu_topology_filename
"""

KINDS: Final = {
    word.partition(":")[0]: kind
    for kind, words in (
        (Kind.BOOLEAN, _BOOLEAN),
        (Kind.SCALAR, _SCALAR + _TPU),
        (Kind.SET, SETS),
        (Kind.MAP, MAPS),
        (Kind.LIST, "xla_gpu_ptx_compiler_extra_flags xla_gpu_hlo_custom_call_allowlist"),
        (Kind.FILE, _FILE),
        (Kind.FILES, "xla_gpu_ptx_file xla_gpu_llvm_ir_file"),
        (Kind.DROPPED, DROPPED),
    )
    for word in words.split()
}
"""The kind of each flag."""


ContentDigest = Callable[[str], str | None]
"""Digest of the file or directory at a path, or None if it cannot be read."""

OverrideValue = str | bool | int | float

# A flag whose value is in quotes, which end with the text at the latest; or else what is between white space.
_WORD: Final = r"""(-[A-Za-z0-9_-]*=)(?:'([^']*)'?|"((?:\\[\s\S]|[^"\\]|\\\Z)*)"?)|[^ \t\r\n]+"""
_SPACES: Final = str.maketrans("\t\r\n", "   ")
_TRUE: Final = frozenset({"true", "True", "TRUE", "1"})
_FALSE: Final = frozenset({"false", "False", "FALSE", "0"})
# Abseil's own flags, which add flags or permit unknown ones: with one of them, the order of all flags matters.
_META: Final = frozenset({"flagfile", "fromenv", "tryfromenv", "undefok"})


@lru_cache(maxsize=64)
def split_flags(text: str) -> tuple[str, ...]:
    """Return the tokens of flags text, read as XLA reads `XLA_FLAGS`.

    Tokens are separated by white space. A value in quotes may contain white space; the quotes are removed, and in
    double quotes a backslash keeps the next character. XLA stops reading at the first word that does not start with a
    dash; such words are kept here verbatim, because other readers may use them.

    Source: `ParseArgvFromString` in xla/parse_flags_from_env.cc.
    """
    if "'" not in text and '"' not in text:
        return tuple(filter(None, text.translate(_SPACES).split(" ")))
    tokens = []
    for match in re.finditer(_WORD, text):
        name, single, double = match.groups()
        value = single if single is not None else re.sub(r"\\(.)", r"\1", double or "", flags=re.DOTALL)
        tokens.append(f"{name}{value}" if name else match[0])
    return tuple(tokens)


def canonical_flags(tokens: Iterable[str], *, content: ContentDigest | None = None) -> tuple[str, ...]:
    """Return the normal form of flag tokens of one source, idempotent.

    Known flags come first, by name, one token for each effective value; then the unknown ones, verbatim and in order.
    A word that is not a flag keeps its position, and no flag moves from one side of it to the other. Dump targets,
    logging and the paths of caches are dropped. Do not mix tokens of different sources (a variable, argv): the compiler
    decides which source wins.

    Args:
        tokens: as `split_flags` gives them, or argv.
        content: digest of the file (or directory) that a flag names. With it, such a file counts by its name and
            content; without it, or where it returns None, by its path.
    """
    given = list(tokens)
    if any(_loose_name(token) in _META for token in given):
        return tuple(given)
    # A known flag once written in a way whose meaning depends on the parser (`--noxla_x`, `-xla_x`, a value in the
    # next word) keeps all its tokens verbatim: which of two spellings wins is not certain.
    following = [*given, "-"][1:]
    doubtful = {
        name
        for token, after in zip(given, following, strict=True)
        if (name := _doubtful_name(token, after)) is not None
    }
    normal: list[str] = []
    segment: list[str] = []
    for token in given:
        if token.startswith("-"):
            segment.append(token)
            continue
        # XLA stops reading at a word that is not a flag; libtpu may take it as the value of the flag before it. So
        # nothing moves across it.
        normal += [*_canonical_segment(segment, doubtful, content), token]
        segment = []
    return (*normal, *_canonical_segment(segment, doubtful, content))


def canonical_overrides(
    overrides: Iterable[tuple[str, OverrideValue]], *, content: ContentDigest | None = None
) -> tuple[str, ...]:
    """Put `CompileOptions.env_option_overrides`, where flags appear a second time, into normal form.

    XLA applies them one after the other to the same fields. Overrides of scalar flags are independent, and the last one
    wins. What `canonical_flags` drops is dropped here, too; all others stay in order. The type of a value counts.
    """
    known: dict[str, str] = {}
    ordered: list[str] = []
    for name, value in overrides:
        kind = KINDS.get(name.lstrip("-"))
        if kind is Kind.DROPPED:
            continue
        text = _content_of(str(value), content) if kind is Kind.FILE else str(value)
        entry = f"{name.lstrip('-')}={type(value).__name__}:{text}"
        if kind in (Kind.BOOLEAN, Kind.SCALAR, Kind.FILE):
            known[name.lstrip("-")] = entry
        else:
            ordered.append(entry)
    return (*(known[name] for name in sorted(known)), *ordered)


def _loose_name(token: str) -> str | None:
    """Return the name of the flag that a lenient parser could read in `token`, or None."""
    if not token.startswith("-"):
        return None
    return token.lstrip("-").partition("=")[0].partition(" ")[0].replace("-", "_")


def _doubtful_name(token: str, after: str) -> str | None:
    """Return the known flag that `token` names in a spelling whose meaning depends on the parser, or None."""
    name = _loose_name(token)
    if name is None:
        return None
    if name.startswith("no") and name[2:] in KINDS and name not in KINDS:
        return name[2:]
    kind = KINDS.get(name)
    if kind is None:
        return None
    bare = token == f"--{name}" and kind in (Kind.BOOLEAN, Kind.DROPPED) and after.startswith("-")
    return None if bare or token.startswith(f"--{name}=") else name


def _canonical_segment(tokens: list[str], doubtful: set[str], content: ContentDigest | None) -> list[str]:
    known: dict[str, list[str]] = {}
    unknown: list[str] = []
    for token in tokens:
        name, separator, value = token.removeprefix("--").partition("=")
        kind = KINDS.get(name) if token.startswith("--") else None
        if kind is None or name in doubtful:
            unknown.append(token)
        elif kind is not Kind.DROPPED:
            known.setdefault(name, []).append(value if separator else "true")
    effective: list[str] = []
    for name in sorted(known):
        effective.extend(f"--{name}={value}" for value in _effective(KINDS[name], known[name], content))
    return [*effective, *unknown]


def _effective(kind: Kind, values: list[str], content: ContentDigest | None) -> list[str]:
    """Reduce the values that a flag was given, in their order, to those that the compiler uses."""
    match kind:
        case Kind.BOOLEAN:
            last = values[-1]
            return ["true" if last in _TRUE else "false" if last in _FALSE else last]
        case Kind.FILE:
            return [_content_of(values[-1], content)]
        case Kind.SET:
            return sorted({part for value in values for part in value.split(",")})
        case Kind.MAP:
            merged = {part.partition("=")[0]: part for value in values for part in value.split(",")}
            return [merged[name] for name in sorted(merged)]
        case Kind.LIST:
            return values
        case Kind.FILES:
            return [_content_of(value, content) for value in values]
        case _:
            return values[-1:]


def _content_of(path: str, content: ContentDigest | None) -> str:
    if content is None or not path:
        return path
    digest = content(path)
    # The name stays: XLA tells text from binary by the suffix, and finds a module's PTX by the file's name.
    return path if digest is None else f"{PurePath(path).name}@{digest}"
