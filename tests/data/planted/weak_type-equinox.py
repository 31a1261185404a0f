"""Perplexity of two splits: one is read from a file of 16 bits, one is made of Python integers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


class Language(eqx.Module):
    embed: eqx.nn.Embedding
    cell: eqx.nn.LSTMCell
    out: eqx.nn.Linear

    def __init__(self, key):
        a, b, c = jax.random.split(key, 3)
        self.embed = eqx.nn.Embedding(120, 32, key=a)
        self.cell = eqx.nn.LSTMCell(32, 64, key=b)
        self.out = eqx.nn.Linear(64, 120, key=c)

    def __call__(self, tokens):
        def read(carry, token):
            carry = self.cell(self.embed(token), carry)
            return carry, self.out(carry[0])

        zero = jnp.zeros(64)
        return jax.lax.scan(read, (zero, zero), tokens)[1]


@eqx.filter_jit
def make(key):
    return Language(key)


@eqx.filter_jit
def perplexity(model, tokens):
    logits = jax.vmap(model)(tokens[:, :-1])
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)
    return jnp.exp(-picked.mean())


def evaluate(model, splits):
    for name, tokens in splits.items():
        print(name, float(perplexity(model, tokens)))  # <-


rng = np.random.default_rng(0)
stored = rng.integers(0, 120, (8, 50)).astype(np.uint16)
evaluate(make(jax.random.key(0)), {"stored": stored, "typed": np.array(stored.tolist(), np.int32)})
