"""Lists the settings in JAX's trace context, which decide the program that a function becomes, and sets them.

A part of the seam. A hit needs nothing of it.
"""

from __future__ import annotations

from typing import Any, Final

from ejcache.jax_integration.seam.flags import flag_states
from ejcache.jax_integration.seam.parts import Part

PART: Final = Part(
    "settings of JAX in `ejcache why`, and their part of what a tuned operation goes by",
    {"jax._src.config": ("trace_context",)},
)
jax_config = PART.module("jax._src.config")

_UNSET: Final = getattr(getattr(jax_config, "config_ext", None), "unset", None)

_OTHER_PARTS: Final = frozenset(
    {
        "abstract_mesh_context_manager",
        "axis_env_state",
        "jax_default_device",
        "jax_enable_pgle",
        "jax_hlo_source_file_canonicalization_regex",
        "jax_pgle_profiling_runs",
        "mesh_context_manager",
        "user_context",
    }
)
"""Parts of the trace context that belong to one trace, name the device, or do not change the program."""

_TRACE_DEFAULTS: Final = {
    "jax_allow_f16_reductions": "True",
    "jax_auto_pcast": "True",
    "jax_embedded_constants_max_bytes": "32",
    "jax_error_checking_behavior_divide": "ignore",
    "jax_error_checking_behavior_nan": "ignore",
    "jax_error_checking_behavior_oob": "ignore",
    "jax_explicit_x64_dtypes": "WARN",
    "jax_mutable_array_checks": "True",
    "jax_no_collectives": "frozenset()",
    "jax_numpy_dtype_promotion": "STANDARD",
    "jax_numpy_rank_promotion": "allow",
    "jax_pallas_use_mosaic_gpu": "True",
    "jax_raise_on_ppermute_sort_diff": "True",
    "jax_threefry_partitionable": "True",
    "jax_use_direct_linearize": "True",
    "jax_use_shardy_partitioner": "True",
    "layout_tracing_mode": "AUTO",
}
"""The texts of defaults in JAX 0.10 to 0.12. All other settings are off by default."""

_TRACE_NAMES: Final = (
    *_TRACE_DEFAULTS,
    *("jax_debug_key_reuse", "jax_debug_nans", "jax_default_dtype_bits", "jax_default_matmul_precision"),
    *("jax_default_prng_impl", "jax_dynamic_shapes", "jax_enable_checks", "jax_enable_x64", "jax_random_seed_offset"),
    *("jax_sharding_in_types", "jax_softmax_custom_jvp", "jax_xla_profile_version"),
)
"""The settings that JAX before 0.10, which does not list them, has in its trace context."""

_OFF: Final = frozenset({"None", "False", "0"})


def _holders() -> dict[str, Any]:
    states = flag_states()
    listed = getattr(jax_config, "trace_context_names", None)
    names = list(listed()) if listed is not None else [name for name in _TRACE_NAMES if name in states]
    found = {name: states.get(name, getattr(jax_config, name, None)) for name in names if name not in _OTHER_PARTS}
    return {name: holder for name, holder in found.items() if hasattr(holder, "get_local")}


TRACE_SETTINGS: Final = _holders()
"""What holds the values of the settings, by their names."""


def changed_trace_settings() -> dict[str, str]:
    """Return the settings that are not at their default in this thread, by name, as texts."""
    texts = {name: str(getattr(holder.value, "name", holder.value)) for name, holder in TRACE_SETTINGS.items()}
    return {
        name: text
        for name, text in texts.items()
        if (text != _TRACE_DEFAULTS[name] if name in _TRACE_DEFAULTS else text not in _OFF)
    }


def local_trace_settings() -> dict[str, Any]:
    """Return the settings, and the default device, that a context manager has changed in this thread, by name."""
    local = {name: holder.get_local() for name, holder in _local_holders().items()}
    return {name: value for name, value in local.items() if value is not _UNSET}


def set_locally(settings: dict[str, Any]) -> None:
    """Change these settings in this thread for as long as it runs."""
    holders = _local_holders()
    for name, value in settings.items():
        holders[name].set_local(value)


def _local_holders() -> dict[str, Any]:
    return {**TRACE_SETTINGS, "jax_default_device": flag_states()["jax_default_device"]}
