"""The program of `ejcache demo`: one training step of a small transformer, in JAX alone; it knows nothing of ejcache.

Run as a script: `demo_program.py OUTPUT [BLOCKS]`. Writes what each phase took, in seconds, to OUTPUT as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

began = time.perf_counter()

import jax  # noqa: E402 (its import is timed too)
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

imported = time.perf_counter()

WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 128, 4, 512, 64, 4
LEARNING_RATE, DECAY, MOMENTUM, SECOND_MOMENTUM = 3e-4, 0.01, 0.9, 0.95

Tree = Any
Array = Any


def initial_parameters(blocks: int) -> Tree:
    """Made by NumPy, so that the training step is the one program that is compiled."""
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> Array:
        return (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

    def block() -> Tree:
        shapes = {"qkv": (1, 3), "out": (1, 1), "up": (1, 4), "gate": (1, 4), "down": (4, 1)}
        weights = {name: matrix(rows * WIDTH, columns * WIDTH) for name, (rows, columns) in shapes.items()}
        return {**weights, "norm_1": ones, "norm_2": ones}

    ones = np.ones(WIDTH, np.float32)
    return {
        "embedding": matrix(VOCABULARY, WIDTH),
        "positions": matrix(LENGTH, WIDTH),
        "blocks": [block() for _ in range(blocks)],
        "norm": ones,
    }


def normalise(x: Array, scale: Array) -> Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def attend(block: Tree, x: Array) -> Array:
    query, key, value = jnp.split((x @ block["qkv"]).reshape(*x.shape[:2], 3 * HEADS, WIDTH // HEADS), 3, axis=2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(WIDTH // HEADS)
    causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape) @ block["out"]


def logits(parameters: Tree, tokens: Array) -> Array:
    x = parameters["embedding"][tokens] + parameters["positions"][: tokens.shape[1]]
    for block in parameters["blocks"]:
        x = x + attend(block, normalise(x, block["norm_1"]))
        hidden = normalise(x, block["norm_2"])
        x = x + (jax.nn.silu(hidden @ block["gate"]) * (hidden @ block["up"])) @ block["down"]
    return normalise(x, parameters["norm"]) @ parameters["embedding"].T


def loss(parameters: Tree, tokens: Array) -> Array:
    predicted = jax.nn.log_softmax(logits(parameters, tokens[:, :-1]), axis=-1)
    return -jnp.mean(jnp.take_along_axis(predicted, tokens[:, 1:, None], axis=-1))


def train_step(state: Tree, tokens: Array) -> tuple[Tree, Array]:
    """One step of AdamW."""
    value, gradients = jax.value_and_grad(loss)(state["parameters"], tokens)
    count = state["count"] + 1
    mean = jax.tree.map(lambda m, g: MOMENTUM * m + (1 - MOMENTUM) * g, state["mean"], gradients)
    square = jax.tree.map(lambda s, g: SECOND_MOMENTUM * s + (1 - SECOND_MOMENTUM) * g * g, state["square"], gradients)

    def update(p: Array, m: Array, s: Array) -> Array:
        direction = m / (1 - MOMENTUM**count) / (jnp.sqrt(s / (1 - SECOND_MOMENTUM**count)) + 1e-8)
        return p - LEARNING_RATE * (direction + DECAY * p)

    parameters = jax.tree.map(update, state["parameters"], mean, square)
    return {"parameters": parameters, "mean": mean, "square": square, "count": count}, value


def main(output: str, blocks: int) -> None:
    parameters = initial_parameters(blocks)
    zeros = jax.tree.map(np.zeros_like, parameters)
    state = {"parameters": parameters, "mean": zeros, "square": zeros, "count": np.float32(0)}
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (BATCH, LENGTH + 1), dtype=np.int32)
    (device, *_) = jax.devices()
    times = [began, imported, time.perf_counter()]
    lowered = jax.jit(train_step).lower(state, tokens)
    times.append(time.perf_counter())
    compiled = lowered.compile()
    times.append(time.perf_counter())
    loss_of_step = float(compiled(state, tokens)[1])
    times.append(time.perf_counter())
    phases = ("import", "setup", "trace_and_lower", "compile_or_load", "first_step")
    fields: dict[str, Any] = {
        f"{phase}_seconds": end - start for phase, (start, end) in zip(phases, pairwise(times), strict=True)
    }
    fields |= {"jax": jax.__version__, "device": f"{device.platform} ({device.device_kind})", "blocks": blocks}
    Path(output).write_text(json.dumps(fields | {"loss": loss_of_step.hex()}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 12)
