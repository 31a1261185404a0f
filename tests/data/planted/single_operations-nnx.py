"""A convolutional network, made as flax's first page makes one."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


class CNN(nnx.Module):
    def __init__(self, *, rngs):
        self.conv1 = nnx.Conv(1, 16, kernel_size=(3, 3), rngs=rngs)
        self.norm1 = nnx.BatchNorm(16, rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, kernel_size=(3, 3), rngs=rngs)
        self.pool = partial(nnx.avg_pool, window_shape=(2, 2), strides=(2, 2))
        self.linear1 = nnx.Linear(1568, 64, rngs=rngs)
        self.linear2 = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        x = self.pool(nnx.relu(self.norm1(self.conv1(x))))
        x = self.pool(nnx.relu(self.conv2(x)))
        return self.linear2(nnx.relu(self.linear1(x.reshape(x.shape[0], -1))))


@nnx.jit
def predict(model, x):
    return model(x).argmax(-1)


def main():
    model = CNN(rngs=nnx.Rngs(0))  # <-
    images = np.zeros((4, 28, 28, 1), np.float32)
    for _ in range(3):
        print(np.asarray(predict(model, images)))


main()
