"""Our stand-ins for ejkernel's functions that compile, in every form in which ejkernel and EasyDeL call them."""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import pytest

import ejcache
from ejcache.autotune.ejkernel import compiling

needs_ejkernel = pytest.mark.skipif(
    importlib.util.find_spec("ejkernel") is None, reason="ejkernel is not installed (it supports JAX 0.10 only)"
)


@pytest.fixture(autouse=True)
def disabled_afterwards():
    """`ejit` enables the cache for the process."""
    yield
    ejcache.disable()


SHARDING = jax.sharding.SingleDeviceSharding(jax.devices()[0])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"static_argnames": ()},
        {"static_argnames": "mode"},
        {"static_argnames": ("mode",)},
        {"static_argnames": ["mode"]},
        {"static_argnames": ["mode"], "donate_argnames": ["x"]},
        {"static_argnames": ("mode",), "donate_argnums": (0,)},
        {"static_argnames": ("mode",), "inline": True},
        {"static_argnums": (2,)},
        {"static_argnums": None},
        {"static_argnums": (2,), "donate_argnames": ["x"], "in_shardings": (SHARDING, SHARDING)},
        {"static_argnums": (2,), "in_shardings": (SHARDING, SHARDING), "out_shardings": SHARDING},
        {"in_shardings": (SHARDING,) * 2, "out_shardings": SHARDING, "donate_argnums": (0,), "static_argnums": (2,)},
        {"in_shardings": (SHARDING, SHARDING), "out_shardings": None, "static_argnums": 2},
        {"out_shardings": SHARDING, "static_argnames": ("mode",)},
        {"in_shardings": None, "out_shardings": None, "backend": None, "compiler_options": None, "keep_unused": False,
         "inline": False, "abstracted_axes": None, "donate_argnums": None, "static_argnames": "mode"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("way", ["f", "func", "decorator"])
def test_ejkernels_ejit_is_called_in_every_form(options, way):
    """The forms of all calls of `ejit` in ejkernel 0.0.80 and EasyDeL 0.3.0: each compiles, runs and lowers."""

    def f(x, y, mode=1):
        return x + y * mode

    made = compiling.ejit(func=f, **options) if way == "func" else compiling.ejit(f, **options)
    if way == "decorator":
        made = compiling.ejit(**options)(f)
    assert isinstance(made, type(jax.jit(f)))
    x, y = jnp.ones(4), jnp.ones(4)
    static = options.get("static_argnums") or options.get("static_argnames")
    arguments = (x, y) if "in_shardings" in options and not static else (x, y, 2)
    compiled, key = compiling.smart_compile(made.lower(*arguments), "tag", verbose=False, cache_key=("a", ()))
    assert key == ("a", ())
    assert compiled is not None
    assert made(*arguments).tolist() == [len(arguments)] * 4


@needs_ejkernel
@pytest.mark.parametrize("when", ["before", "after"])
def test_unmodified_ejkernel_compiles_through_our_cache(run_python, tmp_path, when):
    """After `install()`, what ejkernel decorates is `ejcache.ejit`'s, and JAX keeps the directory that was enabled."""
    done = run_python(
        """
        import sys, jax, jax.numpy as jnp, ejcache
        cache = ejcache.enable(sys.argv[1], min_compile_seconds=0.0, min_entry_size=0)
        if sys.argv[2] == "before":
            ejcache.ejkernel.install()
        import ejkernel.callib
        ejcache.ejkernel.install()
        if sys.argv[2] == "before":
            import ejkernel.modules.operations as o
            x = jnp.ones((1, 16, 1, 8))
            o.scaled_dot_product_attention(x, x, x)
            assert cache.stats().stores > 0
        from ejkernel.callib import ejit
        from ejkernel.callib._ejit import load_cached_functions, smart_compile
        print(ejit.__module__, smart_compile.__module__, load_cached_functions())
        stores = cache.stats().stores
        jitted = ejit(lambda x: jnp.tanh(x) * 3)
        jitted(jnp.ones(7))
        assert cache.stats().stores > stores
        # What ejkernel decorated before `install()` has set JAX's directory, and the cache stays all the same.
        print(ejcache.active() is cache, sys.argv[2] == "after" or jax.config.jax_compilation_cache_dir == sys.argv[1])
        ejcache.ejkernel.uninstall()
        print(sys.modules["ejkernel.callib"].ejit.__module__)
        """,
        str(tmp_path / "cache"),
        when,
        timeout=240,
    )
    ours = "ejcache.autotune.ejkernel.compiling"
    assert done.stdout.splitlines() == [f"{ours} {ours} None", "True True", "ejkernel.callib._ejit"]


def test_no_compile_context_lets_hits_pass(tmp_path):
    """EasyDeL's `NoCompileContext`: hits pass, misses raise a RuntimeError with its message, in every thread."""
    ejcache.enable(str(tmp_path / "cache"), min_compile_seconds=0)
    f = jax.jit(lambda x: jnp.cos(x) * 5)
    f(jnp.ones(3))
    jax.clear_caches()
    context = ejcache.ejkernel.NoCompileContext("the hot path compiled")
    four = jnp.zeros(4)
    three = jnp.asarray([1.0, 1.0, 1.0])
    with context:
        f(three)
    with pytest.raises(RuntimeError) as raised, context, context:
        f(four)
    assert raised.value.__notes__.count("the hot path compiled") == 2
    f(four)


def test_easydels_no_compile_context_is_replaced(run_python, tmp_path):
    """After `install()`, a module like EasyDeL's has ours, and so have those that import it from there."""
    utils = tmp_path / "easydel" / "utils"
    utils.mkdir(parents=True)
    (utils.parent / "__init__.py").write_text("")
    (utils / "__init__.py").write_text("from .compiling_utils import NoCompileContext")
    (utils / "compiling_utils.py").write_text("class NoCompileContext: pass")
    done = run_python(
        """
        import sys
        sys.path.insert(0, ".")
        import ejcache
        ejcache.ejkernel.install()
        from easydel.utils import NoCompileContext
        print(NoCompileContext is ejcache.ejkernel.NoCompileContext)
        """
    )
    assert done.stdout == "True\n"
