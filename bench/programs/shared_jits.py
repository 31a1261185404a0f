"""python -m bench.programs.shared_jits WHO URL COUNT: compile COUNT programs of their own with WHO's cache at URL.

WHO is `ejcache`, `JAX` or `no cache`. It says `ready` before the first program, and goes on when it gets a line; with
`--pause-after N` it says `paused` after N programs. `--layers N` makes each program one that takes seconds to compile,
`--nested` with a jit for each layer. `--default-floors` leaves it to the cache what is worth keeping.
The answer has, per program, when JAX was asked for its executable and how long that took, and the same per compilation.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import compiler

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("who")
    parser.add_argument("url")
    parser.add_argument("count", type=int)
    parser.add_argument("--pause-after", type=int, default=-1)
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--nested", action="store_true")
    parser.add_argument("--default-floors", action="store_true")
    options = parser.parse_args()
    jax.devices()
    if not options.default_floors:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    _wait("ready")
    began = time.time()
    if options.who == "ejcache":
        import ejcache

        ejcache.enable(options.url)
    elif options.who == "JAX":
        jax.config.update("jax_compilation_cache_dir", options.url)
    asked, compiled = _watch("compile_or_get_cached"), _watch("backend_compile_and_load")
    right = 0
    for number in range(options.count):
        right += _layers(options.layers, nested=options.nested) if options.layers else _small(number)
        if number + 1 == options.pause_after:
            _wait("paused")
    answer: dict[str, Any] = {
        "began": began,
        "ended": time.time(),
        "asked": asked,
        "compiled": compiled,
        "right": right,
    }
    if options.who == "ejcache":
        active = ejcache.active()
        answer["stats"] = active.stats().to_dict() if active is not None else {}
    print(json.dumps(answer), flush=True)


def _wait(word: str) -> None:
    print(word, flush=True)
    sys.stdin.readline()


def _watch(name: str) -> list[tuple[float, float]]:
    """When that function of JAX's is called, in seconds since the epoch, and how long each call takes."""
    calls: list[tuple[float, float]] = []
    function: Callable[..., Any] = getattr(compiler, name)

    def watched(*args: Any, **kwargs: Any) -> Any:
        began, start = time.time(), time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            calls.append((began, time.perf_counter() - start))

    setattr(compiler, name, watched)
    return calls


def _small(number: int) -> bool:
    def small(x: Any) -> Any:
        return jnp.sum(x * x) + number

    small.__name__ = f"program_{number}"
    x = np.arange(8, dtype=np.float32)
    return float(jax.jit(small)(x)) == float((x * x).sum()) + number


def _layers(count: int, *, nested: bool) -> bool:
    def layer(x: jax.Array, number: int) -> Any:
        return jnp.tanh(jnp.sort(x @ x.T, axis=0) + number) / x.shape[0]

    if nested:
        layer = jax.jit(layer, static_argnums=1)

    def layers(x: jax.Array) -> jax.Array:
        for number in range(count):
            x = layer(x, number)
        return x

    return bool(np.isfinite(np.asarray(jax.jit(layers)(np.ones((16, 16), dtype=np.float32)))).all())


if __name__ == "__main__":
    main()
