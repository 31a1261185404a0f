"""Mixed precision: the scale of the loss begins as a Python number, and comes back from each step."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(8, (3, 3), dtype=jnp.bfloat16)(x)
        x = nn.relu(nn.GroupNorm(4, dtype=jnp.bfloat16)(x))
        x = nn.Conv(16, (3, 3), strides=(2, 2), dtype=jnp.bfloat16)(x)
        return nn.Dense(10)(nn.relu(x).mean(axis=(1, 2)))


net = Net()
rng = np.random.default_rng(0)
images = rng.normal(size=(8, 16, 16, 3)).astype(np.float32)
labels = rng.integers(0, 10, 8).astype(np.int32)
params = jax.jit(net.init)(jax.random.key(0), images)


@jax.jit
def step(params, images, labels, scale):
    def loss(params):
        picked = jnp.take_along_axis(nn.log_softmax(net.apply(params, images)), labels[:, None], axis=1)
        return -picked.mean() * scale

    grads = jax.tree.map(lambda g: g / scale, jax.grad(loss)(params))
    finite = jnp.all(jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - 0.01 * g, p), params, grads)
    return params, jnp.where(finite, jnp.minimum(scale * 2, np.float32(2**24)), scale / 2)


scale = 2.0**15
for _ in range(4):
    params, scale = step(params, images, labels, scale)  # <-
print(float(scale))
