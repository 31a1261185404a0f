"""Six small programs for `tools/each_jax.py`: `six_programs.py jax|ours PLACE` prints what they counted."""

import json
import sys
import time

mode, place = sys.argv[1:]

import jax  # noqa: E402

hits = 0


def count(event, **_):
    global hits
    hits += event == "/jax/compilation_cache/cache_hits"


jax.monitoring.register_event_listener(count)
if mode == "jax":
    jax.config.update("jax_compilation_cache_dir", place)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
else:
    import ejcache
    from ejcache.jax_integration import in_charge

    ejcache.enable(place, min_compile_seconds=0)

import jax.numpy as jnp  # noqa: E402


def attention(x):
    scores = jax.nn.softmax(x @ x.T / x.shape[-1] ** 0.5)
    return scores @ x


def step(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)


def scanned(x):
    return jax.lax.scan(lambda carry, row: (carry * 0.9 + row, carry.sum()), x[0], x)[1]


def random(seed):
    return jax.random.normal(jax.random.PRNGKey(seed), (16,))


def searched(x):
    return jax.lax.while_loop(lambda v: v.sum() < 100.0, lambda v: v * 1.5, x)


x = jnp.arange(64.0).reshape(8, 8) / 64
results = [
    jax.jit(attention)(x),
    jax.jit(step)(x, x),
    jax.jit(scanned)(x),
    jax.jit(random)(7),
    jax.jit(searched)(x),
    jax.jit(jax.vmap(lambda row: jnp.sort(row)[::-1].cumsum()))(x),
]
values = [float(jnp.asarray(each, jnp.float32).sum()) for each in results]
counted = {}
if mode != "jax":
    stats = ejcache.stats()
    cache = ejcache.active()
    cache.flush(timeout=60)
    counted = {
        "kept": in_charge()[0],
        "hits": stats.hits,
        "misses": stats.misses,
        "corrupt": stats.corrupt,
        "stores": stats.stores,
        "bytes": sum(info.size for info in cache.entries()) if "://" not in place else 0,
    }
print(json.dumps({"values": values, "hits": hits, "counted": counted, "seconds": time.process_time()}))
