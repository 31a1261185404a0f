"""Clocks and random numbers."""

from __future__ import annotations

from direct_traps.trap import trap

_ENV = {"TRAP_K": "«2|3»"}
_CLOCK = "it reads the clock"
_RANDOM = "it draws random numbers"
_FILE = "it reads a file"
_SEED = "its order depends on the hash seed, and each start has another one"

TRAPS = [
    trap(
        "time.time",
        """
        import time
        @ejit
        def f(x):
            return x * (time.time() % 1000)
        """,
        changed="refused",
        unchanged="refused",
        why=_CLOCK,
        repeats=False,
    ),
    trap(
        "time.time under another name",
        """
        from time import perf_counter_ns as number
        calls = [number]
        @ejit
        def f(x):
            return x * (calls[0]() % 1000)
        """,
        changed="refused",
        unchanged="refused",
        why=_CLOCK,
        repeats=False,
    ),
    trap(
        "clock as a default",
        """
        import time
        def h(x, clock=time.monotonic_ns):
            return x * (clock() % 1000)
        @ejit
        def f(x):
            return h(x)
        """,
        changed="refused",
        unchanged="refused",
        why=_CLOCK,
        repeats=False,
    ),
    trap(
        "datetime.now",
        """
        import datetime
        @ejit
        def f(x):
            return x * datetime.datetime.now().microsecond
        """,
        changed="refused",
        unchanged="refused",
        why=_CLOCK,
        repeats=False,
    ),
    trap(
        "time at import",
        """
        import time
        NOW = time.time_ns() % 1000
        @ejit
        def f(x):
            return x * NOW
        """,
        unchanged="miss",
        why="the time at import is another one at each start",
        repeats=False,
    ),
    trap(
        "time.strftime",
        """
        import time
        @ejit
        def f(x):
            return x * len(time.strftime("%Y«|%m»"))
        """,
        changed="refused",
        unchanged="refused",
        why=_CLOCK,
    ),
    trap(
        "random",
        """
        import random
        @ejit
        def f(x):
            return x * random.random()
        """,
        changed="refused",
        unchanged="refused",
        why=_RANDOM,
        repeats=False,
    ),
    trap(
        "random, seeded",
        """
        import random
        random.seed(«2|3»)
        @ejit
        def f(x):
            return x * random.random()
        """,
        changed="refused",
        unchanged="refused",
        why=_RANDOM,
    ),
    trap(
        "random.Random in a global",
        """
        import random
        rng = random.Random(«2|3»)
        @ejit
        def f(x):
            return x * rng.random()
        """,
        changed="refused",
        unchanged="refused",
        why=_RANDOM,
    ),
    trap(
        "np.random",
        """
        @ejit
        def f(x):
            return x * np.random.rand()
        """,
        changed="refused",
        unchanged="refused",
        why=_RANDOM,
        repeats=False,
    ),
    trap(
        "np.random, seeded",
        """
        np.random.seed(«2|3»)
        @ejit
        def f(x):
            return x * np.random.rand()
        """,
        changed="refused",
        unchanged="refused",
        why=_RANDOM,
    ),
    trap(
        "np.random.Generator",
        """
        rng = np.random.default_rng(«2|3»)
        @ejit
        def f(x):
            return x * rng.random()
        """,
        changed="refused",
        unchanged="refused",
        why=_RANDOM,
    ),
    trap(
        "fresh generator",
        """
        @ejit
        def f(x):
            return x * np.random.default_rng(«2|3»).random()
        """,
    ),
    trap(
        "os.urandom",
        """
        import os
        @ejit
        def f(x):
            return x * os.urandom(1)[0]
        """,
        changed="refused",
        unchanged="refused",
        why=_RANDOM,
        repeats=False,
    ),
    trap(
        "uuid",
        """
        import uuid
        @ejit
        def f(x):
            return x * (uuid.uuid4().int % 1000)
        """,
        changed="refused",
        unchanged="refused",
        why=_RANDOM,
        repeats=False,
    ),
    trap(
        "secrets",
        """
        from secrets import randbelow
        @ejit
        def f(x):
            return x * randbelow(1000)
        """,
        changed="refused",
        unchanged="refused",
        why=_RANDOM,
        repeats=False,
    ),
]
