"""A decoder of 1.7 billion parameters, whose training step is compiled for devices that are elsewhere.

    ejcache warm examples/decoder.py:train_step --target tpu:v5e:16x16
    ejcache warm examples/decoder.py:train_step --target NAME          # saved by `ejcache target save NAME`

No array is made: the whole state comes from `jax.eval_shape`. `BATCH` in the environment is the batch of all devices,
and `UNROLLED=1` compiles each layer instead of a scan over them.
"""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import ejcache

LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH = 24, 2048, 16, 32_000, 2048


def init(key):
    """The state: parameters in fp32, moments of AdamW, and the number of the step."""
    shapes = {
        "attention": (LAYERS, WIDTH, 4 * WIDTH),
        "up": (LAYERS, WIDTH, 8 * WIDTH),
        "down": (LAYERS, 4 * WIDTH, WIDTH),
        "embedding": (VOCABULARY, WIDTH),
        "logits": (WIDTH, VOCABULARY),
    }
    keys = dict(zip(shapes, jax.random.split(key, len(shapes)), strict=True))
    parameters = {name: jax.random.normal(keys[name], shape) * 0.02 for name, shape in shapes.items()}
    return {"parameters": parameters, "moments": optax.adamw(3e-4).init(parameters), "step": jnp.zeros((), jnp.int32)}


def block(x, layer):
    """One layer."""
    query, key, value, gate = jnp.split(normal(x) @ layer["attention"].astype(x.dtype), 4, axis=-1)
    heads = [each.reshape(*each.shape[:-1], HEADS, -1) for each in (query, key, value)]
    attended = jax.nn.dot_product_attention(*heads, is_causal=True).reshape(x.shape)
    x = x + attended * jax.nn.sigmoid(gate)
    left, right = jnp.split(normal(x) @ layer["up"].astype(x.dtype), 2, axis=-1)
    return x + (jax.nn.silu(left) * right) @ layer["down"].astype(x.dtype), None


def normal(x):
    """Root mean square normalisation."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def loss_of(parameters, tokens):
    """Cross entropy of the next token."""
    layers = {name: parameters[name] for name in ("attention", "up", "down")}
    x = parameters["embedding"].astype(jnp.bfloat16)[tokens]
    unroll = LAYERS if os.environ.get("UNROLLED") == "1" else 1
    x, _ = jax.lax.scan(jax.checkpoint(block), x, layers, unroll=unroll)
    logits = normal(x[:, :-1]) @ parameters["logits"].astype(x.dtype)
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), tokens[:, 1:]).mean()


def step(state, tokens):
    """One step of training."""
    loss, gradients = jax.value_and_grad(loss_of)(state["parameters"], tokens)
    updates, moments = optax.adamw(3e-4).update(gradients, state["moments"], state["parameters"])
    parameters = optax.apply_updates(state["parameters"], updates)
    return {"parameters": parameters, "moments": moments, "step": state["step"] + 1}, loss


def train_step(devices):
    """Compile the step for these devices; parameters and batch are split over all of them."""
    mesh = Mesh(np.array(devices), "fsdp")
    whole = NamedSharding(mesh, PartitionSpec())

    def placed(shape):
        # The last dimension that every device can have a part of.
        places = [place for place, size in enumerate(shape.shape) if place and size % len(devices) == 0]
        axes = ["fsdp" if place in places[-1:] else None for place in range(shape.ndim)]
        return NamedSharding(mesh, PartitionSpec(*axes))

    state = jax.eval_shape(init, jax.eval_shape(lambda: jax.random.key(0)))
    shardings = jax.tree.map(placed, state)
    batch = NamedSharding(mesh, PartitionSpec("fsdp"))
    jitted = jax.jit(step, in_shardings=(shardings, batch), out_shardings=(shardings, whole), donate_argnums=0)
    state = jax.tree.map(lambda each, to: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=to), state, shardings)
    tokens = jax.ShapeDtypeStruct((int(os.environ.get("BATCH", "256")), LENGTH), jnp.int32, sharding=batch)
    ejcache.warm(jitted, state, tokens)
