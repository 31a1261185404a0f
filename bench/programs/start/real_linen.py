"""Flax Linen: a convolutional network with a TrainState learns digits for a few steps, and is evaluated."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training import train_state


class Network(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        for features in (16, 32):
            x = nn.avg_pool(nn.relu(nn.Conv(features, kernel_size=(3, 3))(x)), window_shape=(2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(64)(x.reshape((x.shape[0], -1))))
        return nn.Dense(10)(x)


def calls(size: int) -> list[Any]:
    """The whole program; `size` is the number of steps."""
    return [partial(_main, size)]


@jax.jit
def _apply_model(state: Any, images: Any, labels: Any) -> Any:
    def loss_fn(parameters: Any) -> Any:
        logits = state.apply_fn({"params": parameters}, images)
        return jnp.mean(optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, 10))), logits

    (loss, logits), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return gradients, loss, jnp.mean(jnp.argmax(logits, -1) == labels)


@jax.jit
def _update_model(state: Any, gradients: Any) -> Any:
    return state.apply_gradients(grads=gradients)


def _main(steps: int) -> Any:
    rng, start = jax.random.split(jax.random.key(0))
    network = Network()
    state = train_state.TrainState.create(
        apply_fn=network.apply,
        params=network.init(start, jnp.ones([1, 28, 28, 1]))["params"],
        tx=optax.sgd(0.1, 0.9),
    )
    random = np.random.default_rng(0)
    images = random.random((32 * steps, 28, 28, 1), dtype=np.float32)
    labels = random.integers(0, 10, 32 * steps)
    order = jax.random.permutation(rng, len(images)).reshape((steps, 32))
    losses = []
    for indices in order:
        gradients, loss, _ = _apply_model(state, images[indices, ...], labels[indices, ...])
        state = _update_model(state, gradients)
        losses.append(loss)
    _, loss, accuracy = _apply_model(state, images[:64], labels[:64])
    return np.mean(losses), loss, accuracy
