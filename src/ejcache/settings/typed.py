"""The settings with their types, for type checkers and editors.

This module is written by `python tools/settings_reference.py` from the settings table; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 (`typing.get_type_hints` evaluates the annotations)
from os import PathLike  # noqa: TC003 (the same)
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from typing import TypedDict
else:

    class TypedDict:
        """In place of the real one, which compiles every annotation: that took a millisecond of `enable()`."""

        def __init_subclass__(cls, *, total: bool) -> None:
            """Nothing is checked while the program runs."""


__all__ = ["SettingOptions", "SettingValues"]


class SettingOptions(TypedDict, total=False):
    """Keywords of `ejcache.enable` besides `url`, `max_size` and `read_only`."""

    enabled: bool
    """If false, nothing is cached."""
    min_compile_seconds: float
    """An executable that took less time to compile is not stored (unset: 0.01 on this host, 0.1 for other hosts)."""
    min_entry_size: int
    """A smaller entry is not stored."""
    include_metadata_in_key: bool
    """Count source file names and line numbers as part of the program."""
    source_file_regex: str | PathLike[str] | None
    """What it matches is removed from source file names before they go into the key."""
    remove_custom_partitioning_ptr: bool
    """Leave the addresses of custom_partitioning callbacks out of the key."""
    expect_pgle: bool
    """Prefer entries compiled with a profile (PGLE), even if PGLE is off."""
    enable_pgle: bool
    """Profile each program, then compile it again with the profile."""
    pgle_profiling_runs: int
    """How many runs of a program PGLE profiles."""
    pgle_aggregation_percentile: int
    """Which percentile of the devices' profiles PGLE uses."""
    pgle_reuse: bool
    """Compile with the stored profile of a program rather than profile it again."""
    tune_cross: bool
    """Compile again, behind the program, what was compiled without the GPU on which XLA tunes it."""
    xla_caches: str
    """Which of XLA's own caches to keep with the entries."""
    raise_errors: bool
    """Raise errors of the cache in the program instead of logging them."""
    explain_misses: bool
    """Log the reason for every miss."""
    check_contents: bool
    """Compile the first hit of every key again and compare the two executables."""
    share_binary: bool
    """One process compiles a program that spans processes, and sends it to the others."""
    share_binary_timeout_ms: int
    """With share_binary, how long the other processes wait before they compile themselves."""
    activate: bool | str | PathLike[str]
    """If set, every process that uses JAX enables the cache; 0: no process does, nor does @ejit."""
    recompile_force: bool
    """Ignore stored entries, compile, and replace them."""
    full_cache: bool
    """Store everything: no minimum size or compile time, and all of XLA's caches."""
    local_dir: str | PathLike[str] | None
    """Where this host keeps copies of a remote cache's entries (unset: in the user's cache directory)."""
    local_max_size: int | str
    """Largest total size of such copies, for each remote cache."""
    gcs_credentials: str | PathLike[str] | None
    """File with Google credentials for gs:// URLs."""
    gcs_endpoint: str | PathLike[str] | None
    """Server to use instead of Google's for gs:// URLs."""
    shared_mode: int | str | None
    """Permissions of files in a shared directory; by default, those that the umask allows."""
    namespace: str
    """Part of every key; change it to ignore all entries stored so far."""
    wait_seconds: float
    """How long this process waits, in all, for entries that others compile and do not deliver; then it compiles."""
    keep_module_text: bool
    """Store the text of each program in this user's log, and with its entry from 0.1 s on, for `ejcache why`."""
    trust_dir: bool
    """Use a local cache directory even if other users own it or can write to it; they can then run code as you."""
    untested_schemes: bool
    """Use storage that fsspec knows and ejcache is not tested with, such as hdfs:// or webdav://."""
    check_one_in: int
    """Compile one hit in N again and compare; an entry proven wrong is quarantined."""
    preload: bool
    """Load what the last runs of this program used in the background, before the program asks for it."""
    preload_memory: int | str
    """The most memory that executables take up which are loaded and not yet asked for."""
    preload_threads: int
    """How many executables are loaded at once in the background (unset: one for every two cores)."""
    preload_requests: int
    """How many requests fetch entries of a remote cache at once, for all processes of a host together."""
    report: str | PathLike[str] | None
    """Print or write a report when the process exits."""
    progress: bool
    """Say on stderr how long a compilation has taken so far, if it lasts longer than five seconds."""
    autotune_dir: str | PathLike[str] | None
    """Where tuned configurations are stored (unset: in the cache)."""
    autotune_seeds: str | Sequence[str | PathLike[str]]
    """Read-only sources of tuned configurations, asked after the user's own."""
    autotune_policy: Literal["autotune", "heuristics", "error"]
    """What to do for an operation that has not been tuned (unset: what its author chose)."""
    autotune_log: bool
    """Log the time of every candidate."""
    autotune_progress: bool
    """Show a progress bar while tuning; unset: on a terminal, after two seconds."""
    autotune_record: bool | str | PathLike[str]
    """Record the arguments of operations, so that they can be tuned later, with the tuned configurations or there."""
    autotune_stamp: Literal["hash", "json", "none"]
    """Label operations in profiles with their key: hashed, or as JSON."""
    autotune_prefix: str | PathLike[str] | None
    """Text with which labels in profiles begin."""
    autotune_smem_limit: int
    """Shared memory that candidates may use; if set, part of a tuned configuration's key."""
    autotune_rda_candidates: int
    """How many candidates ragged decode attention tries; if set, part of the key."""
    direct: bool
    """Experimental: find executables of @ejit without tracing, by the content of the function."""
    project: str | Sequence[str | PathLike[str]]
    """What direct mode compares by content besides what it takes for the project."""


class SettingValues:
    """Attributes of `Settings`: the values after parsing."""

    cache_dir: str | None
    enabled: bool
    max_size: int
    min_compile_seconds: float | None
    min_entry_size: int
    include_metadata_in_key: bool
    source_file_regex: str | None
    remove_custom_partitioning_ptr: bool
    expect_pgle: bool
    enable_pgle: bool
    pgle_profiling_runs: int
    pgle_aggregation_percentile: int
    pgle_reuse: bool
    tune_cross: bool
    xla_caches: str
    raise_errors: bool
    explain_misses: bool
    check_contents: bool
    share_binary: bool
    share_binary_timeout_ms: int
    activate: bool | str | None
    recompile_force: bool
    full_cache: bool
    local_dir: str | None
    local_max_size: int
    gcs_credentials: str | None
    gcs_endpoint: str | None
    shared_mode: int | None
    read_only: bool
    namespace: str
    wait_seconds: float
    keep_module_text: bool
    trust_dir: bool
    untested_schemes: bool
    check_one_in: int
    preload: bool
    preload_memory: int
    preload_threads: int | None
    preload_requests: int
    report: str | None
    progress: bool
    autotune_dir: str | None
    autotune_seeds: tuple[str, ...]
    autotune_policy: Literal["autotune", "heuristics", "error"] | None
    autotune_log: bool
    autotune_progress: bool
    autotune_record: bool | str
    autotune_stamp: Literal["hash", "json", "none"]
    autotune_prefix: str | None
    autotune_smem_limit: int | None
    autotune_rda_candidates: int | None
    direct: bool
    project: tuple[str, ...]
