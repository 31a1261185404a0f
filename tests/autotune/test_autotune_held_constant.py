"""A candidate that is right only for values that the caller happens to hold constant does not win; a right one may."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from autotune_helpers import key
from soak_turns import some

from ejcache.autotune import Tuner
from ejcache.autotune.measure.varied_arrays import Style, VariedArray, perturbed
from ejcache.autotune.records.record import Status

pytestmark = pytest.mark.usefixtures("runs_take_the_same")

QUICK = Tuner(rounds=4, min_gain=0.5)
N, D = 32, 16
# Of NumPy: what JAX makes is compiled, and this is made whenever tests are collected.
NORMAL = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
POSITIVE = np.abs(NORMAL) + np.float32(0.5)
ROW = NORMAL[:, 0]
EVERY = np.ones(N, bool)
FIRST = np.arange(N)
NONE = np.zeros(N, np.int32)
FULL = np.full(4, N, np.int32)
SMALL = np.random.default_rng(1).integers(0, 10, (N, D)).astype(np.int32)
BEGINNINGS = np.asarray([0, 8, 16, 24, 32], np.int32)
EDGES = np.concatenate([np.zeros((1, D)), NORMAL[1:-1], np.zeros((1, D))]).astype(np.float32)


def masked_softmax(x, mask):
    return jax.nn.softmax(jnp.where(mask, x, -jnp.inf), axis=-1)


def causal(x, mask):
    return jax.nn.softmax(x @ x.T + mask, axis=-1)


def bounded(x, lengths):
    return jnp.where(jnp.arange(N)[None, :] < lengths[:, None], x[:, 0][None, :], 0.0)


def stencil(x):
    padded = jnp.pad(x, ((1, 1), (0, 0)))
    return padded[:-2] + padded[2:]


def by_row(x, beginnings):
    rows = jnp.searchsorted(beginnings, jnp.arange(N), side="right") - 1
    return x * rows[:, None]


KINDS = {
    "a mask that is full": (
        lambda x, mask: jnp.where(mask, x, 0.0),
        lambda x, mask: x,
        (ROW, EVERY),
    ),
    "a mask under a softmax": (masked_softmax, lambda x, mask: jax.nn.softmax(x, -1), (NORMAL, np.ones((N, D), bool))),
    "a mask that is added": (
        causal,
        lambda x, mask: jax.nn.softmax(x @ x.T, -1),
        (NORMAL, np.zeros((N, N), np.float32)),
    ),
    "a mask of ones": (lambda x, mask: x * mask, lambda x, mask: x, (ROW, np.ones(N, np.float32))),
    "a mask that is empty": (lambda x, mask: jnp.where(mask, 0.0, x), lambda x, mask: x, (ROW, ~EVERY)),
    "lengths that are full": (
        bounded,
        lambda x, lengths: jnp.broadcast_to(x[:, 0], (4, N)),
        (NORMAL, FULL),
    ),
    "indices in order": (lambda x, index: x[index], lambda x, index: x, (NORMAL, FIRST)),
    "indices that are zero": (
        lambda x, index: x[index],
        lambda x, index: jnp.broadcast_to(x[0], (N, D)),
        (NORMAL, NONE),
    ),
    "a permutation that is the identity": (
        lambda x, order: jnp.zeros_like(x).at[order].set(x),
        lambda x, order: x,
        (NORMAL, FIRST),
    ),
    "an offset of zero": (
        lambda x, at: jax.lax.dynamic_slice(x, (at, 0), (8, D)),
        lambda x, at: x[:8],
        (NORMAL, np.int32(0)),
    ),
    "an offset that is written": (
        lambda x, at: jax.lax.dynamic_update_slice(x, jnp.ones((8, D)), (at, 0)),
        lambda x, at: x.at[:8].set(1.0),
        (NORMAL, np.int32(0)),
    ),
    "segments that are zero": (
        lambda x, segment: jax.ops.segment_sum(x, segment, 4),
        lambda x, segment: jnp.zeros((4, D)).at[0].set(x.sum(0)),
        (NORMAL, NONE),
    ),
    "segments that are different": (
        lambda x, segment: jnp.zeros_like(x).at[segment].add(x),
        lambda x, segment: jnp.zeros_like(x).at[segment].set(x),
        (NORMAL, np.random.default_rng(2).permutation(N)),
    ),
    "rows of equal length": (by_row, lambda x, b: x * (jnp.arange(N) // 8)[:, None], (NORMAL, BEGINNINGS)),
    "a table of one": (
        lambda x, table: x[table].sum(1),
        lambda x, table: x[jnp.arange(N).reshape(4, 8)].sum(1),
        (NORMAL, np.arange(N).reshape(4, 8)),
    ),
    "floats that are positive": (lambda x: jnp.maximum(x, 0.0), lambda x: x, (POSITIVE,)),
    "floats whose size is taken": (lambda x: jnp.abs(x).sum(1), lambda x: x.sum(1), (POSITIVE,)),
    "edges that are zero": (
        stencil,
        lambda x: jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0),
        (EDGES,),
    ),
    "floats that are small": (
        lambda x: jax.nn.softmax(x, -1),
        lambda x: jnp.exp(x) / jnp.exp(x).sum(-1, keepdims=True),
        (NORMAL,),
    ),
    "floats that are whole": (lambda x: x * 2.0, lambda x: jnp.round(x) * 2.0, (np.round(POSITIVE * 5),)),
    "floats without a zero": (lambda x: jnp.where(x == 0, 0.0, 1.0), lambda x: x / x, (NORMAL,)),
    "a sum in a narrow type": (
        lambda x: x.astype(jnp.int32).sum(1),
        lambda x: x.sum(1, dtype=jnp.int8).astype(jnp.int32),
        (SMALL.astype(np.int8) // 2,),
    ),
    "a variance in one pass": (
        lambda x: ((x - x.mean(0)) ** 2).mean(0),
        lambda x: (x * x).mean(0) - x.mean(0) ** 2,
        (NORMAL,),
    ),
    "a branch that is not taken": (
        lambda x, flag: jnp.where(flag > 0, x, -x),
        lambda x, flag: x,
        (NORMAL, np.int32(1)),
    ),
    "a scale of one": (lambda x, scale: x * scale, lambda x, scale: x, (NORMAL, np.float32(1.0))),
    "one key of a random number": (
        lambda x, k: x + jax.random.normal(k, x.shape),
        lambda x, k: x + jax.random.normal(jax.random.key(0), x.shape),
        (NORMAL, 0),
    ),
    "values that are symmetric": (lambda x: x @ x.T, lambda x: x.T @ x.T, (np.eye(N, dtype=np.float32),)),
    "sorted values": (jnp.sort, lambda x: x, (np.arange(N, dtype=np.float32),)),
    "no row that is masked": (
        lambda x, m: jnp.where(m.any(1, keepdims=True), masked_softmax(x, m), 0.0),
        masked_softmax,
        (NORMAL, np.tril(np.ones((N, D), bool))),
    ),
    "no row of zeros": (
        lambda x: x / jnp.maximum(jnp.linalg.norm(x, axis=1, keepdims=True), 1e-30),
        lambda x: x / jnp.linalg.norm(x, axis=1, keepdims=True),
        (NORMAL,),
    ),
    "no equal values": (
        lambda x: jnp.argmax(x, 1),
        lambda x: x.shape[1] - 1 - jnp.argmax(x[:, ::-1], 1),
        (NORMAL,),
    ),
    "labels of which one is a mark": (
        lambda x, i: jnp.where(i >= 0, x[FIRST, jnp.maximum(i, 0)], 0.0).sum() + 8.5 * (i < 0).all(),
        lambda x, i: jnp.where(i >= 0, x[FIRST, jnp.maximum(i, 0)], 0.0).sum(),
        (NORMAL, np.asarray([-100, *(n % D for n in range(1, N))])),
    ),
}


def made(args):
    """These arguments as arrays of JAX; a number is the seed of a key."""
    return tuple(jax.random.key(each) if type(each) is int else jnp.asarray(each) for each in args)


def tried(default, candidate, args):
    build = {"default": default, "candidate": candidate}.__getitem__
    record = QUICK.tune(build, args, {}, key=key(), candidates=["candidate"], default="default")
    return record.candidate("candidate")


@pytest.mark.parametrize("kind", some(KINDS, every=5))
def test_a_candidate_that_is_right_for_these_values_only_fails(kind):
    right, wrong, args = KINDS[kind]
    args = made(args)
    pairs = zip(*(jax.tree.leaves(jax.jit(each)(*args)) for each in (right, wrong)), strict=True)
    assert all(np.allclose(one, other, atol=1e-5) for one, other in pairs)
    assert tried(right, wrong, args).status is Status.FAILED


def test_values_of_a_range_are_varied_within_it():
    """An operation that is not a number for values of any other kind gets those of the call in another order."""

    def default(x):
        found = jnp.arcsin(x)
        return found + 0 * found.sum()

    found = tried(default, lambda x: jnp.sort(default(x)), made((np.linspace(-0.9, 0.9, N, dtype=np.float32),)))
    assert (found.status, found.reason) == (Status.FAILED, "wrong result")


def blocks_of_rows(x, y):
    return jax.lax.map(lambda part: part @ y, x.reshape(4, -1, x.shape[1])).reshape(x.shape[0], -1)


def attention(q, k, mask):
    return jax.nn.softmax(jnp.where(mask, q @ k.T / 4, -1e9), axis=-1) @ k


def attention_by_parts(q, k, mask):
    """Two parts of the keys, joined as flash attention joins them."""
    parts = []
    for half in (slice(0, N // 2), slice(N // 2, N)):
        scores = jnp.where(mask[:, half], q @ k[half].T / 4, -1e9)
        top = scores.max(-1, keepdims=True)
        weights = jnp.exp(scores - top)
        parts.append((top, weights.sum(-1, keepdims=True), weights @ k[half]))
    top = jnp.maximum(parts[0][0], parts[1][0])
    scaled = [(jnp.exp(m - top) * total, jnp.exp(m - top) * out) for m, total, out in parts]
    return (scaled[0][1] + scaled[1][1]) / (scaled[0][0] + scaled[1][0])


GROUPS = np.full(4, N // 4, np.int32)
RIGHT = {
    "a gather by one-hot": (lambda x, i: x[i], lambda x, i: jax.nn.one_hot(i, N) @ x, (NORMAL, FIRST)),
    "a segment sum by one-hot": (
        lambda x, s: jax.ops.segment_sum(x, s, 4),
        lambda x, s: jax.nn.one_hot(s, 4).T @ x,
        (NORMAL, NONE),
    ),
    "a slice by roll": (
        lambda x, at: jax.lax.dynamic_slice(x, (at, 0), (8, D)),
        lambda x, at: jnp.roll(x, -at, 0)[:8],
        (NORMAL, np.int32(0)),
    ),
    "a permutation by its inverse": (
        lambda x, order: jnp.zeros_like(x).at[order].set(x),
        lambda x, order: x[jnp.zeros(N, jnp.int32).at[order].set(jnp.arange(N))],
        (NORMAL, FIRST),
    ),
    "groups that fill the rows": (
        lambda x, groups: x * jnp.repeat(jnp.arange(4), groups, total_repeat_length=N)[:, None],
        lambda x, groups: x * (jnp.searchsorted(jnp.cumsum(groups), jnp.arange(N), side="right"))[:, None],
        (NORMAL, GROUPS),
    ),
    "rows between sorted beginnings": (
        by_row,
        lambda x, b: x * ((jnp.arange(N)[:, None] >= b[None, 1:]).sum(1))[:, None],
        (NORMAL, BEGINNINGS),
    ),
    "a logarithm": (lambda x: jnp.log(x * x), lambda x: jnp.log(x) + jnp.log(x), (POSITIVE,)),
    "blocks of rows": (lambda x, y: x @ y, blocks_of_rows, (NORMAL, NORMAL.T)),
    "blocks of rows, coarse": (
        lambda x, y: x @ y,
        blocks_of_rows,
        (NORMAL.astype(jnp.bfloat16), NORMAL.T.astype(jnp.bfloat16)),
    ),
    "attention by parts": (attention, attention_by_parts, (NORMAL, NORMAL, np.ones((N, N), bool))),
    "attention by parts, coarse": (
        attention,
        attention_by_parts,
        (NORMAL.astype(jnp.bfloat16), NORMAL.astype(jnp.bfloat16), np.ones((N, N), bool)),
    ),
    "the greatest value": (lambda x: jnp.argmax(x, 1), lambda x: jnp.argsort(-x, 1)[:, 0], (NORMAL,)),
    "integers by floats": (
        lambda x: x.astype(jnp.int32) @ x.astype(jnp.int32).T,
        lambda x: jnp.round(x.astype(jnp.float32) @ x.astype(jnp.float32).T).astype(jnp.int32),
        (SMALL.astype(np.int8),),
    ),
    "a rounded scale": (
        lambda x: jnp.round(x * 8) / 8,
        lambda x: jnp.floor(x * 8 + 0.5) / 8,
        (NORMAL,),
    ),
    "one key for both": (
        lambda x, k: x + jax.random.normal(k, x.shape),
        lambda x, k: jax.random.normal(k, x.shape) + x,
        (NORMAL, 3),
    ),
}


@pytest.mark.parametrize("kind", some(RIGHT, every=5))
def test_a_right_candidate_may_win(kind):
    """Also where it differs from the default for values that the operation is not meant for."""
    default, candidate, args = RIGHT[kind]
    found = tried(default, candidate, made(args))
    assert found.status is Status.OK, found.error


TYPES = [jnp.float32, jnp.bfloat16, jnp.float8_e4m3fn, jnp.complex64, jnp.int32, jnp.int8, jnp.uint8, jnp.bool_]


@pytest.mark.parametrize("dtype", TYPES)
def test_every_array_has_inputs_of_its_kind_in_every_style(dtype):
    """What fails here has the default fail, and then anything wins."""
    infinite = [np.inf, 1e30] if jnp.issubdtype(dtype, jnp.inexact) else []
    positions = (False, True) if jnp.issubdtype(dtype, jnp.integer) else (False,)
    for shape in ((), (1,), (0, 3), (2, 1), (2, 3, 17)):
        numbers = np.arange(float(np.prod(shape))).reshape(shape)
        for values in (numbers, numbers - 1, *(np.full(shape, value) for value in (0, 1, *infinite))):
            array = jnp.asarray(values.astype(dtype))
            assert perturbed([array], seed=0, exact=True, alike=True)[0].dtype == dtype
            for position in positions:
                varied = VariedArray(array, frozenset(shape), distinct=position, ordered=position)
                for way in (way for style in Style for way in varied.ways(style)):
                    made = varied.placed(way(np.random.default_rng(0)))
                    assert (made.shape, made.dtype) == (array.shape, array.dtype)


def test_ones_that_sum_up_to_an_extent_are_varied():
    """They may be indices. As the sizes of groups they could be no others."""
    ones = VariedArray(jnp.ones(4, jnp.int32), frozenset({4}), distinct=False, ordered=False)
    made = [way(np.random.default_rng(0)) for way in ones.ways(Style.RANDOM)]
    assert any((each != 1).any() for each in made)
