"""A serving loop whose requests have any length: lengths are padded to buckets, and nothing compiles while it serves.

python serving.py        prepares one program for each bucket, then answers some requests

In an image, `ejcache warm serving.py:prepare` compiles the buckets while the image is built (docker/Dockerfile).
"""

import jax
import jax.numpy as jnp
import numpy as np

import ejcache

BUCKETS = (16, 64, 256)
WIDTH = 32


@jax.jit
def predict(weights, tokens, length):
    """The mean of the embedded tokens; what was padded does not count."""
    embedded = jnp.tanh(weights[tokens])
    mask = (jnp.arange(tokens.shape[0]) < length)[:, None]
    return (embedded * mask).sum(axis=0) / length


def prepare():
    """Compile one program for each bucket, or load it. Shapes are enough; no weights are read."""
    weights = jax.ShapeDtypeStruct((1000, WIDTH), jnp.float32)
    for size in BUCKETS:
        tokens, length = jax.ShapeDtypeStruct((size,), jnp.int32), jax.ShapeDtypeStruct((), jnp.int32)
        ejcache.warm(predict, weights, tokens, length)


def answer(weights, tokens):
    """Pad one request to the smallest bucket that holds it."""
    size = next(bucket for bucket in BUCKETS if len(tokens) <= bucket)
    padded = np.zeros(size, np.int32)
    padded[: len(tokens)] = tokens
    return np.asarray(predict(weights, padded, np.int32(len(tokens))))


def main():
    cache = ejcache.enable()
    prepare()
    weights = jnp.asarray(np.linspace(-1, 1, 1000 * WIDTH, dtype=np.float32).reshape(1000, WIDTH))
    for size in BUCKETS:
        answer(weights, np.ones(size, np.int32))  # the first call of a shape traces it; what was compiled is a hit
    with ejcache.forbid_compile(everywhere=True):
        for length in (3, 11, 40, 64, 65, 200):
            print(length, answer(weights, np.arange(length))[:2])
    print(cache.stats())


if __name__ == "__main__":
    main()
