"""JAX's own example libraries: the classifier of its first example, with Stax and momentum."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.example_libraries import optimizers, stax
from jax.example_libraries.stax import Dense, LogSoftmax, Relu


def calls(size: int) -> list[Any]:
    """The whole program; `size` is the number of steps."""
    return [partial(_main, size)]


def _main(steps: int) -> Any:
    init_parameters, predict = stax.serial(Dense(256), Relu, Dense(256), Relu, Dense(10), LogSoftmax)
    opt_init, opt_update, get_parameters = optimizers.momentum(0.001, mass=0.9)
    random = np.random.default_rng(0)
    images = random.random((64 * steps, 784), dtype=np.float32)
    labels = np.eye(10, dtype=np.float32)[random.integers(0, 10, 64 * steps)]

    def loss(parameters: Any, batch: Any) -> Any:
        inputs, targets = batch
        return -jnp.mean(jnp.sum(predict(parameters, inputs) * targets, axis=1))

    @jax.jit
    def update(number: Any, state: Any, batch: Any) -> Any:
        return opt_update(number, jax.grad(loss)(get_parameters(state), batch), state)

    def accuracy(parameters: Any, batch: Any) -> Any:
        inputs, targets = batch
        return jnp.mean(jnp.argmax(predict(parameters, inputs), axis=1) == jnp.argmax(targets, axis=1))

    _, parameters = init_parameters(jax.random.key(0), (-1, 784))
    state, count = opt_init(parameters), itertools.count()
    for begin in range(0, 64 * steps, 64):
        state = update(next(count), state, (images[begin : begin + 64], labels[begin : begin + 64]))
    return accuracy(get_parameters(state), (images, labels))
