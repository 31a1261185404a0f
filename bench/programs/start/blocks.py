"""One AdamW step of a transformer of `size` blocks in plain JAX; its parameters are made by NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 64, 4, 256, 32, 2
RATE, DECAY, BETA_1, BETA_2 = 3e-4, 0.01, 0.9, 0.95


def calls(size: int) -> list[Any]:
    """The first step of a training run."""
    given = arguments(size)
    return [lambda: jax.jit(train_step)(*given)]


def arguments(size: int) -> tuple[Any, Any]:
    """What the step takes."""
    parameters = _parameters(size)
    zeros = jax.tree.map(np.zeros_like, parameters)
    state = {"parameters": parameters, "mean": zeros, "square": zeros, "count": np.float32(0)}
    return state, np.random.default_rng(1).integers(0, VOCABULARY, (BATCH, LENGTH + 1), dtype=np.int32)


def train_step(state: Any, tokens: Any) -> Any:
    value, gradients = jax.value_and_grad(_loss)(state["parameters"], tokens)
    count = state["count"] + 1
    mean = jax.tree.map(lambda m, g: BETA_1 * m + (1 - BETA_1) * g, state["mean"], gradients)
    square = jax.tree.map(lambda s, g: BETA_2 * s + (1 - BETA_2) * g * g, state["square"], gradients)

    def update(p: Any, m: Any, s: Any) -> Any:
        step = m / (1 - BETA_1**count) / (jnp.sqrt(s / (1 - BETA_2**count)) + 1e-8)
        return p - RATE * (step + DECAY * p)

    parameters = jax.tree.map(update, state["parameters"], mean, square)
    return {"parameters": parameters, "mean": mean, "square": square, "count": count}, value


def _parameters(blocks: int) -> Any:
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> Any:
        return (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

    def block() -> Any:
        return {
            "norms": np.ones((2, WIDTH), np.float32),
            "qkv": matrix(WIDTH, 3 * WIDTH),
            "out": matrix(WIDTH, WIDTH),
            "up": matrix(WIDTH, 4 * WIDTH),
            "gate": matrix(WIDTH, 4 * WIDTH),
            "down": matrix(4 * WIDTH, WIDTH),
        }

    return {"embedding": matrix(VOCABULARY, WIDTH), "blocks": [block() for _ in range(blocks)]}


def _loss(parameters: Any, tokens: Any) -> Any:
    x = parameters["embedding"][tokens[:, :-1]]
    for block in parameters["blocks"]:
        x = x + _attend(block, _normalise(x, block["norms"][0]))
        hidden = _normalise(x, block["norms"][1])
        x = x + (jax.nn.silu(hidden @ block["gate"]) * (hidden @ block["up"])) @ block["down"]
    predicted = jax.nn.log_softmax(x @ parameters["embedding"].T, axis=-1)
    return -jnp.mean(jnp.take_along_axis(predicted, tokens[:, 1:, None], axis=-1))


def _normalise(x: Any, scale: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def _attend(block: Any, x: Any) -> Any:
    query, key, value = jnp.split((x @ block["qkv"]).reshape(*x.shape[:2], 3 * HEADS, WIDTH // HEADS), 3, axis=2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(WIDTH // HEADS)
    causal = np.tril(np.ones((LENGTH, LENGTH), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape) @ block["out"]
