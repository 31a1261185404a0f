"""python -m bench.programs.autotune_measure ROUNDS: time operations eagerly and inside `jit`, as tuners do."""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.outcome import OURS
from ejcache.autotune import RecordKey, Tuner

EJKERNEL = "ejkernel"


def operations() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Five operations of different kinds, a fraction of a millisecond to some milliseconds each."""
    r = np.random.default_rng(0)

    def floats(*shape: int) -> Any:
        return jnp.asarray(r.standard_normal(shape, dtype=np.float32))

    def attention(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.softmax(q @ k.T / 8.0) @ v

    def scan(x: Any) -> Any:
        return jax.lax.fori_loop(0, 100, lambda _, y: jnp.tanh(y @ x), x)

    def norm(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)

    def take(table: Any, index: Any) -> Any:
        return table[index].sum(-1)

    return {
        "matmul": (lambda x, y: x @ y, (floats(512, 512), floats(512, 512))),
        "attention": (attention, (floats(512, 64), floats(512, 64), floats(512, 64))),
        "loop": (scan, (floats(64, 64),)),
        "norm": (norm, (floats(1024, 512),)),
        "gather": (take, (floats(64, 256), jnp.asarray(r.integers(0, 64, 20_000).astype(np.int32)))),
    }


def measured(tuner: Tuner, function: Any, *arguments: Any) -> float:
    """The median of the seconds of one execution."""
    key = RecordKey("measured", "1", "cpu")
    record = tuner.tune(lambda _: function, arguments, {}, key=key, candidates=[0])
    (candidate,) = record.candidates
    return candidate.seconds.p50 if candidate.seconds else 0.0


def main() -> None:
    rounds = int(sys.argv[1])
    tuner = Tuner(rounds=rounds)
    answer: dict[str, dict[str, dict[str, float]]] = {OURS: {}, EJKERNEL: {}}
    theirs: Any = None
    try:
        theirs = import_module("ejkernel.ops.config.selection").Tuner(warmup=1, iters=5)
    except ImportError:
        del answer[EJKERNEL]
    for name, (function, arguments) in operations().items():
        measures: dict[str, Any] = {OURS: partial(measured, tuner)}
        if theirs is not None:
            measures[EJKERNEL] = theirs.measure
        for who, measure in measures.items():
            eager = measure(function, *arguments)
            inside: list[float] = []
            jaxpr = jax.make_jaxpr(lambda *a, m=measure, f=function, i=inside: (i.append(m(f, *a)), a)[1])(*arguments)
            answer[who][name] = {"eager": eager, "inside": inside[0], "equations": len(jaxpr.eqns)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
