"""Forms of code that hide what they run: names read, patterns, generators, handlers, recursion."""

from __future__ import annotations

from direct_traps.trap import trap

TRAPS = [
    trap(
        "docstring read",
        '''
        def h(x):
            """«2|3»"""
            return x
        @ejit
        def f(x):
            return h(x) * float(h.__doc__)
        ''',
    ),
    trap(
        "own name read",
        """
        def «ab|abc»(x):
            return x
        h = «ab|abc»
        @ejit
        def f(x):
            return x * len(h.__name__)
        """,
    ),
    trap(
        "line number read",
        """
        import sys
        «|#
        #»
        @ejit
        def f(x):
            return x * sys._getframe().f_lineno
        """,
        changed="refused",
        unchanged="refused",
        why="it reads the frames of the interpreter",
    ),
    trap(
        "line number of the code read",
        """
        def h(x):
            return x
        «|#
        #»
        def g(x):
            return x
        @ejit
        def f(x):
            return x * g.__code__.co_firstlineno
        """,
        changed="either",
        unchanged="refused",
        why="it reads a code object, whose line numbers are no part of the fingerprint",
    ),
    trap(
        "nonlocal in a closure",
        """
        def make():
            k = 2
            def put(value):
                nonlocal k
                k = value
            def h(x):
                return x * k
            return put, h
        put, h = make()
        put(«2|3»)
        @ejit
        def f(x):
            return h(x)
        """,
    ),
    trap(
        "walrus",
        """
        @ejit
        def f(x):
            return x * k if (k := «2|3») else x
        """,
    ),
    trap(
        "match on a class pattern",
        """
        class P:
            __match_args__ = («'a', 'b'|'b', 'a'»)
            def __init__(self):
                self.a, self.b = 2, 3
        p = P()
        @ejit
        def f(x):
            match p:
                case P(a, b):
                    return x * a + b
        """,
    ),
    trap(
        "match on a value pattern",
        """
        import types
        modes = types.SimpleNamespace(fast=«'a'|'b'»)
        mode = "a"
        @ejit
        def f(x):
            match mode:
                case modes.fast:
                    return x * 2
                case _:
                    return x * 3
        """,
    ),
    trap(
        "exception handler",
        """
        table = {«'a'|'b'»: 2}
        @ejit
        def f(x):
            try:
                k = table["a"]
            except KeyError:
                k = 3
            return x * k
        """,
    ),
    trap(
        "exception group and finally",
        """
        def h():
            raise «KeyError|IndexError»("k")
        @ejit
        def f(x):
            try:
                h()
            except KeyError:
                return x * 2
            except IndexError:
                return x * 3
        """,
    ),
    trap(
        "async helper",
        """
        async def h(x):
            return x * «2|3»
        @ejit
        def f(x):
            c = h(x)
            try:
                c.send(None)
            except StopIteration as done:
                return done.value
        """,
    ),
    trap(
        "generator that sends",
        """
        def g(x):
            k = yield
            yield x * k * «2|3»
        @ejit
        def f(x):
            run = g(x)
            next(run)
            return run.send(2)
        """,
    ),
    trap(
        "context manager of contextlib",
        """
        import contextlib
        stack = []
        @contextlib.contextmanager
        def scaled():
            yield «2|3»
        @ejit
        def f(x):
            with scaled() as k:
                return x * k
        """,
    ),
    trap(
        "ExitStack",
        """
        import contextlib
        class Scale:
            def __enter__(self):
                return «2|3»
            def __exit__(self, *rest):
                return None
        scales = [Scale(), Scale()]
        @ejit
        def f(x):
            with contextlib.ExitStack() as stack:
                for each in scales:
                    x = x * stack.enter_context(each)
            return x
        """,
    ),
    trap(
        "type alias",
        """
        import typing
        Kind = typing.Annotated[int, «2|3»]
        @ejit
        def f(x):
            return x * typing.get_args(Kind)[1]
        """,
        changed="either",
    ),
    trap(
        "annotation read",
        """
        def h(x: «int|float»):
            return x
        @ejit
        def f(x):
            return x * (2 if h.__annotations__["x"] is int else 3)
        """,
        changed="either",
    ),
    trap(
        "signature through wraps",
        """
        import functools, inspect
        def inner(a, «b|b, c»):
            pass
        @functools.wraps(inner)
        def outer(*args):
            return inner(*args)
        @ejit
        def f(x):
            return x * len(inspect.signature(outer).parameters)
        """,
    ),
    trap(
        "decorator with state",
        """
        seen = []
        def register(fun):
            seen.append(fun)
            return fun
        @register
        def a(x):
            return x * 2
        «@register|»
        def b(x):
            return x * 5
        @ejit
        def f(x):
            return sum(h(x) for h in seen)
        """,
    ),
    trap(
        "recursion",
        """
        def h(x, n):
            return x if n == 0 else h(x * «2|3», n - 1)
        @ejit
        def f(x):
            return h(x, 3)
        """,
    ),
    trap(
        "mutual recursion",
        """
        def even(x, n):
            return x if n == 0 else odd(x + 1, n - 1)
        def odd(x, n):
            return even(x * «2|3», n - 1)
        @ejit
        def f(x):
            return even(x, 4)
        """,
    ),
]
