"""What a trace changes: counters, lists, generators, output; and host callbacks in the program."""

from __future__ import annotations

from direct_traps.trap import trap

_CHANGES = "the trace changes what it reads"

TRAPS = [
    trap(
        "counter in a global",
        """
        N = «0|1»
        @ejit
        def f(x):
            global N
            N += 1
            return x * N
        """,
        call="(f(jnp.arange(4.0)), N)",
        changed="refused",
        unchanged="refused",
        why=_CHANGES,
    ),
    trap(
        "counter that is not read",
        """
        N = 0
        @ejit
        def f(x):
            global N
            N = «1|2»
            return x
        """,
        call="(f(jnp.arange(4.0)), N)",
        changed="refused",
        unchanged="refused",
        why="the trace sets a global",
    ),
    trap(
        "counter in a closure",
        """
        def make():
            n = «0|1»
            @ejit
            def f(x):
                nonlocal n
                n += 1
                return x * n
            return f, lambda: n
        f, count = make()
        """,
        call="(f(jnp.arange(4.0)), count())",
        changed="refused",
        unchanged="refused",
        why=_CHANGES,
    ),
    trap(
        "append in the trace",
        """
        seen = []
        @ejit
        def f(x):
            seen.append(«1|2»)
            return x * len(seen)
        """,
        call="(f(jnp.arange(4.0)), seen)",
        changed="refused",
        unchanged="refused",
        why=_CHANGES,
    ),
    trap(
        "append to an argument's aux",
        """
        class P:
            def __init__(self, x, seen):
                self.x, self.seen = x, seen
        jax.tree_util.register_pytree_node(P, lambda p: ((p.x,), p.seen), lambda aux, kids: P(kids[0], aux))
        class Seen:
            n = 0
        seen = Seen()
        @ejit
        def f(p):
            p.seen.n = «1|2»
            return p.x * 2
        """,
        call="(f(P(jnp.arange(4.0), seen)), seen.n)",
        changed="refused",
        unchanged="refused",
        why="the trace changes an argument",
    ),
    trap(
        "argument's list filled",
        """
        @partial(ejit, static_argnums=1)
        def f(x, out):
            out.found.append(x.shape[0])
            return x * «2|3»
        class Out:
            def __init__(self):
                self.found = []
        out = Out()
        """,
        call="(f(jnp.arange(4.0), out), out.found)",
        changed="refused",
        unchanged="refused",
        why="the trace changes an argument",
    ),
    trap(
        "attribute set in the trace",
        """
        class Conf:
            k = «2|3»
        conf = Conf()
        @ejit
        def f(x):
            conf.seen = x.shape
            return x * conf.k
        """,
        call="(f(jnp.arange(4.0)), vars(conf))",
        changed="refused",
        unchanged="refused",
        why=_CHANGES,
    ),
    trap(
        "attribute set and removed again",
        """
        class Conf:
            k = 1
        conf = Conf()
        def h(x):
            return x * conf.k
        @ejit
        def f(x):
            conf.k = «2|3»
            try:
                return h(x)
            finally:
                del conf.k
        """,
        changed="either",
    ),
    trap(
        "object made outside and only written",
        """
        class Box:
            pass
        box = Box()
        def put(value):
            box.__dict__["value"] = value
        @ejit
        def f(x):
            put(«2|3»)
            return x
        """,
        call="(f(jnp.arange(4.0)), box.value)",
        changed="refused",
        unchanged="refused",
        why=_CHANGES,
    ),
    trap(
        "environment set in the trace",
        """
        import os
        @ejit
        def f(x):
            os.environ["TRAP_SEEN"] = "«2|3»"
            return x
        """,
        call="(f(jnp.arange(4.0)), os.environ['TRAP_SEEN'])",
        changed="refused",
        unchanged="refused",
        why="the trace sets an environment variable",
    ),
    trap(
        "next() of a global generator",
        """
        g = iter(range(«2|3», 9))
        @ejit
        def f(x):
            return x * next(g)
        """,
        changed="refused",
        unchanged="refused",
        why=_CHANGES,
    ),
    trap(
        "itertools.count",
        """
        import itertools
        c = itertools.count(«2|3»)
        @ejit
        def f(x):
            return x * next(c)
        """,
        changed="refused",
        unchanged="refused",
        why=_CHANGES,
    ),
    trap(
        "generator half run",
        """
        def g():
            yield 1
            yield 2
            yield 3
        run = g()
        next(run)
        «|next(run)»
        @ejit
        def f(x):
            return x * next(run)
        """,
        changed="refused",
        unchanged="refused",
        why=_CHANGES,
    ),
    trap(
        "print in the trace",
        """
        @ejit
        def f(x):
            print("«a|b»")
            return x * 2
        """,
        changed="missed",
        loses_output=True,
    ),
    trap(
        "print of a global",
        """
        K = «2|3»
        @ejit
        def f(x):
            print(K)
            return x * 2
        """,
        changed="missed",
        loses_output=True,
    ),
    trap(
        "logging in the trace",
        """
        import logging
        log = logging.getLogger("trap")
        @ejit
        def f(x):
            log.warning("«a|b»")
            return x * 2
        """,
        changed="missed",
        loses_output=True,
    ),
    trap(
        "warning in the trace",
        """
        import warnings
        @ejit
        def f(x):
            warnings.warn("«a|b»")
            return x * 2
        """,
        changed="missed",
        loses_output=True,
    ),
    trap(
        "file written in the trace",
        """
        @ejit
        def f(x):
            with open("out.txt", "w") as file:
                file.write("«a|b»")
            return x
        """,
        call="(f(jnp.arange(4.0)), open('out.txt').read())",
        changed="refused",
        unchanged="refused",
        why="the trace writes a file",
    ),
    trap(
        "side effect through a C callable",
        """
        seen = {}
        @ejit
        def f(x):
            list(map(seen.setdefault, ["k"], [«2|3»]))
            return x * seen["k"]
        """,
        call="(f(jnp.arange(4.0)), seen)",
        changed="refused",
        unchanged="refused",
        why=_CHANGES,
    ),
    trap(
        "exception in the trace",
        """
        K = «2|3»
        @ejit
        def f(x):
            raise ValueError(str(K))
        """,
        changed="either",
        unchanged="plain",
        why="a trace that fails leaves nothing to record",
    ),
    trap(
        "exception of the second version",
        """
        K = «2|0»
        @ejit
        def f(x):
            if K == 0:
                raise ValueError(K)
            return x * K
        """,
        changed="either",
    ),
    trap(
        "hook list",
        """
        hooks = []
        hooks.append(lambda x: x * «2|3»)
        @ejit
        def f(x):
            for hook in hooks:
                x = hook(x)
            return x
        """,
    ),
    trap(
        "callback",
        """
        def on_host(x):
            return np.asarray(x) * np.float32(«2|3»)
        @ejit
        def f(x):
            return jax.pure_callback(on_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        """,
        changed="either",
        unchanged="either",
        why="it calls back into the process",
    ),
    trap(
        "io_callback",
        """
        from jax.experimental import io_callback
        def on_host(x):
            return np.asarray(x) * np.float32(«2|3»)
        @ejit
        def f(x):
            return io_callback(on_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        """,
        changed="refused",
        unchanged="refused",
        why="it calls back into the process",
    ),
    trap(
        "debug.print",
        """
        @ejit
        def f(x):
            jax.debug.print("«a|b»")
            return x * 2
        """,
        changed="refused",
        unchanged="refused",
        why="it calls back into the process",
    ),
    trap(
        "debug.callback",
        """
        seen = []
        @ejit
        def f(x):
            jax.debug.callback(lambda y: seen.append(float(y) * «2|3»), x.sum())
            return x
        """,
        call="(jax.block_until_ready(f(jnp.arange(4.0))), jax.effects_barrier(), list(seen))",
        changed="refused",
        unchanged="refused",
        why="it calls back into the process",
    ),
    trap(
        "callback in a scan of a helper",
        """
        def body(c, x):
            kind = jax.ShapeDtypeStruct((), x.dtype)
            return jax.pure_callback(lambda y: np.asarray(y) * np.float32(«2|3»), kind, x), c
        @ejit
        def f(x):
            return lax.scan(body, 1.0, x)
        """,
        changed="either",
        unchanged="either",
        why="it calls back into the process",
    ),
    trap(
        "leaked tracer",
        """
        kept = []
        @ejit
        def f(x):
            kept.append(x)
            return x * «2|3»
        """,
        changed="refused",
        unchanged="refused",
        why=_CHANGES,
    ),
    trap(
        "array made in the trace and kept",
        """
        kept = {}
        def table(n):
            if n not in kept:
                with jax.ensure_compile_time_eval():
                    kept[n] = jnp.arange(n) * «2.0|3.0»
            return kept[n]
        @ejit
        def f(x):
            return x * table(4)
        """,
        changed="refused",
        unchanged="refused",
        why=_CHANGES,
    ),
    trap(
        "thread in the trace",
        """
        import threading
        K = [1]
        def work():
            K[0] = «2|3»
        @ejit
        def f(x):
            run = threading.Thread(target=work)
            run.start()
            run.join()
            return x * K[0]
        """,
        changed="refused",
        unchanged="refused",
        why=_CHANGES,
    ),
]
