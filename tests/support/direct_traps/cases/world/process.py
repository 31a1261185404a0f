"""State of the process: arguments, threads, logging, addresses, hash seeds, limits."""

from __future__ import annotations

from direct_traps.trap import trap

_ENV = {"TRAP_K": "«2|3»"}
_CLOCK = "it reads the clock"
_RANDOM = "it draws random numbers"
_FILE = "it reads a file"
_SEED = "its order depends on the hash seed, and each start has another one"

TRAPS = [
    trap(
        "sys.argv",
        """
        import sys
        @ejit
        def f(x):
            return x * int(sys.argv[1])
        """,
        env={"ARGUMENTS": "«2|3»"},
    ),
    trap(
        "argparse.Namespace",
        """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("k", type=int)
        args = parser.parse_args()
        @ejit
        def f(x):
            return x * args.k
        """,
        env={"ARGUMENTS": "«2|3»"},
    ),
    trap(
        "socket",
        """
        import socket
        @ejit
        def f(x):
            return x * (2 if socket.AF_INET else 3)
        """,
        changed="right",
    ),
    trap(
        "host name",
        """
        import socket
        @ejit
        def f(x):
            return x * len(socket.gethostname())
        """,
        changed="refused",
        unchanged="refused",
        why="it asks for the name of the host",
        repeats=False,
    ),
    trap(
        "process id",
        """
        import os
        @ejit
        def f(x):
            return x * (os.getpid() % 1000)
        """,
        changed="refused",
        unchanged="refused",
        why="it asks for the number of the process",
        repeats=False,
    ),
    trap(
        "subprocess",
        """
        import subprocess
        @ejit
        def f(x):
            return x * int(subprocess.run(["cat", "k.txt"], capture_output=True).stdout)
        """,
        files={"k.txt": "«2|3»"},
        changed="refused",
        unchanged="refused",
        why="it starts another program",
    ),
    trap(
        "contextvar",
        """
        import contextvars
        var = contextvars.ContextVar("var", default=1)
        var.set(«2|3»)
        @ejit
        def f(x):
            return x * var.get()
        """,
    ),
    trap(
        "thread local",
        """
        import threading
        local = threading.local()
        local.k = «2|3»
        @ejit
        def f(x):
            return x * local.k
        """,
    ),
    trap(
        "name of the thread",
        """
        import threading
        threading.current_thread().name = "«a|ab»"
        @ejit
        def f(x):
            return x * len(threading.current_thread().name)
        """,
        changed="either",
        unchanged="refused",
        why="which thread calls is no part of the fingerprint",
    ),
    trap(
        "logging level",
        """
        import logging
        log = logging.getLogger("trap")
        log.setLevel(logging.«INFO|DEBUG»)
        @ejit
        def f(x):
            return x * (3 if log.isEnabledFor(logging.DEBUG) else 2)
        """,
    ),
    trap(
        "root logging level",
        """
        import logging
        log = logging.getLogger("trap")
        logging.getLogger().setLevel(logging.«INFO|DEBUG»)
        @ejit
        def f(x):
            return x * (3 if log.isEnabledFor(logging.DEBUG) else 2)
        """,
    ),
    trap(
        "logging.disable",
        """
        import logging
        log = logging.getLogger("trap")
        log.setLevel(logging.DEBUG)
        «|logging.disable(logging.INFO)»
        @ejit
        def f(x):
            return x * (3 if log.isEnabledFor(logging.DEBUG) else 2)
        """,
    ),
    trap(
        "id() in the trace",
        """
        conf = object()
        @ejit
        def f(x):
            return x * (id(conf) % 1000)
        """,
        changed="refused",
        unchanged="refused",
        why="an address is another one at each start",
        repeats=False,
    ),
    trap(
        "repr with an address",
        """
        class Conf: pass
        conf = Conf()
        @ejit
        def f(x):
            return x * (int(repr(conf)[-5:-1], 16) % 1000)
        """,
        repeats=False,
        changed="either",
        unchanged="either",
        why="an address is another one at each start",
    ),
    trap(
        "hash of a string",
        """
        @ejit
        def f(x):
            return x * (hash("abc") % 1000)
        """,
        by_seed=True,
        changed="either",
        unchanged="either",
        why=_SEED,
    ),
    trap(
        "hash of an object",
        """
        conf = object()
        @ejit
        def f(x):
            return x * (hash(conf) % 1000)
        """,
        changed="either",
        unchanged="refused",
        why="the hash of an object is its address",
        repeats=False,
    ),
    trap(
        "order of a global set",
        """
        names = {"a", "b", "c", "d", "e", "f", "g", "h"}
        @ejit
        def f(x):
            for name in names:
                x = x * 3 + ord(name)
            return x
        """,
        by_seed=True,
        changed="either",
        unchanged="either",
        why=_SEED,
    ),
    trap(
        "order of a local set",
        """
        @ejit
        def f(x):
            names = {"a", "b", "c"}
            names |= {"d", "e", "f", "g", "h"}
            for name in names:
                x = x * 3 + ord(name)
            return x
        """,
        by_seed=True,
        changed="either",
        unchanged="either",
        why=_SEED,
    ),
    trap(
        "order of a set constant",
        """
        @ejit
        def f(x):
            for name in {"a", "b", "c", "d", "e", "f", "g", "h"}:
                x = x * 3 + ord(name)
            return x
        """,
        by_seed=True,
        changed="either",
        unchanged="either",
        why=_SEED,
    ),
    trap(
        "order of list(set(names))",
        """
        names = ["a", "b", "c", "d", "e", "f", "g", "h"]
        @ejit
        def f(x):
            for name in list(set(names)):
                x = x * 3 + ord(name)
            return x
        """,
        by_seed=True,
        changed="either",
        unchanged="either",
        why=_SEED,
    ),
    trap(
        "order of dict.keys() & set",
        """
        cfg = dict.fromkeys("abcdefgh")
        other = ["a", "b", "c", "d", "e", "f", "g", "h"]
        @ejit
        def f(x):
            for name in cfg.keys() & other:
                x = x * 3 + ord(name)
            return x
        """,
        by_seed=True,
        changed="either",
        unchanged="either",
        why=_SEED,
    ),
    trap(
        "order of a set in a library",
        """
        import fakelib
        @ejit
        def f(x):
            for name in fakelib.names("abcdefgh"):
                x = x * 3 + ord(name)
            return x
        """,
        files={"site-packages/fakelib.py": "def names(text):\n    return [each for each in set(text)]\n"},
        by_seed=True,
        changed="either",
        unchanged="either",
        why=_SEED,
    ),
    trap(
        "decimal context",
        """
        import decimal
        decimal.getcontext().prec = «5|6»
        @ejit
        def f(x):
            return x * float(decimal.Decimal(1) / decimal.Decimal(3))
        """,
    ),
    trap(
        "locale",
        """
        import locale
        locale.setlocale(locale.LC_CTYPE, "«C|C.UTF-8»")
        @ejit
        def f(x):
            return x * len(locale.setlocale(locale.LC_CTYPE))
        """,
        changed="refused",
        unchanged="refused",
        why="it asks the C library",
    ),
    trap(
        "warnings turned into errors",
        """
        import warnings
        warnings.simplefilter("«ignore|error»")
        @ejit
        def f(x):
            try:
                warnings.warn("k")
            except UserWarning:
                return x * 3
            return x * 2
        """,
        changed="either",
    ),
    trap(
        "assert under -O",
        """
        @ejit
        def f(x):
            try:
                assert x.shape == (5,)
            except AssertionError:
                return x * 2
            return x * 3
        """,
        options=("-O",),
    ),
    trap(
        "sys.flags.optimize",
        """
        import sys
        @ejit
        def f(x):
            return x * (2 + sys.flags.optimize)
        """,
        options=("-O",),
    ),
    trap(
        "recursion limit",
        """
        import sys
        sys.setrecursionlimit(«5000|6000»)
        @ejit
        def f(x):
            return x * sys.getrecursionlimit()
        """,
        changed="either",
        unchanged="refused",
        why="it asks the interpreter",
    ),
    trap(
        "integer digits limit",
        """
        import sys
        sys.set_int_max_str_digits(«5000|4000»)
        K = 10 ** 4500
        @ejit
        def f(x):
            try:
                return x * len(str(K))
            except ValueError:
                return x
        """,
    ),
]
