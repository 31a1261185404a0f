"""Programs for accelerators that this process does not have: `absent.py CACHE TARGET HOW [NUMBER]`, HOW a function."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import ejcache
from ejcache.jax_integration.seam import key_parts, patch
from ejcache.jax_integration.seam.compilation_watch import before_each_compilation
from ejcache.keys.key import is_side_key

loads, compiled = [], []


def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2 + 1


def programs(devices):
    """Names, jitted functions, and the shapes of what they are called with; the first three are the quickest."""
    mesh = Mesh(np.array(devices), "x")
    split, whole = NamedSharding(mesh, PartitionSpec("x")), NamedSharding(mesh, PartitionSpec())
    gpu = devices[0].platform == "gpu"

    def shape(*dimensions, dtype=jnp.float32, sharding=None):
        return jax.ShapeDtypeStruct(dimensions, dtype, sharding=sharding or split)

    def everywhere(function):
        x = PartitionSpec("x")
        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=x, out_specs=x, check_vma=False))

    def double(x):
        parameters = {}
        if gpu:
            from jax.experimental.pallas import triton

            parameters = {"compiler_params": triton.CompilerParams(num_warps=4)}
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), **parameters)(x)

    def attention(q):
        return jax.nn.dot_product_attention(q, q, q)

    def train(w, x):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        return loss, w - 0.1 * grad

    ring = [(0, 1), (1, 0)] if len(devices) > 1 else [(0, 0)]
    n = 2 * len(devices)
    flag = {"xla_gpu_enable_triton_gemm": False} if gpu else {"xla_tpu_scoped_vmem_limit_kib": 16384}
    matrix = shape(8 * n, 128)
    found = {
        "elementwise": (jax.jit(lambda x: jnp.tanh(x) * 2), (matrix,)),
        "kernel": (everywhere(double), (matrix,)),
        "summed": (everywhere(lambda x: x + jax.lax.psum(x, "x")), (matrix,)),
        "product": (jax.jit(lambda x: x @ x.T), (matrix,)),
        "halved": (jax.jit(lambda x: x @ x.T), (shape(8 * n, 128, dtype=jnp.bfloat16),)),
        "flagged": (jax.jit(lambda x: x @ x.T, compiler_options=flag), (matrix,)),
        "donated": (jax.jit(lambda x: x * 3 + 1, donate_argnums=0), (matrix,)),
        "random": (jax.jit(lambda x: x + jax.random.normal(jax.random.key(3), x.shape)), (matrix,)),
        "trained": (jax.jit(train), (shape(128, 16, sharding=whole), matrix)),
        "scanned": (jax.jit(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) * 2, None), x, None, 5)[0]), (matrix,)),
        "looped": (jax.jit(lambda x: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x)), (matrix,)),
        "sorted": (jax.jit(lambda x: jnp.sort(x, axis=1)), (matrix,)),
        "integers": (jax.jit(lambda x: jnp.cumsum(x, axis=1) % 7), (shape(n, 64, dtype=jnp.int32),)),
        "gathered": (jax.jit(lambda x: x + 1, out_shardings=whole), (matrix,)),
        "exchanged": (everywhere(lambda x: jax.lax.ppermute(x, "x", ring)), (matrix,)),
        "factored": (jax.jit(lambda x: jnp.linalg.cholesky(x @ x.T)), (shape(16, 16, sharding=whole),)),
        "attended": (jax.jit(attention), (shape(n, 128, 4, 64, dtype=jnp.bfloat16),)),
        "convolved": (
            jax.jit(lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")),
            (shape(n, 8, 16, 16), shape(8, 8, 3, 3, sharding=whole)),
        ),
        "rematerialised": (jax.jit(jax.grad(jax.checkpoint(lambda x: jnp.sum(jnp.sin(jnp.sin(x)))))), (matrix,)),
        "transposed": (
            jax.jit(
                lambda x: x + 1,
                out_shardings=Format(Layout((0, 1)), split),
            ),
            (matrix,),
        ),
    }
    for name, (function, _) in found.items():
        function.__name__ = name
    return found


def warm(devices, number):
    """Compiles the first of them; their outcomes, and their keys."""
    found = list(programs(devices).items())[:number]
    outcomes = {name: ejcache.warm(function, *shapes).outcome for name, (function, shapes) in found}
    return {"outcomes": outcomes, **keys(devices, number)}


def measured(devices, number):
    """Compiles a product and a sum as if the cache had results of autotuning, none of which is of these programs."""
    from ejcache.jax_integration.devices import absent as absent_devices

    absent_devices.autotune_directory = lambda options: str(Path(__file__).parent)
    shape = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    return {"outcomes": [ejcache.warm(each, shape).outcome for each in (lambda x: x @ x.T, lambda x: x + 1)]}


def keys(devices, number):
    """Their keys."""
    found = list(programs(devices).items())[:number]
    return {"keys": [ejcache.key_of(function.lower(*shapes)) for _, (function, shapes) in found]}


def save(devices, number):
    """Saves the target under the name `copy`, as its devices would; then nothing but the topology names it."""
    from ejcache.jax_integration.devices.targets import DeviceTarget, document_path, encode, find_target
    from ejcache.stores.documents import open_documents

    known = find_target(sys.argv[2])
    copy = DeviceTarget("copy", known.platform, key_parts.topology_bytes(devices), known.platform_version)
    documents = open_documents(sys.argv[1])
    documents.replace(document_path("copy"), encode(copy))
    documents.close()
    return {}


def main(url, target, how, number="99"):
    cache = ejcache.enable(url, min_compile_seconds=0)
    load = patch.load_executable
    patch.load_executable = lambda *given: loads.append(1) or load(*given)
    before_each_compilation(compiled.append)
    with ejcache.target(target) as devices:
        result = globals()[how](devices, int(number))
    cache.flush()
    with ejcache.open_store(url) as store:
        entries = sorted(info.key for info in store.entries() if not is_side_key(info.key))
    print(json.dumps({**result, "loads": len(loads), "compiled": len(compiled), "entries": entries}))


if __name__ == "__main__":
    main(*sys.argv[1:])
