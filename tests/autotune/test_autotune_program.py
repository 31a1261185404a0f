"""Operations are tuned before the job: those that a function or a program calls are found and measured."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest
from cli_helpers import ejcache
from forking import ForkedWithChildren

from ejcache import autotune
from ejcache.autotune import Source, Tuner, TuningPolicy, autotuned
from ejcache.autotune.records.record import encode_record
from ejcache.errors import UsageError

pytestmark = pytest.mark.usefixtures("runs_take_the_same")

QUICK = Tuner(sample_seconds=0.0005, rounds=8, budget=600.0)


def scaled(store, name="scale", **options):
    """An operation with two configurations."""

    @autotuned(configs=[{"n": 1}, {"n": 2}], name=name, store=store, tuner=QUICK, check=False, **options)
    def scale(x, *, n):
        return x * n

    return scale


@dataclasses.dataclass(frozen=True)
class Block:
    """A configuration."""

    size: int


class Opaque:
    """A value without a description that is the same in each process."""

    __slots__ = ()

    def __repr__(self):
        return object.__repr__(self)


def outcomes(done):
    return sorted((call.operation, call.outcome.value) for call in done)


def test_a_program_is_tuned_before_it_runs(store):
    """Each kind of call of a jitted program is measured once, without running it; the next tuning finds records."""
    one, other = scaled(store, "one"), scaled(store, "other")
    ran = []

    @jax.jit
    def step(x, y):
        jax.debug.callback(lambda: ran.append(1))
        return one(x) + one(x) + other(x) + one(y).sum()

    stand_ins = jax.ShapeDtypeStruct((8,), jnp.float32), jax.ShapeDtypeStruct((4, 4), jnp.bfloat16)
    done = autotune.tune(step, *stand_ins)
    assert outcomes(done) == [("one", "tuned"), ("one", "tuned"), ("other", "tuned")]
    assert ran == []
    assert [item.record.key.digest for item in done if item.operation == "other"] == [other.key(jnp.ones(8)).digest]
    assert one.choose(jnp.ones(8)).source is Source.TUNED


def test_what_has_a_sure_record_is_not_measured_again(store):
    """An interrupted tuning goes on where it was: calls with a record are skipped, unless the record is unsure."""
    op = scaled(store)
    step = jax.jit(op)
    (call,) = autotune.tune(step, jnp.ones(8))
    for doubt, outcome in (("", "already tuned"), ("the budget ended", "tuned")):
        measurement = {name: value for name, value in call.record.measurement.items() if name != "unsure"}
        measurement |= {"unsure": doubt} if doubt else {}
        record = dataclasses.replace(call.record, measurement=measurement)
        store.layers[0].documents.replace(record.key.path, encode_record(record))
        store.reload()
        assert [item.outcome.value for item in autotune.tune(step, jnp.ones(8))] == [outcome]


def test_a_program_that_was_traced_before_is_traced_again(store):
    """A program that has run with guesses is tuned none the less, and runs with the tuned choice when traced anew."""
    op = scaled(store, policy=TuningPolicy("heuristics"))
    step = jax.jit(lambda x: op(x) + 1)
    step(jnp.ones(8))
    (call,) = autotune.tune(step, jnp.ones(8))
    assert call.outcome.value == "tuned"
    (call,) = autotune.tune(jax.jit(jax.grad(lambda x: op(x).sum())), jnp.ones(16))
    assert call.record.key == op.key(jnp.ones(16))


def test_a_function_that_is_not_jitted_keeps_its_static_arguments(store):
    """Arrays of a plain function are traced; texts and numbers stay what they are."""
    op = scaled(store)

    def step(x, count, *, kind):
        assert (count, kind) == (2, "add")
        return [op(x) for _ in range(count)]

    (call,) = autotune.tune(step, jnp.ones(8), 2, kind="add")
    assert call.record.key == op.key(jnp.ones(8))


def test_a_call_is_measured_under_the_settings_that_it_has_in_the_program(store):
    """The key has the matmul precision of the call, and so has the measurement."""
    seen = []

    @autotuned(configs=[{"n": 1}, {"n": 2}], name="precise", store=store, tuner=QUICK, check=False)
    def op(x, *, n):
        seen.append(jax.config.jax_default_matmul_precision)
        return x * n

    def step(x):
        with jax.default_matmul_precision("highest"):
            return op(x)

    (call,) = autotune.tune(step, jnp.ones(8))
    assert set(seen) == {"highest"}
    with jax.default_matmul_precision("highest"):
        assert op.key(jnp.ones(8)) == call.record.key
    assert op.key(jnp.ones(8)) != call.record.key


def test_values_that_the_program_closes_over_are_measured(store):
    """An array that is a constant of the program reaches the measurement with its values, and is varied to compare."""
    tables = []

    @autotuned(configs=[{"n": 1}, {"n": 2}], name="lookup", store=store, tuner=QUICK, check=False)
    def lookup(x, table, *, n):
        jax.debug.callback(lambda values: tables.append(values.tolist()), table)
        return x[table] * n

    table = jnp.array([7, 3, 5])
    (call,) = autotune.tune(jax.jit(lambda x: lookup(x, table)), jnp.ones(8))
    jax.effects_barrier()
    assert call.outcome.value == "tuned"
    assert tables[0] == [7, 3, 5]
    assert tables.count([7, 3, 5]) > len(tables) / 2


def test_a_call_that_cannot_be_tuned_does_not_keep_others_from_it(store):
    """A failure has its reason and does not raise; an error of the program while it is traced does."""

    def no_input(*_):
        raise ValueError("no such input")

    broken, opaque, op = scaled(store, "broken", initialisers={"x": no_input}), scaled(store, "opaque"), scaled(store)
    opaque.key_of = lambda x: object.__new__(Opaque)

    @jax.jit
    def step(x):
        return broken(x) + opaque(x) + op(x)

    done = autotune.tune(step, jax.ShapeDtypeStruct((8,), jnp.float32))
    assert outcomes(done) == [("broken", "failed"), ("opaque", "failed"), ("scale", "tuned")]
    problems = {call.operation: call.problem for call in done}
    assert "no such input" in problems["broken"]
    assert "no key of its own" in problems["opaque"]

    def failing(x):
        raise ValueError("the program itself")

    with pytest.raises(ValueError, match="the program itself"):
        autotune.tune(failing, jnp.ones(8))


def test_a_record_is_applied(store):
    """In an overlay the call runs with what the record says, whatever a store has."""

    @autotuned(configs=[Block(1), Block(2)], name="op", store=store, tuner=QUICK)
    def op(x, *, config):
        return x * 2

    x = jnp.ones(8)
    (call,) = autotune.tune(op, x)
    record = dataclasses.replace(call.record, configuration={"size": 2})
    with autotune.policy_override(on_miss="error"), autotune.overlay({record.key: record}):
        assert (op.choose(x).configuration, op.choose(x).source.value) == (Block(2), "overlay")


def test_what_is_no_function_is_refused(store):
    """A traced or lowered program has no functions any more, and the message says what to pass."""
    step = jax.jit(scaled(store))
    for program in (step.trace(jnp.ones(8)), step.lower(jnp.ones(8)), step.lower(jnp.ones(8)).compile(), 3):
        with pytest.raises(UsageError, match=r"pass the function itself, as in tune\(jax.jit"):
            autotune.tune(program)


PROGRAM = """
import sys
import jax, numpy as np
from ejcache.autotune import Tuner, autotuned
import neighbour

@autotuned(configs=[{"n": 1}], name="own", tuner=Tuner(rounds=8, sample_seconds=0.0005))
def own(x, *, n):
    return x * n

if __name__ == "__main__":
    print("sizes", sys.argv[1:])
    for size in sys.argv[2:]:
        jax.jit(lambda x: own(x) + neighbour.op(x))(np.ones(int(size), np.float32))
    sys.exit(3 if sys.argv[1] == "--fail" else 0)
"""
NEIGHBOUR = """
import os, sys
import jax
from ejcache.autotune import Tuner, autotuned

@autotuned(configs=[{"n": 1}], name="neighbour", tuner=Tuner(rounds=8, sample_seconds=0.0005))
def op(x, *, n):
    if x.shape == (666,) and not isinstance(x, jax.core.Tracer):
        raise ValueError
    return x + n
"""


@pytest.fixture
def program(tmp_path):
    """A program with an operation of its own and one of a module beside it."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "neighbour.py").write_text(NEIGHBOUR)
    (tmp_path / "scripts" / "train.py").write_text(PROGRAM)
    return tmp_path / "scripts" / "train.py"


def run_command(run_python, tmp_path, *arguments, env=None):
    """`ejcache tune` in a process of its own; (exit status, JSON, standard error)."""
    command = ["tuned", "tune", "--json", "--dir", str(tmp_path / "place"), *map(str, arguments)]
    program = f"import sys; from ejcache.cli.main import main; sys.exit(main({command}))"
    done = run_python(program, env=env, check=False, timeout=400, start=ForkedWithChildren)
    return done.returncode, json.loads(done.stdout), done.stderr


def test_a_program_is_run_and_what_it_calls_is_tuned(run_python, tmp_path, program):
    """The program runs with its own arguments and measures nothing; its calls are measured after, and only once.

    Calls of a program that fails are measured none the less, and the exit status is 1.
    """
    options = [program, "--sizes", "4"]
    status, said, err = run_command(run_python, tmp_path, *options)
    assert (status, said["tuned"], said["already"], said["failures"]) == (0, 2, 0, 0), err
    assert "sizes ['--sizes', '4']" in err
    assert {call["operation"] for call in said["tuned_calls"]} == {"own", "neighbour"}
    assert not (tmp_path / "place" / "autotune-recorded").exists()
    status, said, err = run_command(run_python, tmp_path, program, "--fail", "4", "8")
    assert (status, said["tuned"] >= 2, said["tuned"] + said["already"]) == (1, True, 4)
    assert "ended with status 3" in err


def test_a_module_that_cannot_be_imported_is_said_before_anything_is_measured(tmp_path):
    """A wrong --module is a usage error."""
    calls = tmp_path / "autotune-recorded" / "own"
    calls.mkdir(parents=True)
    body = {"ejcache": "autotune call", "schema": 1, "operation": "own", "args": [], "kwargs": {}}
    (calls / "a.json").write_text(json.dumps({**body, "how": {"kind": "autotuned", "object": "x:op"}}))
    said = ejcache("tuned", "tune", "--calls", tmp_path, "--dir", tmp_path / "place", "--module", "no_such_module")
    assert (said.status, "no_such_module cannot be imported" in said.err) == (2, True), said.err
