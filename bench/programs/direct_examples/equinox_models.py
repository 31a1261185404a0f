"""Equinox: models that are pytrees, as arguments of `jax.jit` or partitioned into arrays and the rest."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bench.programs.direct_examples.example import Example

if TYPE_CHECKING:
    from collections.abc import Iterator


class Linear(eqx.Module):
    weight: jax.Array
    bias: jax.Array

    def __init__(self, inputs: int, outputs: int, key: Any) -> None:
        self.weight = jax.random.normal(key, (outputs, inputs)) / inputs
        self.bias = jnp.zeros(outputs)

    def __call__(self, x: Any) -> Any:
        return self.weight @ x + self.bias


class Classifier(eqx.Module):
    layers: list[Any]

    def __init__(self, key: Any) -> None:
        one, two = jax.random.split(key)
        self.layers = [
            eqx.nn.Conv2d(1, 3, kernel_size=4, key=one),
            eqx.nn.MaxPool2d(kernel_size=2),
            jax.nn.relu,
            jnp.ravel,
            eqx.nn.Linear(675, 10, key=two),
            jax.nn.log_softmax,
        ]

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class Recurrent(eqx.Module):
    hidden_size: int
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __init__(self, hidden: int, key: Any) -> None:
        one, two = jax.random.split(key)
        self.hidden_size = hidden
        self.cell = eqx.nn.GRUCell(2, hidden, key=one)
        self.head = eqx.nn.Linear(hidden, 1, use_bias=False, key=two)

    def __call__(self, sequence: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            return self.cell(x, carry), None

        out, _ = jax.lax.scan(step, jnp.zeros(self.hidden_size), sequence)
        return jax.nn.sigmoid(self.head(out))[0]


class Block(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP
    scale: float = eqx.field(static=True)

    def __init__(self, width: int, key: Any, scale: float = 0.5) -> None:
        one, two = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(2, width, key=one)
        self.norm = eqx.nn.LayerNorm(width)
        self.mlp = eqx.nn.MLP(width, width, 2 * width, 1, activation=jax.nn.gelu, key=two)
        self.scale = scale

    def __call__(self, x: Any) -> Any:
        y = jax.vmap(self.norm)(x)
        x = x + self.scale * self.attention(y, y, y)
        return x + self.scale * jax.vmap(self.mlp)(x)


X = np.linspace(-1, 1, 4 * 12, dtype=np.float32).reshape(4, 12)
Y = np.linspace(0, 1, 4, dtype=np.float32)
IMAGES = np.linspace(0, 1, 2 * 19 * 19, dtype=np.float32).reshape(2, 1, 19, 19)
LABELS = np.array([4, 9], np.int32)
OPTIMIZER = optax.adam(3e-4)


def apply_linear(model: Any, x: Any) -> Any:
    return jax.vmap(model)(x)


def squared(model: Any, x: Any, y: Any) -> Any:
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


def partitioned(static: Any, params: Any, x: Any) -> Any:
    return jax.vmap(eqx.combine(params, static))(x)


def partitioned_step(static: Any, params: Any, opt_state: Any, x: Any, y: Any) -> Any:
    def loss_of(params: Any) -> Any:
        return squared(eqx.combine(params, static), x, y)

    loss, grads = jax.value_and_grad(loss_of)(params)
    updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
    return eqx.apply_updates(params, updates), opt_state, loss


def cross_entropy(params: Any, static: Any, images: Any, labels: Any) -> Any:
    predicted = jax.vmap(eqx.combine(params, static))(images)
    return -jnp.mean(jnp.take_along_axis(predicted, labels[:, None], axis=1))


def examples() -> Iterator[Example]:
    """The examples, in a fixed order."""
    key = jax.random.key(0)
    linear = Linear(12, 5, key)
    yield Example("equinox: a module as an argument", apply_linear, (linear, X))
    yield Example("equinox: gradient with respect to a module", jax.grad(squared), (Linear(12, 1, key), X, Y[:, None]))
    mlp = eqx.nn.MLP(12, 1, 16, 2, key=key)
    params, static = eqx.partition(mlp, eqx.is_array)
    yield Example("equinox: partitioned MLP, the rest in a partial", partial(partitioned, static), (params, X))
    yield Example(
        "equinox: training step of a partitioned MLP",
        partial(partitioned_step, static),
        (params, OPTIMIZER.init(params), X, Y[:, None]),
    )
    classifier, rest = eqx.partition(Classifier(key), eqx.is_inexact_array)

    def loss_of(params: Any, images: Any, labels: Any) -> Any:
        return cross_entropy(params, rest, images, labels)

    yield Example("equinox: loss of a CNN, the rest in a closure", loss_of, (classifier, IMAGES, LABELS))
    yield Example("equinox: its gradient", jax.value_and_grad(loss_of), (classifier, IMAGES, LABELS))
    recurrent, other = eqx.partition(Recurrent(8, key), eqx.is_array)
    sequences = X.reshape(4, 6, 2)
    yield Example("equinox: a recurrent network", partial(partitioned, other), (recurrent, sequences))
    yield Example(
        "equinox: training step of a recurrent network",
        partial(partitioned_step, other),
        (recurrent, OPTIMIZER.init(recurrent), sequences, Y),
    )
    block = Block(12, key)
    arrays, remaining = eqx.partition(block, eqx.is_array)
    yield Example("equinox: a transformer's block", lambda arrays, x: eqx.combine(arrays, remaining)(x), (arrays, X))
    bound = Linear(12, 3, key)
    yield Example("equinox: a module in a closure", lambda x: jax.vmap(bound)(x), (X,))
    yield Example("equinox: a module that is called itself", eqx.nn.Lambda(jnp.tanh), (X,))
    normed = eqx.nn.make_with_state(eqx.nn.BatchNorm)(12, axis_name="batch", mode="batch")

    def normalize(state: Any, x: Any) -> Any:
        return jax.vmap(normed[0], axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)

    yield Example("equinox: batch norm with its state", normalize, (normed[1], X))

    def surgery(model: Any, x: Any) -> Any:
        doubled = eqx.tree_at(lambda m: m.weight, model, replace_fn=lambda w: 2 * w)
        return jax.vmap(doubled)(x)

    yield Example("equinox: tree_at in the function", surgery, (linear, X))
