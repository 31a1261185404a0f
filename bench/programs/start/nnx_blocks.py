"""A transformer of `size` blocks in Flax NNX: making it, and one step of Adam."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 64, 4, 256, 32, 2


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm_1, self.norm_2 = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        mask = nnx.make_causal_mask(jnp.ones(x.shape[:2]))
        x = x + self.attention(self.norm_1(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norm_2(x))))


class Model(nnx.Module):
    def __init__(self, blocks: int, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(blocks)])
        self.head = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@nnx.jit
def train_step(model: Model, optimizer: Any, tokens: Any) -> Any:
    def loss(model: Model) -> Any:
        losses = optax.softmax_cross_entropy_with_integer_labels(model(tokens[:, :-1]), tokens[:, 1:])
        return losses.mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


def calls(size: int) -> list[Any]:
    """The model, then a step of its training."""
    made: list[Any] = []
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (BATCH, LENGTH + 1), dtype=np.int32)

    def make() -> Any:
        model = Model(size, nnx.Rngs(0))
        made.extend((model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)))
        return jax.tree.leaves(nnx.state(model, nnx.Param))

    return [make, lambda: train_step(*made, tokens)]
