"""Measures how the logarithm of a sum of exponentials of products is computed best on the CPU of this machine.

    python tests/data/autotune/measure_sums.py > tests/data/autotune/sums.json

The sum over the columns is made a block at a time. A small block costs steps, and a large one memory that no cache
holds. The result is one JSON object: `blocks`, and `shapes`: rows, columns, and the seconds of each block, the least of
some runs that take turns.
"""

from __future__ import annotations

import itertools
import json
import sys
import time

import jax
import jax.numpy as jnp

WIDTH = 16
BLOCKS = [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]
ROWS = [96, 160, 256, 416, 672]
COLUMNS = [64, 128, 256, 512, 1024, 2048, 4096, 8192]


def sums(x, y, *, block):
    """`logsumexp(x @ y.T)` for each row of x."""
    count = -(-y.shape[0] // block)
    parts = jnp.pad(y, ((0, count * block - y.shape[0]), (0, 0))).reshape(count, block, WIDTH)

    def step(total, part):
        values, number = part
        inside = number * block + jnp.arange(block) < y.shape[0]
        products = jnp.exp(x @ values.T)
        return total + jnp.where(inside, products, 0).sum(1), None

    return jnp.log(jax.lax.scan(step, jnp.zeros(x.shape[0]), (parts, jnp.arange(count)))[0])


def main(seconds: float) -> None:
    """Measure and print."""
    shapes = []
    for rows, columns in itertools.product(ROWS, COLUMNS):
        x, y = (jnp.sin(jnp.arange(size * WIDTH, dtype=jnp.float32)).reshape(size, WIDTH) / 8 for size in (rows, columns))
        functions = {block: jax.jit(lambda x, y, block=block: sums(x, y, block=block)) for block in BLOCKS}
        wanted = functions[BLOCKS[0]](x, y)
        for block, function in functions.items():
            assert jnp.allclose(function(x, y), wanted, rtol=1e-3, atol=1e-3), (rows, columns, block)
        times: dict[int, float] = {}
        runs, end = 0, time.perf_counter() + seconds
        while runs < 20 or (runs < 500 and time.perf_counter() < end):
            runs += 1
            for block, function in functions.items():
                if runs > 20 and times[block] > 3 * min(times.values()):
                    continue
                begin = time.perf_counter()
                jax.block_until_ready(function(x, y))
                times[block] = min(times.get(block, 1e9), time.perf_counter() - begin)
        shapes.append([rows, columns, *(float(f"{times[block]:.4g}") for block in BLOCKS)])
        least = min(times.values())
        said = {block: round(value / least, 2) for block, value in times.items()}
        print(rows, columns, f"{least * 1e6:.0f} µs", said, file=sys.stderr, flush=True)
    print(json.dumps({"blocks": BLOCKS, "shapes": shapes}))


if __name__ == "__main__":
    main(6.0)
