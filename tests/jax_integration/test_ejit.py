"""`@ejit` is `jax.jit`, and the store with it."""

from __future__ import annotations

import inspect
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ejcache
from ejcache import ejit

X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """Where the first `@ejit` of each test keeps what it compiles."""
    monkeypatch.setenv("EJCACHE_REPORT", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return tmp_path / "xdg" / "ejcache"


def test_the_first_use_enables_the_store_for_the_process(directory):
    """Plain `jax.jit` uses it from then on too; nothing had to be called."""
    assert ejcache.active() is None

    @ejit
    def f(x):
        return x + 1

    assert ejcache.active().url == str(directory)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    f(X)
    jax.jit(lambda x: x - 1)(X)
    assert ejcache.active().stats().stores == 2


@pytest.mark.parametrize(
    ("value", "enables"), [("0", False), ("false", False), ("No", False), ("", True), ("1", True), ("maybe", True)]
)
def test_an_explicit_no_of_easydel_is_a_no(monkeypatch, value, enables):
    """EASYDEL_CACHE_COMPILES: `@ejit` enables nothing with a no, and the cache with any other value."""
    monkeypatch.setenv("EASYDEL_CACHE_COMPILES", value)

    assert float(ejit(lambda x: x * 2)(3.0)) == 6.0
    assert (ejcache.active() is not None) is enables


def test_ejcache_switches_ejit_off(monkeypatch):
    """EJCACHE=0: `@ejit` compiles as `jax.jit` does and enables nothing."""
    monkeypatch.setenv("EJCACHE", "0")

    assert float(ejit(lambda x: x * 2)(3.0)) == 6.0
    assert ejcache.active() is None


def test_what_was_enabled_before_stays(tmp_path):
    """A program that chose its directory keeps it."""
    mine = ejcache.enable(str(tmp_path / "mine"))
    ejit(lambda x: x)

    assert ejcache.active() is mine


def test_bare_called_and_ejkernels_spelling():
    """`@ejit`, `@ejit(...)`, `ejit(f, ...)` and `ejit(func=f, ...)` give the object that `jax.jit` gives."""

    def f(x, n):
        return x * n

    kinds = {
        type(ejit(f)),
        type(ejit(static_argnums=1)(f)),
        type(ejit(f, static_argnums=1)),
        type(ejit(func=f, static_argnums=(1,))),
    }

    assert kinds == {type(jax.jit(f))}
    assert np.array_equal(ejit(func=f, static_argnums=1)(X, 2), X * 2)


def test_every_parameter_of_the_installed_jit_is_taken():
    """Whatever `jax.jit` has here, `ejit` has; what it has not is a TypeError, as there."""
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(jax.jit).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert {"in_shardings", "static_argnums", "donate_argnames", "compiler_options"} <= defaults.keys()

    assert np.array_equal(ejit(lambda x: x + 1, **defaults)(X), X + 1)
    with pytest.raises(TypeError, match="no_such_option"):
        ejit(lambda x: x, no_such_option=1)


def test_transformations_compose():
    """grad, value_and_grad, vmap, scan, cond, nested jit, remat and custom_vjp, inside and outside."""
    f = ejit(lambda x: jnp.tanh(x).sum())
    expected = 1 - np.tanh(X) ** 2

    np.testing.assert_allclose(jax.grad(f)(X), expected, rtol=1e-5)
    np.testing.assert_allclose(ejit(jax.grad(f))(X), expected, rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(ejit(lambda row: row.sum()))(X), X.sum(1), rtol=1e-5)
    np.testing.assert_allclose(ejit(jax.vmap(lambda row: row.max()))(X), X.max(1), rtol=1e-5)
    body = ejit(lambda carry, row: (carry + row, carry.sum()))
    np.testing.assert_allclose(jax.lax.scan(body, jnp.zeros(4), X)[0], X.sum(0), atol=1e-6)
    nested = ejit(lambda x: ejit(jnp.sin)(x) + jax.jit(jnp.cos)(x))
    np.testing.assert_allclose(nested(X), np.sin(X) + np.cos(X), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(jax.checkpoint(f))(X), expected, rtol=1e-5)


def test_donation():
    """A donated buffer is gone afterwards, from a fresh executable and from a loaded one."""
    ejcache.enable(min_compile_seconds=0)
    for _ in range(2):
        jax.clear_caches()
        f = ejit(lambda x: x + 1, donate_argnums=0)
        x = jnp.asarray(X) + 0
        np.testing.assert_allclose(f(x), X + 1)
        assert x.is_deleted()
    assert ejcache.active().stats().hits > 0


def test_shardings_over_several_devices(run_forked):
    """in_shardings and out_shardings over eight virtual devices, cold and warm in two processes."""
    code = """
        import jax, numpy as np, json
        import ejcache
        from ejcache import ejit
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        ejcache.enable(min_compile_seconds=0)
        mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("a", "b"))
        s = NamedSharding(mesh, P("a", "b"))
        f = ejit(lambda x, y: x @ y, in_shardings=(s, NamedSharding(mesh, P("b", None))), out_shardings=s)
        x = np.arange(64.0, dtype=np.float32).reshape(8, 8)
        out = f(x, x)
        assert out.sharding == s
        np.testing.assert_allclose(out, x @ x)
        print(json.dumps(ejcache.active().stats().to_dict()))
    """
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    import json

    cold = json.loads(run_forked(code, env=env).stdout)
    warm = json.loads(run_forked(code, env=env).stdout)
    assert (cold["stores"], warm["stores"]) == (cold["misses"], 0)
    assert warm["hits"] == cold["misses"] > 0


def test_importing_is_free_of_side_effects(run_forked):
    """`from ejcache import ejit` alone enables nothing and makes no directory."""
    finished = run_forked(
        """
        import os
        from ejcache import ejit
        import ejcache
        print(ejcache.active(), os.path.exists(os.path.join(os.environ["XDG_CACHE_HOME"], "ejcache")))
        """,
        env={"XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]},
    )

    assert finished.stdout.split() == ["None", "False"]
