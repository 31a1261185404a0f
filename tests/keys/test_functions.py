"""Python functions by content: what is the same, what is another, and what has no content that could be compared."""

from __future__ import annotations

import functools
import json
import re
import struct
import subprocess
import sys

import pytest

from ejcache.keys.python_functions import UndescribedError, function_digest

NUMBER = 2
WORDS = ("sine", frozenset({"a", "b"}), -0.0)
LISTED = [1, 2]


def compiled(text: str, **names: object):
    """The function `f` of a program text, with these globals."""
    scope: dict[str, object] = {"__name__": "user", **names}
    exec(text, scope)
    return scope["f"]


SAME = "def f(x):\n    return x.replace(b'sine', b'tanh')"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(SAME, f"# a comment\n\n\n{SAME}", id="moved"),
        pytest.param("def f(x): return {'a', 'b', 'c'} - x", "def f(x): return {'c', 'b', 'a'} - x", id="set"),
        pytest.param("def g(x): return x\nf = g", "def h(x): return x\nf = h", id="renamed"),
    ],
)
def test_what_does_the_same_has_one_digest(one, other):
    """Where a function stands, its name and the order of a set in it do not count."""
    assert function_digest(compiled(one)) == function_digest(compiled(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(SAME, SAME.replace("tanh", "ceil"), id="constant"),
        pytest.param("def f(x): return x + 1", "def f(x): return x + 1.0", id="type of a constant"),
        pytest.param("def f(x): return x + 0.0", "def f(x): return x + -0.0", id="sign of zero"),
        pytest.param("def f(x): return x.upper()", "def f(x): return x.lower()", id="attribute"),
        pytest.param("def f(x, y=1): return y", "def f(x, y=2): return y", id="default"),
        pytest.param("def f(x, *, y=1): return y", "def f(x, *, y=2): return y", id="keyword default"),
        pytest.param("def f(x): return (lambda: 1)()", "def f(x): return (lambda: 2)()", id="nested"),
        pytest.param("N = 1\ndef f(x): return N", "N = 2\ndef f(x): return N", id="global"),
        pytest.param("N = 1\ndef f(x): return lambda: N", "N = 2\ndef f(x): return lambda: N", id="nested global"),
        pytest.param(
            "def g(): return 1\ndef f(x): return g()", "def g(): return 2\ndef f(x): return g()", id="called function"
        ),
        pytest.param(
            "def make(n):\n  return lambda x: n\nf = make(1)",
            "def make(n):\n  return lambda x: n\nf = make(2)",
            id="cell",
        ),
        pytest.param("len = None\ndef f(x): return len", "def f(x): return len", id="built-in name"),
        pytest.param("def f(x):\n  yield x", "def f(x):\n  return x", id="generator"),
    ],
)
def test_what_does_something_else_has_another(one, other):
    """Code, constants, defaults, closed values and globals count, however deep."""
    assert function_digest(compiled(one)) != function_digest(compiled(other))


def test_modules_without_state_and_recursion_are_described():
    """Functions may use the standard library's stateless modules, types, each other and themselves."""
    text = """
def g(x): return f(x[1:])
def f(x): return g(x) if x else (re.sub("a", NUMBER * "b", x), pack("<q", len(WORDS)), bytes(sorted(x)), loads)
"""
    names = {"re": re, "pack": struct.pack, "loads": json.loads, "NUMBER": NUMBER, "WORDS": WORDS}

    assert function_digest(compiled(text, **names)) == function_digest(compiled(text, **names))


@pytest.mark.parametrize(
    ("text", "names", "words"),
    [
        pytest.param("def f(x): return LISTED", {"LISTED": LISTED}, "LISTED, of type list", id="mutable global"),
        pytest.param("def f(x, y=[]): return y", {}, "a default, of type list", id="mutable default"),
        pytest.param("def f(x): return sys.argv", {"sys": sys}, "sys, of type module", id="module with state"),
        pytest.param("def f(x):\n  import os\n  return os", {}, "imports os", id="import"),
        pytest.param("def f(x): return open('/etc/hosts').read()", {}, "calls open", id="file"),
        pytest.param("def f(x): return eval(x)", {}, "calls eval", id="eval"),
        pytest.param("g = open\ndef f(x): return g(x)", {}, "g, of type", id="file by another name"),
        pytest.param("def f(x):\n  global N\n  N = 1", {}, "changes the global N", id="counts"),
        pytest.param("class C: pass\ndef f(x): return C", {}, "C, of type type", id="class"),
        pytest.param("def f(x): return x\nf.state = 1", {}, "attributes", id="attributes"),
        pytest.param(
            "def make():\n  def f(x): return later\n  return f\n  later = 1\nf = make()", {}, "later", id="unset"
        ),
        pytest.param("f = functools.partial(len)", {"functools": functools}, "of type partial", id="partial"),
        pytest.param("f = len.__call__", {}, "of type method-wrapper", id="no function"),
    ],
)
def test_what_may_depend_on_more_is_refused(text, names, words):
    """The words name what cannot be described."""
    with pytest.raises(UndescribedError, match=re.escape(words)):
        function_digest(compiled(text, **names))


def test_the_digest_is_that_of_every_process():
    """Another process with another hash seed says the same of the same source."""
    program = (
        "from ejcache.keys.python_functions import function_digest\n"
        "def f(x): return x in {'a', 'b', 'c', 'd'}, (lambda y: {'k': y})\n"
        "print(function_digest(f))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(said) == 1
