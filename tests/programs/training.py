"""Training steps of four frameworks, compiled for devices elsewhere from `jax.eval_shape`: `training.py CACHE`."""

from __future__ import annotations

import json
import sys

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from flax.training import train_state
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import ejcache

BATCH = (8, 16)


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(1)(linen.relu(linen.Dense(32)(x)))


def linen_program(devices):
    """A `TrainState`, as in Flax's examples."""
    model, optimizer = Linen(), optax.adamw(1e-3)

    def init(key):
        parameters = model.init(key, jnp.ones((1, BATCH[1])))["params"]
        return train_state.TrainState.create(apply_fn=model.apply, params=parameters, tx=optimizer)

    @jax.jit
    def linen_step(state, x):
        loss, grads = jax.value_and_grad(lambda p: jnp.mean(state.apply_fn({"params": p}, x) ** 2))(state.params)
        return state.apply_gradients(grads=grads), loss

    return linen_step, jax.jit(init), jax.eval_shape, None


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.first, self.last = nnx.Linear(BATCH[1], 32, rngs=rngs), nnx.Linear(32, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.first(x)))


def nnx_program(devices):
    """A model and an optimizer, split into a graph, which is static, and arrays."""

    def init(key):
        model = Nnx(nnx.Rngs(key))
        return nnx.split((model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)))

    @jax.jit
    def nnx_step(split, x):
        model, optimizer = nnx.merge(*split)
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean(m(x) ** 2))(model)
        optimizer.update(model, grads)
        return nnx.split((model, optimizer)), loss

    return nnx_step, jax.jit(init), jax.eval_shape, None


def equinox_program(devices):
    """`filter_jit`, whose `lower` takes what `filter_eval_shape` gives."""
    optimizer = optax.adamw(1e-3)

    def init(key):
        model = equinox.nn.MLP(BATCH[1], 1, 32, 1, key=key)
        return model, optimizer.init(equinox.filter(model, equinox.is_inexact_array))

    @equinox.filter_jit
    def equinox_step(state, x):
        model, moments = state
        loss, grads = equinox.filter_value_and_grad(lambda m: jnp.mean(jax.vmap(m)(x) ** 2))(model)
        updates, moments = optimizer.update(grads, moments, equinox.filter(model, equinox.is_inexact_array))
        return (equinox.apply_updates(model, updates), moments), loss

    return equinox_step, init, equinox.filter_eval_shape, None


def maxtext_program(devices):
    """A decoder whose state is sharded as rules say, with donation: the way of MaxText."""
    mesh = Mesh(np.array(devices).reshape(-1, 1), ("fsdp", "tensor"))
    optimizer = optax.adamw(1e-3)
    sharded, whole = NamedSharding(mesh, PartitionSpec("fsdp")), NamedSharding(mesh, PartitionSpec())

    def init(key):
        first, last = jax.random.split(key)
        layers = {"in": jax.random.normal(first, (4, 16, 32)), "out": jax.random.normal(last, (4, 32, 16))}
        return {"params": layers, "moments": optimizer.init(layers), "step": jnp.zeros((), jnp.int32)}

    def maxtext_step(state, x):
        def loss(layers):
            block = jax.checkpoint(lambda c, layer: (c + jnp.tanh(c @ layer["in"]) @ layer["out"], None))
            return jnp.mean(jax.lax.scan(block, x, layers)[0] ** 2)

        value, grads = jax.value_and_grad(loss)(state["params"])
        updates, moments = optimizer.update(grads, state["moments"], state["params"])
        layers = optax.apply_updates(state["params"], updates)
        return {"params": layers, "moments": moments, "step": state["step"] + 1}, value

    shapes = jax.eval_shape(init, jax.random.key(0))
    placed = jax.tree.map(lambda each: sharded if each.ndim else whole, shapes)
    step = jax.jit(maxtext_step, in_shardings=(placed, sharded), out_shardings=(placed, whole), donate_argnums=0)
    return step, jax.jit(init, out_shardings=placed), jax.eval_shape, placed


PROGRAMS = {each.__name__: each for each in (linen_program, nnx_program, equinox_program, maxtext_program)}


def batch(placed, array):
    if placed is None:
        return array
    sharding = NamedSharding(jax.tree.leaves(placed)[0].mesh, PartitionSpec("fsdp"))
    if isinstance(array, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
    return jax.device_put(array, sharding)


def without_memory(leaf):
    """An array of NumPy with this shape: what is no array is static to `filter_jit`."""
    return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf


def warm(devices):
    """Compiles the steps; no array is made."""
    for program in PROGRAMS.values():
        step, init, eval_shape, placed = program(devices)
        state = eval_shape(init, jax.eval_shape(lambda: jax.random.key(0)))
        if placed is not None:
            state = jax.tree.map(
                lambda each, s: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=s), state, placed
            )
        x = batch(placed, jax.ShapeDtypeStruct(BATCH, jnp.float32))
        ejcache.warm(step, *(jax.tree.map(without_memory, (state, x)) if program is equinox_program else (state, x)))


def main(url):
    """Two steps of each; what was compiled, and the losses."""
    from ejcache.jax_integration.seam.compilation_watch import before_each_compilation

    ejcache.enable(url, min_compile_seconds=0)
    made = []
    before_each_compilation(made.append)
    losses = {}
    for name, program in PROGRAMS.items():
        step, init, _, placed = program(jax.devices())
        # In one program, and not one for each operation.
        state = (equinox.filter_jit(init) if program is equinox_program else init)(jax.random.key(0))
        x = batch(placed, np.linspace(-1, 1, BATCH[0] * BATCH[1], dtype=np.float32).reshape(BATCH))
        losses[name] = []
        for _ in range(2):
            state, loss = step(state, x)
            losses[name].append(float(loss).hex())
    print(json.dumps({"compiled": sorted(set(made)), "losses": losses}))


if __name__ == "__main__":
    main(sys.argv[1])
