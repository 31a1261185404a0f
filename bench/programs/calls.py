"""python -m bench.programs.calls LIBRARY ROUNDS CALLS: call compiled functions, `jax.jit`'s and LIBRARY's by turns."""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from bench.measure import quiet_collector

if TYPE_CHECKING:
    from collections.abc import Callable

HOMES = {"ejcache": "ejcache", "ejkernel": "ejkernel.callib"}
COPIES = 4
"""Pairs of functions per shape: where an object happens to lie in memory is worth a per cent."""


def make_one() -> Callable[..., Any]:
    def one_array(x: jax.Array) -> jax.Array:
        return x + 1.0

    return one_array


def make_tree() -> Callable[..., Any]:
    def tree_of_arrays(state: dict[str, Any], *, scale: jax.Array) -> dict[str, Any]:
        scaled: dict[str, Any] = jax.tree.map(lambda leaf: leaf * scale, state)
        return scaled

    return tree_of_arrays


def main() -> None:
    library, rounds, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    ejit = import_module(HOMES[library]).ejit
    x = jnp.ones(8)
    state = {f"layer{n}": {"w": x, "b": x} for n in range(10)}
    shapes: dict[str, tuple[Callable[[], Callable[..., Any]], tuple[Any, ...], dict[str, Any]]] = {
        "one array": (make_one, (x,), {}),
        "20 arrays in a tree": (make_tree, (state,), {"scale": x}),
    }
    answer: dict[str, dict[str, list[float]]] = {}
    for shape, (make, args, kwargs) in shapes.items():
        makers = {"jax.jit": jax.jit, "jax.jit again": jax.jit, f"{library} ejit": ejit}
        sets = []
        for copy in range(COPIES):
            names = list(makers)[copy % 3 :] + list(makers)[: copy % 3]
            sets.append({name: makers[name](make()) for name in names})
        for functions in sets:
            for function in functions.values():
                for _ in range(20):
                    jax.block_until_ready(function(*args, **kwargs))
        samples: dict[str, list[float]] = {name: [] for name in makers}
        with quiet_collector():
            for number in range(rounds):
                functions = sets[number % COPIES]
                names = list(makers)[number % 3 :] + list(makers)[: number % 3]
                for name in names:
                    samples[name].append(seconds_per_call(functions[name], args, kwargs, calls))
        answer[shape] = samples
    print(json.dumps({"shapes": answer}))


def seconds_per_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], calls: int) -> float:
    result = None
    start = time.perf_counter()
    for _ in range(calls):
        result = function(*args, **kwargs)
    end = time.perf_counter()
    jax.block_until_ready(result)
    return (end - start) / calls


if __name__ == "__main__":
    main()
