"""A decoder of twelve layers."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


class Layer(nnx.Module):
    def __init__(self, width, rngs):
        self.norm1 = nnx.RMSNorm(width, rngs=rngs)
        self.norm2 = nnx.RMSNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, width, decode=False, use_bias=False, rngs=rngs)
        self.gate = nnx.Linear(width, 2 * width, use_bias=False, rngs=rngs)
        self.value = nnx.Linear(width, 2 * width, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(2 * width, width, use_bias=False, rngs=rngs)

    def __call__(self, x, mask):
        x = x + self.attention(self.norm1(x), mask=mask)
        h = self.norm2(x)
        return x + self.out(nnx.silu(self.gate(h)) * self.value(h))


class Decoder(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(100, 32, rngs=rngs)
        self.layers = nnx.List([Layer(32, rngs) for _ in range(12)])
        self.norm = nnx.RMSNorm(32, rngs=rngs)

    def __call__(self, tokens):
        mask = nnx.make_causal_mask(tokens)
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, mask)  # <-
        return self.embed.attend(self.norm(x))


shapes = nnx.eval_shape(lambda: Decoder(nnx.Rngs(0)))
graph, shapes, rest = nnx.split(shapes, nnx.Param, ...)
params = jax.tree.map(lambda s: np.full(s.shape, 0.01, s.dtype), shapes)


@jax.jit
def logits(params, tokens):
    return nnx.merge(graph, params, rest)(tokens)[:, -1]


tokens = np.ones((2, 24), np.int32)
for _ in range(3):
    tokens[:, -1] = np.asarray(logits(params, tokens)).argmax(-1)
print(tokens[0, -1])
