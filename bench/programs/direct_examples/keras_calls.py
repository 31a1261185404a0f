"""Keras on JAX: stateless calls of models, losses, optimizers and metrics, as its guide to custom loops jits them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np

from bench.programs.direct_examples.example import Example

if TYPE_CHECKING:
    from collections.abc import Iterator

X = np.linspace(-1, 1, 4 * 12, dtype=np.float32).reshape(4, 12)
IMAGES = np.linspace(0, 1, 2 * 144, dtype=np.float32).reshape(2, 12, 12, 1)
LABELS = np.array([0, 2, 1, 0], np.int32)


def made() -> Any:
    """A small classifier of the functional API."""
    inputs = keras.Input(shape=(12,), name="digits")
    x = keras.layers.Dense(16, activation="relu", name="hidden")(inputs)
    return keras.Model(inputs=inputs, outputs=keras.layers.Dense(3, name="said")(x))


def examples() -> Iterator[Example]:
    """The examples, in a fixed order."""
    keras.utils.set_random_seed(0)
    model = made()
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    trainable = [variable.value for variable in model.trainable_variables]
    fixed = [variable.value for variable in model.non_trainable_variables]
    slots = [variable.value for variable in optimizer.variables]

    def predict(trainable: Any, fixed: Any, x: Any) -> Any:
        return model.stateless_call(trainable, fixed, x)[0]

    def loss_and_updates(trainable: Any, fixed: Any, x: Any, y: Any) -> Any:
        said, fixed = model.stateless_call(trainable, fixed, x, training=True)
        return loss_fn(y, said), fixed

    def train_step(state: Any, x: Any, y: Any) -> Any:
        trainable, fixed, slots = state
        (loss, fixed), grads = jax.value_and_grad(loss_and_updates, has_aux=True)(trainable, fixed, x, y)
        trainable, slots = optimizer.stateless_apply(slots, grads, trainable)
        return loss, (trainable, fixed, slots)

    def apply_gradients(slots: Any, grads: Any, trainable: Any) -> Any:
        return optimizer.stateless_apply(slots, grads, trainable)

    yield Example("keras: stateless call of a model", predict, (trainable, fixed, X))
    yield Example("keras: training step", train_step, ((trainable, fixed, slots), X, LABELS))
    yield Example("keras: stateless update of Adam", apply_gradients, (slots, trainable, trainable))
    convolutional = keras.Sequential(
        [
            keras.layers.Input(shape=(12, 12, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(3),
        ]
    )
    weights = [variable.value for variable in convolutional.trainable_variables]
    moving = [variable.value for variable in convolutional.non_trainable_variables]

    def classify(weights: Any, moving: Any, images: Any) -> Any:
        return convolutional.stateless_call(weights, moving, images, training=True)

    yield Example("keras: a CNN with batch norm", classify, (weights, moving, IMAGES))
    yield Example("keras: a loss object", lambda y, said: loss_fn(y, said), (LABELS, X[:, :3]))
    yield Example("keras: operations", lambda x: keras.ops.softmax(keras.ops.relu(x) @ keras.ops.transpose(x)), (X,))
