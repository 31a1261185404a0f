"""What depends on the version of JAX, for `tools/each_jax.py`: `every_jax.py CASE PLACE [WORD …]` prints what it saw.

Each case is a function, which runs in a process of its own, and most of them in several.
"""

from __future__ import annotations

import json
import logging
import pickle
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import ejcache

case, place, *words = sys.argv[1:]


def step(x):
    return jnp.tanh(x @ x.T).sum() * 3


def enable(**settings):
    return ejcache.enable(place, min_compile_seconds=0, **settings)


def counted(cache):
    stats = cache.stats()
    return {"hits": stats.hits, "misses": stats.misses, "stores": stats.stores, "errors": stats.errors}


def callbacks():
    """Python functions that the program calls: this process's own, in every start."""
    from jax.experimental import io_callback

    cache, factor, seen = enable(), float(words[0]), []
    x = np.float32(2)
    shape = jax.ShapeDtypeStruct((), np.float32)
    values = [
        float(jax.jit(lambda v: jax.pure_callback(lambda w: np.asarray(w) * np.float32(factor), shape, v) + 1)(x)),
        float(jax.jit(lambda v: io_callback(lambda w: np.float32(seen.append(factor) or w), shape, v) * 2)(x)),
    ]
    jax.jit(lambda v: (jax.debug.print("printed {}", v), v + 3)[1])(x).block_until_ready()
    jax.effects_barrier()
    return {"values": values, "seen": seen, **counted(cache)}


def partitioned():
    """`custom_partitioning` holds a pointer to a Python function, so it is neither looked up nor stored."""
    import inspect

    from jax.experimental.custom_partitioning import custom_partitioning

    cache = enable()

    @custom_partitioning
    def twice(v):
        return jnp.sin(v) * 2

    def partition(mesh, arguments, result):
        return mesh, (lambda v: jnp.sin(v) * 2), arguments[0].sharding, (arguments[0].sharding,)

    more = {"sharding_rule": "i -> i"} if "sharding_rule" in inspect.signature(twice.def_partition).parameters else {}
    twice.def_partition(
        partition=partition, infer_sharding_from_operands=lambda mesh, arguments, result: arguments[0].sharding, **more
    )
    return {"value": float(jax.jit(lambda v: twice(v).sum())(np.arange(8, dtype=np.float32))), **counted(cache)}


def forbidden():
    """What the cache has runs; anything else is refused, and the error is the program's."""
    cache = enable()
    x = np.ones((4, 4), np.float32)
    step_here = jax.jit(step)
    if words == ["before"]:
        return {"value": float(step_here(x)), **counted(cache)}
    with ejcache.forbid_compile():
        value = float(step_here(x))
        try:
            jax.jit(lambda v: v * 12345)(x)
            refused = ""
        except ejcache.CompileForbiddenError as exc:
            refused = str(exc)
    return {"value": value, "refused": refused, **counted(cache)}


def warmed():
    """`ejcache.warm` stores; the next process hits."""
    cache = enable()
    if words == ["before"]:
        return {"outcome": str(ejcache.warm(step, jax.ShapeDtypeStruct((4, 4), jnp.float32)).outcome)}
    return {"value": float(jax.jit(step)(np.ones((4, 4), np.float32))), **counted(cache)}


def tuned():
    """An operation of `autotuned` takes what was measured; the next process measures nothing."""
    measured = []

    @ejcache.autotuned(configs=[{"block": 1}, {"block": 2}])
    def scaled(x, *, block):
        measured.append(block)
        return x * 2

    cache = enable(autotune_policy="autotune")
    value = float(jax.jit(lambda v: scaled(v).sum())(np.ones(64, np.float32)))
    mapped = float(jax.vmap(scaled)(np.ones((2, 64), np.float32)).sum())
    return {"values": [value, mapped], "measured": len(set(measured)), **counted(cache)}


def compared():
    """The results of what was loaded are those of fresh compilations, also where random keys are among the inputs."""
    from ejcache.journal.comparison_results import COMPARED

    cache = enable(compare=words == ["after"])
    draw = jax.jit(lambda key, x: (jax.random.normal(key, (3,)) + x, jax.random.split(key)))
    drawn, _ = draw(jax.random.key(7), np.ones((3,), np.float32))
    value = float(drawn.sum())
    amounts = cache.stats().amounts
    found = {name: int(amounts.get(f"{COMPARED}{name}", 0)) for name in ("programs", "calls", "cache")}
    return {"value": value, "compared": found, **counted(cache)}


def serialised():
    """What came from a hit is serialised to bytes that run."""
    from jax.experimental import serialize_executable

    cache = enable()
    x = np.ones((4, 4), np.float32)
    compiled = jax.jit(step).lower(x).compile()
    if words == ["before"]:
        return {"value": float(compiled(x)), **counted(cache)}
    if words == ["after"]:
        Path(place, "pickled").write_bytes(pickle.dumps(serialize_executable.serialize(compiled)))
        return {"value": float(compiled(x)), **counted(cache)}
    loaded = serialize_executable.deserialize_and_load(*pickle.loads(Path(place, "pickled").read_bytes()))
    return {"value": float(loaded(x)), **counted(cache)}


def listened():
    """Events, lines and flags, as with JAX's own cache."""
    said: list[str] = []
    events: list[str] = []
    durations: dict[str, float] = {}
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    for name in ("jax._src.compiler", "jax._src.compilation_cache"):
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(logging.DEBUG)
        logging.getLogger(name).propagate = False
    jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
    jax.monitoring.register_event_duration_secs_listener(lambda name, took, **_: durations.update({name: took}))
    before = dict(jax.config.values) if hasattr(jax.config, "values") else {}
    if words[0] == "ours":
        enable()
    else:
        jax.config.update("jax_compilation_cache_dir", place)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    value = float(jax.jit(step)(np.ones((4, 4), np.float32)))
    changed = {name for name, was in before.items() if dict(jax.config.values).get(name) != was}
    own = "/jax/compilation_cache/"
    return {
        "value": value,
        "events": [name for name in events if name.startswith(own)],
        "durations": sorted(name for name in durations if name.startswith(own)),
        "retrieval": durations.get(f"{own}cache_retrieval_time_sec", -1.0),
        "lines": [" ".join(line.split()[:4]) for line in said if "riting" in line or "MISS" in line],
        "changed": sorted(changed),
    }


def failing():
    """A program that XLA refuses: the error of XLA, compiled once."""
    if words[0] == "ours":
        enable()
    x = np.ones(4, np.float32)
    options = {"xla_no_such_option": "1"}
    try:
        jax.jit(step_of_vector).lower(x).compile(compiler_options=options)
    except Exception as exc:
        frames, trace = [], exc.__traceback__
        while trace is not None:
            frames.append(trace.tb_frame.f_code.co_filename)
            trace = trace.tb_next
        ours = [name for name in frames if "/ejcache/" in name]
        return {"type": type(exc).__name__, "text": str(exc)[:80], "frames of ours": ours}
    return {"type": "", "text": "", "frames of ours": []}


def step_of_vector(x):
    return (x * 2).sum()


def together():
    """Three processes at once: each program is compiled by one of them. It ends when its standard input does.

    A process that ends gives its leases up at once, so that another one may compile its last program again.
    """
    cache = enable()
    x = np.ones((64, 64), np.float32)
    functions = [lambda v, n=n: jnp.linalg.norm(jnp.tanh(v @ v.T) * n) for n in range(3)]
    values = [float(jax.jit(each)(x)) for each in functions]
    cache.flush(timeout=60)
    print("done", flush=True)
    sys.stdin.read()
    return {"values": values, **counted(cache)}


def edited():
    """A constant of the program is another one; the reason is asked for."""
    cache = enable()
    rate = float(words[0])

    def train(x):
        return (x * rate).sum()

    jax.jit(train)(np.ones((3,), np.float32)).block_until_ready()
    cache.flush(timeout=60)
    return {"why": [str(each.text) for each in ejcache.why("train")], **counted(cache)}


def ranks():
    """Two ranks of one program; `share` has the first one compile for both."""
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    rank, port, how = int(words[0]), words[1], words[2]
    jax.distributed.initialize(f"localhost:{port}", 2, rank)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if how == "share":
        jax.config.update("jax_share_binary_between_hosts", True)
    cache = ejcache.enable(f"{place}/{rank}" if how == "share" else place, min_compile_seconds=0)
    mesh = Mesh(np.array(jax.devices()), ("x",))
    split = NamedSharding(mesh, PartitionSpec("x"))
    x = jax.make_array_from_callback((4,), split, lambda i: np.arange(4, dtype=np.float32)[i])
    value = float(jax.jit(lambda v: (v * 3).sum())(x).addressable_data(0))
    cache.flush(timeout=60)
    return {"value": value, **counted(cache)}


if __name__ == "__main__":
    made = globals()[case]()
    print(json.dumps(made))
