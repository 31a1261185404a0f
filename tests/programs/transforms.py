"""Every way to a compilation that JAX has, over eight virtual devices; prints a digest of what it computed."""

import functools
import hashlib
import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

results = []


def keep(value):
    results.extend(np.asarray(leaf) for leaf in jax.tree.leaves(value))


x = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("a", "b"))
backwards = Mesh(np.array(jax.devices())[::-1].reshape(4, 2), ("a", "b"))


def f(x):
    return jnp.sin(x) @ jnp.cos(x).T


keep(jax.jit(f)(x))
keep(jax.jit(jax.grad(lambda x: f(x).sum()))(x))
keep(jax.jit(jax.vmap(lambda row: jnp.cumsum(row) * 2))(x))
keep(jax.jit(f).lower(x).compile()(x))
keep(jax.pmap(lambda row: row * jax.lax.axis_index("i"), axis_name="i")(x))
for m in (mesh, backwards):
    sharded = jax.device_put(x, NamedSharding(m, P("a", "b")))
    keep(jax.jit(f, out_shardings=NamedSharding(m, P("b")))(sharded))
    keep(
        jax.jit(
            jax.shard_map(
                lambda s: jax.lax.psum(s, "a") * jax.lax.axis_index("b"),
                mesh=m,
                in_specs=P("a", "b"),
                out_specs=P(None, "b"),
            )
        )(sharded)
    )


@functools.partial(jax.jit, static_argnums=1, donate_argnums=0)
def scaled(x, factor):
    return x * factor


keep(scaled(jax.device_put(x.copy()), 2))
keep(scaled(jax.device_put(x.copy()), 3))
keep(jax.jit(lambda x: jax.lax.scan(lambda c, row: (c + row, c * row), jnp.zeros(8), x))(x))
keep(jax.jit(lambda x: jax.lax.while_loop(lambda c: c[0, 0] < 10, lambda c: c + jax.jit(jnp.abs)(c) + 1, x))(x))
keep(jax.jit(lambda x: jnp.sort(x, axis=0))(x))
print(hashlib.sha256(b"".join(leaf.tobytes() for leaf in results)).hexdigest())
