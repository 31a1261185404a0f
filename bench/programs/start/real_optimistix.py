"""Optimistix and Lineax: a root, a fixed point, a least-squares fit, a minimum, and a linear solve."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optimistix as optx


def calls(size: int) -> list[Any]:
    """The whole program; `size` is the most steps that a solver makes."""
    return [partial(_main, 64 + size)]


def _rosenbrock(y: Any, args: Any) -> Any:
    a, b = args
    return jnp.stack([a - y[0], jnp.sqrt(b) * (y[1] - y[0] ** 2)])


def _tanh_of_itself(y: Any, args: Any) -> Any:
    return jnp.tanh(args * y)


def _residuals(parameters: Any, data: Any) -> Any:
    times, values = data
    rate, height = parameters
    return values - height * jnp.exp(-rate * times)


def _main(steps: int) -> Any:
    times = np.linspace(0, 4, 32).astype(np.float32)
    values = (3 * np.exp(-0.7 * times)).astype(np.float32)
    root = optx.root_find(
        _rosenbrock, optx.Newton(rtol=1e-5, atol=1e-5), jnp.array([-1.2, 1.0]), (1.0, 100.0), max_steps=steps
    ).value
    fixed = optx.fixed_point(
        _tanh_of_itself, optx.FixedPointIteration(rtol=1e-4, atol=1e-4), jnp.array(0.5), 1.5, max_steps=steps
    ).value
    fitted = optx.least_squares(
        _residuals,
        optx.LevenbergMarquardt(rtol=1e-4, atol=1e-4),
        (jnp.array(1.0), jnp.array(1.0)),
        (times, values),
        max_steps=steps,
    ).value

    def cost(y: Any, args: Any) -> Any:
        return jnp.sum(_rosenbrock(y, args) ** 2)

    least = optx.minimise(
        cost, optx.BFGS(rtol=1e-4, atol=1e-4), jnp.array([0.5, 0.5]), (1.0, 10.0), max_steps=steps, throw=False
    ).value
    matrix = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    positive = lx.MatrixLinearOperator(
        matrix @ matrix.T + 8 * np.eye(8, dtype=np.float32), lx.positive_semidefinite_tag
    )
    solved = jax.jit(lambda v: lx.linear_solve(positive, v, lx.CG(rtol=1e-5, atol=1e-5)).value)(jnp.ones(8))
    return root, fixed, jnp.stack(fitted), least, solved
