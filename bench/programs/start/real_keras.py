"""Keras on JAX: a convolutional classifier is compiled, fitted for an epoch, evaluated, and predicts."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np


def calls(size: int) -> list[Any]:
    """The whole program; `size` is the number of batches."""
    return [partial(_main, size)]


def _main(batches: int) -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.Input(shape=(28, 28, 1)),
            keras.layers.Conv2D(16, kernel_size=(3, 3), activation="relu"),
            keras.layers.MaxPooling2D(pool_size=(2, 2)),
            keras.layers.Conv2D(32, kernel_size=(3, 3), activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(),
        optimizer=keras.optimizers.Adam(learning_rate=1e-3),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    random = np.random.default_rng(0)
    images = random.standard_normal((32 * batches, 28, 28, 1)).astype(np.float32)
    labels = random.integers(0, 10, 32 * batches)
    history = model.fit(images, labels, batch_size=32, epochs=1, validation_split=0.25, shuffle=False, verbose=0)
    told = model.evaluate(images[:32], labels[:32], verbose=0)
    return np.array(history.history["loss"]), np.array(told), model.predict(images[:8], verbose=0)
