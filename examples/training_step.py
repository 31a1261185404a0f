"""One training step of a small transformer, in JAX alone; it knows nothing of ejcache. `make demo` starts it twice.

    ejcache run examples/training_step.py [BLOCKS] [--json]

Prints what each phase took, and the loss; with `--json`, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from typing import Any

times = [time.perf_counter()]

import jax  # noqa: E402 (its import is timed too)
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

times.append(time.perf_counter())

WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 128, 4, 512, 64, 4
SHAPES = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
PHASES = ("import", "setup", "trace_and_lower", "compile_or_load", "first_step")


def initial_parameters(blocks: int) -> Any:
    """Make them by NumPy, so that the training step is the one program that is compiled."""
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> Any:
        return (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

    layers = [{name: matrix(*shape) for name, shape in SHAPES.items()} for _ in range(blocks)]
    return {"embedding": matrix(VOCABULARY, WIDTH), "blocks": layers}


def attend(block: Any, x: Any) -> Any:
    query, key, value = jnp.split((x @ block["qkv"]).reshape(*x.shape[:2], 3 * HEADS, WIDTH // HEADS), 3, axis=2)
    return jax.nn.dot_product_attention(query, key, value, is_causal=True).reshape(x.shape) @ block["out"]


def loss(parameters: Any, tokens: Any) -> Any:
    x = parameters["embedding"][tokens[:, :-1]]
    for block in parameters["blocks"]:
        x = x + attend(block, jax.nn.standardize(x))
        x = x + jax.nn.gelu(jax.nn.standardize(x) @ block["up"]) @ block["down"]
    predicted = jax.nn.log_softmax(jax.nn.standardize(x) @ parameters["embedding"].T)
    return -jnp.mean(jnp.take_along_axis(predicted, tokens[:, 1:, None], axis=-1))


def train_step(parameters: Any, tokens: Any) -> tuple[Any, Any]:
    value, gradients = jax.value_and_grad(loss)(parameters, tokens)
    return jax.tree.map(lambda weight, gradient: weight - 1e-2 * gradient, parameters, gradients), value


def main(blocks: int, *, as_json: bool) -> None:
    parameters = initial_parameters(blocks)
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (BATCH, LENGTH + 1), dtype=np.int32)
    device = jax.devices()[0]
    times.append(time.perf_counter())
    lowered = jax.jit(train_step).lower(parameters, tokens)
    times.append(time.perf_counter())
    compiled = lowered.compile()
    times.append(time.perf_counter())
    value = float(compiled(parameters, tokens)[1])
    times.append(time.perf_counter())
    fields: dict[str, Any] = {"jax": jax.__version__, "device": f"{device.platform} ({device.device_kind})"}
    took = {phase: end - start for phase, (start, end) in zip(PHASES, pairwise(times), strict=True)}
    if as_json:
        fields |= {f"{phase}_seconds": seconds for phase, seconds in took.items()}
        print(json.dumps({**fields, "blocks": blocks, "loss": value.hex()}))
        return
    print(f"One training step of {blocks} transformer blocks, JAX {jax.__version__}, {fields['device']}")
    for phase, seconds in took.items():
        print(f"  {phase.replace('_', ' '):16} {seconds:6.2f} s")
    print(f"  loss             {value:.9f}")


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    main(next(iter(numbers), 24), as_json="--json" in sys.argv)
