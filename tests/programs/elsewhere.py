"""Programs that are compiled for devices elsewhere, and run on those devices.

elsewhere.py all|few CACHE      runs them with the cache, and again as JAX compiles them without one
"""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import ejcache


def step(w, x):
    loss, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return loss, w - 0.1 * grad


def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2 + 1


def pallas(x):
    from jax.experimental import pallas as pl

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


def programs(devices):
    """Names, jitted functions and the arrays, as shapes with shardings, that each is called with."""
    mesh = Mesh(np.array(devices), "x")
    split, whole = NamedSharding(mesh, PartitionSpec("x")), NamedSharding(mesh, PartitionSpec())

    def shape(*dimensions, sharding=None, dtype=float):
        dtype = jax.dtypes.canonicalize_dtype(dtype)  # of 64 bits with JAX_ENABLE_X64
        return jax.ShapeDtypeStruct(dimensions, dtype, sharding=sharding)

    summed = jax.shard_map(
        lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=PartitionSpec("x"), out_specs=PartitionSpec()
    )
    return {
        "alone": (jax.jit(step), (shape(16, 4), shape(8, 16))),
        "donated": (jax.jit(lambda x: x * 2 + 1, donate_argnums=0), (shape(32),)),
        "random": (jax.jit(lambda x: x + jax.random.normal(jax.random.key(3), x.shape)), (shape(32),)),
        "lapack": (jax.jit(lambda x: jnp.linalg.cholesky(x @ x.T + 9 * jnp.eye(8))), (shape(8, 8),)),
        "eigenvalues": (jax.jit(lambda x: jnp.linalg.eigh(x + x.T)[0]), (shape(8, 8),)),
        "pallas": (jax.jit(pallas), (shape(8, 8),)),
        "sorted": (jax.jit(jnp.sort), (shape(64),)),
        "scanned": (jax.jit(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) * 2, c), x, None, 5)), (shape(8),)),
        "sharded": (jax.jit(step), (shape(16, 4, sharding=whole), shape(16, 16, sharding=split))),
        "summed": (jax.jit(summed), (shape(16, 4, sharding=split),)),
        "integers": (jax.jit(lambda x: jnp.cumsum(x) % 7), (shape(64, dtype=int),)),
        "gathered": (jax.jit(lambda x: x.sum(0), out_shardings=whole), (shape(16, 4, sharding=split),)),
        "transformed": (jax.jit(lambda x: jnp.abs(jnp.fft.fft(x))), (shape(32),)),
        "convolved": (jax.jit(lambda x: jnp.convolve(x, jnp.ones(3, x.dtype))), (shape(32),)),
    }


FEW = ("alone", "sharded", "summed")
"""Some on one device, and those on all of them."""


def warm(devices, names=None):
    """Compiles them for a target."""
    made = programs(devices)
    for name in names or made:
        function, shapes = made[name]
        ejcache.warm(function, *shapes)


def warm_few(devices):
    """Compiles a few of them."""
    warm(devices, FEW)


def run(names=None):
    """Runs them here; their results as bytes."""
    results = {}
    made = programs(jax.devices())
    for name in names or made:
        function, shapes = made[name]
        given = []
        for shape in shapes:
            array = np.linspace(-1, 1, int(np.prod(shape.shape))).reshape(shape.shape).astype(shape.dtype)
            if shape.sharding is not None:
                array = jax.make_array_from_callback(array.shape, shape.sharding, array.__getitem__)
            given.append(array)
        leaves = jax.tree.leaves(function(*given))
        results[name] = [np.asarray(own.data).tobytes().hex() for each in leaves for own in each.addressable_shards]
    return results


if __name__ == "__main__":
    from ejcache.jax_integration.seam.compilation_watch import before_each_compilation

    names = FEW if sys.argv[1] == "few" else None
    cache = ejcache.enable(sys.argv[2], min_compile_seconds=0)
    made = set()
    before_each_compilation(made.add)
    results = run(names)
    found = {"results": results, "compiled": sorted(made), "hits": cache.stats().hits}
    ejcache.disable()
    jax.clear_caches()
    print(json.dumps({**found, "plain": run(names)}))
