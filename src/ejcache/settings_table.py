"""The table of all settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import ejcache.settings_values as read
from ejcache.settings_values import XLA_CACHES, YES_NO, Setting
from ejcache.units import ACCEPTED_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["SETTINGS"]


def _flag(name: str, flag: str, parser: Callable[[Any], Any], default: Any, accepted: str, doc: str) -> Setting:
    return Setting(name, parser, default, accepted, flag, (flag.upper(),), doc)


def _variable(name: str, variable: str, parser: Callable[[Any], Any], default: Any, accepted: str, doc: str) -> Setting:
    return Setting(name, parser, default, accepted, "", (variable,), doc)


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        "cache_dir",
        read.text,
        None,
        "a directory or a URL",
        "jax_compilation_cache_dir",
        ("JAX_COMPILATION_CACHE_DIR", "COMPILE_FUNC_DIR"),
        "where compiled executables are kept",
    ),
    _flag(
        "enabled", "jax_enable_compilation_cache", read.boolean, True, YES_NO, "false disables the compilation cache"
    ),
    _flag(
        "max_size",
        "jax_compilation_cache_max_size",
        read.limit,
        -1,
        f"{ACCEPTED_SIZE}, 0 for no caching, or -1 for no limit",
        "bytes of all entries, least recently used evicted first",
    ),
    _flag(
        "min_compile_seconds",
        "jax_persistent_cache_min_compile_time_secs",
        read.seconds,
        1.0,
        "a number of seconds",
        "compilations below it are not stored",
    ),
    _flag(
        "min_entry_size",
        "jax_persistent_cache_min_entry_size_bytes",
        read.integer,
        0,
        "a number of bytes, 0, or -1 for no restriction",
        "entries below it are not stored",
    ),
    _flag(
        "include_metadata_in_key",
        "jax_compilation_cache_include_metadata_in_key",
        read.boolean,
        False,
        YES_NO,
        "file names and lines count as part of the program",
    ),
    _flag(
        "source_file_regex",
        "jax_hlo_source_file_canonicalization_regex",
        read.text,
        None,
        "a regular expression",
        "removed from the file names that metadata puts into the key",
    ),
    _flag(
        "remove_custom_partitioning_ptr",
        "jax_remove_custom_partitioning_ptr_from_cache_key",
        read.boolean,
        False,
        YES_NO,
        "leave the address of custom_partitioning callbacks out of the key",
    ),
    _flag(
        "expect_pgle",
        "jax_compilation_cache_expect_pgle",
        read.boolean,
        False,
        YES_NO,
        "prefer profile-optimised entries even while PGLE is off",
    ),
    _flag("enable_pgle", "jax_enable_pgle", read.boolean, False, YES_NO, "profile-guided latency estimation"),
    _flag(
        "pgle_profiling_runs", "jax_pgle_profiling_runs", read.integer, 3, "a number of runs", "runs that PGLE profiles"
    ),
    _flag(
        "pgle_aggregation_percentile",
        "jax_pgle_aggregation_percentile",
        read.integer,
        90,
        "0 to 100",
        "percentile over devices that PGLE takes",
    ),
    _variable(
        "pgle_reuse",
        "EJCACHE_PGLE_REUSE",
        read.boolean,
        True,
        YES_NO,
        "compile with a kept profile of the program instead of profiling it again",
    ),
    _flag(
        "xla_caches",
        "jax_persistent_cache_enable_xla_caches",
        read.xla_caches,
        "xla_gpu_per_fusion_autotune_cache_dir",
        f"all, none, or a list of {', '.join(XLA_CACHES)}",
        "which of XLA's own caches to keep beside the entries",
    ),
    _flag(
        "raise_errors",
        "jax_raise_persistent_cache_errors",
        read.boolean,
        False,
        YES_NO,
        "let a cache error reach the program",
    ),
    _flag("explain_misses", "jax_explain_cache_misses", read.boolean, False, YES_NO, "log the reason for every miss"),
    _flag(
        "check_contents",
        "jax_compilation_cache_check_contents",
        read.boolean,
        False,
        YES_NO,
        "recompile the first hit of every key and compare",
    ),
    _flag(
        "share_binary",
        "jax_share_binary_between_hosts",
        read.boolean,
        False,
        YES_NO,
        "one process compiles for all that span a program",
    ),
    _flag(
        "share_binary_timeout_ms",
        "jax_share_binary_between_hosts_timeout_ms",
        read.integer,
        20 * 60 * 1000,
        "a number of milliseconds",
        "how long the others wait for what it compiles; then they compile too",
    ),
    _variable(
        "cache_compiles",
        "EASYDEL_CACHE_COMPILES",
        read.boolean,
        None,
        YES_NO,
        "whether the first @ejit activates the store for the process (unset: it does)",
    ),
    _variable(
        "recompile_force",
        "EASYDEL_RECOMPILE_FORCE",
        read.boolean,
        False,
        YES_NO,
        "ignore what is stored, compile, replace it",
    ),
    _variable(
        "full_cache",
        "ALLOW_FULL_CACHE",
        read.boolean,
        False,
        YES_NO,
        "store everything: no floors, and all of XLA's caches",
    ),
    _variable(
        "local_dir",
        "EJCACHE_LOCAL_DIR",
        read.text,
        None,
        "a directory on a local disk",
        "where this host keeps copies of a remote cache's entries (unset: with the user's other caches)",
    ),
    _variable(
        "local_max_size",
        "EJCACHE_LOCAL_MAX_SIZE",
        read.limit,
        10 << 30,
        f"{ACCEPTED_SIZE}, 0 for none, or -1 for no limit",
        "bytes of those copies, for each remote cache",
    ),
    _variable(
        "gcs_credentials",
        "EASYDEL_GCS_CLIENT",
        read.text,
        None,
        "the path of a file",
        "Google credentials for gs:// URLs",
    ),
    _variable(
        "gcs_endpoint",
        "STORAGE_EMULATOR_HOST",
        read.text,
        None,
        "the URL of an emulator",
        "who is asked instead of Google for gs:// URLs",
    ),
    _variable("read_only", "EJCACHE_READ_ONLY", read.boolean, False, YES_NO, "read entries, never write any"),
    _variable(
        "namespace",
        "EJCACHE_NAMESPACE",
        read.salt,
        "",
        "any text",
        "a salt in every key; another one disowns a poisoned generation",
    ),
    _variable(
        "wait_seconds",
        "EJCACHE_WAIT_SECONDS",
        read.finite_seconds,
        600.0,
        "a finite number of seconds, or 0 for no waiting",
        "how long to wait for another process that compiles the same program; then it is compiled here too",
    ),
    _variable(
        "keep_module_text",
        "EJCACHE_MODULE_TEXT",
        read.boolean,
        True,
        YES_NO,
        "keep the text of compiled programs beside the entries, for `ejcache why`",
    ),
    _variable(
        "check_one_in",
        "EJCACHE_CHECK_ONE_IN",
        read.integer,
        0,
        "a number of hits, or 0 for none",
        "recompile one hit in so many and compare; a proven difference is taken out",
    ),
    _variable(
        "report",
        "EJCACHE_REPORT",
        read.text,
        None,
        "off, line (or 1) or json for stderr, or the path of a JSON file",
        "a report at exit",
    ),
    _variable(
        "autotune_dir",
        "EJKERNEL_PERSISTENT_CACHE_DIR",
        read.text,
        None,
        "a directory or a URL",
        "where tuned configurations are kept (unset: with the executables)",
    ),
    _variable(
        "autotune_seeds",
        "EJCACHE_AUTOTUNE_SEEDS",
        read.texts,
        (),
        "directories or URLs with commas between",
        "read-only places of tuned configurations, below the user's own",
    ),
    _variable(
        "autotune_policy",
        "EJKERNEL_AUTOTUNE_POLICY",
        read.autotune_policy,
        None,
        "autotune, heuristics or error",
        "what an operation without a tuned configuration does (unset: what its author chose)",
    ),
    _variable("autotune_log", "EJKERNEL_LOG_AUTOTUNE", read.boolean, False, YES_NO, "log every candidate's timing"),
    _variable(
        "autotune_progress", "EJKERNEL_AUTOTUNE_PROGRESS", read.boolean, False, YES_NO, "show a bar while tuning"
    ),
    _variable(
        "autotune_record",
        "EJKERNEL_OPS_RECORD",
        read.boolean,
        False,
        YES_NO,
        "write what operations are called with, to be tuned later",
    ),
    _variable(
        "autotune_stamp",
        "EJKERNEL_OPS_STAMP",
        read.stamp,
        "none",
        "hash, json or none",
        "label operations in profiles",
    ),
    _variable(
        "autotune_prefix", "EJKERNEL_OPS_PREFIX", read.text, "ejkernel_ops#", "any text", "how those labels begin"
    ),
    _variable(
        "autotune_smem_limit",
        "EJKERNEL_TRITON_SMEM_LIMIT",
        read.integer,
        None,
        "a number of bytes",
        "shared memory that candidates may use; part of a tuned configuration's identity when set",
    ),
    _variable(
        "autotune_rda_candidates",
        "EJKERNEL_RDA_MAX_CANDIDATES",
        read.integer,
        None,
        "a number",
        "how many candidates ragged decode attention tries; part of the identity when set",
    ),
)
