"""Code that Equinox generates, whose functions only JAX's registry holds."""

import sys
import types

import pytest

from ejcache.fingerprint.coverage import available
from ejcache.jax_integration.direct.calls.generated import generator_of

pytestmark = pytest.mark.skipif(not available(), reason="direct mode needs Python 3.12")


def flatten(name, *fields):
    """What Equinox makes of fields, in short."""
    values = ", ".join(f"obj.__dict__[{each!r}]" for each in fields)
    text = f"def flatten(obj):\n    'Flattens by {name}'\n    return {values}\n"
    space = {}
    exec(compile(text, f"<generated_{name}_Model>", "exec"), space)
    return space["flatten"].__code__


@pytest.fixture
def generate(monkeypatch):
    """The function that makes them, in Equinox's place."""
    module = types.ModuleType("equinox._module._flatten")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec("def generate_flatten_functions(): pass", vars(module))
    return vars(module)["generate_flatten_functions"]


def test_code_with_keys_follows_from_the_code_without(generate):
    """The function with the fields of one that was walked belongs to Equinox's generator, which is then guarded."""
    found = generator_of(
        flatten("flatten_with_keys", "a", "b"), [flatten("unflatten", "a"), flatten("flatten", "a", "b")]
    )
    assert found is not None
    assert found.code is generate.__code__


def test_code_with_other_fields_does_not(generate):
    """A function with other fields, of another name, or without any that was walked is nobody's."""
    del generate
    walked = [flatten("flatten", "a", "b")]
    assert generator_of(flatten("flatten_with_keys", "a", "c"), walked) is None
    assert generator_of(flatten("flatten_with_keys", "a", "b"), []) is None
    assert generator_of(flatten("unflatten", "a", "b"), walked) is None


def test_without_equinox_there_is_none(monkeypatch):
    """Code of such a name is not trusted where Equinox is not imported."""
    monkeypatch.delitem(sys.modules, "equinox._module._flatten", raising=False)
    assert generator_of(flatten("flatten_with_keys", "a"), [flatten("flatten", "a")]) is None
