"""JAX's global registries that act after lowering: what they hold is in the key, or the program is not cached."""

from __future__ import annotations

import json

import pytest

# A pass that makes tanh of sine: the opcode of an instruction is field 2 of its message, and both names have four
# letters. sin(1) is 0.84, tanh(1) 0.76.
PASS = """
    import json, os, sys
    import jax
    import ejcache

    cache_dir, *steps = sys.argv[1:]

    def to_tanh(hlo):
        return hlo.replace(b"\\x12\\x04sine", b"\\x12\\x04tanh")

    def step(name):
        if name == "enable":
            return ejcache.enable(cache_dir, min_compile_seconds=0)
        if name == "disable":
            return ejcache.disable()
        from jax.extend import xla

        if name != "import":
            platforms = None if name == "everywhere" else "cpu"
            xla.register_hlo_module_transformation(to_tanh, name="tanh", platforms=platforms)

    for name in steps:
        step(name)
    import jax.numpy as jnp

    found = float(jax.jit(lambda x: jnp.sin(x) * 1.0)(1.0))
    counts = ejcache.active().stats() if ejcache.active() else None
    print(json.dumps({
        "value": {0.84: "sine", 0.76: "tanh"}[round(found, 2)],
        "hits": counts.hits, "stores": counts.stores, "skipped": counts.amounts.get("skip_hlo_pass", 0),
    }))
"""


@pytest.fixture
def run(run_forked, tmp_path):
    """Run each list of steps in a process of its own, and then the program."""

    def run(*lists: tuple[str, ...], program: str = PASS, env: dict | None = None) -> list[dict]:
        each = (run_forked(program, str(tmp_path / "cache"), *steps, env=env).stdout for steps in lists)
        return [json.loads(text.splitlines()[-1]) for text in each]

    return run


PLAIN = ("enable",)
PASSES = [
    ("enable", "register"),
    ("register", "enable"),  # before it was enabled
    ("everywhere", "enable"),
    ("enable", "disable", "everywhere", "enable"),  # while it was disabled
]


def test_a_pass_keeps_its_programs_out(run):
    """Nothing is stored or found with it; that is counted, and whoever has none hits.

    flax, optax and equinox import the module of the function; that registers nothing.
    """
    plain, *passed, imported = run(PLAIN, *PASSES, ("import", "enable", "disable", "enable"))

    assert (plain["value"], plain["hits"], plain["skipped"]) == ("sine", 0, 0)
    assert plain["stores"] > 0
    for each in passed:
        assert (each["value"], each["hits"], each["stores"], each["skipped"] > 0) == ("tanh", 0, 0, True)
    assert (imported["value"], imported["hits"] > 0) == ("sine", True)


# -- custom calls --------------------------------------------------------------------------------------------------

# LAPACK's Cholesky factor under a name that JAX does not know, in a call that says that it has one batch dimension.
BATCHED = """
    import json, sys
    import jax, jax.numpy as jnp, numpy as np
    from jax.extend.core import Primitive
    from jax.interpreters import mlir
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from jaxlib import lapack
    from jax._src.lax.linalg import _build_sdy_sharding_rule
    import ejcache

    cache_dir, *steps = sys.argv[1:]
    lapack._lapack.initialize()
    jax.ffi.register_ffi_target("factor", lapack._lapack.registrations()["lapack_spotrf_ffi"], platform="cpu")
    factor = Primitive("factor")
    factor.multiple_results = True
    factor.def_abstract_eval(lambda x: (x, jax.core.ShapedArray(x.shape[:-2], np.int32)))

    def lowering(ctx, x):
        said = {
            "mhlo.frontend_attributes": mlir.ir_attribute({"num_batch_dims": "1"}),
            "sdy.sharding_rule": _build_sdy_sharding_rule(ctx.module_context, 1, ctx.avals_in, ctx.avals_out),
        }
        layouts = {"operand_layouts": [(1, 2, 0)], "result_layouts": [(1, 2, 0), (0,)]}
        return jax.ffi.ffi_lowering("factor", **layouts, extra_attributes=said)(ctx, x, uplo=np.uint8(ord("L")))

    mlir.register_lowering(factor, lowering)
    for step in steps:
        if step == "enable":
            ejcache.enable(cache_dir, min_compile_seconds=0)
        elif step == "backend":
            jax.devices()
        else:
            jax.ffi.register_ffi_target_as_batch_partitionable(step)

    placed = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
    x = np.stack([np.eye(4, dtype=np.float32) * (i + 1) ** 2 for i in range(8)])
    program = jax.jit(lambda x: factor.bind(x)[0], in_shardings=placed, out_shardings=placed).lower(x).compile()
    assert np.allclose(np.diagonal(program(jax.device_put(x, placed)), axis1=1, axis2=2)[:, 0], np.arange(8) + 1)
    counts = ejcache.active().stats()
    print(json.dumps({
        "value": "gathered" if "all-gather" in program.as_text() else "partitioned",
        "hits": counts.hits, "stores": counts.stores, "skipped": counts.amounts.get("skip_partitioning", 0),
    }))
"""
TWO_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}


def test_a_custom_call_that_is_partitioned_by_its_batch_is_another_program(run):
    """Filled with the registration and read without it, wherever it can be known.

    After JAX has made its backends and before ejcache is enabled, JAX keeps no list of what is registered: a program
    that nobody saw registered is kept out.
    """
    batched = [("enable", "factor"), ("factor", "enable"), ("enable", "backend", "factor")]
    unseen = ("backend", "factor", "enable")
    order = [*batched, PLAIN, unseen]

    found = dict(zip(order, run(*order, program=BATCHED, env=TWO_DEVICES), strict=True))

    assert {steps: each["value"] for steps, each in found.items()} == {
        PLAIN: "gathered",
        **dict.fromkeys([*batched, unseen], "partitioned"),
    }
    missed = [order[0], PLAIN]
    assert [steps for steps in order if found[steps]["stores"]] == missed
    assert [steps for steps in order if not found[steps]["hits"]] == [*missed, unseen]
    assert [steps for steps in order if found[steps]["skipped"]] == [unseen]


# A call that the library behind it triples, and that a registered Python function replaces by one that doubles.
PARTITIONED = """
    import ctypes, io, json, sys
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from jaxlib import xla_client
    import ejcache

    cache_dir, *steps = sys.argv[1:]
    cache = ejcache.enable(cache_dir, min_compile_seconds=0)

    @ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_float * 8), ctypes.POINTER(ctypes.POINTER(ctypes.c_float * 8)))
    def triple(out, arguments):
        for place in range(8):
            out[0][place] = arguments[0][0][place] * 3

    def partition(shapes, shardings, result_shape, result_sharding, config):
        shape = jax.ShapeDtypeStruct((8,), np.float32)
        content = io.BytesIO()
        jax.jit(lambda x: x * 2).lower(shape).compiler_ir().operation.write_bytecode(content)
        everywhere = xla_client.HloSharding.replicate()
        return content.getvalue(), [everywhere], everywhere

    jax.ffi.register_ffi_target("times", jax.ffi.pycapsule(triple), platform="cpu", api_version=0)
    if "partitioned" in steps:
        xla_client.register_custom_call_partitioner(
            "times", lambda sharding, shape, config: sharding, partition, lambda *arguments: None
        )
    placed = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
    shape = jax.ShapeDtypeStruct((8,), np.float32)
    program = jax.jit(lambda x: jax.ffi.ffi_call("times", shape, custom_call_api_version=1)(x), out_shardings=placed)
    value = program(jax.device_put(np.ones(8, np.float32), placed))
    stats = cache.stats()
    print(json.dumps({
        "value": float(value[0]), "hits": stats.hits, "stores": stats.stores,
        "skipped": stats.amounts.get("skip_partitioning", 0),
    }))
"""


def test_a_call_that_a_registered_function_partitions_is_not_cached(run):
    """Its Python function has no identity in another process, so the program has no key while it is registered."""
    order = ["plain", "partitioned"]

    each = run(*((step,) for step in order), program=PARTITIONED, env=TWO_DEVICES)
    found = dict(zip(order, each, strict=True))

    assert (found["partitioned"]["value"], found["plain"]["value"]) == (2.0, 3.0)
    assert (found["partitioned"]["hits"], found["partitioned"]["skipped"]) == (0, 1)
    assert (found["plain"]["hits"], found["plain"]["stores"], found["plain"]["skipped"]) == (0, 1, 0)


TARGET = """
    import ctypes, json, sys
    import jax, numpy as np
    import ejcache

    cache_dir, factor = sys.argv[1:]

    @ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_float), ctypes.POINTER(ctypes.POINTER(ctypes.c_float)))
    def times(out, arguments):
        out[0] = arguments[0][0] * float(factor)

    cache = ejcache.enable(cache_dir, min_compile_seconds=0)
    jax.ffi.register_ffi_target("times", jax.ffi.pycapsule(times), platform="cpu", api_version=0)
    result = jax.ShapeDtypeStruct((), np.float32)
    value = jax.jit(lambda x: jax.ffi.ffi_call("times", result, custom_call_api_version=1)(x))(np.float32(3))
    print(json.dumps({"value": float(value), "hits": cache.stats().hits}))
"""


def test_the_function_behind_a_custom_call_is_that_of_the_process(run):
    """An executable names its targets, and XLA looks them up when it loads it; so they are not in the key."""
    first, second = run(("2",), ("5",), program=TARGET)

    assert (first["value"], second["value"]) == (6.0, 15.0)
    assert (first["hits"], second["hits"]) == (0, 1)
