"""When a call of a direct function must be what it is without us, and the settings under which a call is traced.

Read for this: jax 0.10.2 and 0.12.0.1, `config.py`, `core.py`, `mesh.py`, `pjit.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import jax
import numpy as np
from jax._src import config as jax_config
from jax._src import core as jax_core
from jax._src import literals as jax_literals
from jax._src import mesh as jax_mesh
from jax._src.lib import xla_client
from jax._src.random import prng as jax_prng

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ejcache.jax_integration.seam.direct.fastpath import ParsedCall

__all__ = ["TRACED", "program_settings", "why_plain"]

_DEBUGGING: Final = (
    *("jax_check_tracer_leaks", "jax_debug_infs", "jax_debug_key_reuse", "jax_debug_nans", "jax_disable_jit"),
    *("jax_distributed_debug", "jax_dump_ir_to", "jax_enable_checks", "jax_enable_pgle", "jax_explain_cache_misses"),
    *("jax_log_checkpoint_residuals", "jax_no_execution", "jax_no_tracing"),
)
"""Settings that watch, forbid or steer tracing and running. While one is on, each call is JAX's own."""

_WITHOUT_EFFECT: Final = (
    *("jax_compilation_cache_", "jax_persistent_cache_", "jax_enable_compilation_cache", "jax_raise_persistent_cache_"),
    *(
        "jax_log",
        "jax_debug_log_",
        "jax_traceback_filtering",
        "jax_send_traceback_",
        "jax_tracer_error_",
        "jax_pprint_",
    ),
    *("jax_transfer_guard", "jax_thread_guard", "jax_array_garbage_", "jax_captured_constants_", "jax_platforms"),
    *("jax_cross_host_", "jax_mtls_", "jax_share_binary_", "jax_check_proxy_", "jax_cpu_get_", "jax_enable_recover"),
)
"""How settings begin that change no program: logs, caches, errors, connections, guards that hold when one runs."""
_OF_ONE_TRACE: Final = frozenset({"axis_env_state"})
"""Parts of the trace context that are empty outside a trace, and have no content that can be compared."""

_ARRAYS: Final = frozenset({xla_client.ArrayImpl, jax_prng.PRNGKeyArray})
_VALUES: Final = frozenset({bool, int, float, complex, np.ndarray, jax_literals.TypedNdArray})
"""Exactly these classes, and NumPy's scalars: JAX treats subclasses in ways of their own, or refuses them."""


TRACED: Final = "it is called while another function is traced"


def why_plain(call: ParsedCall) -> str | None:
    """Why this call must be JAX's own, in words; None if it need not be."""
    if not jax_core.trace_state_clean():
        return TRACED
    settings = jax_config.config._value_holders
    for name in _DEBUGGING:
        holder = settings.get(name)
        if holder is not None and holder.value:
            return f"{name} is {holder.value}"
    if jax.process_count() > 1:
        return "the job has several processes"
    if getattr(call.info.inline, "name", call.info.inline) not in {False, "AUTO"}:
        return "it is to be inlined"
    return _strange_leaf(call.leaves)


def _strange_leaf(leaves: Iterable[Any]) -> str | None:
    for leaf in leaves:
        kind = type(leaf)
        if kind in _ARRAYS:
            if leaf.is_deleted():
                return "an argument was donated before"
        elif kind not in _VALUES and not isinstance(leaf, np.generic):
            if isinstance(leaf, jax_core.Tracer):
                return TRACED
            return f"an argument is a {kind.__module__}.{kind.__qualname__}"
    return None


def program_settings() -> dict[str, Any]:
    """What decides the program that a function becomes, besides its arguments: the settings, by name.

    The values are those of JAX: texts, numbers, and meshes and devices of this process.
    """
    context = zip(jax_config.trace_context_names(), jax_config.trace_context(), strict=True)
    found: dict[str, Any] = {}
    for name, value in context:
        if name in _OF_ONE_TRACE:
            continue
        # Several contexts that users make have the same name.
        found[name] = value if name not in found else (found[name], value)
    for name, holder in tuple(jax_config.config._value_holders.items()):
        if name not in found and not name.startswith(_WITHOUT_EFFECT):
            found[name] = holder.value
    found["concrete mesh"] = jax_mesh.get_concrete_mesh()
    return found
