"""One step of Adam of a transformer of `size` blocks in Equinox, as a pure function of its arrays.

The static part of the model is closed over, as `eqx.partition` and `eqx.combine` are documented.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bench.programs.start import first_call
from bench.programs.start.equinox_blocks import BATCH, LENGTH, VOCABULARY, Model


def calls(size: int) -> list[Any]:
    """The first step of a training run."""
    return first_call(step(size))


def step(size: int) -> tuple[Any, tuple[Any, ...]]:
    """The training step, and its first arguments: the arrays of the model, the optimizer's, and tokens."""
    optimizer = optax.adam(1e-3)
    abstract = eqx.filter_eval_shape(partial(_model, size))
    abstract_arrays, static = eqx.partition(abstract, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    random = np.random.default_rng(0)
    arrays = jax.tree.map(partial(_numbers, random), abstract_arrays)
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.eval_shape(optimizer.init, arrays))
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (BATCH, LENGTH + 1), dtype=np.int32)

    def loss(arrays: Any, tokens: Any) -> Any:
        predicted = jax.vmap(eqx.combine(arrays, static))(tokens[:, :-1])
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(predicted, tokens[:, 1:]))

    def train_step(arrays: Any, state: Any, tokens: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(arrays, tokens)
        updates, state = optimizer.update(gradients, state, arrays)
        return optax.apply_updates(arrays, updates), state, value

    return train_step, (arrays, state, tokens)


def _model(size: int) -> Model:
    return Model(size, jax.random.PRNGKey(0))


def _numbers(random: Any, leaf: Any) -> Any:
    """What an initialiser would make: making it with JAX would be another program."""
    if leaf.ndim < 2:
        return np.ones(leaf.shape, leaf.dtype)
    return (random.standard_normal(leaf.shape) / np.sqrt(leaf.shape[-1])).astype(leaf.dtype)
