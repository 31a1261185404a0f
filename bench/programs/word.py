"""Trainers as public examples write them, whose step, and `init` where they jit it, have a word of `reuse_lowering`.

Optax: the decoder of its language model, AdamW with a schedule. NNX and Equinox: a transformer of 12 blocks that is
made operation by operation. Linen: 24 layers in a TrainState. Plain JAX: 24 blocks of attention.

python -m bench.programs.word NAME: the whole program. `CACHE` says who keeps what is compiled: `jax` (its own cache and
`jax.jit`) or `word` (ejcache, and `@ejit` with a word).
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ejcache

DEPTH, WIDTH, STEPS, BLOCKS = 24, 64, 5, 12
_traced: list[str] = []


def main() -> None:
    """Train, and print what was traced and the last loss."""
    loss = _TRAINERS[sys.argv[1]](_jit())
    print(json.dumps({"traced": len(_traced), "loss": float(loss)}))


def _jit() -> Any:
    directory = os.path.join(os.environ["XDG_CACHE_HOME"], os.environ["CACHE"])  # noqa: PTH118
    if os.environ["CACHE"] == "jax":
        jax.config.update("jax_compilation_cache_dir", directory)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        return jax.jit
    ejcache.enable(directory, min_compile_seconds=0)
    return partial(ejcache.ejit, reuse_lowering="bench")


def _batch() -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(32, WIDTH)).astype(np.float32)
    return x, x.sum(axis=1, keepdims=True)


def _tokens() -> Any:
    return np.random.default_rng(1).integers(0, 256, (2, 33), dtype=np.int32)


def _optax(jit: Any) -> Any:
    import optax  # type: ignore[import-untyped]

    from bench.programs.decoder import Decoder

    model = Decoder()
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(optax.warmup_cosine_decay_schedule(0, 1, 9, 99))
    )
    params = jit(model.init)(jax.random.key(0), _tokens()[:, :-1])
    state = jit(optimizer.init)(params)

    def step(params: Any, state: Any, tokens: Any) -> Any:
        _traced.append("step")

        def loss_of(params: Any) -> Any:
            predicted = model.apply(params, tokens[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(predicted, tokens[:, 1:]).mean()

        loss, slopes = jax.value_and_grad(loss_of)(params)
        changes, state = optimizer.update(slopes, state, params)
        return optax.apply_updates(params, changes), state, loss

    taken = jit(step)
    for _ in range(STEPS):
        params, state, loss = taken(params, state, _tokens())
    return loss


def _nnx(jit: Any) -> Any:
    import optax
    from flax import nnx

    from bench.programs.start.nnx_blocks import Model

    model = Model(BLOCKS, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    graph, leaves = nnx.split((model, optimizer))

    def step(graph: Any, leaves: Any, tokens: Any) -> Any:
        _traced.append("step")
        model, optimizer = nnx.merge(graph, leaves)

        def loss_of(model: Any) -> Any:
            losses = optax.softmax_cross_entropy_with_integer_labels(model(tokens[:, :-1]), tokens[:, 1:])
            return losses.mean()

        loss, slopes = nnx.value_and_grad(loss_of)(model)
        optimizer.update(model, slopes)
        return nnx.state((model, optimizer)), loss

    taken = jit(step, static_argnums=0)
    for _ in range(STEPS):
        leaves, loss = taken(graph, leaves, _tokens())
    return loss


def _linen(jit: Any) -> Any:
    import flax.linen as nn
    import optax
    from flax.training.train_state import TrainState

    model = nn.Sequential([layer for _ in range(DEPTH) for layer in (nn.LayerNorm(), nn.Dense(WIDTH), nn.gelu)])

    def step(state: Any, x: Any, y: Any) -> Any:
        _traced.append("step")

        def loss_of(params: Any) -> Any:
            return jnp.mean((state.apply_fn(params, x).sum(axis=1, keepdims=True) - y) ** 2)

        loss, slopes = jax.value_and_grad(loss_of)(state.params)
        return state.apply_gradients(grads=slopes), loss

    x, y = _batch()
    params = jit(model.init)(jax.random.key(0), x)
    state = TrainState.create(  # type: ignore[no-untyped-call]  # of Flax
        apply_fn=model.apply, params=params, tx=optax.adamw(1e-3)
    )
    taken = jit(step)
    for _ in range(STEPS):
        state, loss = taken(state, x, y)
    return loss


def _equinox(jit: Any) -> Any:
    import equinox as eqx
    import optax

    from bench.programs.start.equinox_blocks import Model

    model = Model(BLOCKS, jax.random.key(0))
    optimizer = optax.adamw(1e-3)
    arrays, static = eqx.partition(model, eqx.is_inexact_array)
    state = jit(optimizer.init)(arrays)

    def step(arrays: Any, state: Any, tokens: Any) -> Any:
        _traced.append("step")

        def loss_of(arrays: Any) -> Any:
            predicted = jax.vmap(eqx.combine(arrays, static))(tokens[:, :-1])
            return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(predicted, tokens[:, 1:]))

        loss, slopes = jax.value_and_grad(loss_of)(arrays)
        changes, state = optimizer.update(slopes, state, arrays)
        return eqx.apply_updates(arrays, changes), state, loss

    taken = jit(step)
    for _ in range(STEPS):
        arrays, state, loss = taken(arrays, state, _tokens())
    return loss


def _blocks(jit: Any) -> Any:
    keys = ("q", "k", "v", "o")
    layers = [
        {name: np.full((WIDTH, WIDTH), 1e-2, np.float32) for name in keys}
        | {"up": np.full((WIDTH, 4 * WIDTH), 1e-2, np.float32), "down": np.full((4 * WIDTH, WIDTH), 1e-2, np.float32)}
        for _ in range(DEPTH)
    ]

    def block(layer: Any, x: Any) -> Any:
        q, k, v = (x @ layer[name] for name in "qkv")
        x = x + jax.nn.softmax(q @ k.T / 8.0) @ v @ layer["o"]
        return x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]

    def loss_of(layers: Any, x: Any, y: Any) -> Any:
        for layer in layers:
            x = block(layer, x)
        return jnp.mean((x.sum(axis=1, keepdims=True) - y) ** 2)

    def step(layers: Any, x: Any, y: Any) -> Any:
        _traced.append("step")
        loss, slopes = jax.value_and_grad(loss_of)(layers, x, y)
        return jax.tree.map(lambda weight, slope: weight - 1e-3 * slope, layers, slopes), loss

    taken = jit(step)
    for _ in range(STEPS):
        layers, loss = taken(layers, *_batch())
    return loss


_TRAINERS = {"optax": _optax, "nnx": _nnx, "linen": _linen, "equinox": _equinox, "24 blocks": _blocks}


if __name__ == "__main__":
    main()
