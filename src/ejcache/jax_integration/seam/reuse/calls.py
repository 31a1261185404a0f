"""Makes functions of JAX's own type whose first call for new arguments is ours, and takes such calls apart.

`jax.jit(f)` is a C++ function. It looks a call up by the types of its arguments, and asks a Python function, the
*miss*, for what it does not know: `(outputs, fast-path data, remove)`. With that data, C++ runs the next such calls by
itself. A reusing function is such a C++ function, with everything that JAX gave to the first one except the miss.

`mismatches` says whether this JAX has what is used here. If not, nobody may call the rest.

Read for this: jax 0.10.2 and 0.12.0.1, `pjit.py`, `config.py`, `core.py`, `mesh.py`, `tree_util.py`, `random/prng.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax
import numpy as np
from jax._src import config as jax_config
from jax._src import core as jax_core
from jax._src import literals as jax_literals
from jax._src import mesh as jax_mesh
from jax._src import tree_util as jax_trees
from jax._src.lib import _jax, jax_jit, xla_client
from jax._src.random import prng as jax_prng
from jax.sharding import AbstractMesh, Mesh, Sharding

from ejcache.errors import EjcacheError
from ejcache.jax_integration.seam.jitted_functions import jit_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_STATE: Final = (
    "version function_name fun cache_miss static_argnums static_argnames global_cache_key pytree_registry "
    "shard_arg_fallback cache"
)
"""What `__getstate__` of a jitted function has: all that its constructor takes."""


class RefusedError(EjcacheError):
    """What this call needs, or what its program is made of, cannot be written down.

    Args:
        reason: the end of a sentence, as in "it calls back into Python".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def mismatches() -> list[str]:
    """List how this JAX differs from what reusing functions need; empty if it does not."""
    found = []
    jitted = jax.jit(_nothing)
    if set(jitted.__getstate__()) != set(_STATE.split()):
        found.append(f"the state of a jitted function has {tuple(jitted.__getstate__())}")
    missing = [name for name in ("_cache_miss", "_fun", "_jit_info") if not hasattr(jitted, name)]
    found += [f"a jitted function has no {name}" for name in missing]
    names = ("dispatch_registry", "tracing_registry")
    found += [f"jax._src.tree_util.{name} is gone" for name in names if not hasattr(jax_trees, name)]
    context = jax_config.trace_context_names()
    if len(context) != len(jax_config.trace_context()) or not hasattr(jax_config.config, "_value_holders"):
        found.append("the settings in the context of a trace have no names")
    of_trees = ("node_data", "children", "from_node_data_and_children", "__getstate__", "__setstate__")
    return found + [f"a tree has no {name}" for name in of_trees if not hasattr(_jax.pytree.PyTreeDef, name)]


def _nothing() -> None:
    """Be a function to look at."""


# -- functions -----------------------------------------------------------------------------------------------------


def reusing_function(jitted: Any, miss: Callable[..., Any]) -> Any:
    """Make a function of the type of `jitted`, with its state, that calls `miss` where `jitted` calls JAX's own.

    Args:
        jitted: from `jax.jit`.
        miss: called with a call's arguments; returns what `plain_miss(jitted)` returns.
    """
    state = jitted.__getstate__()
    function = _jax.pjit(
        state["function_name"],
        state["fun"],
        miss,
        state["static_argnums"],
        state["static_argnames"],
        state["global_cache_key"],
        state["pytree_registry"],
        state["shard_arg_fallback"],
        state["cache"],
    )
    vars(function).update(vars(jitted))
    return function


def plain_miss(jitted: Any) -> Callable[..., tuple[Any, Any, bool]]:
    """Return JAX's function for a call that C++ does not know. It gives outputs, fast-path data, a flag to forget."""
    miss: Callable[..., tuple[Any, Any, bool]] = jitted._cache_miss
    return miss


class ParsedCall(NamedTuple):
    """A call, as JAX sees it before it traces.

    Attributes:
        jitted: the function that was called.
        trees: of the arguments that are not static: the positional ones, then those by keyword, in order of the names.
        names: of those given by keyword.
        static_positions: of the static arguments among the positional ones.
        static_names: of the static arguments that were given by keyword.
        statics: their values, the positional ones first.
        leaves: of all trees.
    """

    jitted: Any
    trees: tuple[Any, ...]
    names: tuple[str, ...]
    static_positions: tuple[int, ...]
    static_names: tuple[str, ...]
    statics: tuple[Any, ...]
    leaves: tuple[Any, ...]

    @property
    def options(self) -> dict[str, Any]:
        """Return the options that `jax.jit` was given, as JAX has them, without those about the function's source."""
        return jit_options(self.jitted) or {}


def parse_call(jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ParsedCall:
    """Take the arguments of a call apart.

    Raises whatever JAX raises, such as a `ValueError` for a static argument that cannot be hashed.

    Raises:
        RefusedError: the function was pickled, and JAX has left out what was given to `jax.jit`.
    """
    info = getattr(jitted, "_jit_info", None)
    if info is None:
        raise RefusedError("the function is a copy from a pickle, which lacks what was given to jax.jit")
    found, leaves = jax_jit.parse_arguments(
        args,
        tuple(kwargs.values()),
        tuple(kwargs),
        info.static_argnums,
        info.static_argnames,
        jax_trees.tracing_registry,
    )
    count = len(args)
    static = {number % count for number in info.static_argnums if -count <= number < count}
    return ParsedCall(
        jitted,
        tuple(found.dynamic_arg_treedefs),
        tuple(found.dynamic_arg_names),
        tuple(sorted(static)),
        tuple(found.static_arg_names),
        tuple(found.static_args),
        tuple(leaves),
    )


def leaf_aval(leaf: Any) -> Any:
    """Return the type by which JAX would trace this argument.

    Raises whatever JAX raises for what is not an argument: a `TypeError`, or an `OverflowError` for a large integer.
    """
    return jax_core.shaped_abstractify(leaf)


# -- what a trace depends on besides the call ------------------------------------------------------------------------

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


def is_traced() -> bool:
    """True if this thread traces another function."""
    return not jax_core.trace_state_clean()


def placed_on(jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[Any]:
    """Return the set of devices that the arguments, the options of the function and the meshes of the context name."""
    options = getattr(jitted, "_jit_info", None) or ()
    context = [*jax_config.trace_context(), jax_mesh.get_concrete_mesh()]
    leaves = jax_trees.tree_leaves((args, kwargs, list(options), context))
    shardings = {id(each): each for each in (getattr(leaf, "sharding", leaf) for leaf in leaves)}
    found: set[Any] = set()
    for each in shardings.values():
        mesh = getattr(each, "mesh", each)
        if isinstance(mesh, Mesh):
            found.update(() if mesh.empty else mesh.devices.flat)
        elif isinstance(each, Sharding) and not isinstance(mesh, AbstractMesh):
            found.update(each.device_set)
        elif isinstance(each, jax.Device):
            found.add(each)
    return found


def why_plain(call: ParsedCall) -> str | None:
    """Say why this call must be JAX's own, as the end of a sentence; None if it need not be."""
    settings = jax_config.config._value_holders
    for name in _DEBUGGING:
        holder = settings.get(name)
        if holder is not None and holder.value:
            return f"{name} is {holder.value}"
    inline = getattr(call.jitted._jit_info, "inline", False)
    if getattr(inline, "name", inline) not in {False, "AUTO"}:
        return "it is to be inlined"
    return _strange_leaf(call.leaves)


def _strange_leaf(leaves: Iterable[Any]) -> str | None:
    for leaf in leaves:
        kind = type(leaf)
        if kind in _ARRAYS:
            if leaf.is_deleted():
                return "an argument was donated before"
        elif kind not in _VALUES and not isinstance(leaf, np.generic):
            return f"an argument is a {kind.__module__}.{kind.__qualname__}"
    return None


def trace_settings() -> dict[str, Any]:
    """Collect what the program of a function depends on besides its arguments: JAX's settings and meshes, by name."""
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


# -- parts of types and trees ----------------------------------------------------------------------------------------

_CUSTOM: Final = 6
"""The kind of a node of a registered class, in the state of a tree."""


def make_tree(node: tuple[type, Any] | None, children: Sequence[Any]) -> Any:
    """Make a tree of outputs from its uppermost node, None for a leaf, and its children.

    Raises a `ValueError` for a class that is not registered, and others for data that does not fit.

    Args:
        node: class and data.
        children: trees.
    """
    registry = jax_trees.default_registry
    if node is not None and node[1] is not None and issubclass(node[0], tuple) and node[0] is not tuple:
        # A named tuple that is registered as a node of its own: JAX would make a mere named tuple of it.
        below = [each for child in children for each in child.__getstate__()[1]]
        leaves = sum(child.num_leaves for child in children)
        made = _jax.pytree.PyTreeDef.__new__(_jax.pytree.PyTreeDef)
        made.__setstate__((registry, [*below, (_CUSTOM, len(children), node[1], node[0], leaves, len(below) + 1)]))
        return made
    return _jax.pytree.PyTreeDef.from_node_data_and_children(registry, node, list(children))


def key_type_name(dtype: Any) -> str | None:
    """Return the name of the implementation of keys of this type; None for other types of elements."""
    implementation: Any = getattr(dtype, "_impl", None)
    is_known = isinstance(dtype, jax_prng.KeyTy) and jax_prng.prngs.get(implementation.name) is implementation
    return str(implementation.name) if is_known else None


def key_type(name: str) -> Any:
    """Return the type of elements of keys of this implementation; None if JAX knows none of that name."""
    implementation = jax_prng.prngs.get(name)
    return None if implementation is None else jax_prng.KeyTy(implementation)


def has_logical_devices(sharding: Any) -> bool:
    """True if a named sharding is of a program that is compiled for devices that it does not know."""
    return getattr(sharding, "_logical_device_ids", None) is not None
