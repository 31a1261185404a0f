"""Programs that refer to Python functions of their process: host callbacks and custom_partitioning."""

from __future__ import annotations

import json

import jax
import pytest

CALLBACKS = """
    import json, sys
    import jax
    import jax.numpy as jnp
    import numpy as np
    import ejcache
    from jax.experimental import io_callback

    cache = ejcache.enable(sys.argv[1], min_compile_seconds=0)
    factor = float(sys.argv[2])
    seen = []
    shape = jax.ShapeDtypeStruct((4,), jnp.float32)

    @jax.jit
    def calling(x):
        y = jax.pure_callback(lambda v: np.asarray(v) * np.float32(factor), shape, x)
        z = jax.pure_callback(lambda v: np.asarray(v) + np.float32(factor), shape, y)
        io_callback(lambda v: seen.append(float(v)), None, jnp.sum(z), ordered=True)
        io_callback(lambda v: seen.append(-float(v)), None, z[0], ordered=True)
        jax.debug.print("printed {}", z[1])
        return z - y

    @jax.jit
    def looping(x):
        def body(i, v):
            return jax.pure_callback(lambda w: np.asarray(w) * np.float32(factor), shape, v)
        return jax.lax.fori_loop(0, 3, body, x)

    x = np.arange(4, dtype=np.float32)
    results = [calling(x).tolist(), looping(x).tolist()]
    jax.effects_barrier()
    stats = cache.stats()
    print(json.dumps({"results": results, "seen": seen, "hits": stats.hits, "stores": stats.stores,
                      "skipped": stats.amounts.get("skip_callback", 0), "errors": stats.errors}))
"""

PARTITIONING = """
    import json, sys
    import jax
    import jax.numpy as jnp
    import numpy as np
    import ejcache
    from jax.experimental.custom_partitioning import custom_partitioning
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    # What lies in front of the partitioner in memory is another thing in every process.
    padding = [bytearray(1000) for _ in range(int(sys.argv[2]))]
    cache = ejcache.enable(sys.argv[1], min_compile_seconds=0)

    @custom_partitioning
    def double(x):
        return x * 2

    def partition(mesh, arguments, result):
        placed = arguments[0].sharding
        return mesh, lambda x: x * 2, placed, (placed,)

    double.def_partition(
        infer_sharding_from_operands=lambda mesh, arguments, result: arguments[0].sharding,
        partition=partition,
        sharding_rule="i -> i",
    )
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))

    @jax.jit
    def partitioned(x):
        return double(x) + 1

    x = jax.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh, P("x")))
    results = partitioned(x).tolist()
    stats = cache.stats()
    print(json.dumps({"results": results, "hits": stats.hits, "stores": stats.stores, "errors": stats.errors,
                      "skipped": stats.amounts.get("skip_partitioning", 0)}))
"""


@pytest.fixture
def run(run_forked, tmp_path):
    def run(program: str, argument: str, **env: str) -> dict:
        env.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
        done = run_forked(program, str(tmp_path / "cache"), argument, env=env)
        return {**json.loads(done.stdout.splitlines()[-1]), "stdout": done.stdout, "stderr": done.stderr}

    return run


def expected(factor: float) -> list:
    x = [0.0, 1.0, 2.0, 3.0]
    return [[factor] * 4, [v * factor**3 for v in x]]


def right(found: dict, factor: float) -> bool:
    z = [v * factor + factor for v in (0.0, 1.0, 2.0, 3.0)]
    return (
        found["results"] == expected(factor)
        and found["seen"] == [sum(z), -z[0]]
        and f"printed {z[1]}" in found["stdout"]
        and found["errors"] == 0
    )


def test_host_callbacks_are_those_of_the_process(run):
    """Pure, ordered and printing callbacks run in a second process, whose functions are others.

    From JAX 0.11 on executables are restored with the callbacks of the process, by position, and so they are stored;
    before that they are not.
    """
    cached = jax.__version_info__ >= (0, 11)
    first, later = (run(CALLBACKS, factor) for factor in ("2", "5"))

    assert right(first, 2.0)
    assert right(later, 5.0)
    assert first["skipped"] == (0 if cached else 2)
    assert first["stores"] >= 2 if cached else first["stores"] == 0
    assert later["stores"] == 0
    assert later["hits"] == (first["stores"] if cached else 0)
    assert later["skipped"] == first["skipped"]


def test_custom_partitioning_is_left_out_and_said(run):
    """No key is made of a pointer: the process compiles, counts it and says it once, with what to do about it."""
    found = run(PARTITIONING, "0")

    assert found["results"] == [2 * v + 1.0 for v in range(8)]
    assert (found["skipped"], found["stores"], found["hits"], found["errors"]) == (1, 0, 0, 0)
    assert found["stderr"].count("uses custom_partitioning") == 1
    assert "jax_remove_custom_partitioning_ptr_from_cache_key" in found["stderr"]


def test_custom_partitioning_is_cached_where_the_user_says_so(run):
    """With JAX's flag the pointer is no part of the key, and the second process hits."""
    flag = {"JAX_REMOVE_CUSTOM_PARTITIONING_PTR_FROM_CACHE_KEY": "1"}
    first, second = run(PARTITIONING, "0", **flag), run(PARTITIONING, "977", **flag)

    assert first["results"] == second["results"] == [2 * v + 1.0 for v in range(8)]
    assert (first["skipped"], first["stores"]) == (0, 1)
    assert (second["skipped"], second["stores"], second["hits"]) == (0, 0, 1)


INSPECTING = """
    import json, sys
    import jax
    import jax.numpy as jnp
    import numpy as np
    import ejcache
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    cache = ejcache.enable(sys.argv[1], min_compile_seconds=0)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
    x = jax.device_put(np.arange(8, dtype=np.float32), sharding)
    seen = []
    for _ in range(int(sys.argv[2])):
        jax.clear_caches()

        @jax.jit
        def inspected(x):
            y = x * 2
            jax.debug.inspect_array_sharding(y, callback=seen.append)
            return y + 1

        results = inspected(x).tolist()
    stats = cache.stats()
    print(json.dumps({"results": results, "seen": len(seen), "stores": stats.stores, "hits": stats.hits,
                      "errors": stats.errors, "skipped": stats.amounts.get("skip_inspection", 0)}))
"""


def test_a_program_that_inspects_shardings_is_left_out_and_said(run):
    """Its function runs while it compiles; the flag for partitioners does not make it cacheable."""
    found = run(INSPECTING, "2", JAX_REMOVE_CUSTOM_PARTITIONING_PTR_FROM_CACHE_KEY="1")

    assert found["results"] == [2 * v + 1.0 for v in range(8)]
    assert (found["seen"], found["skipped"]) == (2, 2)
    assert (found["stores"], found["hits"], found["errors"]) == (0, 0, 0)
    assert found["stderr"].count("inspects shardings") == 1
