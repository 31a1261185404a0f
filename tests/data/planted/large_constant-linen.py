"""A student learns from a teacher whose parameters the step captures."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np


class Words(nn.Module):
    width: int

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(20_000, self.width)(tokens).mean(axis=1)
        return nn.Dense(50)(nn.gelu(nn.Dense(self.width)(x)))


teacher, student = Words(512), Words(16)
tokens = np.ones((8, 20), np.int32)


def made(model):
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens)
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda s: 0.02 * rng.normal(size=s.shape).astype(s.dtype), shapes)


teacher_params, params = made(teacher), made(student)


@jax.jit
def step(params, tokens):
    wanted = nn.softmax(teacher.apply(teacher_params, tokens))  # <-

    def loss(params):
        return -jnp.mean(jnp.sum(wanted * nn.log_softmax(student.apply(params, tokens)), axis=-1))

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


for _ in range(3):
    params, value = step(params, tokens)
print(float(value))
