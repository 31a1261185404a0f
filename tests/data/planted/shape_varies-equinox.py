"""Sentences of any length are embedded one by one."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


class Reader(eqx.Module):
    table: eqx.nn.Embedding
    attention: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm
    out: eqx.nn.MLP

    def __init__(self, key):
        a, b, c = jax.random.split(key, 3)
        self.table = eqx.nn.Embedding(300, 48, key=a)
        self.attention = eqx.nn.MultiheadAttention(4, 48, key=b)
        self.norm = eqx.nn.LayerNorm(48)
        self.out = eqx.nn.MLP(48, 16, 96, 2, key=c)

    def __call__(self, tokens):
        x = jax.vmap(self.norm)(jax.vmap(self.table)(tokens))
        x = x + self.attention(x, x, x)
        return self.out(x.mean(axis=0))


@eqx.filter_jit
def make(key):
    return Reader(key)


@eqx.filter_jit
def embed(reader, tokens):
    vector = reader(tokens)
    return vector / jnp.linalg.norm(vector)


def main():
    reader = make(jax.random.key(0))
    rng = np.random.default_rng(1)
    vectors = []
    for length in (12, 7, 31, 18, 25, 44, 9):
        sentence = rng.integers(0, 300, length).astype(np.int32)
        vectors.append(np.asarray(embed(reader, sentence)))  # <-
    print(np.stack(vectors).shape)


main()
