"""python -m bench.programs.autotune_cost NAME WHO: processor seconds of tuning an operation, or of a plain loop.

The loop compiles each candidate and runs it twenty times, as a person does who looks for the fastest one.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from bench.outcome import OURS
from ejcache.autotune import RecordKey, Tuner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RUNS = 20


def matmul(x: Any, y: Any, *, block: int) -> Any:
    """A product by blocks of rows."""
    return jax.lax.map(lambda rows: rows @ y, x.reshape(-1, block, x.shape[1])).reshape(x.shape[0], y.shape[1])


def attention(q: Any, k: Any, v: Any, *, block: int) -> Any:
    """Attention of four heads by blocks of queries."""

    def of_block(part: Any) -> Any:
        scores = jnp.einsum("hqd,hkd->hqk", part, k) / q.shape[-1] ** 0.5
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v)

    blocks = q.reshape(q.shape[0], -1, block, q.shape[2]).transpose(1, 0, 2, 3)
    return jax.lax.map(of_block, blocks).transpose(1, 0, 2, 3).reshape(q.shape)


def normal(*shape: int, count: int) -> list[Any]:
    return [jax.random.normal(jax.random.key(number), shape) for number in range(count)]


OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]], tuple[int, ...]]] = {
    "matmul": (matmul, lambda: normal(512, 512, count=2), (32, 64, 128, 256)),
    "attention": (attention, lambda: normal(4, 1024, 64, count=3), (64, 128, 256, 512)),
}


def looped(function: Any, args: Sequence[Any], blocks: Sequence[int]) -> None:
    for block in blocks:
        compiled = jax.jit(functools.partial(function, block=block)).lower(*args).compile()
        for _ in range(RUNS):
            jax.block_until_ready(compiled(*args))


def tuned(function: Any, args: Sequence[Any], blocks: Sequence[int]) -> None:
    key = RecordKey("cost", "1", "cpu")
    Tuner().tune(
        lambda n: functools.partial(function, block=n), args, {}, key=key, candidates=blocks, default=blocks[0]
    )


def main() -> None:
    name, who = sys.argv[1:]
    function, made, blocks = OPERATIONS[name]
    args: list[Any] = made()
    jax.block_until_ready(args)
    # JAX's own first compilation is nobody's cost.
    jax.block_until_ready(jax.jit(lambda x: x @ x.T)(jnp.ones((8, 8))))
    started = time.process_time()
    (tuned if who == OURS else looped)(function, args, blocks)
    print(json.dumps({"seconds": time.process_time() - started}))


if __name__ == "__main__":
    main()
