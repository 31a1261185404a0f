"""Optax: the update of each optimizer, schedules, combinations, and losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bench.programs.direct_examples.example import Example

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARAMS = {"w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), "b": np.zeros(3, np.float32)}
X = np.linspace(0, 1, 8, dtype=np.float32).reshape(2, 4)
Y = np.array([[1, 0, 0], [0, 1, 0]], np.float32)


def loss(params: Any, x: Any, y: Any) -> Any:
    return optax.l2_loss(x @ params["w"] + params["b"], y).mean()


def step_of(name: str, optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    """A training step with the optimizer in its closure; a name of its own, because programs have one such step."""

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        grads = jax.grad(loss)(params, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    step.__qualname__ = f"step with {name}"
    return step


def labels(params: Any) -> Any:
    return {name: "adam" if name == "w" else "sgd" for name in params}


def lbfgs_step(params: Any, state: Any) -> Any:
    def value_of(params: Any) -> Any:
        return loss(params, X, Y)

    value, grad = optax.value_and_grad_from_state(value_of)(params, state=state)
    updates, state = LBFGS.update(grad, state, params, value=value, grad=grad, value_fn=value_of)
    return optax.apply_updates(params, updates), state


LBFGS = optax.lbfgs()
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd with momentum": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(1e-3),
    "adamw with a mask": lambda: optax.adamw(
        1e-3, mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)
    ),
    "adafactor": lambda: optax.adafactor(1e-3),
    "adabelief": lambda: optax.adabelief(1e-3),
    "adagrad": lambda: optax.adagrad(1e-2),
    "amsgrad": lambda: optax.amsgrad(1e-3),
    "lamb": lambda: optax.lamb(1e-3),
    "lars": lambda: optax.lars(1e-2),
    "lion": lambda: optax.lion(1e-4),
    "nadam": lambda: optax.nadam(1e-3),
    "novograd": lambda: optax.novograd(1e-3),
    "noisy sgd": lambda: optax.noisy_sgd(1e-3, key=jax.random.key(0)),
    "radam": lambda: optax.radam(1e-3),
    "rmsprop": lambda: optax.rmsprop(1e-3),
    "yogi": lambda: optax.yogi(1e-3),
    "a warm-up and cosine schedule": lambda: optax.adam(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 5, 50)),
    "a chain with clipping and decay": lambda: optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(),
        optax.add_decayed_weights(1e-4),
        optax.scale_by_learning_rate(optax.exponential_decay(1e-3, 10, 0.9)),
    ),
    "several transformations by label": lambda: optax.multi_transform(
        {"adam": optax.adam(1e-3), "sgd": optax.sgd(1e-2)}, labels
    ),
    "injected hyperparameters": lambda: optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3),
    "accumulated steps": lambda: optax.MultiSteps(optax.adam(1e-3), every_k_schedule=2).gradient_transformation(),
    "apply if finite": lambda: optax.apply_if_finite(optax.adam(1e-3), max_consecutive_errors=3),
}


def examples() -> Iterator[Example]:
    """The examples, in a fixed order."""
    params = jax.tree.map(jnp.asarray, PARAMS)
    for name, make in OPTIMIZERS.items():
        optimizer = make()
        yield Example(f"optax: {name}", step_of(name, optimizer), (params, optimizer.init(params), X, Y))
    yield Example("optax: a step of L-BFGS", lbfgs_step, (params, LBFGS.init(params)))
