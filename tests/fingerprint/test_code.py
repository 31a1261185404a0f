"""Digests of code objects: equal for code that does the same, wherever it stands, and for no other."""

import sys

import pytest

from ejcache.direct.describing.code import code_digest


def function(source):
    """The code object of the last statement of a text, which defines a function."""
    namespace = {}
    exec(source, namespace)  # the source is in this file
    return namespace["f"].__code__


def with_constant(constant):
    """One function, with a constant that is given as an object."""
    code = function("def f(): return 'constant'")
    return code.replace(co_consts=tuple(constant if each == "constant" else each for each in code.co_consts))


CONSTANTS = [
    *(1, True, 1.0, 1 + 0j, "1", b"1", None, Ellipsis, 0, False, 0.0, -0.0, 0j, -0j, "", b"", (), frozenset()),
    *((1,), (True,), (1.0,), frozenset({1}), frozenset({True}), ((1,),), (1, 1), 2**70, "\ud800", "ab", ("a", "b")),
    *(float("nan"), bytearray(b"1"), slice(1, 2)),
]


def test_no_two_constants_have_one_digest():
    """Constants that are equal for Python, but of another type or with another sign, are told apart."""
    digests = [code_digest(with_constant(each)) for each in CONSTANTS if not isinstance(each, bytearray)]
    assert len(set(digests)) == len(digests)


def test_what_no_compiler_makes_is_no_constant():
    """An object that a program has put among the constants is described as no other, or not at all."""
    for odd in (bytearray(b"1"), memoryview(b"1"), [1], {"a": 1}, object()):
        with pytest.raises(TypeError):
            code_digest(with_constant(odd))


def test_a_nested_function_is_not_the_bytes_of_its_digest():
    """Code inside code cannot be mistaken for a constant that has the same description."""
    code = function("def f():\n  def g(): return 1\n  return g")
    inner = next(each for each in code.co_consts if hasattr(each, "co_code"))
    forged = tuple(code_digest(inner) if each is inner else each for each in code.co_consts)
    assert code_digest(code.replace(co_consts=forged)) != code_digest(code)


def test_chance_does_not_count():
    """Whether a text is interned, or one object is used twice, differs from one process to the next."""
    text, again = str(b"a text that is made", "ascii"), str(b"a text that is made", "ascii")
    interned = sys.intern("a text that is made")
    digests = {
        code_digest(with_constant(each)) for each in ((text, text), (text, again), (interned, text), (interned, again))
    }
    assert len(digests) == 1


@pytest.mark.parametrize(
    "other",
    [
        "def f(x, y): return x + 2",
        "def f(x, y): return x - 1",
        "def f(x, z): return x + 1",
        "def f(x, *, y): return x + 1",
        "def f(x, y, /): return x + 1",
        "async def f(x, y): return x + 1",
        "def f(x, y):\n  try: return x + 1\n  finally: y",
    ],
)
def test_other_code_has_another_digest(other):
    """What a function does, its variables and its parameters all count."""
    assert code_digest(function(other)) != code_digest(function("def f(x, y): return x + 1"))


def test_the_place_does_not_count():
    """File names and line numbers are left out, of nested functions, too."""
    source = "def f():\n  def g(): return {1, 2}\n  return g"
    there = {}
    exec(compile("\n\n" + source, "elsewhere.py", "exec"), there)  # as above
    assert code_digest(there["f"].__code__) == code_digest(function(source))
