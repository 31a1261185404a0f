"""Diffrax: differential equations solved inside `jax.jit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bench.programs.direct_examples.example import Example

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMES = np.linspace(0, 1, 8, dtype=np.float32)
START = np.array([1.0, 0.5], np.float32)


class Field(eqx.Module):
    network: eqx.nn.MLP

    def __call__(self, t: Any, y: Any, args: Any) -> Any:  # noqa: ARG002 (as the solver calls it)
        return self.network(y)


def decay(t: Any, y: Any, args: Any) -> Any:  # noqa: ARG001 (as the solver calls it)
    return -args * y


def predators(t: Any, y: Any, args: Any) -> Any:  # noqa: ARG001 (as the solver calls it)
    prey, predator = y
    alpha, beta, gamma, delta = args
    return alpha * prey - beta * prey * predator, -gamma * predator + delta * prey * predator


def robertson(t: Any, y: Any, args: Any) -> Any:  # noqa: ARG001 (as the solver calls it)
    a, b, c = y
    return jnp.stack([-0.04 * a + 1e4 * b * c, 0.04 * a - 1e4 * b * c - 3e7 * b**2, 3e7 * b**2])


def solve_once(y: Any, rate: Any) -> Any:
    return diffrax.diffeqsolve(diffrax.ODETerm(decay), diffrax.Tsit5(), 0.0, 1.0, 0.1, y, args=rate).ys


def solve_adaptively(y: Any, args: Any) -> Any:
    return diffrax.diffeqsolve(
        diffrax.ODETerm(predators),
        diffrax.Dopri5(),
        t0=0.0,
        t1=4.0,
        dt0=0.1,
        y0=y,
        args=args,
        saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, 4.0, 9)),
        stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
    ).ys


def solve_stiff(y: Any) -> Any:
    return diffrax.diffeqsolve(
        diffrax.ODETerm(robertson),
        diffrax.Kvaerno5(),
        t0=0.0,
        t1=1.0,
        dt0=2e-4,
        y0=y,
        stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
        max_steps=500,
    ).ys


def solve_noise(key: Any, y: Any) -> Any:
    path = diffrax.VirtualBrownianTree(0.0, 1.0, tol=1e-2, shape=(2,), key=key)
    terms = diffrax.MultiTerm(
        diffrax.ODETerm(lambda t, y, args: -y),  # noqa: ARG005 (as the solver calls it)
        diffrax.ControlTerm(lambda t, y, args: jnp.diag(0.1 * jnp.ones(2)), path),  # noqa: ARG005
    )
    return diffrax.diffeqsolve(terms, diffrax.Heun(), 0.0, 1.0, 0.05, y).ys


def rate_loss(rate: Any, y: Any) -> Any:
    return jnp.sum(solve_once(y, rate) ** 2)


def interpolate(times: Any, values: Any, at: Any) -> Any:
    return diffrax.CubicInterpolation(times, diffrax.backward_hermite_coefficients(times, values)).evaluate(at)


def examples() -> Iterator[Example]:
    """The examples, in a fixed order."""
    yield Example("diffrax: exponential decay", solve_once, (START, 0.7))
    yield Example("diffrax: predators, adaptive steps", solve_adaptively, ((10.0, 10.0), (0.1, 0.02, 0.4, 0.02)))
    yield Example("diffrax: a stiff equation", solve_stiff, (np.array([1.0, 0.0, 0.0], np.float32),))
    yield Example("diffrax: with noise", solve_noise, (jax.random.key(0), START))
    yield Example("diffrax: gradient through a solve", jax.grad(rate_loss), (0.7, START))
    yield Example("diffrax: cubic interpolation", interpolate, (TIMES, np.sin(TIMES), 0.3))
    field = Field(eqx.nn.MLP(2, 2, 8, 1, activation=jnp.tanh, key=jax.random.key(0)))
    params, static = eqx.partition(field, eqx.is_array)

    def neural(params: Any, y: Any) -> Any:
        term = diffrax.ODETerm(eqx.combine(params, static))
        solution = diffrax.diffeqsolve(
            term, diffrax.Tsit5(), 0.0, 1.0, 0.1, y, saveat=diffrax.SaveAt(ts=jnp.asarray(TIMES))
        )
        return jnp.mean(solution.ys**2)

    yield Example("diffrax: a neural equation", neural, (params, START))
    yield Example("diffrax: its gradient", jax.value_and_grad(neural), (params, START))
