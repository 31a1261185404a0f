"""python -m bench.programs.hit_needs WHO CACHE: what two programs leave in a process that had them from WHO's cache.

WHO is `ejcache` or `JAX`. The answer has the modules that are imported, and how many objects the collector tracks after
it has run.
"""

from __future__ import annotations

import gc
import json
import sys


def main() -> None:
    who, cache = sys.argv[1:3]
    import jax
    import jax.numpy as jnp

    if who == "ejcache":
        import ejcache

        ejcache.enable(cache)
    else:
        jax.config.update("jax_compilation_cache_dir", cache)
    x = jnp.ones((64, 64))
    jax.block_until_ready(jax.jit(lambda x: jnp.tanh(x @ x.T).sum())(x))
    jax.block_until_ready(jax.jit(lambda x: jnp.sin(x).sum())(x))
    modules = sorted(sys.modules)
    gc.collect()
    print(json.dumps({"modules": modules, "objects": len(gc.get_objects())}), flush=True)


if __name__ == "__main__":
    main()
