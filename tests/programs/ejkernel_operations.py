"""Runs operations of ejkernel: `ejkernel_operations.py plain|guess|install OPERATION …`; prints JSON.

`plain` is ejkernel alone, `guess` the same without measuring, and `install` is ejkernel on our store.
"""

# ruff: noqa: E402 (ejcache is installed before ejkernel is imported)
from __future__ import annotations

import dataclasses
import hashlib
import json
import sys

MODE, *NAMES = sys.argv[1:]
if MODE == "install":
    import ejcache
    from ejcache.autotune import Tuner

    ejcache.autotune.ejkernel.install(tuner=Tuner(rounds=4, sample_seconds=0.0002))

import ejkernel.modules.operations as o
import jax
import jax.numpy as jnp
import numpy as np
from ejkernel.ops import forward_autotune_only
from ejkernel.ops.execution.executor import Executor


def r(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


HEARD = []
for name, module in list(sys.modules.items()):
    if name.startswith("ejkernel.modules.operations."):
        for held in vars(module).values():
            if isinstance(held, Executor):
                held.chooser.on_event = lambda event, **data: HEARD.append((event, data))
                if MODE == "guess":
                    held.chooser.policy.cache_miss_fallback = "heuristics"

Q, K, V = (r(seed, 1, 16, 2, 8) for seed in range(3))
HEADS_FIRST = [r(seed, 1, 2, 128, 16) for seed in range(3)]
GROUPS = jnp.array([20, 12], jnp.int32)
OPERATIONS = {
    "flash": lambda: o.flash_attention(Q, K, V, causal=True),
    "flash in jit": lambda: jax.jit(lambda x: o.flash_attention(x, K, V, causal=True))(Q),
    "gradient of flash": lambda: jax.grad(lambda x: o.flash_attention(x, K, V).sum())(Q),
    "blocksparse": lambda: o.blocksparse_attention(*HEADS_FIRST),
    "ring": lambda: o.ring_attention(Q, K, V, axis_name=None),
    "pooling": lambda: o.mean_pooling(r(0, 1, 32, 2, 16), chunk_size=16),
    "grouped matmul": lambda: o.grouped_matmul(r(0, 32, 16), r(1, 2, 16, 24), GROUPS),
    "sdpa": lambda: o.scaled_dot_product_attention(Q, K, V),
    "attention": lambda: o.attention(Q, K, V),
    # The other data type of these two has the same key in ejkernel's files.
    "flash, bfloat16 logits": lambda: o.flash_attention(Q, K, V, causal=True, logits_dtype=jnp.bfloat16),
    "grouped matmul, bfloat16": lambda: o.grouped_matmul(
        r(0, 32, 16), r(1, 2, 16, 24), GROUPS, preferred_element_type=jnp.bfloat16
    ),
}


def digest(value):
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(value))).hexdigest()[:16]


def plain(configuration):
    if dataclasses.is_dataclass(configuration):
        return dataclasses.asdict(configuration)
    return json.loads(json.dumps(configuration, default=vars))


with forward_autotune_only():
    said = {"digests": {name: digest(OPERATIONS[name]()) for name in NAMES}}
said["used"] = [[event, data.get("level"), plain(data["cfg"])] for event, data in HEARD if "cfg" in data]
if MODE == "install":
    from ejcache.autotune import default_chooser

    said["counters"] = dict(default_chooser().counters)
print(json.dumps(said))
