"""`scaled_add(x, y, scale)` as a kernel of Pallas, which finds the best block size of its device in its package."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

import ejcache

BLOCKS = ({"block": 256}, {"block": 1024}, {"block": 4096})


def _kernel(x, y, out, *, scale):
    out[...] = x[...] * scale + y[...]


@ejcache.autotuned(configs=BLOCKS, name="scaled_add", version=1)
def scaled_add(x, y, *, scale=2.0, block):
    """`x * scale + y` for vectors; `block` elements at a time. On CPU, Pallas interprets the kernel."""
    spec = pl.BlockSpec((block,), lambda index: (index,))
    call = pl.pallas_call(
        functools.partial(_kernel, scale=scale),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(x.shape[0], block),),
        in_specs=[spec, spec],
        out_specs=spec,
        interpret=jax.default_backend() == "cpu",
    )
    return call(x, y)


def example():
    """Arguments of a size that programs use."""
    x = jnp.arange(4096, dtype=jnp.float32)
    return x, jnp.ones_like(x)
