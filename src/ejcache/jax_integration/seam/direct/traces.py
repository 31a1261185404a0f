"""When a call of a direct function must be what it is without us, what decides its trace, and what JAX traces later.

`jax._src.interpreters.partial_eval.trace_to_jaxpr` traces jitted functions, bodies of loops and branches, and remembers
what it has traced. JAX calls the functions with which classes are registered as pytrees to take arguments apart.

Read for this: jax 0.10.2 and 0.12.0.1, `config.py`, `core.py`, `mesh.py`, `pjit.py`, `partial_eval.py`, `tree_util.py`,
`lax/control_flow/`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import jax
import numpy as np
from jax._src import config as jax_config
from jax._src import core as jax_core
from jax._src import literals as jax_literals
from jax._src import mesh as jax_mesh
from jax._src import tree_util as jax_trees
from jax._src.interpreters import partial_eval
from jax._src.lib import xla_client
from jax._src.random import prng as jax_prng

from ejcache.jax_integration.seam.patch import without_our_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ejcache.jax_integration.seam.direct.fastpath import ParsedCall


__all__ = ["TRACED", "later_traces_mismatches", "program_settings", "registered_functions", "watch_traces", "why_plain"]

_DEBUGGING: Final = (
    *("jax_check_tracer_leaks", "jax_debug_infs", "jax_debug_key_reuse", "jax_debug_nans", "jax_disable_jit"),
    *("jax_distributed_debug", "jax_dump_ir_to", "jax_enable_checks", "jax_enable_pgle", "jax_explain_cache_misses"),
    *("jax_log_checkpoint_residuals", "jax_no_execution", "jax_no_tracing"),
)
"""Settings that watch, forbid or steer tracing and running. While one is on, each call is JAX's own."""

_WITHOUT_EFFECT: Final = (
    *("jax_compilation_cache_", "jax_persistent_cache_", "jax_enable_compilation_cache", "jax_raise_persistent_cache_"),
    *("jax_log", "jax_debug_log_", "jax_traceback_filtering", "jax_send_traceback_", "jax_tracer_error_"),
    *("jax_transfer_guard", "jax_thread_guard", "jax_array_garbage_", "jax_captured_constants_", "jax_platforms"),
    *("jax_cross_host_", "jax_mtls_", "jax_share_binary_", "jax_check_proxy_", "jax_cpu_get_", "jax_enable_recover"),
    "jax_pprint_",
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
        # Most are off, and to write them takes time.
        if name not in found and not name.startswith(_WITHOUT_EFFECT) and holder.value is not False:
            found[name] = holder.value
    found["concrete mesh"] = jax_mesh.get_concrete_mesh()
    return found


_REGISTRY: Final = "_registry"
_FIELDS: Final = ("to_iter", "from_iter")


def registered_functions(kind: type) -> tuple[object, ...]:
    """What JAX calls to take apart and put together an object of this class, as far as Python can see it."""
    if type(kind).__hash__ is not type.__hash__:
        return ()  # a metaclass of the user's would be asked
    entry = getattr(jax_trees, _REGISTRY, {}).get(kind)
    fields = entry if isinstance(entry, tuple) else [getattr(entry, name, None) for name in _FIELDS]
    return tuple(field for field in fields if callable(field))


_METHODS: Final = ("cache_clear", "cache_info", "cache_keys", "evict_weakref")
_watching: list[Callable[[str], None]] = []


def later_traces_mismatches() -> list[str]:
    """How this JAX differs from what is replaced here; empty if it does not."""
    traces = getattr(partial_eval, "trace_to_jaxpr", None)
    return [f"trace_to_jaxpr has no {name}" for name in _METHODS if not hasattr(traces, name)]


def watch_traces(call: Callable[[str], None]) -> None:
    """From now on, call `call` with the name of each function that JAX has traced; again does nothing.

    What JAX remembers is not told of. The function that tells stays: taking it out could take out what another library
    has put around it.
    """
    if call in _watching:
        return
    if not _watching:
        _replace()
    _watching.append(call)


def _replace() -> None:
    original: Any = partial_eval.trace_to_jaxpr

    def trace_and_tell(fun: Any, *arguments: Any, **named: Any) -> Any:
        before = original.cache_info().misses
        result = original(fun, *arguments, **named)
        if original.cache_info().misses != before:
            while isinstance(fun, functools.partial):
                fun = fun.func
            for call in tuple(_watching):
                call(getattr(fun, "__name__", ""))
        return result

    replaced: Any = without_our_frames(trace_and_tell)
    for name in _METHODS:
        setattr(replaced, name, getattr(original, name))
    partial_eval.trace_to_jaxpr = replaced
