"""The settings of this wing."""

from __future__ import annotations

from typing import Final

import ejcache.settings.values as read
from ejcache.settings.values import YES_NO, Setting, variable

__all__ = ["SETTINGS"]

SETTINGS: Final[tuple[Setting, ...]] = (
    variable(
        "autotune_dir",
        ("EJCACHE_AUTOTUNE_DIR", "EJKERNEL_PERSISTENT_CACHE_DIR"),
        read.text,
        None,
        "a directory or a URL",
        "where tuned configurations are stored (unset: in the cache)",
    ),
    variable(
        "autotune_seeds",
        "EJCACHE_AUTOTUNE_SEEDS",
        read.texts,
        (),
        "directories or URLs, separated by commas",
        "read-only sources of tuned configurations, asked after the user's own",
    ),
    variable(
        "autotune_policy",
        ("EJCACHE_AUTOTUNE_POLICY", "EJKERNEL_AUTOTUNE_POLICY"),
        read.autotune_policy,
        None,
        "autotune, heuristics or error",
        "what to do for an operation that has not been tuned (unset: what its author chose)",
    ),
    variable(
        "autotune_log",
        ("EJCACHE_AUTOTUNE_LOG", "EJKERNEL_LOG_AUTOTUNE"),
        read.boolean,
        False,
        YES_NO,
        "log the time of every candidate",
    ),
    variable(
        "autotune_progress",
        ("EJCACHE_AUTOTUNE_PROGRESS", "EJKERNEL_AUTOTUNE_PROGRESS"),
        read.boolean,
        False,
        YES_NO,
        "show a progress bar while tuning; unset: on a terminal, after two seconds",
    ),
    variable(
        "autotune_record",
        ("EJCACHE_AUTOTUNE_RECORD", "EJKERNEL_OPS_RECORD"),
        read.switch_or_location,
        False,
        "true or false, or a directory or URL",
        "record the arguments of operations, so that they can be tuned later, with the tuned configurations or there",
    ),
    variable(
        "autotune_stamp",
        ("EJCACHE_AUTOTUNE_STAMP", "EJKERNEL_OPS_STAMP"),
        read.stamp,
        "none",
        "hash, json or none",
        "label operations in profiles with their key: hashed, or as JSON",
    ),
    variable(
        "autotune_prefix",
        ("EJCACHE_AUTOTUNE_PREFIX", "EJKERNEL_OPS_PREFIX"),
        read.text,
        "ejkernel_ops#",
        "any text",
        "text with which labels in profiles begin",
    ),
    variable(
        "autotune_smem_limit",
        "EJKERNEL_TRITON_SMEM_LIMIT",
        read.integer,
        None,
        "a number of bytes",
        "shared memory that candidates may use; if set, part of a tuned configuration's key",
    ),
    variable(
        "autotune_rda_candidates",
        "EJKERNEL_RDA_MAX_CANDIDATES",
        read.integer,
        None,
        "a number",
        "how many candidates ragged decode attention tries; if set, part of the key",
    ),
)
