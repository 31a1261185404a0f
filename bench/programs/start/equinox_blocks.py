"""A transformer of `size` blocks in Equinox: making it, and one step of Adam."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 64, 4, 256, 32, 2


class Block(eqx.Module):
    norm_1: eqx.nn.LayerNorm
    norm_2: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        first, second, third = jax.random.split(key, 3)
        self.norm_1, self.norm_2 = eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=first)
        self.up = eqx.nn.Linear(WIDTH, 4 * WIDTH, key=second)
        self.down = eqx.nn.Linear(4 * WIDTH, WIDTH, key=third)

    def __call__(self, x: Any) -> Any:
        normal = jax.vmap(self.norm_1)(x)
        x = x + self.attention(normal, normal, normal, mask=np.tril(np.ones((LENGTH, LENGTH), bool)))
        return x + jax.vmap(self.down)(jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.norm_2)(x))))


class Model(eqx.Module):
    embed: eqx.nn.Embedding
    blocks: list[Block]
    head: eqx.nn.Linear

    def __init__(self, blocks: int, key: Any) -> None:
        first, last, *others = jax.random.split(key, blocks + 2)
        self.embed = eqx.nn.Embedding(VOCABULARY, WIDTH, key=first)
        self.blocks = [Block(other) for other in others]
        self.head = eqx.nn.Linear(WIDTH, VOCABULARY, key=last)

    def __call__(self, tokens: Any) -> Any:
        x = jax.vmap(self.embed)(tokens)
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.head)(x)


def _loss(model: Model, tokens: Any) -> Any:
    predicted = jax.vmap(model)(tokens[:, :-1])
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(predicted, tokens[:, 1:]))


def calls(size: int) -> list[Any]:
    """The model, then a step of its training."""
    optimizer = optax.adam(1e-3)
    made: list[Any] = []
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (BATCH, LENGTH + 1), dtype=np.int32)

    @eqx.filter_jit
    def train_step(model: Model, state: Any, tokens: Any) -> Any:
        value, gradients = eqx.filter_value_and_grad(_loss)(model, tokens)
        updates, state = optimizer.update(gradients, state, model)
        return eqx.apply_updates(model, updates), state, value

    def make() -> Any:
        model = Model(size, jax.random.PRNGKey(0))
        parameters = eqx.filter(model, eqx.is_array)
        made.extend((model, optimizer.init(parameters)))
        return jax.tree.leaves(parameters)

    return [make, lambda: train_step(*made, tokens)[2]]
