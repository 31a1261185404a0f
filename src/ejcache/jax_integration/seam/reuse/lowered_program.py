"""Writes a lowered program as bytes and plain data, and makes one from them without a trace.

JAX compiles a lowered program by `pxla.MeshComputation.compile`. It does not ask where the `MeshComputation` is from:
key, cache, PGLE and checks follow as they do after a trace. So what is written here is what a `MeshComputation` is made
of:

    program := an object of:
      name platforms options tuple_args committed kept donated     as JAX has them
      devices                                                      positions among the backend's
      in out                                                       [aval, …]
      in_shardings out_shardings intermediate                      [sharding, …]
      in_layouts out_layouts                                       [layout, …]
      mesh                                                         of the context
      calls                                                        targets of custom calls
    aval     := [dtype, [size, …], weak, mesh, spec, memory]       the dtype of keys is "key<implementation>"
    mesh     := null | ["empty"] | ["concrete", [device, …], [size, …], [name, …], [type, …]]
              | ["abstract", [size, …], [name, …], [type, …], null | [platform, kind, cores]]
    spec     := [null | name | [name, …] | {}, …]                  {} is a dimension without a constraint
    sharding := null | ["single", device, memory] | ["named", mesh, spec, memory] | ["replicated", memory]
    layout   := null | [[axis, …], tiles | null, bits]

What cannot be written so is refused, and what was written is read once more and compared with what it was made of.

The file that makes a program runs LAPACK's initialisation where a custom call needs it: JAX does it while it lowers.

Read for this: jax 0.10.2 and 0.12.0.1, `pjit.py`, `stages.py`, `interpreters/pxla.py`, `interpreters/mlir.py`.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections import deque
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax
from jax._src import core as jax_core
from jax._src import pjit as jax_pjit
from jax._src import tree_util as jax_trees
from jax._src import util as jax_util
from jax._src.interpreters import mlir, pxla
from jaxlib import lapack
from jaxlib.mlir import ir

from ejcache.jax_integration.lowering.walking import operations_in
from ejcache.jax_integration.seam.reuse.calls import RefusedError
from ejcache.jax_integration.seam.reuse.placements import DevicePlaces, decode_layout, encode_layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ejcache.jax_integration.seam.reuse.calls import ParsedCall

_COMPUTATION: Final = (
    "self name hlo const_args donated_invars platforms compiler_options_kvs device_assignment compile_args"
)
_FASTPATH: Final = "executable out_tree args_flat out_flat effects consts_for_constvars pgle_profiler const_args"
_COMPILE: Final = frozenset({
    *("global_in_avals", "global_out_avals", "in_shardings", "out_shardings", "tuple_args", "unordered_effects"),
    *("ordered_effects", "host_callbacks", "keepalive", "kept_var_idx", "mut", "backend", "num_devices", "committed"),
    *("in_layouts", "out_layouts", "shape_poly_state", "all_args_info", "pgle_profiler", "intermediate_shardings"),
    "context_mesh",
})  # fmt: skip
"""What `compile_args` of a lowered program must have, and nothing else."""
_EMPTY: Final = ("unordered_effects", "ordered_effects", "host_callbacks", "keepalive", "mut", "pgle_profiler")
_COMPARED: Final = (
    *("global_in_avals", "global_out_avals", "in_shardings", "out_shardings", "in_layouts", "out_layouts"),
    *("tuple_args", "kept_var_idx", "committed", "num_devices", "intermediate_shardings", "context_mesh"),
)
_LAPACK: Final = "lapack_"
_OF_XLA: Final = (
    *("AllocateBuffer", "PartialReduce", "SPMDFullToShardShape", "SPMDShardToFullShape", "Sharding", "TopK"),
    *("annotate_device_placement", "tpu_custom_call"),
)
"""Custom calls that are part of XLA, or of the program itself."""
_OF_XLA_PREFIXES: Final = ("mhlo.", "stablehlo.", "xla.sdy.", "chlo.")
_MHLO: Final = "jaxlib.mlir.dialects.mhlo"
_OF_MHLO: Final = "jaxlib.mlir._mlir_libs._mlirHlo"
_OF_BUILTIN: Final = "jaxlib.mlir.dialects.builtin"


def mismatches() -> list[str]:
    """List how this JAX differs from what is used here; empty if it does not."""
    context = ("JaxIrContext", "upstream_dialects", "global_thread_pool", "dialects")
    gone = [f"jax._src.interpreters.mlir.{name} is gone" for name in context if not hasattr(mlir, name)]
    expected = ((pxla.MeshComputation.__init__, _COMPUTATION), (jax_pjit._get_fastpath_data, _FASTPATH))
    return gone + [
        f"{function.__qualname__} takes {tuple(inspect.signature(function).parameters)}"
        for function, parameters in expected
        if " ".join(inspect.signature(function).parameters) != parameters
    ]


class Lowered(NamedTuple):
    """What a trace and a lowering gave.

    Attributes:
        computation: JAX's `MeshComputation`.
        tree: of the results.
        has_arrays: True if arrays of JAX are baked into the program as constants.
    """

    computation: Any
    tree: Any
    has_arrays: bool

    @property
    def module(self) -> Any:
        """The lowered module."""
        return self.computation._hlo


def lower(jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lowered:
    """Trace and lower a call. JAX remembers both, so that its own miss, which must follow, repeats neither.

    Raises whatever the function raises.

    Raises:
        RefusedError: the trace holds values of another trace.
    """
    traced = jitted.trace(*args, **kwargs)
    if traced._consts:
        raise RefusedError("it closes over values of another trace")
    return Lowered(traced.lower()._lowering, traced.out_tree, any(True for _ in _arrays_in(traced.jaxpr, set())))


def _arrays_in(jaxpr: Any, seen: set[int]) -> Iterator[Any]:
    """Yield the arrays of JAX among the constants of a jaxpr and of those within it."""
    if id(jaxpr) in seen:
        return
    seen.add(id(jaxpr))
    yield from (const for const in getattr(jaxpr, "consts", ()) if isinstance(const, jax.Array))
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    for equation in getattr(inner, "eqns", ()):
        for value in equation.params.values():
            for each in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(each, "eqns") or hasattr(each, "jaxpr"):
                    yield from _arrays_in(each, seen)


# -- writing ---------------------------------------------------------------------------------------------------------


def encode_program(lowered: Lowered) -> tuple[dict[str, Any], bytes]:
    """Write a lowered program as plain data, and its module as bytes.

    Raises:
        RefusedError: it has what cannot be written.
    """
    computation = lowered.computation
    args = computation.compile_args
    if frozenset(args) != _COMPILE:
        raise RefusedError(f"this JAX compiles with other arguments: {', '.join(sorted(_COMPILE ^ set(args)))}")
    if args["host_callbacks"]:
        raise RefusedError("it calls back into Python")
    for name in _EMPTY:
        if args[name]:
            raise RefusedError(f"it has {name}")
    if computation.const_args:
        raise RefusedError("constants are given to it as arguments")
    if getattr(args["shape_poly_state"], "uses_dim_vars", False):
        raise RefusedError("it has shapes that are not numbers")
    places = DevicePlaces(args["backend"])
    devices = computation._device_list
    if devices is None:
        raise RefusedError("it is lowered for no device")
    calls = sorted(_custom_calls(computation._hlo))
    unknown = next((name for name in calls if not _is_known_call(name)), None)
    if unknown is not None:
        raise RefusedError(f"it calls the kernel {unknown}, which may be made ready while it is lowered")
    program = {
        "name": computation._name,
        "platforms": list(computation._platforms),
        "options": [[name, _option(name, value)] for name, value in computation._compiler_options_kvs],
        "donated": [int(each) for each in computation._donated_invars],
        "devices": places.positions(devices),
        "tuple_args": bool(args["tuple_args"]),
        "committed": bool(args["committed"]),
        "kept": sorted(args["kept_var_idx"]),
        "in": [places.encode_aval(each) for each in args["global_in_avals"]],
        "out": [places.encode_aval(each) for each in args["global_out_avals"]],
        "in_shardings": [places.encode(each) for each in args["in_shardings"]],
        "out_shardings": [places.encode(each) for each in args["out_shardings"]],
        "in_layouts": [encode_layout(each) for each in args["in_layouts"]],
        "out_layouts": [encode_layout(each) for each in args["out_layouts"]],
        "intermediate": [places.encode(each) for each in args["intermediate_shardings"] or ()],
        "mesh": places.encode_mesh(args["context_mesh"]),
        "calls": calls,
    }
    again = _compile_args(program, places, tuple(devices))
    for name in _COMPARED:
        if not _is_equal(args[name], again[name]):
            raise RefusedError(f"its {name} would be read otherwise than they are")
    return program, bytes(mlir.module_to_bytecode(computation._hlo))


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)) or one is None:
        one, other = list(one or ()), list(other or ())
        return len(one) == len(other) and all(type(a) is type(b) and a == b for a, b in zip(one, other, strict=True))
    return bool(one == other)


def _option(name: str, value: Any) -> Any:
    if type(name) is not str or type(value) not in {bool, int, float, str}:
        raise RefusedError(f"the compiler option {name} is a {type(value).__name__}")
    return value


def _custom_calls(module: Any) -> set[str]:
    return {
        ir.StringAttr(operation.attributes["call_target_name"]).value
        for operation in operations_in(module)
        if operation.name == "stablehlo.custom_call"
    }


def _is_known_call(name: str) -> bool:
    return name in _OF_XLA or name.startswith((_LAPACK, *_OF_XLA_PREFIXES))


# -- reading ---------------------------------------------------------------------------------------------------------


def decode_program(program: Mapping[str, Any], module: bytes, backend: Any) -> Any:
    """Return the `MeshComputation` that `encode_program` wrote; the same one for the same program, with what it loaded.

    Raises a `ValueError` or another error of Python where it is none.

    Args:
        program: as `encode_program` gave it.
        module: its bytes, whose digest the caller has compared.
        backend: the PJRT client to compile for.
    """
    return _decode(json.dumps(program, sort_keys=True), module, backend)


# JAX's own memory of programs, which `jax.clear_caches` empties: the first call of a trainer often has arrays of NumPy
# and the second one those of JAX, which are two calls, and one program. Without it, the second one would load it again.
@jax_util.cache(max_size=256)  # type: ignore[untyped-decorator]  # of JAX
def _decode(text: str, module: bytes, backend: Any) -> Any:
    program = json.loads(text)
    places = DevicePlaces(backend)
    devices = places.at(program["devices"])
    if not all(map(_is_known_call, program["calls"])):
        raise ValueError("it calls a kernel that nobody knows")
    if any(name.startswith(_LAPACK) for name in program["calls"]):
        lapack._lapack.initialize()
    arguments = _compile_args(program, places, devices)
    with _context() as context:
        parsed = ir.Module.parse(module, context=context)
    if _number_of_arguments(parsed) != len(arguments["global_in_avals"]):
        raise ValueError("its module takes another number of arguments")
    return pxla.MeshComputation(
        program["name"],
        parsed,
        [],
        tuple(bool(each) for each in program["donated"]),
        tuple(program["platforms"]),
        tuple((name, value) for name, value in program["options"]),
        devices,
        **arguments,
    )


_ready: Final[deque[Any]] = deque(maxlen=1)
"""A context that was made ahead, for the first module."""


def make_context_ahead() -> None:
    """Import what JAX imports when it lowers, and needs for a module that is read, too; make a context for one."""
    import_module(_OF_BUILTIN)
    _ready.append(_make_context())


def _context() -> Any:
    try:
        return _ready.pop()
    except IndexError:
        return _make_context()


def _make_context() -> Any:
    """Return a context for a module of JAX's, as `mlir.make_ir_context` makes it.

    That imports the Python classes of mhlo's operations, which takes longer than all else here, and nobody makes any.
    """
    if _MHLO in sys.modules:
        return mlir.make_ir_context()
    context = mlir.JaxIrContext()
    context.append_dialect_registry(mlir.upstream_dialects)  # the parser loads those that the module has
    context.set_thread_pool(mlir.global_thread_pool)
    for dialect in (mlir.dialects.sdy, mlir.dialects.mpmd, mlir.dialects.chlo, mlir.dialects.hlo):
        dialect.register_dialect(context)
    import_module(_OF_MHLO).register_mhlo_dialect(context)
    return context


def _number_of_arguments(module: Any) -> int | None:
    """Count the arguments of a module's main function; None if it has none.

    They are those of its first block: to read its type imports Python classes that nobody else needs.
    """
    functions = ir.SymbolTable(module.operation)
    if "main" not in functions:
        return None
    blocks = functions["main"].operation.regions[0].blocks
    return len(blocks[0].arguments) if len(blocks) else None


def _compile_args(program: Mapping[str, Any], places: DevicePlaces, devices: Sequence[Any]) -> dict[str, Any]:
    count = len(program["in"])
    if not len(program["in_shardings"]) == len(program["in_layouts"]) == len(program["kept"]) == count:
        raise ValueError("its arguments are not as many as their shardings")
    return {
        "global_in_avals": [places.decode_aval(each) for each in program["in"]],
        "global_out_avals": [places.decode_aval(each) for each in program["out"]],
        "in_shardings": tuple(places.decode(each, devices) for each in program["in_shardings"]),
        "out_shardings": tuple(places.decode(each, devices) for each in program["out_shardings"]),
        "in_layouts": tuple(decode_layout(each) for each in program["in_layouts"]),
        "out_layouts": tuple(decode_layout(each) for each in program["out_layouts"]),
        "intermediate_shardings": [places.decode(each, devices) for each in program["intermediate"]],
        "context_mesh": places.decode_mesh(program["mesh"]),
        "tuple_args": program["tuple_args"],
        "committed": program["committed"],
        "kept_var_idx": set(program["kept"]),
        "num_devices": len(program["devices"]),
        "backend": places.backend,
        "unordered_effects": [],
        "ordered_effects": [],
        "host_callbacks": [],
        "keepalive": [],
        "mut": None,
        "shape_poly_state": None,
        "all_args_info": None,
        "pgle_profiler": None,
    }


# -- running ---------------------------------------------------------------------------------------------------------


def module_of(computation: Any) -> Any:
    """Return the module of a `MeshComputation`."""
    return computation._hlo


def run(computation: Any, tree: Any, call: ParsedCall) -> tuple[Any, Any, bool]:
    """Compile or load a program, run it once, and give what a miss of JAX gives.

    Raises whatever JAX raises when it compiles or runs a program.
    """
    arguments = list(map(jax_core.full_lower, call.leaves))
    jax_core.check_eval_args(arguments)
    compiled = computation.compile()
    results = compiled.unsafe_call(*arguments)
    data = jax_pjit._get_fastpath_data(compiled, tree, arguments, results, (), [], None, [])
    return jax_trees.tree_unflatten(tree, results), data, False
