"""python -m bench.programs.many_puts WHO CACHE PROGRAMS SALT: compile so many small programs with WHO's cache.

WHO is `ejcache`, `JAX` or `none`. No program of one SALT is one of another, so that each is compiled and stored. The
answer has the seconds that the calls take, by the clock and of the processor.
"""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    who, cache, programs, salt = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    import jax
    import jax.numpy as jnp

    if who == "ejcache":
        import ejcache

        ejcache.enable(cache)
    elif who == "JAX":
        jax.config.update("jax_compilation_cache_dir", cache)
    x = jnp.arange(8.0)
    jax.block_until_ready(x)
    began, processor = time.perf_counter(), time.process_time()
    for number in range(programs):
        constant = salt * programs + number
        jax.block_until_ready(jax.jit(lambda x, constant=constant: jnp.sin(x * constant) + constant)(x))
    seconds, processor = time.perf_counter() - began, time.process_time() - processor
    print(json.dumps({"seconds": seconds, "processor": processor}), flush=True)


if __name__ == "__main__":
    main()
