"""Wrong and right candidates that were written down before the checks that they test, and are not what those look for.

`check_inputs=` of each wrong one is what its author would take from the tests of the kernel.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from autotune_helpers import key

from ejcache.autotune import Tuner

pytestmark = pytest.mark.soak

N = 128
MOST_WINNERS, MOST_NAMED = 10, 3
"""So many wrong ones of each list may win where the author gives no inputs. Of `NAMED` those win that are wrong for
integers below zero, or beyond the sizes of the arrays: the call does not say that there are any.
"""


def normal(*shape, dtype=jnp.float32, seed=0):
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


def ordered(*shape):
    return jnp.arange(int(np.prod(shape)), dtype=jnp.int32).reshape(shape)


X, Y = normal(N, N), normal(N, N, seed=1)
LABELS = jnp.arange(N, dtype=jnp.int32) % 10
SQUARE = X + X.T
TINY, HUGE = X * 1e-6, X * 1e25
WITH_NAN = X.at[3, 4].set(jnp.nan)
WITH_INF = X.at[3, 4].set(jnp.inf)
TIES = jnp.round(X)


def cumulative(x, block):
    parts = x.reshape(N // block, block, -1)
    return jnp.cumsum(parts, 1).reshape(x.shape)


def last_argmax(x):
    return x.shape[1] - 1 - jnp.argmax(x[:, ::-1], 1)


WRONG = {
    # name: (right, wrong, the caller's arguments, what the author's tests have)
    "max pool that begins with zero": (
        lambda x: x.reshape(N, N // 4, 4).max(-1),
        lambda x: jnp.maximum(x.reshape(N, N // 4, 4).max(-1), 0),
        (jnp.abs(X),),
        [(X,)],
    ),
    "clip that ends too early": (lambda x: jnp.clip(x, -20, 20), lambda x: jnp.clip(x, -9, 9), (X,), [(30 * X,)]),
    "one-hot of an index outside": (
        lambda i: jax.nn.one_hot(i, 10),
        lambda i: jax.nn.one_hot(jnp.clip(i, 0, 9), 10),
        (LABELS,),
        [(LABELS + 3,)],
    ),
    "log1p of small values": (jnp.log1p, lambda x: jnp.log(1 + x), (jnp.abs(X),), [(jnp.abs(TINY) / 100,)]),
    "expm1 of small values": (jnp.expm1, lambda x: jnp.exp(x) - 1, (X,), [(TINY / 100,)]),
    "argmin of equal values": (
        lambda x: jnp.argmin(x, 1),
        lambda x: x.shape[1] - 1 - jnp.argmin(x[:, ::-1], 1),
        (X,),
        [(TIES,)],
    ),
    "top of equal values": (
        lambda x: jax.lax.top_k(x, 2)[1],
        lambda x: x.shape[1] - 1 - jax.lax.top_k(x[:, ::-1], 2)[1],
        (X,),
        [(TIES,)],
    ),
    "mean of an empty segment": (
        lambda x, i: jax.ops.segment_sum(x, i, 10) / jnp.maximum(jax.ops.segment_sum(jnp.ones(N), i, 10), 1)[:, None],
        lambda x, i: jax.ops.segment_sum(x, i, 10) / jax.ops.segment_sum(jnp.ones(N), i, 10)[:, None],
        (X, LABELS),
        [(X, LABELS // 2)],
    ),
    "variance by squares": (
        lambda x: x.var(1),
        lambda x: (x * x).mean(1) - x.mean(1) ** 2,
        (X,),
        [(X + 2_000,)],
    ),
    "positions that are in order": (
        lambda x, i: x[i],
        lambda x, i: x + 0 * i[:, None],
        (X, ordered(N)),
        [(X, ordered(N)[::-1])],
    ),
    "product that overflows": (
        lambda x: x.astype(jnp.float32) * x.astype(jnp.float32),
        lambda x: (x * x).astype(jnp.float32),
        (LABELS,),
        [(LABELS * 100_000,)],
    ),
    "division that rounds to zero": (lambda x: x // 7, lambda x: jax.lax.div(x, 7), (LABELS,), [(-LABELS,)]),
    "sort of positive values by bits": (
        lambda x: jnp.sort(x, 1),
        lambda x: jax.lax.bitcast_convert_type(jnp.sort(jax.lax.bitcast_convert_type(x, jnp.int32), 1), jnp.float32),
        (jnp.abs(X),),
        [(X,)],
    ),
    "hypot that overflows": (jnp.hypot, lambda x, y: jnp.sqrt(x * x + y * y), (X, Y), [(HUGE, HUGE)]),
    "logaddexp that overflows": (
        jnp.logaddexp,
        lambda x, y: jnp.log(jnp.exp(x) + jnp.exp(y)),
        (X, Y),
        [(100 * X, 100 * Y)],
    ),
    "sign that divides": (jnp.sign, lambda x: x / jnp.abs(x), (X,), [(jnp.zeros_like(X),)]),
    "median of what is sorted": (
        lambda x: jnp.sort(x, 1)[:, N // 2],
        lambda x: x[:, N // 2],
        (jnp.sort(X, 1),),
        [(X,)],
    ),
    "places from the other side": (
        lambda x, y: jnp.searchsorted(jnp.sort(x[0]), y[0]),
        lambda x, y: jnp.searchsorted(jnp.sort(x[0]), y[0], side="right"),
        (X, Y),
        [(TIES, TIES)],
    ),
    "conjugate of what is real": (
        lambda x: jnp.conj(x) @ x.T,
        lambda x: x @ x.T,
        (X.astype(jnp.complex64),),
        [((X + 1j * Y).astype(jnp.complex64),)],
    ),
    "product with what is symmetric": (lambda x, y: x @ y, lambda x, y: x.T @ y, (SQUARE, Y), [(X, Y)]),
    "sum of bytes that wraps": (
        lambda x: x.astype(jnp.int32).sum(1),
        lambda x: x.sum(1, dtype=jnp.int16).astype(jnp.int32),
        (jnp.ones((N, 1024), jnp.int8),),
        [(jnp.full((N, 1024), 100, jnp.int8),)],
    ),
    "any for all": (lambda m: m.all(1), lambda m: m.any(1), (jnp.ones((N, N), bool),), [(X > 0,)]),
    "set for add": (
        lambda x, i: jnp.zeros((N, N)).at[i].add(x),
        lambda x, i: jnp.zeros((N, N)).at[i].set(x),
        (X, ordered(N)),
        [(X, LABELS)],
    ),
    "maximum that drops NaN": (jnp.maximum, lambda x, y: jnp.where(x > y, x, y), (X, Y), [(WITH_NAN, Y)]),
    "softmax of an infinity": (
        lambda x: jnp.where(jnp.isinf(x).any(1, keepdims=True), jnp.isinf(x) * 1.0, jax.nn.softmax(x, 1)),
        lambda x: jax.nn.softmax(x, 1),
        (X,),
        [(WITH_INF,)],
    ),
    "sum in float16 that overflows": (
        lambda x: (x * x).sum(1),
        lambda x: (x.astype(jnp.float16) * x.astype(jnp.float16)).sum(1).astype(jnp.float32),
        (X,),
        [(1_000 * X,)],
    ),
    "sine of a far angle": (
        jnp.sin,
        lambda x: jnp.where(jnp.abs(x) < 3_000, jnp.sin(x), 0.0),
        (X,),
        [(100_000 * X,)],
    ),
    "blocks that do not carry": (
        lambda x: jnp.cumsum(x, 0),
        lambda x: cumulative(x, N // 2),
        (jnp.zeros((N, N)).at[N - 1].set(1.0),),
        [(X,)],
    ),
    "flushes what is very small": (
        lambda x: x / jnp.abs(x).max(),
        lambda x: x / jnp.maximum(jnp.abs(x).max(), 1e-6),
        (X,),
        [(X * 1e-8,)],
    ),
    "argmax of equal values in bfloat16": (
        lambda x: jnp.argmax(x, 1),
        last_argmax,
        (jnp.arange(N * N, dtype=jnp.float32).reshape(N, N),),
        [(TIES,)],
    ),
}


def rotary(x, positions):
    halves = N // 2
    angle = positions[:, None] * 10_000.0 ** (-jnp.arange(halves) / halves)
    one, other = x[:, :halves], x[:, halves:]
    return jnp.concatenate(
        [one * jnp.cos(angle) - other * jnp.sin(angle), one * jnp.sin(angle) + other * jnp.cos(angle)], 1
    )


def within_segments(x, segments):
    return jax.nn.softmax(jnp.where(segments[:, None] == segments[None], x @ x.T / N, -jnp.inf), 1) @ x


def greatest_of_segments(x, segments):
    return jax.ops.segment_max(x, segments, 10)


def of_experts(x, weights, rows):
    """Each expert has so many rows."""
    return jnp.einsum("ni,nij->nj", x, weights[jnp.repeat(jnp.arange(8), rows, total_repeat_length=N)])


@jax.custom_vjp
def rows_of(x, ids):
    return x[ids]


rows_of.defvjp(lambda x, i: (x[i], i), lambda i, g: (jnp.zeros((N, N)).at[i].set(g), None))


@jax.custom_vjp
def greatest(x):
    return x.max(1)


greatest.defvjp(lambda x: (x.max(1), x), lambda x, g: (jax.nn.one_hot(x.argmax(1), N) * g[:, None],))


@jax.custom_jvp
def gated(x, y):
    return x * jnp.tanh(y)


gated.defjvp(lambda primals, tangents: (gated(*primals), tangents[0] * jnp.tanh(primals[1])))

WEIGHTS = normal(8, N, N)
EIGHTHS = jnp.full(8, N // 8, jnp.int32)
STEP = jnp.int32(5)
NAMED = {
    # name: (right, wrong, the caller's arguments, what the author's tests have, whether gradients count)
    "a branch that is not taken": (
        lambda x, training: jax.lax.cond(training, lambda: 2 * x, lambda: x),
        lambda x, training: 2 * x,
        (X, jnp.asarray(True)),
        [(X, jnp.asarray(False))],
        False,
    ),
    "rotary positions": (rotary, lambda x, p: rotary(x, p % N), (X, ordered(N)), [(X, ordered(N) + 4_000)], False),
    "segments": (
        within_segments,
        lambda x, segments: jax.nn.softmax(x @ x.T / N, 1) @ x,
        (X, 0 * LABELS),
        [(X, LABELS // 2)],
        False,
    ),
    "an empty segment": (
        lambda x, i: jnp.where(jnp.isinf(greatest_of_segments(x, i)), 0.0, greatest_of_segments(x, i)),
        greatest_of_segments,
        (X, LABELS),
        [(X, LABELS // 2)],
        False,
    ),
    "experts": (
        of_experts,
        lambda x, weights, rows: jnp.einsum("eni,eij->enj", x.reshape(8, -1, N), weights).reshape(N, N),
        (X, WEIGHTS, EIGHTHS),
        [(X, WEIGHTS, EIGHTHS.at[0].add(9).at[7].add(-9))],
        False,
    ),
    "a ring buffer": (
        lambda x, y, step: x.at[step % N].set(y[0]),
        lambda x, y, step: jax.lax.dynamic_update_slice(x, y[:1], (step, 0)),
        (X, Y, STEP),
        [(X, Y, STEP + N)],
        False,
    ),
    "negative ids": (
        lambda x, i: jnp.where(i[:, None] < 0, 0.0, x[i]),
        lambda x, i: x[i],
        (X, LABELS),
        [(X, LABELS - 1)],
        False,
    ),
    "a gradient of repeated ids": (lambda x, i: x[i], rows_of, (X, ordered(N)), [(X, LABELS)], True),
    "a gradient of equal values": (lambda x: x.max(1), greatest, (X,), [(TIES,)], True),
    "a tangent": (lambda x, y: x * jnp.tanh(y), gated, (X, Y), [(X, Y)], True),
}


def with_inner(x, y):
    return jax.lax.map(lambda part: part @ y, x.reshape(4, -1, N)).reshape(N, N)


RIGHT = {
    # name: (right, also right, the caller's arguments, options that the page names)
    "sum from the other end": (lambda x: x.sum(1), lambda x: x[:, ::-1].sum(1), (X,), {}),
    "product in blocks": (lambda x, y: x @ y, with_inner, (X, Y), {}),
    "mean of equal values": (lambda x: x.mean(1), lambda x: x.sum(1) * (1 / N), (jnp.full((N, N), 0.1),), {}),
    "variance of equal values": (
        lambda x: x.var(1),
        lambda x: ((x - x[:, :1]) ** 2).mean(1) - (x - x[:, :1]).mean(1) ** 2,
        (jnp.full((N, N), 0.1),),
        {},
    ),
    "softmax in another order": (
        lambda x: jax.nn.softmax(x, 1),
        lambda x: jnp.exp(x - jax.nn.logsumexp(x, 1, keepdims=True)),
        (X,),
        {},
    ),
    "product in bfloat16": (
        lambda x, y: (x.astype(jnp.bfloat16) @ y.astype(jnp.bfloat16)).astype(jnp.float32),
        lambda x, y: x @ y,
        (X, Y),
        {"check": 0.05},
    ),
    "rounded to integers": (
        lambda x, y: jnp.round(x @ y * 8).astype(jnp.int32),
        lambda x, y: jnp.round((y.T @ x.T).T * 8).astype(jnp.int32),
        (X, Y),
        {"check": "rounded"},
    ),
    "integers within a share": (
        lambda x: jnp.round(x * 1_000).astype(jnp.int32),
        lambda x: jnp.round(x * 1_001).astype(jnp.int32),
        (X,),
        {"check": 0.01},
    ),
    "other random numbers": (
        lambda key: jax.random.normal(key, (N, N)),
        lambda key: jax.random.normal(jax.random.fold_in(key, 1), (N, N)),
        (jax.random.key(3),),
        {"check": lambda found, right: bool(abs(np.std(found) - np.std(right)) < 0.1)},
    ),
    "ids that are sorted": (
        lambda x, i: jax.ops.segment_sum(x, i, 10),
        lambda x, i: jax.ops.segment_sum(x, jnp.sort(i), 10),
        (X, jnp.sort(LABELS)),
        {"initialisers": {"argument 1": lambda shape, dtype, _: np.sort(np.arange(shape[0]) % 10).astype(dtype)}},
    ),
    "relu by another choice at zero": (lambda x: jnp.maximum(x, 0), lambda x: jnp.where(x > 0, x, 0.0), (X,), {}),
    "negative zero": (lambda x: x * 0, lambda x: -(x * 0), (X,), {}),
    "bfloat16 with one more rounding": (
        lambda x: (x.astype(jnp.float32) * 3 + 1).astype(jnp.bfloat16),
        lambda x: x * 3 + 1,
        (normal(N, N, dtype=jnp.bfloat16),),
        {},
    ),
    "fast exponential": (jnp.exp, lambda x: jnp.exp2(x * 1.4426950408889634), (X,), {}),
    "masked by a large number": (
        lambda x, m: jax.nn.softmax(jnp.where(m, x, -1e9), 1) * m,
        lambda x, m: jax.nn.softmax(jnp.where(m, x, -2e9), 1) * m,
        (X, Y > 0),
        {},
    ),
}


def after_work(function):
    """The same function, after some milliseconds of work that the other candidate saves."""

    def made(*args):
        wasted = jax.lax.fori_loop(0, 1_000_000, lambda _, y: jnp.sin(y) + 1, 1.0)
        # No value of the sine's sum is above this, and the compiler does not know that.
        return jax.tree.map(lambda leaf: jnp.where(wasted > 1e9, jnp.zeros_like(leaf), leaf), function(*args))

    return made


def wins(right, other, args, **options):
    build = {"default": after_work(right), "other": other}.__getitem__
    tuner = Tuner(rounds=8, min_gain=0.001, **options)
    record = tuner.tune(build, args, {}, key=key(), candidates=["other"], default="default")
    return record.configuration == "other"


def test_few_wrong_ones_win_unknown():
    """Where the author gives no inputs. Those that win need values that nobody can guess cheaply."""
    winners = [name for name, (right, wrong, args, _) in WRONG.items() if wins(right, wrong, args)]
    assert len(WRONG) == 30
    assert len(winners) <= MOST_WINNERS, winners
    winners = [name for name, (right, wrong, args, _, how) in NAMED.items() if wins(right, wrong, args, gradient=how)]
    assert len(NAMED) == 10
    assert len(winners) <= MOST_NAMED, winners


@pytest.mark.parametrize("name", [*WRONG, *NAMED])
def test_no_wrong_one_wins_with_the_inputs_of_the_author(name):
    """The function gets the call's arguments and a key, and returns lists of arguments."""
    right, wrong, args, given, *how = (WRONG | NAMED)[name]
    assert not wins(right, wrong, args, check_inputs=lambda *_, key: given, gradient=True in how)


@pytest.mark.parametrize("name", RIGHT)
def test_no_right_one_is_refused(name):
    """With the option that the sentence of its refusal names, where it needs one."""
    right, other, args, options = RIGHT[name]
    assert wins(right, other, args, **options)


def test_there_are_fifteen():
    assert len(RIGHT) == 15
