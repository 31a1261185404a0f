"""Optax with JAX alone: a schedule, clipping and weight decay fit a network, then L-BFGS ends the fit."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

WIDTHS = (1, 32, 32, 1)


def calls(size: int) -> list[Any]:
    """The whole program; `size` is the number of steps of the first optimizer."""
    return [partial(_main, size)]


def _network(parameters: Any, x: Any) -> Any:
    for weights, bias in parameters[:-1]:
        x = jnp.tanh(x @ weights + bias)
    weights, bias = parameters[-1]
    return x @ weights + bias


def _loss(parameters: Any, x: Any, y: Any) -> Any:
    return jnp.mean(optax.l2_loss(_network(parameters, x), y))


def _main(steps: int) -> Any:
    keys = jax.random.split(jax.random.key(0), len(WIDTHS))
    parameters = [
        (jax.random.normal(key, (rows, columns)) / np.sqrt(rows), jnp.zeros(columns))
        for key, rows, columns in zip(keys[:-1], WIDTHS[:-1], WIDTHS[1:], strict=True)
    ]
    x = jax.random.uniform(keys[-1], (128, 1), minval=-3, maxval=3)
    y = jnp.sin(2 * x)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, warmup_steps=3, decay_steps=steps)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
    state = optimizer.init(parameters)

    @jax.jit
    def step(parameters: Any, state: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(_loss)(parameters, x, y)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    for _ in range(steps):
        parameters, state, value = step(parameters, state, x, y)
    return value, _finish(parameters, x, y)


def _finish(parameters: Any, x: Any, y: Any) -> Any:
    solver = optax.lbfgs()

    def fit(parameters: Any) -> Any:
        return _loss(parameters, x, y)

    value_and_grad = optax.value_and_grad_from_state(fit)

    @jax.jit
    def step(parameters: Any, state: Any) -> Any:
        value, gradients = value_and_grad(parameters, state=state)
        updates, state = solver.update(gradients, state, parameters, value=value, grad=gradients, value_fn=fit)
        return optax.apply_updates(parameters, updates), state, value

    state = solver.init(parameters)
    for _ in range(3):
        parameters, state, value = step(parameters, state)
    return value
