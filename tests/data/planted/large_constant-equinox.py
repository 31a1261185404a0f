"""Search in a corpus of vectors, which the function has from its module."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

corpus = np.random.default_rng(0).normal(size=(40_000, 192)).astype(np.float32)


@eqx.filter_jit
def make(key):
    return eqx.nn.MLP(64, 192, 256, 2, key=key)


@eqx.filter_jit
def search(query_model, queries):
    vectors = jax.vmap(query_model)(queries)
    vectors = vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True)
    scores = vectors @ corpus.T  # <-
    return jax.lax.top_k(scores, 10)


query_model = make(jax.random.key(0))
for _ in range(3):
    scores, found = search(query_model, np.ones((4, 64), np.float32))
    print(np.asarray(found)[0, :3])
