"""A decoder of six blocks in Flax Linen, as the language model among Optax's examples has it."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

BLOCKS, WIDTH, HEADS, VOCABULARY = 6, 64, 4, 256


class Decoder(nn.Module):
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        mask = nn.make_causal_mask(tokens)
        x = nn.Embed(VOCABULARY, WIDTH)(tokens) + nn.Embed(tokens.shape[1], WIDTH)(jnp.arange(tokens.shape[1]))
        for _ in range(BLOCKS):
            normal = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(num_heads=HEADS)(normal, normal, mask=mask)
            x = x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))
        return nn.Dense(VOCABULARY)(nn.LayerNorm()(x))
