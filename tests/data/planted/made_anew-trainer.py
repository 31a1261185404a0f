"""A search for a learning rate: each trial has a trainer of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import optax


class Trainer:
    def __init__(self, rate):
        self.rate = np.float32(rate)
        self.optimiser = optax.inject_hyperparams(optax.adamw)(learning_rate=0.1, weight_decay=0.01)
        self.step = jax.jit(self._step)  # <-

    def forward(self, params, x):
        for name in ("conv1", "conv2"):
            x = jax.lax.conv_general_dilated(
                x, params[name], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(x - x.mean(axis=(1, 2), keepdims=True))
        return x.mean(axis=(1, 2)) @ params["out"]

    def loss(self, params, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(self.forward(params, x), y).mean()

    def _step(self, params, state, rate, x, y):
        value, grads = jax.value_and_grad(self.loss)(params, x, y)
        state.hyperparams["learning_rate"] = rate
        updates, state = self.optimiser.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    def run(self, params, batches):
        state = jax.tree.map(
            lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.eval_shape(self.optimiser.init, params)
        )
        for x, y in batches:
            params, state, value = self.step(params, state, self.rate, x, y)
        return float(value)


rng = np.random.default_rng(0)
params = {
    "conv1": rng.normal(size=(3, 3, 1, 8)).astype(np.float32),
    "conv2": rng.normal(size=(3, 3, 8, 16)).astype(np.float32),
    "out": rng.normal(size=(16, 10)).astype(np.float32),
}
batches = [
    (rng.normal(size=(8, 28, 28, 1)).astype(np.float32), rng.integers(0, 10, 8).astype(np.int32)) for _ in range(4)
]
best = min((1e-1, 3e-2, 1e-2, 3e-3, 1e-3), key=lambda rate: Trainer(rate).run(params, batches))
print("best rate", best)
