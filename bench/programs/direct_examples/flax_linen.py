"""Flax Linen: models applied, initialised, trained and generated from, as the Linen guides do it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import train_state

from bench.programs.direct_examples.example import Example

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class MLP(nn.Module):
    features: Sequence[int]

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for width in self.features[:-1]:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.features[-1])(x)


class CNN(nn.Module):
    classes: int = 10

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.relu(nn.Conv(features=8, kernel_size=(3, 3))(x))
        x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = nn.relu(nn.Conv(features=16, kernel_size=(3, 3))(x))
        x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        return nn.Dense(self.classes)(x.reshape((x.shape[0], -1)))


class Normalized(nn.Module):
    @nn.compact
    def __call__(self, x: Any, *, train: bool) -> Any:
        x = nn.Dense(16)(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        x = nn.Dropout(0.25, deterministic=not train)(nn.gelu(x))
        return nn.Dense(4)(x)


class Autoencoder(nn.Module):
    hidden: int

    def setup(self) -> None:
        self.encoder = MLP([16, self.hidden])
        self.decoder = MLP([16, 12])

    def __call__(self, x: Any) -> Any:
        return self.decode(self.encode(x))

    def encode(self, x: Any) -> Any:
        return self.encoder(x)

    def decode(self, z: Any) -> Any:
        return nn.sigmoid(self.decoder(z))


class VAE(nn.Module):
    latents: int = 4

    @nn.compact
    def __call__(self, x: Any, rng: Any) -> Any:
        hidden = nn.relu(nn.Dense(16)(x))
        mean, logvar = nn.Dense(self.latents)(hidden), nn.Dense(self.latents)(hidden)
        z = mean + jnp.exp(0.5 * logvar) * jax.random.normal(rng, logvar.shape)
        return nn.Dense(12)(nn.relu(nn.Dense(16)(z))), mean, logvar


class Block(nn.Module):
    heads: int = 2

    @nn.compact
    def __call__(self, x: Any, mask: Any) -> Any:
        x = x + nn.MultiHeadDotProductAttention(num_heads=self.heads)(nn.LayerNorm()(x), mask=mask)
        return x + MLP([32, x.shape[-1]])(nn.LayerNorm()(x))


class Transformer(nn.Module):
    vocabulary: int
    depth: int = 2

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(self.vocabulary, 16)(tokens)
        mask = nn.make_causal_mask(tokens)
        for _ in range(self.depth):
            x = Block()(x, mask)
        return nn.Dense(self.vocabulary)(x)


class Scanned(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        def body(cell: Any, carry: Any, _: Any) -> Any:
            return nn.tanh(cell(carry)), None

        scan = nn.scan(body, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        return scan(nn.Dense(8), x, None)[0]


IMAGES = np.linspace(0, 1, 2 * 12 * 12, dtype=np.float32).reshape(2, 12, 12, 1)
FLAT = np.linspace(-1, 1, 4 * 12, dtype=np.float32).reshape(4, 12)
TOKENS = np.arange(24, dtype=np.int32).reshape(2, 12) % 11
LABELS = np.array([1, 3], np.int32)
mlp, cnn, transformer = MLP([32, 16, 4]), CNN(), Transformer(11)


def predict(variables: Any, x: Any) -> Any:
    return mlp.apply(variables, x)


def initialize(key: Any, x: Any) -> Any:
    return cnn.init(key, x)["params"]


def apply_cnn(state: Any, images: Any, labels: Any) -> Any:
    def loss_of(params: Any) -> Any:
        logits = state.apply_fn({"params": params}, images)
        one_hot = jax.nn.one_hot(labels, 10)
        return jnp.mean(optax.softmax_cross_entropy(logits=logits, labels=one_hot)), logits

    (loss, logits), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    return grads, loss, jnp.mean(jnp.argmax(logits, -1) == labels)


def update(state: Any, grads: Any) -> Any:
    return state.apply_gradients(grads=grads)


def train_step(state: Any, images: Any, labels: Any) -> Any:
    grads, loss, _ = apply_cnn(state, images, labels)
    return update(state, grads), loss


def normalized_step(model: Any, variables: Any, x: Any, key: Any) -> Any:
    def loss_of(params: Any) -> Any:
        given = {"params": params, "batch_stats": variables["batch_stats"]}
        y, changed = model.apply(given, x, train=True, mutable=["batch_stats"], rngs={"dropout": key})
        return jnp.mean(y**2), changed

    (loss, changed), grads = jax.value_and_grad(loss_of, has_aux=True)(variables["params"])
    return loss, grads, changed


def evaluate(variables: Any, x: Any) -> Any:
    return Normalized().apply(variables, x, train=False)


def vae_loss(variables: Any, x: Any, key: Any) -> Any:
    recon, mean, logvar = VAE().apply(variables, x, key)
    divergence = -0.5 * jnp.sum(1 + logvar - mean**2 - jnp.exp(logvar), axis=-1)
    return jnp.mean(optax.sigmoid_binary_cross_entropy(recon, x).sum(-1) + divergence)


def next_token(params: Any, tokens: Any, key: Any, temperature: float = 0.7) -> Any:
    logits = transformer.apply(params, tokens)[:, -1]
    return jax.random.categorical(key, logits / temperature)


def language_loss(params: Any, tokens: Any) -> Any:
    logits = transformer.apply(params, tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def examples() -> Iterator[Example]:
    """The examples, in a fixed order."""
    key = jax.random.key(0)
    mlp_variables = mlp.init(key, FLAT)
    yield Example("linen: apply an MLP", predict, (mlp_variables, FLAT))
    yield Example("linen: model.apply itself", mlp.apply, (mlp_variables, FLAT))
    yield Example("linen: initialise a CNN", initialize, (key, IMAGES))
    params = cnn.init(key, IMAGES)["params"]
    state = train_state.TrainState.create(apply_fn=cnn.apply, params=params, tx=optax.sgd(0.1, 0.9))
    yield Example("linen: gradients of a CNN from its train state", apply_cnn, (state, IMAGES, LABELS))
    yield Example("linen: a train state takes gradients", update, (state, params))
    yield Example("linen: training step of a CNN", train_step, (state, IMAGES, LABELS))
    yield Example("linen: the same, donating its state", train_step, (state, IMAGES, LABELS), {"donate_argnums": 0})
    model = Normalized()
    normalized = model.init({"params": key, "dropout": key}, FLAT, train=False)
    yield Example(
        "linen: batch norm and dropout",
        normalized_step,
        (model, normalized, FLAT, key),
        {"static_argnums": 0},
    )
    yield Example("linen: evaluate with batch norm", evaluate, (normalized, FLAT))
    coder = Autoencoder(4)
    coded = coder.init(key, FLAT)
    yield Example("linen: a method of an autoencoder", partial(coder.apply, method="encode"), (coded, FLAT))
    yield Example("linen: VAE loss and gradient", jax.value_and_grad(vae_loss), (VAE().init(key, FLAT, key), FLAT, key))
    tokens = transformer.init(key, TOKENS)
    yield Example("linen: gradient of a transformer", jax.grad(language_loss), (tokens, TOKENS))
    yield Example("linen: next token of a transformer", next_token, (tokens, TOKENS, key))
    scanned = Scanned()
    held = scanned.init(key, FLAT[:, :8])
    yield Example("linen: a scanned stack", lambda variables, x: scanned.apply(variables, x), (held, FLAT[:, :8]))
