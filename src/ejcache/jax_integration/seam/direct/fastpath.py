"""Functions of JAX's own type whose first call for new arguments is ours, and executables that run without a trace.

`jax.jit(f)` is a C++ function. It looks a call up by the types of its arguments, and asks a Python function, the
*miss*, for what it does not know: `(outputs, fast-path data, remove)`. With that data, C++ runs the next such calls by
itself. A direct function is such a C++ function, with everything that JAX gave to the first one except the miss.

`fastpath_mismatches` says whether this JAX has what is used here. If not, nobody may call the rest.

Read for this: jax 0.10.2 and 0.12.0.1, `pjit.py`, `interpreters/pxla.py`, `tree_util.py`, `random/prng.py`.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import jax
from jax._src import config as jax_config
from jax._src import core as jax_core
from jax._src import tree_util as jax_trees
from jax._src.interpreters import pxla
from jax._src.lib import _jax, jax_jit
from jax._src.random import prng as jax_prng

from ejcache.jax_integration.seam.direct.refusal import RefusedError
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "FastpathParts",
    "ParsedCall",
    "direct_function",
    "fastpath_mismatches",
    "has_logical_devices",
    "key_type_name",
    "leaf_aval",
    "make_tree",
    "parse_call",
    "plain_miss",
    "run_loaded",
]

_STATE: Final = (
    "version function_name fun cache_miss static_argnums static_argnames global_cache_key pytree_registry "
    "shard_arg_fallback cache"
)
"""What `__getstate__` of a jitted function has: all that its constructor takes."""

_FASTPATH: Final = (
    "xla_executable out_pytree_def in_shardings out_shardings out_avals out_committed kept_var_bitvec "
    "in_device_local_layouts const_args"
)
_EXECUTE: Final = (
    "xla_executable name backend in_handler out_handler unordered_effects ordered_effects keepalive "
    "has_host_callbacks kept_var_idx mut pgle_profiler"
)
_PARAMETERS: Final[dict[str, tuple[Callable[..., Any], str]]] = {
    "InputsHandler": (pxla.InputsHandler, "in_shardings in_layouts local_devices input_indices"),
    "ResultsHandler": (pxla.ResultsHandler, "handlers out_shardings out_avals"),
    "ExecuteReplicated": (pxla.ExecuteReplicated, _EXECUTE),
    "global_aval_to_result_handler": (pxla.global_aval_to_result_handler, "aval out_sharding committed"),
}
"""What is called with positional arguments, and the parameters that it must have."""


def fastpath_mismatches() -> list[str]:
    """How this JAX differs from what direct functions need; empty if it does not."""
    found = [
        f"jax._src.interpreters.pxla.{name} takes {tuple(inspect.signature(function).parameters)}"
        for name, (function, parameters) in _PARAMETERS.items()
        if " ".join(inspect.signature(function).parameters) != parameters
    ]
    if " ".join(pxla.MeshExecutableFastpathData._fields) != _FASTPATH:
        found.append(f"the fast-path data has {pxla.MeshExecutableFastpathData._fields}")
    jitted = jax.jit(_nothing)
    if set(jitted.__getstate__()) != set(_STATE.split()):
        found.append(f"the state of a jitted function has {tuple(jitted.__getstate__())}")
    missing = [name for name in ("_cache_miss", "_fun", "_jit_info") if not hasattr(jitted, name)]
    found += [f"a jitted function has no {name}" for name in missing]
    names = ("dispatch_registry", "tracing_registry", "none_leaf_registry")
    found += [f"jax._src.tree_util.{name} is gone" for name in names if not hasattr(jax_trees, name)]
    context = jax_config.trace_context_names()
    if len(context) != len(jax_config.trace_context()) or not hasattr(jax_config.config, "_value_holders"):
        found.append("the settings in the context of a trace have no names")
    of_trees = ("node_data", "children", "from_node_data_and_children", "__getstate__", "__setstate__")
    return found + [f"a tree has no {name}" for name in of_trees if not hasattr(_jax.pytree.PyTreeDef, name)]


_CUSTOM: Final = 6
"""The kind of a node of a registered class, in the state of a tree."""


def _nothing() -> None:
    """A function to look at."""


# -- functions -----------------------------------------------------------------------------------------------------


def direct_function(jitted: Any, miss: Callable[..., Any]) -> Any:
    """A function of the type of `jitted`, with its state, that calls `miss` where `jitted` calls JAX's own.

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
    """What JAX does for a call that C++ does not know: gives outputs, fast-path data or None, and whether to forget."""
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
    def name(self) -> str:
        """Of the function."""
        return str(getattr(self.jitted, "__name__", ""))

    @property
    def info(self) -> Any:
        """The arguments that were given to `jax.jit`, as JAX has them."""
        return self.jitted._jit_info


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
    """The type by which JAX would trace this argument.

    Raises whatever JAX raises for what is not an argument: a `TypeError`, or an `OverflowError` for a large integer.
    """
    return jax_core.shaped_abstractify(leaf)


# -- running -------------------------------------------------------------------------------------------------------


FastpathParts: Any = pxla.MeshExecutableFastpathData
"""All that C++ needs to run an executable for a call; of a record without the executable."""


def run_loaded(executable: Any, parts: Any, call: ParsedCall) -> tuple[Any, Any]:
    """Run an executable once, and give C++ what it needs to run it again: the outputs and the fast-path data.

    Raises whatever JAX raises when it runs an executable.

    Args:
        executable: as XLA loaded it.
        parts: of the record that belongs to it.
        call: is answered.
    """
    # C++ takes keys apart into their arrays; the shardings and layouts are those of the arrays.
    arrays = jax_trees.dispatch_registry.flatten(list(call.leaves))[0]
    results = zip(parts.out_avals, parts.out_shardings, parts.out_committed, strict=True)
    execute = pxla.ExecuteReplicated(
        executable,
        call.name,
        executable.client,
        pxla.InputsHandler(parts.in_shardings, parts.in_device_local_layouts),
        pxla.ResultsHandler(
            [pxla.global_aval_to_result_handler(*result) for result in results], parts.out_shardings, parts.out_avals
        ),
        [],
        [],
        None,
        False,
        {number for number, kept in enumerate(parts.kept_var_bitvec) if kept},
        None,
    )
    outputs = parts.out_pytree_def.unflatten(execute(*arrays))
    return outputs, parts._replace(xla_executable=executable)


# -- what the parts are made of ------------------------------------------------------------------------------------


def make_tree(node: tuple[type, Any] | None, children: Sequence[Any]) -> Any:
    """A tree of outputs, as C++ needs it, from its uppermost node, None for a leaf, and its children.

    Raises a `ValueError` for a class that is not registered, and others for data that does not fit.

    Args:
        node: class and data.
        children: trees.
    """
    registry = jax_trees.dispatch_registry
    if node is not None and node[1] is not None and issubclass(node[0], tuple) and node[0] is not tuple:
        # A named tuple that is registered as a node of its own: JAX would make a mere named tuple of it.
        below = [each for child in children for each in child.__getstate__()[1]]
        leaves = sum(child.num_leaves for child in children)
        made = _jax.pytree.PyTreeDef.__new__(_jax.pytree.PyTreeDef)
        made.__setstate__((registry, [*below, (_CUSTOM, len(children), node[1], node[0], leaves, len(below) + 1)]))
        return made
    return _jax.pytree.PyTreeDef.from_node_data_and_children(registry, node, list(children))


def key_type_name(dtype: Any) -> str | None:
    """The name of the implementation of keys of this type; None for other types of elements."""
    implementation: Any = getattr(dtype, "_impl", None)
    is_known = isinstance(dtype, jax_prng.KeyTy) and jax_prng.prngs.get(implementation.name) is implementation
    return str(implementation.name) if is_known else None


def has_logical_devices(sharding: Any) -> bool:
    """Whether a named sharding is of a program that is compiled for devices that it does not know."""
    return sharding._logical_device_ids is not None
