"""Checked by `make types`: what a type checker knows about the public API. Never run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import jax

import ejcache
import ejcache.autotune


def enabling() -> None:
    cache = ejcache.enable("/tmp/cache", max_size="10GB", read_only=True, namespace="x", preload=False)
    assert_type(cache, ejcache.CompilationCache)
    with ejcache.enable(min_compile_seconds=0.5) as inner:
        assert_type(inner, ejcache.CompilationCache)
    with ejcache.disabled():
        pass
    with ejcache.forbid_compile(everywhere=True):
        pass
    ejcache.enable(max_sze=3)  # type: ignore[call-arg]
    ejcache.enable(preload="soon")  # type: ignore[arg-type]
    ejcache.enable(autotune_policy="never")  # type: ignore[arg-type]


@ejcache.ejit
def double(x: float, times: int = 2) -> float:
    return x * times


@ejcache.ejit(static_argnums=(1,), donate_argnums=0)
def power(x: jax.Array, exponent: int) -> jax.Array:
    return x**exponent


@ejcache.forbid_compile()
def guarded(x: float) -> int:
    return int(x)


class Model:
    @ejcache.ejit
    def step(self, x: float) -> float:
        return x


def jitting() -> None:
    assert_type(double(2.0), float)
    assert_type(guarded(2.0), int)
    assert_type(double(2.0, times=3), float)
    double("text")  # type: ignore[arg-type]
    double(2.0, 3, 4)  # type: ignore[call-arg]
    double.lower(2.0).compile()
    assert_type(power(jax.numpy.ones(3), 2), jax.Array)
    power.lower(jax.numpy.ones(3), 2)
    ejcache.ejit(double, static_argnms=1)  # type: ignore[call-overload]
    assert_type(ejcache.ejit(func=double, inline=True)(1.0), float)
    assert_type(Model().step(2.0), float)


def looking() -> None:
    assert_type(ejcache.stats(), ejcache.Stats)
    assert_type(ejcache.stats("gs://bucket/prefix").hits, int)
    assert_type(ejcache.entries(), Iterator[ejcache.EntryInfo])
    assert_type([explanation.sentence for explanation in ejcache.why("step")], list[str])
    assert_type(ejcache.prune(max_size="10GB", dry_run=True).removed, int)
    assert_type(ejcache.clear().freed, int)
    assert_type(ejcache.verify().clean, bool)
    assert_type(ejcache.active(), ejcache.CompilationCache | None)
    settings = ejcache.current_settings()
    assert_type(settings.max_size, int)
    assert_type(settings.dir, str | None)
    assert_type(settings["max_size"].source, str)
    assert_type(settings.preload, bool)


def storing(store: ejcache.Store) -> None:
    assert_type(store.get("key"), bytes | None)
    try:
        assert_type(ejcache.open_store("memory://x", max_size="1MB"), ejcache.Store)
    except ejcache.UsageError as exc:
        assert_type(exc, ejcache.UsageError)
    except (ejcache.StoreUnavailableError, ejcache.EjcacheError):
        pass


@ejcache.autotuned(configs=[{"block": 1}, {"block": 2}], name="tuned")
def tuned(x: jax.Array, *, block: int) -> jax.Array:
    return x * block


def tuning(x: jax.Array) -> None:
    assert_type(tuned(x), jax.Array)
    assert_type(tuned(x, block=3), jax.Array)


def submodules(value: Any) -> None:
    ejcache.autotune.set_default_store(value)
