"""The table of all settings.

Three things are made from it, and tests keep them equal to it: the typed keywords of `ejcache.enable`
(`ejcache.settings.typed`), the page `docs/settings.md`, and the output of `ejcache config`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import ejcache.settings.values as read
from ejcache.settings.values import XLA_CACHES, YES_NO, Setting, variable
from ejcache.util.units import ACCEPTED_SIZE
from ejcache.wings import load, wings

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["READ_BY_JAX", "REMOVED", "SETTINGS"]

READ_BY_JAX: Final = ("enable_pgle", "pgle_profiling_runs", "pgle_aggregation_percentile")
"""Settings that JAX itself goes by. Neither a file nor a variable of ours reaches it."""

REMOVED: Final = {
    "direct_check_one_in": "it was removed: direct mode checks one start in 20",
    "tracing_context_size": "it was removed: the limit is 1 MiB",
    "tracing_gc_threshold": "it was removed: ejcache leaves Python's garbage collector alone",
}
"""Settings of earlier versions, and why each was removed. Their variables are `EJCACHE_` and the name in capitals."""


def _flag(
    name: str,
    flag: str,
    parser: Callable[[Any], Any],
    default: Any,
    accepted: str,
    doc: str,
    *,
    jax_default: Any = None,
) -> Setting:
    own = () if name in READ_BY_JAX else (f"EJCACHE_{name.upper()}",)
    return Setting(name, parser, default, accepted, flag, (*own, flag.upper()), doc, jax_default)


_CORE: Final[tuple[Setting, ...]] = (
    Setting(
        "cache_dir",
        read.text,
        None,
        "a directory or a URL",
        "jax_compilation_cache_dir",
        ("EJCACHE_DIR", "EJCACHE_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR", "COMPILE_FUNC_DIR"),
        "directory or URL of the cache",
    ),
    _flag("enabled", "jax_enable_compilation_cache", read.boolean, True, YES_NO, "if false, nothing is cached"),
    _flag(
        "max_size",
        "jax_compilation_cache_max_size",
        read.limit,
        -1,
        f"{ACCEPTED_SIZE}, 0 for no caching, or -1 for no limit",
        "largest total size of the entries; beyond it, the least recently used are evicted (unset: a local cache that"
        " this version made has a tenth of its disk, at most 20 GB)",
    ),
    _flag(
        "min_compile_seconds",
        "jax_persistent_cache_min_compile_time_secs",
        read.floor_seconds,
        None,
        "a number of seconds, or 0 (also -1) for no floor",
        "an executable that took less time to compile is not stored (unset: 0.01 on this host, 0.1 for other hosts)",
        jax_default=1.0,
    ),
    _flag(
        "min_entry_size",
        "jax_persistent_cache_min_entry_size_bytes",
        read.integer,
        0,
        "a number of bytes, 0, or -1 for no restriction",
        "a smaller entry is not stored",
    ),
    _flag(
        "include_metadata_in_key",
        "jax_compilation_cache_include_metadata_in_key",
        read.boolean,
        False,
        YES_NO,
        "count source file names and line numbers as part of the program",
    ),
    _flag(
        "source_file_regex",
        "jax_hlo_source_file_canonicalization_regex",
        read.text,
        None,
        "a regular expression",
        "what it matches is removed from source file names before they go into the key",
    ),
    _flag(
        "remove_custom_partitioning_ptr",
        "jax_remove_custom_partitioning_ptr_from_cache_key",
        read.boolean,
        False,
        YES_NO,
        "leave the addresses of custom_partitioning callbacks out of the key",
    ),
    _flag(
        "expect_pgle",
        "jax_compilation_cache_expect_pgle",
        read.boolean,
        False,
        YES_NO,
        "prefer entries compiled with a profile (PGLE), even if PGLE is off",
    ),
    _flag(
        "enable_pgle",
        "jax_enable_pgle",
        read.boolean,
        False,
        YES_NO,
        "profile each program, then compile it again with the profile",
    ),
    _flag(
        "pgle_profiling_runs",
        "jax_pgle_profiling_runs",
        read.integer,
        3,
        "a number of runs",
        "how many runs of a program PGLE profiles",
    ),
    _flag(
        "pgle_aggregation_percentile",
        "jax_pgle_aggregation_percentile",
        read.integer,
        90,
        "0 to 100",
        "which percentile of the devices' profiles PGLE uses",
    ),
    variable(
        "pgle_reuse",
        "EJCACHE_PGLE_REUSE",
        read.boolean,
        True,
        YES_NO,
        "compile with the stored profile of a program rather than profile it again",
    ),
    variable(
        "tune_cross",
        "EJCACHE_TUNE_CROSS",
        read.boolean,
        False,
        YES_NO,
        "compile again, behind the program, what was compiled without the GPU on which XLA tunes it",
    ),
    _flag(
        "xla_caches",
        "jax_persistent_cache_enable_xla_caches",
        read.xla_caches,
        "xla_gpu_per_fusion_autotune_cache_dir",
        f"all, none, or a list of {', '.join(XLA_CACHES)}",
        "which of XLA's own caches to keep with the entries",
    ),
    _flag(
        "raise_errors",
        "jax_raise_persistent_cache_errors",
        read.boolean,
        False,
        YES_NO,
        "raise errors of the cache in the program instead of logging them",
    ),
    _flag("explain_misses", "jax_explain_cache_misses", read.boolean, False, YES_NO, "log the reason for every miss"),
    _flag(
        "check_contents",
        "jax_compilation_cache_check_contents",
        read.boolean,
        False,
        YES_NO,
        "compile the first hit of every key again and compare the two executables",
    ),
    _flag(
        "share_binary",
        "jax_share_binary_between_hosts",
        read.boolean,
        False,
        YES_NO,
        "one process compiles a program that spans processes, and sends it to the others",
    ),
    _flag(
        "share_binary_timeout_ms",
        "jax_share_binary_between_hosts_timeout_ms",
        read.integer,
        20 * 60 * 1000,
        "a number of milliseconds",
        "with share_binary, how long the other processes wait before they compile themselves",
    ),
    variable(
        "activate",
        "EJCACHE",
        read.switch_or_location,
        None,
        "1, 0, or the cache: a directory, written with a slash, or a URL",
        "if set, every process that uses JAX enables the cache; 0: no process does, nor does @ejit",
    ),
    variable(
        "recompile_force",
        "EASYDEL_RECOMPILE_FORCE",
        read.boolean,
        False,
        YES_NO,
        "ignore stored entries, compile, and replace them",
    ),
    variable(
        "full_cache",
        "ALLOW_FULL_CACHE",
        read.boolean,
        False,
        YES_NO,
        "store everything: no minimum size or compile time, and all of XLA's caches",
    ),
    variable(
        "local_dir",
        "EJCACHE_LOCAL_DIR",
        read.text,
        None,
        "a directory on a local disk",
        "where this host keeps copies of a remote cache's entries (unset: in the user's cache directory)",
    ),
    variable(
        "local_max_size",
        "EJCACHE_LOCAL_MAX_SIZE",
        read.limit,
        10 << 30,
        f"{ACCEPTED_SIZE}, 0 for none, or -1 for no limit",
        "largest total size of such copies, for each remote cache",
    ),
    variable(
        "gcs_credentials",
        "EASYDEL_GCS_CLIENT",
        read.text,
        None,
        "the path of a file",
        "file with Google credentials for gs:// URLs",
    ),
    variable(
        "gcs_endpoint",
        "STORAGE_EMULATOR_HOST",
        read.text,
        None,
        "the URL of an emulator",
        "server to use instead of Google's for gs:// URLs",
    ),
    variable(
        "shared_mode",
        "EJCACHE_SHARED_MODE",
        read.file_mode,
        None,
        "permissions of files as chmod takes them, such as 0640 or 0660",
        "permissions of files in a shared directory; by default, those that the umask allows",
    ),
    variable("read_only", "EJCACHE_READ_ONLY", read.boolean, False, YES_NO, "read entries, but write none"),
    variable(
        "namespace",
        "EJCACHE_NAMESPACE",
        read.salt,
        "",
        "any text",
        "part of every key; change it to ignore all entries stored so far",
    ),
    variable(
        "wait_seconds",
        "EJCACHE_WAIT_SECONDS",
        read.finite_seconds,
        600.0,
        "a finite number of seconds, or 0 for no waiting",
        "how long this process waits, in all, for entries that others compile and do not deliver; then it compiles",
    ),
    variable(
        "keep_module_text",
        "EJCACHE_MODULE_TEXT",
        read.boolean,
        True,
        YES_NO,
        "store the text of each program in this user's log, and with its entry from 0.1 s on, for `ejcache why`",
    ),
    variable(
        "trust_dir",
        "EJCACHE_TRUST_DIR",
        read.boolean,
        False,
        YES_NO,
        "use a local cache directory even if other users own it or can write to it; they can then run code as you",
    ),
    variable(
        "untested_schemes",
        "EJCACHE_UNTESTED_SCHEMES",
        read.boolean,
        False,
        YES_NO,
        "use storage that fsspec knows and ejcache is not tested with, such as hdfs:// or webdav://",
    ),
    variable(
        "check_one_in",
        "EJCACHE_CHECK_ONE_IN",
        read.count_or_none,
        0,
        "a number of hits, or 0 for none",
        "compile one hit in N again and compare; an entry proven wrong is quarantined",
    ),
    variable(
        "preload",
        "EJCACHE_PRELOAD",
        read.boolean,
        True,
        YES_NO,
        "load what the last runs of this program used in the background, before the program asks for it",
    ),
    variable(
        "preload_memory",
        "EJCACHE_PRELOAD_MEMORY",
        read.limit,
        1 << 30,
        f"{ACCEPTED_SIZE}, 0 for none, or -1 for no limit",
        "the most memory that executables take up which are loaded and not yet asked for",
    ),
    variable(
        "preload_threads",
        "EJCACHE_PRELOAD_THREADS",
        read.count,
        None,
        "a number of threads, at least 1",
        "how many executables are loaded at once in the background (unset: one for every two cores)",
    ),
    variable(
        "preload_requests",
        "EJCACHE_PRELOAD_REQUESTS",
        read.count,
        32,
        "a number of requests, at least 1",
        "how many requests fetch entries of a remote cache at once, for all processes of a host together",
    ),
    variable(
        "report",
        "EJCACHE_REPORT",
        read.report,
        None,
        "off, line (or 1) or json for stderr, or the path of a JSON file, with a slash or .json at its end",
        "print or write a report when the process exits",
    ),
    variable(
        "progress",
        "EJCACHE_PROGRESS",
        read.boolean,
        False,
        YES_NO,
        "say on stderr how long a compilation has taken so far, if it lasts longer than five seconds",
    ),
)

SETTINGS: Final[tuple[Setting, ...]] = (
    *_CORE,
    *(setting for wing in wings() if wing.settings for setting in load(wing.settings)),
)
"""The settings of the core and of the wings."""
