"""Flax NNX: a small convolutional network learns digits for a few steps, is evaluated, and predicts."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import optax
from flax import nnx


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(1, 16, kernel_size=(3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.second = nnx.Conv(16, 32, kernel_size=(3, 3), rngs=rngs)
        self.pool = partial(nnx.avg_pool, window_shape=(2, 2), strides=(2, 2))
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.hidden, self.out = nnx.Linear(7 * 7 * 32, 64, rngs=rngs), nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = self.pool(nnx.relu(self.norm(self.first(x))))
        x = self.pool(nnx.relu(self.dropout(self.second(x))))
        return self.out(nnx.relu(self.hidden(x.reshape(x.shape[0], -1))))


def _loss(model: Network, images: Any, labels: Any) -> Any:
    logits = model(images)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits


@nnx.jit
def train_step(model: Network, optimizer: Any, metrics: Any, images: Any, labels: Any) -> Any:
    (loss, logits), gradients = nnx.value_and_grad(_loss, has_aux=True)(model, images, labels)
    metrics.update(loss=loss, logits=logits, labels=labels)
    optimizer.update(model, gradients)


@nnx.jit
def evaluate(model: Network, metrics: Any, images: Any, labels: Any) -> Any:
    loss, logits = _loss(model, images, labels)
    metrics.update(loss=loss, logits=logits, labels=labels)


@nnx.jit
def predict(model: Network, images: Any) -> Any:
    return model(images).argmax(axis=1)


def calls(size: int) -> list[Any]:
    """The whole program; `size` is the number of steps."""
    return [partial(_main, size)]


def _main(steps: int) -> Any:
    random = np.random.default_rng(0)
    images = random.standard_normal((steps, 16, 28, 28, 1)).astype(np.float32)
    labels = random.integers(0, 10, (steps, 16))
    model = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(5e-3, 0.9), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    model.train()
    for batch, answers in zip(images, labels, strict=True):
        train_step(model, optimizer, metrics, batch, answers)
    learned = metrics.compute()
    metrics.reset()
    model.eval()
    evaluate(model, metrics, images[0], labels[0])
    return learned, metrics.compute(), predict(model, images[1])
