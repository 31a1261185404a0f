"""The names of `import ejcache`: they exist, are typed, and are not shadowed by modules."""

from __future__ import annotations

import inspect
import pickle
import pkgutil
from pathlib import Path

import jax
import pytest
from forking import ForkedBeforeEjcache

import ejcache
import ejcache.autotune
import ejcache.errors
from ejcache import api
from ejcache.jax_integration import activate
from ejcache.jax_integration.decorator import EjitOptions, JitOptions
from ejcache.settings.described import SETTINGS
from ejcache.stores import opening


def test_every_name_exists():
    """Each name of `__all__` can be imported, and `dir` lists it; those of `ejcache.autotune` can be imported, too."""
    assert set(ejcache.__all__) <= set(dir(ejcache))
    for module in (ejcache, ejcache.autotune):
        assert [name for name in module.__all__ if getattr(module, name, None) is None] == []


def test_unknown_name():
    """A name that does not exist is an AttributeError that says so."""
    with pytest.raises(AttributeError, match="has no attribute 'enabled'"):
        _ = ejcache.enabled


def test_submodules_are_reachable(run_python):
    """`import ejcache` is enough to use the submodules that the documentation names."""
    names = "ejcache.autotune.ejkernel.install, ejcache.autotune.AutotuneStore"
    run_python(f"import ejcache\n{names}", start=ForkedBeforeEjcache)


def test_how_many_names_there_are():
    """A reader can hold them: each further name needs another one to go."""
    assert len(ejcache.__all__) <= 38
    assert len(ejcache.errors.__all__) <= 8
    assert len(SETTINGS) <= 33


def test_a_name_is_listed_or_cannot_be_imported():
    """A function or class that is not in the list of names is in its own module only."""
    found = {**vars(api), **vars(ejcache.errors), **vars(activate), **vars(opening)}
    ours = {name for name, value in found.items() if str(getattr(value, "__module__", "")).startswith("ejcache.")}
    unlisted = {name for name in ours - set(ejcache.__all__) if not name.startswith("_")}
    assert len(unlisted) > 10
    assert [name for name in unlisted if hasattr(ejcache, name)] == []


def test_errors_are_public():
    """Every error is a name of the package, and a traceback shows it as such."""
    for name in ejcache.errors.__all__:
        error = getattr(ejcache, name)
        assert error is getattr(ejcache.errors, name)
        assert error.__module__ == "ejcache", name


def test_tracebacks_and_pickles_name_an_error_as_it_is_imported():
    """Wherever the package defines it: `ejcache` if it is public, and otherwise `ejcache.errors`."""
    found = {
        name: value
        for name, value in vars(ejcache.errors).items()
        if isinstance(value, type) and issubclass(value, (Exception, Warning))
    }
    assert len(found) > 20
    for name, error in found.items():
        assert error.__module__ == ("ejcache" if name in ejcache.errors.__all__ else "ejcache.errors"), name
        assert error.__qualname__ == name


@pytest.mark.parametrize(
    "error",
    [
        ejcache.errors.SettingError("max_size", "much", "a number of bytes"),
        ejcache.errors.ConfigFileError(Path("/home/me/ejcache.toml"), "line 1 is no TOML"),
        ejcache.errors.CompileForbiddenError("jit_step", "it was never compiled", "/home/me/train.py:31 in main"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_from_another_process(error):
    """`multiprocessing` and `concurrent.futures` send what a worker raised."""
    there = pickle.loads(pickle.dumps(error))
    assert (type(there), str(there), there.args) == (type(error), str(error), error.args)


def test_no_module_has_the_name_of_a_public_function():
    """Importing a submodule must not replace a function: `import ejcache.stats` would."""
    functions = {name for name in ejcache.__all__ if inspect.isroutine(getattr(ejcache, name))}
    assert {"enable", "ejit", "stats"} <= functions
    modules = {info.name for info in pkgutil.iter_modules(ejcache.__path__)}
    assert functions & modules == set()


def test_enable_names_every_setting():
    """`help(ejcache.enable)` and editors that inspect it show a keyword for each setting."""
    parameters = inspect.signature(ejcache.enable).parameters
    assert next(iter(parameters)) == "dir"
    assert set(parameters) == {setting.name for setting in SETTINGS}
    assert all(p.annotation is not inspect.Parameter.empty for p in parameters.values())


def test_ejit_has_the_options_of_jit():
    """The typed keywords are those of the installed `jax.jit`, and `help` shows them."""
    parameters = set(inspect.signature(jax.jit).parameters) - {"fun"}
    assert set(JitOptions.__annotations__) == parameters
    own = [name for name in EjitOptions.__annotations__ if name not in JitOptions.__annotations__]
    shown = inspect.signature(ejcache.ejit)
    assert own == ["reuse_lowering"]
    of_jax = shown.replace(parameters=[each for each in shown.parameters.values() if each.name not in own])
    assert of_jax == inspect.signature(jax.jit)


def test_windows_is_not_supported(run_python):
    """The import says so in a sentence, rather than a later call in an AttributeError."""
    done = run_python("import sys; sys.platform = 'win32'; import ejcache", check=False)
    assert done.stderr.splitlines()[-1].startswith("ImportError: ejcache does not support Windows")


def test_a_variable_that_jax_refuses(run_python):
    """A name that imports JAX says which values the variable can have; JAX's own error does not."""
    done = run_python("import ejcache\nejcache.enable()", env={"JAX_COMPILATION_CACHE_MAX_SIZE": "10GB"}, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ejcache.errors.JaxImportError: JAX_COMPILATION_CACHE_MAX_SIZE cannot be '10GB'")
    assert "(write 10000000000)" in last


def test_the_place_of_a_cache_has_one_name():
    for function in (
        ejcache.clear,
        ejcache.enable,
        ejcache.entries,
        ejcache.prune,
        ejcache.stats,
        ejcache.verify,
        ejcache.why,
    ):
        assert {"dir", "url"} & {*inspect.signature(function).parameters} == {"dir"}, function
