"""Batches are put on the device ahead of time; the first state is not."""

import jax
import jax.numpy as jnp
import numpy as np
import optax


class Trainer:
    def __init__(self):
        rng = np.random.default_rng(0)
        self.params = {
            "embed": rng.normal(size=(200, 64)).astype(np.float32),
            "gate": rng.normal(size=(64, 256)).astype(np.float32),
            "value": rng.normal(size=(64, 256)).astype(np.float32),
            "out": rng.normal(size=(256, 200)).astype(np.float32),
        }
        self.optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
        self.state = jax.jit(self.optimiser.init)(self.params)
        self.compiled = jax.jit(self.update)

    def loss(self, params, tokens):
        x = params["embed"][tokens[:, :-1]]
        x = jax.nn.silu(x @ params["gate"]) * (x @ params["value"])
        return optax.softmax_cross_entropy_with_integer_labels(x @ params["out"], tokens[:, 1:]).mean()

    def update(self, params, state, tokens):
        value, grads = jax.value_and_grad(self.loss)(params, tokens)
        updates, state = self.optimiser.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    def fit(self, loader):
        for tokens in loader:
            self.params, self.state, value = self.compiled(self.params, self.state, tokens)  # <-
            print(float(value))


def loader(batches):
    rng = np.random.default_rng(1)
    for _ in range(batches):
        yield jax.device_put(rng.integers(0, 200, (8, 33)).astype(np.int32), jax.local_devices()[0])


Trainer().fit(loader(4))
