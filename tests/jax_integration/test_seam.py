"""The seam knows the JAX it is built on, and keeps its hands off one that it does not know."""

from __future__ import annotations

import inspect

import jax
import pytest

from ejcache.jax_integration.seam import patch as seam

SOAK = pytest.mark.soak


def test_this_jax_is_as_expected():
    """No mismatch on a supported JAX: otherwise every other test in here tests JAX's own cache."""
    assert seam.mismatches() == []


@pytest.mark.parametrize("name", seam.PARAMETERS)
def test_what_replaces_a_function_has_its_parameters(name):
    """All that any version has, by name and in their order, after the hooks; none is needed that a version lacks."""
    accepted = [text.split() for text in seam.PARAMETERS[name]]
    _, *parameters = inspect.signature(seam.REPLACEMENTS[name]).parameters.values()
    assert [each.name for each in parameters] == accepted[-1]
    needed = {each.name for each in parameters if each.default is each.empty}
    assert all(needed <= set(names) for names in accepted)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param("compiler._cache_read = lambda key: None", "_cache_read takes", id="signature", marks=SOAK),
        pytest.param("del compiler._get_cache_key", "_get_cache_key is gone", id="function-gone"),
        pytest.param(
            "compiler.compile_or_get_cached = lambda *a: None", "does not call", id="caller-rewritten", marks=SOAK
        ),
        pytest.param(
            "del compilation_cache._UNSUPPORTED_RUNTIMES", "_UNSUPPORTED_RUNTIMES is gone", id="name-gone", marks=SOAK
        ),
        pytest.param("sys.modules['jax._src.lib.mlir'] = None", "mlir", id="module-gone", marks=SOAK),
        pytest.param(
            "del config.config_states['jax_compilation_cache_max_size']", "max_size is gone", id="flag-gone", marks=SOAK
        ),
    ],
)
def test_an_unknown_jax_keeps_its_own_cache(change, words, run_python, tmp_path):
    """Where even the thin form has no place: said once, naming what differs; JAX's own cache keeps its files in the
    directory that was asked for."""
    finished = run_python(
        f"""
        import sys
        import jax
        from jax._src import compilation_cache, compiler, config
        original = compiler.compile_or_get_cached, compiler._cache_read, compiler._get_cache_key
        states = dict(config.config_states)
        {change}
        get_file_cache = compilation_cache.get_file_cache
        del compilation_cache.get_file_cache
        import ejcache
        for _ in range(2):
            cache = ejcache.enable({str(tmp_path / "c")!r}, min_compile_seconds=0)
        print(ejcache.active())
        compiler.compile_or_get_cached, compiler._cache_read, compiler._get_cache_key = original
        compilation_cache._UNSUPPORTED_RUNTIMES = set()
        compilation_cache.get_file_cache = get_file_cache
        print(jax.jit(lambda x: x * 2)(21))
        """
    )

    assert finished.stdout.split() == ["None", "42"]
    assert finished.stderr.count("JAX's own cache stays in charge") == 1
    assert words in finished.stderr
    assert "get_file_cache is gone" in finished.stderr
    assert jax.__version__ in finished.stderr
    if "flag-gone" not in words and "max_size" not in words:
        assert list((tmp_path / "c").glob("*-cache"))
