"""One step of Adam of a transformer of `size` blocks in Flax NNX, as a pure function: `nnx.split` and `nnx.merge`."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from bench.programs.start import first_call
from bench.programs.start.nnx_blocks import BATCH, LENGTH, VOCABULARY, Model

OPTIMIZER = optax.adam(1e-3)


def calls(size: int) -> list[Any]:
    """The first step of a training run."""
    return first_call(step(size))


def step(size: int) -> tuple[Any, tuple[Any, ...]]:
    """The training step, and its first arguments: the graph of the model, its state, the optimizer's, and tokens."""
    graph, abstract = nnx.split(nnx.eval_shape(partial(_model, size)))
    random = np.random.default_rng(0)
    parameters = jax.tree.map(partial(_numbers, random), abstract)
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.eval_shape(OPTIMIZER.init, parameters))
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (BATCH, LENGTH + 1), dtype=np.int32)
    return train_step, (graph, parameters, state, tokens)


def train_step(graph: Any, parameters: Any, state: Any, tokens: Any) -> Any:
    def loss(parameters: Any) -> Any:
        model = nnx.merge(graph, parameters)
        losses = optax.softmax_cross_entropy_with_integer_labels(model(tokens[:, :-1]), tokens[:, 1:])
        return losses.mean()

    value, gradients = jax.value_and_grad(loss)(parameters)
    updates, state = OPTIMIZER.update(gradients, state, parameters)
    return optax.apply_updates(parameters, updates), state, value


def _model(size: int) -> Model:
    return Model(size, nnx.Rngs(0))


def _numbers(random: Any, leaf: Any) -> Any:
    """What an initialiser would make: making it with JAX would be another program."""
    if leaf.ndim < 2:
        return np.ones(leaf.shape, leaf.dtype)
    return (random.standard_normal(leaf.shape) / np.sqrt(leaf.shape[0])).astype(leaf.dtype)
