"""A wrong gradient never wins: neither where gradients are timed, nor where the caller only differentiates."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from soak_turns import some

from ejcache.autotune import Tuner, autotuned
from ejcache.autotune.records.record import Status

QUICK = Tuner(rounds=8)
SIZE = 24


def right(x, w):
    return jnp.sin(x) @ w


def backward(pull):
    """The right results, and what `pull` makes of (x, w, the cotangent)."""

    @jax.custom_vjp
    def made(x, w):
        return right(x, w)

    made.defvjp(lambda x, w: (right(x, w), (x, w)), lambda held, g: pull(*held, g))
    return made


def of_x(x, w, g):
    return jnp.cos(x) * (g @ w.T)


def of_w(x, _, g):
    return jnp.sin(x).T @ g


def forward_rule(rule):
    made = jax.custom_jvp(right)
    made.defjvp(rule)
    return made


WRONG = {
    "ignores the cotangent": backward(lambda x, w, g: (of_x(x, w, jnp.ones_like(g)), of_w(x, w, jnp.ones_like(g)))),
    "is constant": backward(lambda x, w, _: (jnp.ones_like(x), jnp.ones_like(w))),
    "transposes the cotangent": backward(lambda x, w, g: (of_x(x, w, g.T), of_w(x, w, g.T))),
    "is wrong for the second argument": backward(lambda x, w, g: (of_x(x, w, g), 0 * w)),
    "is right for a constant cotangent only": backward(
        lambda x, w, g: (of_x(x, w, g), jnp.sin(x).sum(0)[:, None] * g.mean(0))
    ),
    "loses the sign of the cotangent": backward(lambda x, w, g: (of_x(x, w, jnp.abs(g)), of_w(x, w, jnp.abs(g)))),
    "is zero": lambda x, w: jax.lax.stop_gradient(right(x, w)),
    "stops in one factor": lambda x, w: jnp.sin(x) @ jax.lax.stop_gradient(w),
    "has a wrong rule of a custom_jvp": forward_rule(
        lambda primals, tangents: (right(*primals), right(*primals) * tangents[0].mean() + tangents[1].mean())
    ),
    "has no tangent of one argument in a custom_jvp": forward_rule(
        lambda primals, tangents: (right(*primals), jnp.sin(primals[0]) @ tangents[1])
    ),
    "is half": backward(lambda x, w, g: (of_x(x, w, g) / 2, of_w(x, w, g) / 2)),
}

RIGHT = {
    "plain": right,
    "in another order": lambda x, w: (w.T @ jnp.sin(x).T).T,
    "of a custom_vjp": backward(lambda x, w, g: (of_x(x, w, g), of_w(x, w, g))),
    "in another order on the way back": backward(lambda x, w, g: (of_x(x, w, g), (jnp.sin(x[::-1]).T @ g[::-1]))),
    "of a custom_jvp": forward_rule(
        lambda primals, tangents: (
            right(*primals),
            (jnp.cos(primals[0]) * tangents[0]) @ primals[1] + jnp.sin(primals[0]) @ tangents[1],
        )
    ),
    "of jax.checkpoint": jax.checkpoint(right),
    "by einsum": lambda x, w: jnp.einsum("ij,jk->ik", jnp.sin(x), w),
    "row by row": lambda x, w: jax.lax.map(lambda row: jnp.sin(row) @ w, x),
    "in two blocks": lambda x, w: jnp.concatenate([right(part, w) for part in jnp.split(x, 2)]),
    "of vmap": lambda x, w: jax.vmap(lambda row: jnp.sin(row) @ w)(x),
}


@pytest.fixture(autouse=True)
def the_default_is_slow(runs_take):
    """The first configuration takes twice as long as the other."""
    runs_take(lambda configuration: 1e-3 if configuration["n"] else 2e-3)


def operation(store, candidate, **options):
    functions = {0: right, 1: candidate}
    return autotuned(configs=[{"n": 0}, {"n": 1}], name="op", store=store, tuner=QUICK, **options)(
        lambda x, w, *, n: functions[n](x, w)
    )


def arrays():
    return [jnp.asarray(each) for each in np.random.default_rng(0).standard_normal((2, SIZE, SIZE), np.float32)]


def loss(op):
    return lambda x, w: (op(x, w) ** 2).mean()


def through_vmap(op):
    return jax.vmap(jax.grad(loss(op), argnums=(0, 1)), in_axes=(0, None))


WAYS = {
    "grad": lambda op: jax.grad(loss(op), argnums=(0, 1))(*arrays()),
    "jit of grad": lambda op: jax.jit(jax.grad(loss(op)))(*arrays()),
    "jvp": lambda op: jax.jvp(op, arrays(), arrays()),
    "linearize": lambda op: jax.linearize(op, *arrays()),
    "vmap of grad": lambda op: through_vmap(op)(jnp.stack(arrays()), arrays()[1]),
    "grad of vmap": lambda op: jax.grad(lambda xs, w: (jax.vmap(op, (0, None))(xs, w) ** 2).mean())(
        jnp.stack(arrays()), arrays()[1]
    ),
}
"""How a program differentiates the operation."""
BACKWARD_ONLY = {("of a custom_vjp", "jvp"), ("in another order on the way back", "jvp")}


def chosen(op, store):
    (found,) = store.records(operation=op.name)
    return found.record


@pytest.mark.parametrize("kind", some(WRONG, every=4))
def test_a_wrong_gradient_does_not_win_where_gradients_are_timed(store, kind):
    """A cotangent of ones would hide half of these."""
    record = operation(store, WRONG[kind], gradient=True).tune(*arrays())
    assert record.configuration == {"n": 0}
    assert record.candidate({"n": 1}).status is Status.FAILED


@pytest.mark.parametrize("kind", some(RIGHT, every=4))
def test_a_right_gradient_wins_where_gradients_are_timed(store, kind):
    assert operation(store, RIGHT[kind], gradient=True).tune(*arrays()).configuration == {"n": 1}


@pytest.mark.parametrize("way", some(WAYS, every=4))
@pytest.mark.parametrize("kind", some([kind for kind in WRONG if kind != "is half"], every=10))
def test_a_wrong_gradient_does_not_win_where_the_caller_differentiates(store, kind, way):
    """Although nobody asked for gradients to be timed."""
    op = operation(store, WRONG[kind])
    WAYS[way](op)
    assert chosen(op, store).configuration == {"n": 0}


@pytest.mark.parametrize("way", some(WAYS, every=5))
@pytest.mark.parametrize("kind", some(RIGHT, every=10))
def test_a_right_gradient_wins_where_the_caller_differentiates(store, kind, way):
    """Of a function that has a backward pass alone, `jax.jvp` says so, tuned or not."""
    op = operation(store, RIGHT[kind])
    with pytest.raises(TypeError, match="forward-mode") if (kind, way) in BACKWARD_ONLY else contextlib.nullcontext():
        WAYS[way](op)
    assert chosen(op, store).configuration == {"n": 1}


def test_what_was_measured_without_its_gradient_is_compared_before_a_gradient_uses_it(store):
    """Once for all processes; where nothing is differentiated, it stays the choice."""
    op = operation(store, WRONG["is half"])
    assert op.choose(*arrays()).configuration == {"n": 1}
    expected = jax.grad(loss(right))(*arrays())
    assert jnp.allclose(jax.grad(loss(op))(*arrays()), expected, atol=1e-6)
    again = operation(store, right)
    again.forget()
    assert jnp.allclose(jax.grad(loss(again))(*arrays()), expected, atol=1e-6)
    assert chosen(op, store).gradient_agrees is False
    assert op.choose(*arrays()).configuration == {"n": 1}


def test_a_default_without_a_gradient_makes_the_record_unsure(store):
    """Nothing says whether the gradient of another one is right."""
    compiled = jax.jit(right)

    def hidden(x, w):
        return jax.pure_callback(compiled, jax.ShapeDtypeStruct(x.shape, x.dtype), x, w)

    op = autotuned(configs=[{"n": 0}, {"n": 1}], name="op", store=store, tuner=QUICK)(
        lambda x, w, *, n: right(x, w) if n else hidden(x, w)
    )
    jax.grad(loss(op))(*arrays())
    assert "gradients were not compared" in chosen(op, store).unsure
