"""Equinox: a recurrent network learns which way spirals turn, with Optax."""

from __future__ import annotations

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax


class Network(eqx.Module):
    cell: eqx.nn.GRUCell
    out: eqx.nn.Linear
    bias: Any

    def __init__(self, width: int, key: Any) -> None:
        first, second = jax.random.split(key)
        self.cell = eqx.nn.GRUCell(2, width, key=first)
        self.out = eqx.nn.Linear(width, 1, use_bias=False, key=second)
        self.bias = jnp.zeros(1)

    def __call__(self, path: Any) -> Any:
        def step(hidden: Any, point: Any) -> Any:
            return self.cell(point, hidden), None

        hidden, _ = jax.lax.scan(step, jnp.zeros(self.cell.hidden_size), path)
        return jax.nn.sigmoid(self.out(hidden) + self.bias)


@eqx.filter_value_and_grad
def _loss(model: Network, paths: Any, turns: Any) -> Any:
    predicted = jax.vmap(model)(paths)[:, 0]
    return -jnp.mean(turns * jnp.log(predicted) + (1 - turns) * jnp.log(1 - predicted))


@eqx.filter_jit
def _accuracy(model: Network, paths: Any, turns: Any) -> Any:
    return jnp.mean((jax.vmap(model)(paths)[:, 0] > 0.5) == turns)


def calls(size: int) -> list[Any]:
    """The whole program; `size` is the number of steps."""
    return [partial(_main, size)]


def _main(steps: int) -> Any:
    random = np.random.default_rng(0)
    angles = np.linspace(0, 4 * np.pi, 16) + random.uniform(0, 2 * np.pi, (256, 1))
    turns = random.integers(0, 2, 256).astype(np.float32)
    radius = np.linspace(0, 1, 16)
    across = np.where(turns[:, None] == 1, np.sin(angles), -np.sin(angles)) * radius
    paths = np.stack([np.cos(angles) * radius, across], axis=-1).astype(np.float32)
    model = Network(16, jax.random.PRNGKey(0))
    optimizer = optax.adam(3e-3)
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model: Network, state: Any, paths: Any, turns: Any) -> Any:
        value, gradients = _loss(model, paths, turns)
        updates, state = optimizer.update(gradients, state)
        return eqx.apply_updates(model, updates), state, value

    losses = []
    for number in range(steps):
        chosen = slice(32 * (number % 8), 32 * (number % 8) + 32)
        model, state, value = step(model, state, paths[chosen], turns[chosen])
        losses.append(value)
    return losses, _accuracy(model, paths, turns)
