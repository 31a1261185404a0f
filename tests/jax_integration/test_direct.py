"""Direct mode, in processes of their own: record, prove, hit; what was changed misses, and what is wrong is said."""

from __future__ import annotations

import json
import sys

import pytest

import ejcache

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="direct mode needs Python 3.12")

PROGRAM = """
    import json, os, sys
    import jax, jax.numpy as jnp, numpy as np
    import ejcache
    from ejcache.direct.verdicts import last_verdicts

    ejcache.enable(os.environ["PLACE"], min_compile_seconds=0)
    traced = []

    K = float(os.environ.get("VALUE_OF_K", "3"))

    def helper(x):
        return x * K

    @ejcache.ejit(direct=True)
    def step(state, x):
        TRACED
        return {"w": state["w"] + helper(x).sum(), "n": state["n"] + 1}, jnp.sin(x)

    state = {"w": jnp.zeros(3), "n": np.int32(0)}
    for _ in range(3):
        state, y = step(state, jnp.arange(4.0))
    MORE
    stats = ejcache.stats()
    print(json.dumps({
        "verdicts": [(v.function, v.verdict, v.sentence) for v in last_verdicts()],
        "state": [np.asarray(state["w"]).tolist(), int(state["n"])],
        "hits": stats.hits, "misses": stats.misses, "amounts": dict(stats.amounts),
    }))
"""


@pytest.fixture
def start(run_python, tmp_path):
    """Start the program, and return what it prints; each process has a hash seed of its own."""

    def run(*, body="pass", more="", env=None, check=True):
        text = PROGRAM.replace("TRACED", body).replace("MORE", more)
        settings = {"PLACE": str(tmp_path / "cache"), "PYTHONHASHSEED": None, "EJCACHE_DIRECT_CHECK_ONE_IN": "0"}
        done = run_python(text, env={**settings, **(env or {})}, check=check)
        return json.loads(done.stdout.splitlines()[-1]) if check else done

    return run


def verdicts(answer):
    return [verdict for _, verdict, _ in answer["verdicts"]]


def test_the_third_start_does_not_trace(start):
    """The first start records, the second proves, the third answers; all compute the same."""
    first, second, third = start(), start(), start()
    assert verdicts(first) == ["missed"]
    assert verdicts(second) == ["unproven"]
    assert verdicts(third) == ["hit"]
    assert first["state"] == second["state"] == third["state"] == [[54.0] * 3, 3]
    assert third["amounts"]["direct_hit"] == 1
    assert third["misses"] == 0


def test_a_changed_global_misses_and_says_so(start):
    """With another value of a global that a helper reads, the function is traced, and computes with that value."""
    for _ in range(3):
        start()
    changed = start(env={"VALUE_OF_K": "5"})
    assert verdicts(changed) == ["missed"]
    assert "K" in changed["verdicts"][0][2]
    assert changed["state"] == [[90.0] * 3, 3]
    assert verdicts(start()) == ["hit"]


def test_a_counter_refuses(start):
    """A trace that changes what it reads is refused, with the path that leads there, at every start."""
    for _ in range(3):
        answer = start(body="traced.append(1); x = x + len(traced)")
        assert verdicts(answer) == ["refused"]
        assert "traced" in answer["verdicts"][0][2]


def test_under_a_transformation_it_is_plain(start):
    """Under grad, vmap and another jit the function is a plain one, and no record is made."""
    more = """
    f = ejcache.ejit(lambda x: (x**2).sum(), direct=True)
    values = [jax.grad(f)(jnp.arange(3.0)), jax.vmap(f)(jnp.ones((2, 3))), jax.jit(lambda x: f(x))(jnp.arange(3.0))]
    assert [np.asarray(v).tolist() for v in values] == [[0.0, 2.0, 4.0], [3.0, 3.0], 5.0]
    """.replace("\n    ", "\n").strip()
    answer = start(more="\n    ".join(more.splitlines()))
    assert set(verdicts(answer)[1:]) == {"plain"}


def test_explain_traces_and_compares(start):
    """`explain` always traces; where a record would have answered, it says that the record was right."""
    start(), start()
    assert verdicts(start(env={"EJCACHE_DIRECT": "explain"})) == ["checked"]
    assert verdicts(start()) == ["hit"]


def test_one_call_in_one_is_checked(start):
    """With `direct_check_one_in=1` every start traces and compares."""
    start(), start()
    assert verdicts(start(env={"EJCACHE_DIRECT_CHECK_ONE_IN": "1"})) == ["checked"]


WRONG = """
import os

if os.environ.get("WRONG"):
    from ejcache.direct import record_store

    def decode(raw, original=record_store.decode_document):
        document = original(raw)
        others = [record._replace(entry=record.entry[:-4] + "0000") for record in document.records]
        return document._replace(records=tuple(others))

    record_store.decode_document = decode
"""


@pytest.fixture
def wrong(tmp_path):
    """The environment of a process that reads another entry's key in every record."""
    (tmp_path / "sitecustomize.py").write_text(WRONG)
    return {"WRONG": "1", "PYTHONPATH": str(tmp_path)}


def test_a_wrong_record_is_deleted_and_switches_off(start, wrong):
    """A record that names another program than the trace finds is deleted with a warning, and direct mode is off."""
    start(), start()
    assert verdicts(start(env={"EJCACHE_DIRECT": "explain", **wrong}))[0] == "wrong"
    again = start()
    assert verdicts(again) == ["plain"]
    assert "direct mode is off" in again["verdicts"][0][2]


def test_strict_raises_about_a_wrong_record(start, wrong):
    """`strict` raises `DirectModeError`, where otherwise a warning is logged."""
    start(), start()
    done = start(env={"EJCACHE_DIRECT": "strict", "EJCACHE_DIRECT_CHECK_ONE_IN": "1", **wrong}, check=False)
    assert done.returncode == 1
    assert "DirectModeError" in done.stderr


def test_an_exception_of_the_function_is_the_programs(start):
    """What the function raises while it is traced reaches the program, and the function ran once."""
    more = """
    calls = []

    def fails(x):
        calls.append(1)
        raise KeyError("mine")

    try:
        ejcache.ejit(fails, direct=True)(jnp.ones(2))
    except KeyError as exc:
        assert exc.args == ("mine",)
    else:
        raise SystemExit("nothing was raised")
    assert len(calls) == 1
    """
    start(more=more)


def test_an_evicted_entry_is_compiled_anew(start, tmp_path):
    """A record whose entry is gone is of no use; the call traces, compiles, stores, and the next start hits."""
    start(), start()
    more = "[ejcache.active()._policy.opened(ejcache.current_settings()).delete(e.key) for e in ejcache.entries()]"
    start(more=more)
    answer = start()
    assert answer["state"] == [[54.0] * 3, 3]
    assert verdicts(answer) == ["missed"]
    assert verdicts(start()) == ["hit"]


def test_the_environment_switches_it_on(start):
    """`EASYDEL_CACHE_COMPILES=true` makes every `@ejit` direct; without it, and without `direct`, none is."""
    more = """
    plain = ejcache.ejit(lambda x: x + 2)
    plain(jnp.ones(3))
    """
    assert len(start(more=more)["verdicts"]) == 1
    assert len(start(more=more, env={"EASYDEL_CACHE_COMPILES": "true"})["verdicts"]) == 2


def test_a_librarys_function_that_ran_before_is_guarded(run_python, tmp_path):
    """What a library's jitted function reads counts, also if JAX had its trace in memory before the record was made."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "scaling.py").write_text("import jax\nK = 3.0\n@jax.jit\ndef scaled(x):\n    return x * K\n")
    program = """
        import json, os, sys
        import jax, jax.numpy as jnp
        import ejcache, scaling
        from ejcache.direct.verdicts import last_verdicts

        ejcache.enable(os.environ["PLACE"], min_compile_seconds=0)
        if len(sys.argv) > 1:
            scaling.K = float(sys.argv[1])
        scaling.scaled(jnp.arange(4.0))

        @ejcache.ejit(direct=True)
        def f(x):
            return scaling.scaled(x) + 1

        print(json.dumps([f(jnp.arange(4.0)).tolist(), [[v.verdict, v.sentence] for v in last_verdicts()]]))
    """
    env = {"PLACE": str(tmp_path / "cache"), "PYTHONPATH": str(packages), "EJCACHE_DIRECT_CHECK_ONE_IN": "0"}

    def run(*arguments):
        values, said = json.loads(run_python(program, *arguments, env=env).stdout)
        return values, [verdict for verdict, _ in said]

    assert [run()[1] for _ in range(3)] == [["missed"], ["unproven"], ["hit"]]
    assert run("5") == ([1.0, 6.0, 11.0, 16.0], ["missed"])


def test_a_jax_of_another_build_has_no_direct_mode(monkeypatch, tmp_path, caplog):
    """Where a part of JAX that direct mode needs is gone, that is said once, and `@ejit` is plain `jax.jit`."""
    ejcache.enable(str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "ejcache.direct.calls", None)
    twice, thrice = (ejcache.ejit(lambda x, by=by: x * by, direct=True) for by in (2, 3))
    assert (int(twice(2)), int(thrice(2))) == (4, 6)
    assert sum("direct mode is off" in record.getMessage() for record in caplog.records) == 1


def test_the_cache_can_be_enabled_again_after_a_direct_function(tmp_path):
    """What direct mode puts around JAX's function does not make JAX look like another version."""
    ejcache.enable(str(tmp_path / "one"))
    assert int(ejcache.ejit(lambda x: x + 1, direct=True)(1)) == 2
    ejcache.disable()
    cache = ejcache.enable(str(tmp_path / "two"))
    assert ejcache.active() is cache
