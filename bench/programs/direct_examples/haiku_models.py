"""Haiku: functions that `hk.transform` made pure, as Haiku's examples jit them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bench.programs.direct_examples.example import Example

if TYPE_CHECKING:
    from collections.abc import Iterator

X = np.linspace(-1, 1, 4 * 12, dtype=np.float32).reshape(4, 12)
IMAGES = np.linspace(0, 1, 2 * 144, dtype=np.float32).reshape(2, 12, 12, 1)
LABELS = np.array([0, 1, 2, 1], np.int32)
TOKENS = np.arange(24, dtype=np.int32).reshape(2, 12) % 7


def mlp(x: Any) -> Any:
    return hk.nets.MLP([16, 8, 3])(x)


class Encoder(hk.Module):
    def __init__(self, width: int, name: str | None = None) -> None:
        super().__init__(name=name)
        self.width = width

    def __call__(self, x: Any) -> Any:
        return hk.Linear(self.width)(jax.nn.relu(hk.Linear(2 * self.width)(x)))


def attend(tokens: Any) -> Any:
    x = hk.Embed(7, 8)(tokens)
    mask = jnp.tril(jnp.ones((1, 1, tokens.shape[1], tokens.shape[1])))
    y = hk.MultiHeadAttention(2, key_size=4, w_init=hk.initializers.VarianceScaling(1.0))(x, x, x, mask)
    return hk.Linear(7)(hk.LayerNorm(-1, create_scale=True, create_offset=True)(x + y))


def convolve(x: Any, is_training: bool) -> Any:
    x = hk.Conv2D(4, 3)(x)
    x = hk.BatchNorm(create_scale=True, create_offset=True, decay_rate=0.9)(x, is_training)
    return hk.Linear(3)(hk.Flatten()(jax.nn.relu(x)))


def unroll(x: Any) -> Any:
    core = hk.LSTM(8)
    return hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))[0]


def noisy(x: Any) -> Any:
    return hk.dropout(hk.next_rng_key(), 0.5, Encoder(4)(x))


def layers(x: Any) -> Any:
    return hk.experimental.layer_stack(3)(lambda x: Encoder(12)(x))(x)


network = hk.without_apply_rng(hk.transform(mlp))
optimizer = optax.adam(1e-3)


def loss(params: Any, x: Any, labels: Any) -> Any:
    logits = network.apply(params, x)
    penalty = sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params))
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean() + 1e-4 * penalty


def update(params: Any, state: Any, x: Any, labels: Any) -> Any:
    grads = jax.grad(loss)(params, x, labels)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state


def examples() -> Iterator[Example]:
    """The examples, in a fixed order."""
    key = jax.random.key(0)
    params = network.init(key, X)
    yield Example("haiku: apply an MLP", network.apply, (params, X))
    yield Example("haiku: initialise an MLP", network.init, (key, X))
    yield Example("haiku: training step", update, (params, optimizer.init(params), X, LABELS))
    encoder = hk.transform(lambda x: Encoder(4)(x))
    yield Example("haiku: a module of the user", encoder.apply, (encoder.init(key, X), None, X))
    dropped = hk.transform(noisy)
    yield Example("haiku: dropout", dropped.apply, (dropped.init(key, X), key, X))
    attention = hk.without_apply_rng(hk.transform(attend))
    yield Example("haiku: attention", attention.apply, (attention.init(key, TOKENS), TOKENS))
    stateful = hk.without_apply_rng(hk.transform_with_state(convolve))
    convolved = stateful.init(key, IMAGES, is_training=True)
    yield Example("haiku: batch norm with state", stateful.apply, (*convolved, IMAGES, True), {"static_argnums": 3})
    sequences = X.reshape(3, 4, 4)
    recurrent = hk.without_apply_rng(hk.transform(unroll))
    yield Example("haiku: an LSTM unrolled", recurrent.apply, (recurrent.init(key, sequences), sequences))
    stacked = hk.without_apply_rng(hk.transform(layers))
    yield Example(
        "haiku: a stack of layers", jax.grad(lambda p, x: stacked.apply(p, x).sum()), (stacked.init(key, X), X)
    )
