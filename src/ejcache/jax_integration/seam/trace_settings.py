"""The settings in JAX's trace context, which decide the program that a function becomes, besides its arguments."""

from __future__ import annotations

from typing import Any, Final

from jax._src import config as jax_config

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

_DEFAULTS: Final = {
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

_OFF: Final = frozenset({"None", "False", "0"})


def _holders() -> dict[str, Any]:
    names = [name for name in jax_config.trace_context_names() if name not in _OTHER_PARTS]
    found = {name: jax_config.config_states.get(name, getattr(jax_config, name, None)) for name in names}
    return {name: holder for name, holder in found.items() if hasattr(holder, "get_local")}


_SETTINGS: Final = _holders()
_UNSET: Final = jax_config.config_ext.unset


def trace_fingerprint() -> Any:
    """A hashable value that is equal for two calls only if JAX would reuse the trace of one for the other."""
    return jax_config.trace_context()


def changed_trace_settings() -> dict[str, str]:
    """The settings that are not at their default in this thread, by name, as texts."""
    texts = {name: str(getattr(holder.value, "name", holder.value)) for name, holder in _SETTINGS.items()}
    return {
        name: text
        for name, text in texts.items()
        if (text != _DEFAULTS[name] if name in _DEFAULTS else text not in _OFF)
    }


def local_trace_settings() -> dict[str, Any]:
    """The settings, and the default device, that a context manager has changed in this thread, by name."""
    holders = {**_SETTINGS, "jax_default_device": jax_config.config_states["jax_default_device"]}
    local = {name: holder.get_local() for name, holder in holders.items()}
    return {name: value for name, value in local.items() if value is not _UNSET}


def set_locally(settings: dict[str, Any]) -> None:
    """Change these settings in this thread for as long as it runs."""
    for name, value in settings.items():
        jax_config.config_states.get(name, getattr(jax_config, name, None)).set_local(value)
