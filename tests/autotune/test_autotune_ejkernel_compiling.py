"""Our stand-ins for ejkernel's functions that compile, in every form in which ejkernel and EasyDeL call them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from capabilities import needs
from ejit_calls import forms_in, parsed
from helpers import ROOT

import ejcache
from ejcache.autotune.ejkernel.install import ejit, smart_compile

needs_ejkernel = needs("ejkernel")


@pytest.fixture(autouse=True)
def disabled_afterwards():
    """`ejit` enables the cache for the process."""
    yield
    ejcache.disable()


SHARDING = jax.sharding.SingleDeviceSharding(jax.devices()[0])


CALLS = json.loads((ROOT / "tests" / "data" / "ejit_calls.json").read_text())
NUMBERS = {"static_argnums": 2, "donate_argnums": 0}
TEXTS = {"static_argnames": "mode", "donate_argnames": "x"}


def written(name, kind):
    """A value of this kind for an option of `ejit`."""
    if kind in {"None", "True", "False"}:
        return {"None": None, "True": True, "False": False}[kind]
    value = NUMBERS.get(name, TEXTS.get(name, SHARDING))
    if kind in {"expression", "str", "int"}:
        return value
    outer, _, inner = kind.rstrip("]").partition("[")
    # The function below has two arrays and one result.
    values = [value] * ((2 if name == "in_shardings" else 1) if inner else 0)
    return tuple(values) if outer == "tuple" else values


@pytest.mark.parametrize("form", sorted({form for package in CALLS.values() for form in package}))
def test_each_form_of_a_call_is_accepted(form):
    """The 110 calls in ejkernel 0.0.80.3 and EasyDeL 0.3.0 have these forms: each compiles, runs and lowers."""
    function, way, unnamed, kinds = parsed(form)
    assert function == "ejit"
    in_a_tuple = kinds.get("out_shardings", "").startswith("tuple")

    def f(x, y, mode=1):
        return (x + y * mode,) if in_a_tuple else x + y * mode

    options = {name: f if name == "func" else written(name, kind) for name, kind in kinds.items()}
    if way == "decorator":
        made = ejit(**options)(f)
    else:
        made = ejit(*([f] if unnamed or way == "decorator-itself" else []), **options)
    assert isinstance(made, type(jax.jit(f)))
    x, y = jnp.ones(4), jnp.ones(4)
    arguments = (x, y, 2) if options.get("static_argnums") or options.get("static_argnames") else (x, y)
    compiled, key = smart_compile(made.lower(*arguments), "tag", verbose=False, cache_key=("a", ()))
    assert key == ("a", ())
    assert compiled is not None
    (result,) = jax.tree.leaves(made(*arguments))
    assert result.tolist() == [len(arguments)] * 4


def test_the_forms_are_those_of_110_calls():
    """The releases call `ejit` 46 and 64 times, and `smart_compile` and `load_cached_functions` never."""
    assert {name: sum(forms.values()) for name, forms in CALLS.items()} == {
        "ejkernel 0.0.80.3": 46,
        "easydel 0.3.0": 64,
    }
    assert {parsed(form)[0] for forms in CALLS.values() for form in forms} == {"ejit"}


@needs_ejkernel
def test_the_forms_are_those_of_the_installed_ejkernel():
    """The forms of the release that is installed, read from its source, are those in the file."""
    found = forms_in(Path(importlib.util.find_spec("ejkernel").origin).parent)
    assert found == CALLS[f"ejkernel {importlib.metadata.version('ejkernel')}"]


@needs_ejkernel
def test_the_stand_ins_take_the_parameters_of_the_originals(run_forked):
    """Each parameter of ejkernel's three functions, with its default, is accepted by ours."""
    done = run_forked(
        """
        import importlib
        import inspect
        import jax
        from ejkernel.callib import _ejit as theirs
        ours = importlib.import_module("ejcache.autotune.ejkernel.install")
        for name in ("smart_compile", "load_cached_functions"):
            parameters = [list(inspect.signature(getattr(m, name)).parameters.values()) for m in (theirs, ours)]
            assert [[p.name, p.default] for p in parameters[0]] == [[p.name, p.default] for p in parameters[1]], name
        options = {p.name: p.default for p in inspect.signature(theirs.ejit).parameters.values() if p.name != "func"}
        print(float(ours.ejit(lambda x: x + 1, **options)(1.0)), float(ours.ejit(**options)(lambda x: x + 1)(1.0)))
        """
    )
    assert done.stdout == "2.0 2.0\n"


@needs_ejkernel
@pytest.mark.parametrize("when", ["before", "after"])
def test_unmodified_ejkernel_compiles_through_our_cache(run_forked, tmp_path, when):
    """After `install()`, what ejkernel decorates is `ejcache.ejit`'s, and JAX keeps the directory that was enabled."""
    done = run_forked(
        """
        import sys, jax, jax.numpy as jnp, ejcache
        cache = ejcache.enable(sys.argv[1], min_compile_seconds=0.0, min_entry_size=0)
        if sys.argv[2] == "before":
            ejcache.autotune.ejkernel.install()
        import ejkernel.callib
        ejcache.autotune.ejkernel.install()
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
        ejcache.autotune.ejkernel.uninstall()
        print(sys.modules["ejkernel.callib"].ejit.__module__)
        """,
        str(tmp_path / "cache"),
        when,
        timeout=240,
    )
    ours = "ejcache.autotune.ejkernel.install"
    assert done.stdout.splitlines() == [f"{ours} {ours} None", "True True", "ejkernel.callib._ejit"]


def test_no_compile_context_lets_hits_pass(tmp_path):
    """EasyDeL's `NoCompileContext`: hits pass, misses raise a RuntimeError with its message, in every thread."""
    ejcache.enable(str(tmp_path / "cache"), min_compile_seconds=0)
    f = jax.jit(lambda x: jnp.cos(x) * 5)
    f(jnp.ones(3))
    jax.clear_caches()
    context = ejcache.autotune.ejkernel.NoCompileContext("the hot path compiled")
    four = jnp.zeros(4)
    three = jnp.asarray([1.0, 1.0, 1.0])
    with context:
        f(three)
    with pytest.raises(RuntimeError) as raised, context, context:
        f(four)
    assert raised.value.__notes__.count("the hot path compiled") == 2
    f(four)


def test_easydels_no_compile_context_is_replaced(run_forked, tmp_path):
    """After `install()`, a module like EasyDeL's has ours, and so have those that import it from there."""
    utils = tmp_path / "easydel" / "utils"
    utils.mkdir(parents=True)
    (utils.parent / "__init__.py").write_text("")
    (utils / "__init__.py").write_text("from .compiling_utils import NoCompileContext")
    (utils / "compiling_utils.py").write_text("class NoCompileContext: pass")
    done = run_forked(
        """
        import sys
        sys.path.insert(0, ".")
        import ejcache
        ejcache.autotune.ejkernel.install()
        from easydel.utils import NoCompileContext
        print(NoCompileContext is ejcache.autotune.ejkernel.NoCompileContext)
        """
    )
    assert done.stdout == "True\n"
