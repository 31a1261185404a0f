"""Training on two devices: batches are split over them, the model is not placed."""

import jax

jax.config.update("jax_num_cpu_devices", 2)

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

split = NamedSharding(Mesh(np.array(jax.devices()), ("batch",)), PartitionSpec("batch"))


class Net(nnx.Module):
    def __init__(self, rngs):
        self.inner = nnx.Linear(32, 128, rngs=rngs)
        self.norm = nnx.LayerNorm(128, rngs=rngs)
        self.outer = nnx.Linear(128, 4, rngs=rngs)

    def __call__(self, x):
        return self.outer(nnx.gelu(self.norm(self.inner(x))))


@nnx.jit
def make():
    model = Net(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer, x, y):
    def loss(model):
        return jnp.mean((model(x) - y) ** 2)

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


model, optimizer = make()
rng = np.random.default_rng(0)
for _ in range(4):
    x = jax.device_put(rng.normal(size=(16, 32)).astype(np.float32), split)
    y = jax.device_put(rng.normal(size=(16, 4)).astype(np.float32), split)
    value = train_step(model, optimizer, x, y)  # <-
    print(float(value))
