"""Flax NNX: models split into graph and state, merged in the function, as NNX programs with `jax.jit` do it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from bench.programs.direct_examples.example import Example

if TYPE_CHECKING:
    from collections.abc import Iterator


class MLP(nnx.Module):
    def __init__(self, din: int, hidden: int, dout: int, *, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(din, hidden, rngs=rngs)
        self.second = nnx.Linear(hidden, dout, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.second(nnx.relu(self.first(x)))


class Classifier(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(1, 8, kernel_size=(3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.2, rngs=rngs)
        self.head = nnx.Linear(8 * 36, 10, rngs=rngs)
        self.pool = partial(nnx.avg_pool, window_shape=(2, 2), strides=(2, 2))

    def __call__(self, x: Any) -> Any:
        x = self.pool(nnx.relu(self.norm(self.conv(x))))
        return self.head(self.drop(x.reshape(x.shape[0], -1)))


class Block(nnx.Module):
    def __init__(self, width: int, *, rngs: nnx.Rngs) -> None:
        self.attention = nnx.MultiHeadAttention(num_heads=2, in_features=width, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.mlp = MLP(width, 2 * width, width, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Counter(nnx.Variable):
    pass


class Counting(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.calls = Counter(jnp.array(0))
        self.inner = nnx.Linear(12, 12, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        self.calls[...] = self.calls[...] + 1
        return self.inner(x)


class Recurrent(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.rnn = nnx.RNN(nnx.GRUCell(4, 8, rngs=rngs))

    def __call__(self, x: Any) -> Any:
        return self.rnn(x)[:, -1]


X = np.linspace(-1, 1, 4 * 12, dtype=np.float32).reshape(4, 12)
IMAGES = np.linspace(0, 1, 2 * 144, dtype=np.float32).reshape(2, 12, 12, 1)
LABELS = np.array([2, 7], np.int32)
OPTIMIZER = optax.adam(1e-3)


def forward(graphdef: Any, state: Any, x: Any) -> Any:
    return nnx.merge(graphdef, state)(x)


def forward_and_state(graphdef: Any, state: Any, x: Any) -> Any:
    model = nnx.merge(graphdef, state)
    y = model(x)
    return y, nnx.state(model)


def loss_of(graphdef: Any, params: Any, rest: Any, x: Any, labels: Any) -> Any:
    model = nnx.merge(graphdef, params, rest, copy=True)  # the state that it changes is of this trace
    logits = model(x)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss, nnx.state(model, nnx.Not(nnx.Param))


def functional_step(graphdef: Any, params: Any, rest: Any, opt_state: Any, x: Any, labels: Any) -> Any:
    grad = jax.value_and_grad(partial(loss_of, graphdef), has_aux=True)
    (loss, rest), grads = grad(params, rest, x, labels)
    updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), rest, opt_state, loss


def optimizer_step(graphdef: Any, state: Any, x: Any, labels: Any) -> Any:
    model, optimizer = nnx.merge(graphdef, state)

    def loss(model: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(model(x), labels).mean()

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return nnx.state((model, optimizer)), value


def stack_forward(graphdef: Any, state: Any, x: Any) -> Any:
    def body(x: Any, state: Any) -> Any:
        return nnx.merge(graphdef, state)(x), None

    return jax.lax.scan(body, x, state)[0]


def create(key: Any) -> Any:
    return nnx.state(MLP(12, 24, 4, rngs=nnx.Rngs(key)))


def examples() -> Iterator[Example]:
    """The examples, in a fixed order."""
    static = {"static_argnums": 0}
    mlp = MLP(12, 24, 10, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(mlp)
    yield Example("nnx: forward of a split MLP", forward, (graphdef, state, X), static)
    yield Example("nnx: the same, the graph as an argument", forward, (graphdef, state, X))
    yield Example("nnx: the same, the graph in a partial", partial(forward, graphdef), (state, X))
    yield Example("nnx: the same, the model in a closure", lambda x: mlp(x), (X,))
    yield Example("nnx: gradient of an MLP", jax.grad(lambda state, x: forward(graphdef, state, x).sum()), (state, X))
    counting = nnx.split(Counting(rngs=nnx.Rngs(1)))
    yield Example("nnx: a model that counts its calls", forward_and_state, (*counting, X), static)
    classifier = Classifier(rngs=nnx.Rngs(0))
    classifier.eval()
    yield Example("nnx: evaluate batch norm and dropout", forward, (*nnx.split(classifier), IMAGES), static)
    trained = Classifier(rngs=nnx.Rngs(0))
    trained.train()
    graph, params, rest = nnx.split(trained, nnx.Param, ...)
    called = (graph, params, rest, OPTIMIZER.init(params), IMAGES, LABELS)
    yield Example("nnx: functional training step", functional_step, called, static)
    optimizer = nnx.Optimizer(mlp, optax.adamw(1e-3), wrt=nnx.Param)
    both, held = nnx.split((mlp, optimizer))
    labels = np.array([1, 2, 3, 4], np.int32)
    yield Example("nnx: training step with nnx.Optimizer", optimizer_step, (both, held, X, labels), static)
    sequence = X.reshape(2, 2, 12)
    block, weights = nnx.split(Block(12, rngs=nnx.Rngs(0)))
    yield Example("nnx: a transformer's block", forward, (block, weights, sequence), static)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), weights)
    yield Example("nnx: blocks scanned over stacked weights", stack_forward, (block, stacked, sequence), static)
    recurrent = nnx.split(Recurrent(rngs=nnx.Rngs(0)))
    yield Example("nnx: a recurrent network", forward, (*recurrent, X.reshape(4, 3, 4)), static)
    yield Example("nnx: make the state of an MLP", create, (jax.random.key(3),))
