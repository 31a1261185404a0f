"""Diffrax: a neural differential equation learns a damped oscillation, with Equinox and Optax."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax


class Field(eqx.Module):
    network: eqx.nn.MLP

    def __call__(self, t: Any, y: Any, args: Any) -> Any:  # noqa: ARG002 (as the solver calls it)
        return self.network(y)


def _solve(field: Any, times: Any, start: Any) -> Any:
    return diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Tsit5(),
        t0=times[0],
        t1=times[-1],
        dt0=times[1] - times[0],
        y0=start,
        stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-6),
        saveat=diffrax.SaveAt(ts=times),
    ).ys


@eqx.filter_value_and_grad
def _loss(field: Field, times: Any, paths: Any) -> Any:
    predicted = jax.vmap(_solve, in_axes=(None, None, 0))(field, times, paths[:, 0])
    return jnp.mean((paths - predicted) ** 2)


def calls(size: int) -> list[Any]:
    """The whole program; `size` is the number of steps."""
    return [partial(_main, size)]


def _main(steps: int) -> Any:
    times = np.linspace(0, 3, 16).astype(np.float32)
    starts = np.random.default_rng(0).uniform(-0.6, 1, (8, 2)).astype(np.float32)

    def oscillation(t: Any, y: Any, args: Any) -> Any:  # noqa: ARG001 (as the solver calls it)
        return jnp.stack([y[1], -y[0] - 0.3 * y[1]])

    paths = jax.jit(jax.vmap(partial(_solve, oscillation, times)))(starts)
    field = Field(eqx.nn.MLP(2, 2, 32, 2, activation=jnp.tanh, key=jax.random.PRNGKey(0)))
    optimizer = optax.adabelief(3e-3)
    state = optimizer.init(eqx.filter(field, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(field: Field, state: Any, paths: Any) -> Any:
        value, gradients = _loss(field, times, paths)
        updates, state = optimizer.update(gradients, state)
        return eqx.apply_updates(field, updates), state, value

    for _ in range(steps):
        field, state, value = step(field, state, paths)
    return value
