"""Haiku: an LSTM learns sequences with Optax for a few steps, is evaluated, and generates."""

from __future__ import annotations

from functools import partial
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax

VOCABULARY, HIDDEN, LENGTH, BATCH = 32, 64, 24, 16


def calls(size: int) -> list[Any]:
    """The whole program; `size` is the number of steps."""
    return [partial(_main, size)]


def _core() -> Any:
    return hk.DeepRNN(
        [hk.Embed(VOCABULARY, HIDDEN), hk.LSTM(HIDDEN), jax.nn.relu, hk.LSTM(HIDDEN), hk.Linear(VOCABULARY)]
    )


def _unroll(tokens: Any) -> Any:
    core = _core()
    logits, _ = hk.dynamic_unroll(core, tokens, core.initial_state(tokens.shape[1]))
    return logits


def _loss(batch: Any) -> Any:
    logits = _unroll(batch[:-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1:]).mean()


def _generate(first: Any) -> Any:
    core = _core()
    state, token, said = core.initial_state(first.shape[0]), first, []
    for _ in range(4):
        logits, state = core(token, state)
        token = jax.random.categorical(hk.next_rng_key(), logits)
        said.append(token)
    return jnp.stack(said)


def _main(steps: int) -> Any:
    keys = hk.PRNGSequence(42)
    random = np.random.default_rng(0)
    batches = random.integers(0, VOCABULARY, (steps + 1, LENGTH, BATCH), dtype=np.int32)
    loss, generate = hk.without_apply_rng(hk.transform(_loss)), hk.transform(_generate)
    parameters = loss.init(next(keys), batches[0])
    optimizer = optax.adam(1e-3)
    state = optimizer.init(parameters)

    @jax.jit
    def update(parameters: Any, state: Any, batch: Any) -> Any:
        gradients = jax.grad(loss.apply)(parameters, batch)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(parameters, updates), state

    for batch in batches[1:]:
        parameters, state = update(parameters, state, batch)
    evaluated = jax.jit(loss.apply)(parameters, batches[0])
    return evaluated, generate.apply(parameters, next(keys), batches[0][0, :2])
