"""Operations with several implementations: the choice is measured, recorded and found like a configuration."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from autotune_helpers import QUICK

from ejcache.autotune import AutotuneStore, Implementation, Source, autotuned, implementations, overlay
from ejcache.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Steps:
    count: int


def slow(x):
    return x + 0


@autotuned(configs=[Steps(50), Steps(4)], name="looped")
def looped(x, *, config):
    return jax.lax.fori_loop(0, config.count, lambda _, y: y * 0 + x, x)


def wrong(x):
    return x + 1


def failing(x):
    raise ValueError("not on this device")


def operation(store, choices):
    @implementations(choices, name="walk", store=store, tuner=QUICK)
    def walk(x):
        raise AssertionError("the declaration runs")

    return walk


def test_the_fastest_implementation_with_its_configuration_is_chosen(store, tmp_path, runs_take):
    """Of all implementations and configurations the fastest right one runs, and is found by the next process."""
    seconds = {"slow": 1e-2, "wrong": 1e-4, Steps(50): 5e-3, Steps(4): 1e-3}
    runs_take(lambda choice: seconds[choice.configuration or choice.implementation])
    choices = {"slow": slow, "wrong": wrong, "failing": failing, "looped": looped}
    walk, x = operation(store, choices), jnp.ones(8)
    np.testing.assert_array_equal(jax.jit(walk)(x), x)
    choice = walk.choose(x)
    assert (choice.configuration, choice.source) == (Implementation("looped", Steps(4)), Source.TUNED)
    assert choice.record.configuration == {"implementation": "looped", "configuration": {"count": 4}}
    assert choice.record.default == {"implementation": "slow", "configuration": None}
    problems = {item.configuration["implementation"]: item.error for item in choice.record.candidates if item.error}
    assert set(problems) == {"wrong", "failing"}
    assert "not on this device" in problems["failing"]
    again = operation(AutotuneStore(str(tmp_path / "store")), choices)
    assert again.choose(x).configuration == Implementation("looped", Steps(4))
    assert again.chooser().counters["tuning"] == 0


def test_the_first_implementation_is_the_default(store):
    """Without a measurement the first implementation runs, with its own default."""
    walk, x = operation(store, {"looped": looped, "slow": slow}), jnp.ones(8)
    assert walk.bound((x,), {}).default() == Implementation("looped", Steps(50))
    assert walk.bound((x,), {}).candidates()[-1] == Implementation("slow")


def test_a_call_or_an_overlay_gives_the_implementation(store):
    """A given choice is used as it is, and nothing is measured."""
    walk, x = operation(store, {"slow": slow, "wrong": wrong}), jnp.ones(8)
    np.testing.assert_array_equal(walk(x, config=Implementation("wrong")), x + 1)
    with overlay({"walk": Implementation("wrong")}):
        np.testing.assert_array_equal(walk(x), x + 1)
    assert list(store.records()) == []


def test_an_operation_without_implementations_is_refused():
    """Said at the decoration."""
    with pytest.raises(UsageError, match="at least one implementation"):
        implementations({})
