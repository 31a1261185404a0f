"""Images are augmented by operations of jax.numpy, before a jitted model sees them."""

import jax
import jax.numpy as jnp
import numpy as np


def augment(images, key):
    flips, shifts, noise = jax.random.split(key, 3)  # <-
    flipped = jnp.where(jax.random.bernoulli(flips, 0.5, (images.shape[0], 1, 1)), images[:, :, ::-1], images)
    padded = jnp.pad(flipped, ((0, 0), (2, 2), (2, 2)), mode="reflect")
    rows = jax.random.randint(shifts, (images.shape[0],), 0, 5)
    moved = jax.vmap(lambda image, row: jax.lax.dynamic_slice(image, (row, 2), images.shape[1:]))(padded, rows)
    noisy = moved + 0.05 * jax.random.normal(noise, moved.shape)
    return (noisy - noisy.mean()) / (noisy.std() + 1e-6)


@jax.jit
def classify(w, images):
    return jax.nn.log_softmax(images.reshape(images.shape[0], -1) @ w)


rng = np.random.default_rng(0)
w = rng.normal(size=(1024, 10)).astype(np.float32)
for epoch in range(3):
    images = augment(rng.uniform(size=(16, 32, 32)).astype(np.float32), np.array([0, epoch], np.uint32))
    print(np.asarray(classify(w, images)).argmax(-1)[:3])
