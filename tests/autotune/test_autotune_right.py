"""Only right results win: not what is wrong elsewhere, later, or where nothing works to compare it with."""

from __future__ import annotations

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from autotune_helpers import key
from soak_turns import some

from ejcache.autotune import AutotuneStore, Tuner, autotuned, policy_override
from ejcache.autotune.records.record import Status
from ejcache.errors import UsageError

QUICK = Tuner(rounds=8)
SIZE = 256


def double(x):
    """The right result."""
    return 2 * x


def from_run(number, then):
    """The right results of the first runs, and wrong ones from run `number` on."""
    runs = itertools.count(1)

    def host(x):
        return np.asarray(2 * x if next(runs) < number else then(x), x.dtype)

    return lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.fixture(autouse=True)
def what_is_wrong_is_fast(runs_take):
    """What computes the right result takes twice as long as anything else, which wins if it is not refused."""
    slow_ones = ["default", "right", "also right", {"block": 2}]
    runs_take(lambda configuration: 2e-3 if configuration in slow_ones else 1e-3)


KINDS = {
    "zeros": jnp.zeros_like,
    "NaN": lambda x: x * jnp.nan,
    "infinite": lambda x: x * jnp.inf,
    "other values": lambda x: 2.2 * x,
    "another shape": lambda x: 2 * x[: SIZE // 2],
    "another type": lambda x: (2 * x).astype(jnp.bfloat16),
    "another tree": lambda x: (2 * x,),
    "right for ones only": lambda x: x + 1,
    "right for equal values only": lambda x: jnp.full_like(x, 2 * x.ravel()[0]),
    "right for zeros only": lambda x: 3 * x,
    "wrong from run 2 on": np.zeros_like,
    "wrong after many runs": lambda x: 2 * x + 1,
}
LATER = {"wrong from run 2 on": 3, "wrong after many runs": 8}
"""From which run on these are wrong; the first two are those on the caller's and on varied inputs."""
INPUTS = {"right for zeros only": np.zeros(SIZE)}


def fresh(kind):
    return from_run(LATER[kind], KINDS[kind]) if kind in LATER else KINDS[kind]


def choice(build, x, candidates, *, default):
    return QUICK.tune(build, (x,), {}, key=key(), candidates=candidates, default=default)


@pytest.mark.parametrize("kind", some(KINDS, every=4))
def test_a_wrong_candidate_does_not_win_against_the_default(kind):
    """However fast it is."""
    build = {"default": double, "wrong": fresh(kind)}.__getitem__
    record = choice(build, jnp.asarray(INPUTS.get(kind, np.ones(SIZE))), ["wrong"], default="default")
    assert record.configuration == "default"
    assert record.candidate("wrong").status is Status.FAILED


def fails(_):
    raise RuntimeError("no such block")


@pytest.mark.parametrize(
    ("kind", "default"), some([("zeros", "is killed"), *((kind, "raises") for kind in KINDS)], every=4)
)
def test_a_wrong_candidate_does_not_win_where_the_default_fails(kind, default):
    """Of three others, two agree; the record is unsure."""
    broken = fails if default == "raises" else from_run(1, fails)
    build = {
        "default": broken,
        "wrong": fresh(kind),
        "right": double,
        "also right": lambda x: double(x) + 0,
    }.__getitem__
    x = jnp.asarray(INPUTS.get(kind, np.ones(SIZE)))
    record = choice(build, x, ["wrong", "right", "also right"], default="default")
    assert record.configuration in ("right", "also right")
    assert record.candidate("wrong").status is Status.FAILED
    assert "no default that works" in record.measurement["unsure"]


def test_nothing_wins_where_two_candidates_differ_and_no_default_works():
    """Nobody knows which of them is right, unless one computes NaN."""
    build = {"default": fails, "one": lambda x: 2 * x, "other": lambda x: 3 * x, "NaN": KINDS["NaN"]}.__getitem__
    record = choice(build, jnp.ones(SIZE), ["one", "other"], default="default")
    assert not record.works
    assert choice(build, jnp.ones(SIZE), ["NaN", "one"], default="default").configuration == "one"


def test_an_operation_that_fails_on_other_values_is_tuned():
    """Where the default itself fails on varied inputs, the candidates are compared on the caller's."""

    def checked(x):
        def host(y):
            if not (np.asarray(y) == 1).all():
                raise ValueError("ones are needed")
            return np.asarray(2 * y, y.dtype)

        return jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 0 * double(x)

    build = {"default": checked, "fast": lambda x: 2 * x}.__getitem__
    assert choice(build, jnp.ones(SIZE), ["fast"], default="default").configuration == "fast"


def test_an_argument_that_an_initialiser_makes_is_not_varied():
    """An operation may be meant for some values only, which nobody can tell from the caller's."""

    def both(x):
        return jnp.where(x > 0, x, -x)

    build = {"default": both, "candidate": lambda x: x}.__getitem__
    tuner = Tuner(rounds=4, initialisers={"argument 0": lambda shape, dtype, _: jnp.ones(shape, dtype)})
    record = tuner.tune(build, (jnp.ones(SIZE),), {}, key=key(), candidates=["candidate"], default="default")
    assert record.candidate("candidate").status is Status.OK


def test_a_candidate_that_computes_nan_does_not_win_alone():
    """Where the default fails, nothing says that NaN is right, unless the inputs have it."""
    build = {"default": fails, "NaN": KINDS["NaN"]}.__getitem__
    assert not choice(build, jnp.ones(SIZE), ["NaN"], default="default").works
    assert choice(build, jnp.full(SIZE, jnp.nan), ["NaN"], default="default").configuration == "NaN"


def now_and_then(every):
    """Right, but for one run of so many."""
    runs = itertools.count(1)

    def host(x):
        return np.asarray(3 * x if next(runs) % every == 0 else 2 * x, x.dtype)

    return lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.mark.parametrize("every", [3, 10])
def test_a_candidate_that_is_wrong_now_and_then_does_not_win(every):
    record = choice(
        {"default": double, "wrong": now_and_then(every)}.__getitem__, jnp.ones(SIZE), ["wrong"], default="default"
    )
    assert record.configuration == "default"


def test_a_candidate_that_is_right_for_one_seed_does_not_win():
    """The caller traces, so the inputs are those of one seed."""
    seen = np.random.default_rng([QUICK.seed, 0]).standard_normal(SIZE, dtype=np.float32)
    build = {"default": double, "wrong": lambda x: jnp.where(jnp.all(x == seen), 2 * x, 3 * x)}.__getitem__
    record = choice(build, jax.ShapeDtypeStruct((SIZE,), jnp.float32), ["wrong"], default="default")
    assert record.configuration == "default"
    assert record.candidate("wrong").status is Status.FAILED


def bucket(place, tried, **options):
    """An operation whose shapes share a key, in a process of its own as far as records go."""

    @autotuned(
        configs=[{"block": 2}, {"block": 8}],
        name="bucket",
        key=lambda x: "all shapes",
        store=AutotuneStore(str(place), seeds=(), refresh_seconds=0.0),
        tuner=QUICK,
        **options,
    )
    def operation(x, *, block):
        tried.append((x.shape[0], block))
        if block == 2:
            return double(x)
        return 2 * x if x.shape[0] % 16 else 3 * x

    return operation


def test_a_candidate_that_is_wrong_for_one_shape_of_a_bucket_is_not_used_for_it(tmp_path):
    """It is compared for each shape once in each process, and stays the choice for the others."""
    tried = []
    for _ in range(2):
        operation = bucket(tmp_path, tried)
        assert operation.choose(jnp.ones(8)).configuration == {"block": 8}
        assert operation.choose(jnp.ones(16)).configuration == {"block": 2}
        assert operation.choose(jnp.ones(24)).configuration == {"block": 8}
        assert (operation(jnp.ones(16)) == 2).all()
    tried.clear()
    with policy_override(on_miss="autotune"):
        # The same process, in another block: nothing is compared again.
        assert [operation.choose(jnp.ones(size)).configuration["block"] for size in (8, 16, 24)] == [8, 2, 8]
    assert tried == []


def test_a_choice_that_this_shape_excludes_is_not_used_for_it(tmp_path):
    """What `prune` leaves out for one shape of a bucket stays the choice for the others."""
    tried = []

    def prune(candidates, x):
        return [item for item in candidates if x.shape[0] >= item["block"]]

    for _ in range(2):
        operation = bucket(tmp_path, tried, prune=prune)
        assert operation.choose(jnp.ones(8)).configuration == {"block": 8}
        assert operation.choose(jnp.ones(4)).configuration == {"block": 2}
        assert (4, 8) not in tried


@pytest.mark.parametrize(
    ("right", "wrong"),
    [(lambda x: x.sum(), lambda _: 1.0), (lambda x: x * 2, jax.jit(lambda x: x * 2, donate_argnums=0))],
    ids=["a weak type", "destroyed arguments"],
)
def test_what_the_program_would_notice_later_does_not_win(right, wrong):
    """The values are right."""
    build = {"default": right, "wrong": wrong}.__getitem__
    assert choice(build, jnp.ones(1), ["wrong"], default="default").candidate("wrong").status is Status.FAILED


def test_a_default_that_computes_nan_makes_the_record_unsure():
    """Nothing can be compared there; other inputs have none."""
    x = jnp.ones(SIZE).at[3].set(jnp.nan)
    build = {"default": double, "wrong": jnp.zeros_like, "right": lambda x: 2 * x}.__getitem__
    record = choice(build, x, ["wrong", "right"], default="default")
    assert record.candidate("wrong").status is Status.FAILED
    assert "NaN" in record.unsure


def test_the_author_gives_inputs():
    """Candidates are compared on them as on the caller's, also under vmap; what is no list of arguments is refused."""
    build = {"default": double, "wrong": lambda x: jnp.where(jnp.abs(x) > 1e20, 0.0, 2 * x)}.__getitem__

    def tuned(check_inputs, x, **options):
        tuner = replace(QUICK, check_inputs=check_inputs)
        return tuner.tune(build, (x,), {}, key=key(), candidates=["wrong"], default="default", **options)

    assert tuned(None, jnp.ones(SIZE)).candidate("wrong").status is Status.OK
    record = tuned(lambda x, *, key: [(x,), (jnp.full_like(x, 1e25),)], jnp.ones(SIZE))
    assert "differ from the default's" in record.candidate("wrong").error
    with pytest.raises(UsageError, match="check_inputs"):
        tuned(lambda x, *, key: [(x[:2],)], jnp.ones(SIZE))


@pytest.mark.parametrize(
    ("default", "other", "named"),
    [
        (lambda x: (1000 * x).astype(jnp.int32), lambda x: (1001 * x).astype(jnp.int32), "check="),
        (lambda x: 2 * x, lambda x: 2.2 * x, "check="),
        (
            lambda x: jnp.round(8 * x).astype(jnp.int32),
            lambda x: jnp.round(8 * x).astype(jnp.int32).at[0].add(1),
            'check="rounded"',
        ),
    ],
)
def test_a_refusal_names_the_option_that_accepts_it(default, other, named):
    """And that option does accept it."""
    build = {"default": default, "other": other}.__getitem__
    x = jnp.linspace(1, 2, SIZE)

    def tuned(check):
        tuner = replace(QUICK, check=check, initialisers={"argument 0": lambda *_: np.linspace(1, 2, SIZE)})
        return tuner.tune(build, (x,), {}, key=key(), candidates=["other"], default="default").candidate("other")

    said = tuned(True).error
    assert named in said
    word = said.split("check=")[1].split()[0].strip(",")
    assert tuned("rounded" if "rounded" in word else float(word)).status is Status.OK


def test_noise_on_the_inputs_of_the_caller_does_not_count():
    """A variance of equal values is zero, or nearly."""
    build = {
        "default": lambda x: x.var(1),
        "other": lambda x: ((x - x.sum(1, keepdims=True) * (1 / 64)) ** 2).mean(1),
    }
    record = choice(build.__getitem__, jnp.full((64, 64), 0.1), ["other"], default="default")
    assert record.candidate("other").status is Status.OK, record.candidate("other").error
