"""Libraries of the ecosystem; a case is skipped where its library is not installed."""

from __future__ import annotations

from direct_traps.trap import trap

TRAPS = [
    trap(
        "nnx module in the closure",
        """
        from flax import nnx
        class M(nnx.Module):
            def __init__(self, rngs):
                self.l = nnx.Linear(4, 4, rngs=rngs)
            def __call__(self, x):
                return self.l(x) * «2|3»
        m = M(nnx.Rngs(0))
        @ejit
        def f(x):
            return m(x)
        """,
        needs="flax",
        changed="either",
    ),
    trap(
        "nnx split, merge",
        """
        from flax import nnx
        class M(nnx.Module):
            def __init__(self, rngs):
                self.l = nnx.Linear(4, 4, rngs=rngs)
            def __call__(self, x):
                return self.l(x) * «2|3»
        graphdef, state = nnx.split(M(nnx.Rngs(0)))
        @ejit
        def f(state, x):
            return nnx.merge(graphdef, state)(x)
        """,
        call="f(state, jnp.arange(4.0))",
        needs="flax",
        changed="either",
    ),
    trap(
        "nnx module as an argument",
        """
        from flax import nnx
        class M(nnx.Module):
            def __init__(self, rngs):
                self.l = nnx.Linear(4, 4, rngs=rngs)
            def __call__(self, x):
                return self.l(x) * «2|3»
        graphdef, state = nnx.split(M(nnx.Rngs(0)))
        @ejit
        def f(graphdef, state, x):
            return nnx.merge(graphdef, state)(x), state
        """,
        call="f(graphdef, state, jnp.arange(4.0))",
        needs="flax",
        changed="either",
    ),
    trap(
        "nnx state changed in the trace",
        """
        from flax import nnx
        class M(nnx.Module):
            def __init__(self):
                self.n = nnx.Variable(jnp.zeros(()))
            def __call__(self, x):
                self.n.value = self.n.value + 1
                return x * «2|3»
        m = M()
        @ejit
        def f(x):
            return m(x)
        """,
        needs="flax",
        changed="either",
        unchanged="plain",
        why="flax forbids it, and a trace that fails leaves nothing to record",
    ),
    trap(
        "nnx dropout, other rate",
        """
        from flax import nnx
        m = nnx.Dropout(«0.2|0.5», rngs=nnx.Rngs(0))
        graphdef, state = nnx.split(m)
        @ejit
        def f(state, x):
            return nnx.merge(graphdef, state)(x)
        """,
        call="f(state, jnp.arange(4.0))",
        needs="flax",
        changed="either",
    ),
    trap(
        "linen module",
        """
        import flax.linen as nn
        class M(nn.Module):
            @nn.compact
            def __call__(self, x):
                return nn.Dense(4)(x) * «2|3»
        m = M()
        params = m.init(jax.random.key(0), jnp.arange(4.0))
        @ejit
        def f(params, x):
            return m.apply(params, x)
        """,
        call="f(params, jnp.arange(4.0))",
        needs="flax",
    ),
    trap(
        "linen attribute",
        """
        import flax.linen as nn
        m = nn.Dense(4, use_bias=False, precision=«None|"highest"»)
        params = m.init(jax.random.key(0), jnp.arange(4.0))
        @ejit
        def f(params, x):
            return m.apply(params, x)
        """,
        call="f(params, jnp.arange(4.0))",
        needs="flax",
    ),
    trap(
        "patched flax method",
        """
        import flax.linen as nn
        old = nn.Dense.__call__
        «|nn.Dense.__call__ = lambda self, x: old(self, x) * 3»
        m = nn.Dense(4)
        params = {"params": {"kernel": jnp.ones((4, 4)), "bias": jnp.zeros(4)}}
        @ejit
        def f(params, x):
            return m.apply(params, x)
        """,
        call="f(params, jnp.arange(4.0))",
        needs="flax",
        changed="either",
    ),
    trap(
        "train state",
        """
        import flax.linen as nn, optax
        from flax.training.train_state import TrainState
        m = nn.Dense(4)
        params = m.init(jax.random.key(0), jnp.arange(4.0))
        state = TrainState.create(apply_fn=m.apply, params=params, tx=optax.adam(«0.1|0.2»))
        @ejit
        def f(state, x):
            grads = jax.grad(lambda p: state.apply_fn(p, x).sum())(state.params)
            return state.apply_gradients(grads=grads)
        """,
        call="f(state, jnp.arange(4.0)).params",
        needs="flax",
        changed="either",
    ),
    trap(
        "optax learning rate",
        """
        import optax
        tx = optax.adam(«0.1|0.2»)
        state = tx.init(jnp.arange(4.0))
        @ejit
        def f(x, state):
            return tx.update(x, state)
        """,
        call="f(jnp.arange(4.0), state)",
        needs="optax",
    ),
    trap(
        "optax schedule",
        """
        import optax
        schedule = optax.cosine_decay_schedule(0.1, «10|20»)
        tx = optax.sgd(schedule)
        state = tx.init(jnp.arange(4.0))
        @ejit
        def f(x, state):
            return tx.update(x, state)
        """,
        call="f(jnp.arange(4.0), state)",
        needs="optax",
    ),
    trap(
        "optax chain",
        """
        import optax
        parts = [optax.clip(1.0), optax.scale(-1.0)]
        tx = optax.chain(*«parts|parts[::-1]», optax.add_decayed_weights(0.1))
        state = tx.init(jnp.arange(4.0))
        @ejit
        def f(x, state):
            return tx.update(x * 3, state, x)
        """,
        call="f(jnp.arange(4.0), state)",
        needs="optax",
    ),
    trap(
        "optax mask",
        """
        import optax
        tx = optax.masked(optax.scale(2.0), {"a": True, "b": «True|False»})
        params = {"a": jnp.ones(2), "b": jnp.ones(2)}
        state = tx.init(params)
        @ejit
        def f(params, state):
            return tx.update(params, state)
        """,
        call="f(params, state)[0]",
        needs="optax",
    ),
    trap(
        "equinox module",
        """
        import equinox as eqx
        class M(eqx.Module):
            w: jax.Array
            def __call__(self, x):
                return x * self.w
        m = M(jnp.arange(4.0))
        @ejit
        def f(m, x):
            return m(x) * «2|3»
        """,
        call="f(m, jnp.arange(4.0))",
        needs="equinox",
    ),
    trap(
        "equinox method edited",
        """
        import equinox as eqx
        class M(eqx.Module):
            w: jax.Array
            def __call__(self, x):
                return x * self.w * «2|3»
        m = M(jnp.arange(4.0))
        @ejit
        def f(m, x):
            return m(x)
        """,
        call="f(m, jnp.arange(4.0))",
        needs="equinox",
    ),
    trap(
        "equinox static field",
        """
        import equinox as eqx
        class M(eqx.Module):
            w: jax.Array
            k: int = eqx.field(static=True)
            def __call__(self, x):
                return x * self.w * self.k
        m = M(jnp.arange(4.0), «2|3»)
        @ejit
        def f(m, x):
            return m(x)
        """,
        call="f(m, jnp.arange(4.0))",
        needs="equinox",
    ),
    trap(
        "equinox in the closure",
        """
        import equinox as eqx
        m = eqx.nn.MLP(4, 4, 8, 1, activation=jax.nn.«relu|tanh», key=jax.random.key(0))
        @ejit
        def f(x):
            return m(x)
        """,
        needs="equinox",
    ),
    trap(
        "haiku transform",
        """
        import haiku as hk
        g = hk.without_apply_rng(hk.transform(lambda x: hk.Linear(4)(x) * «2|3»))
        params = g.init(jax.random.key(0), jnp.arange(4.0))
        @ejit
        def f(params, x):
            return g.apply(params, x)
        """,
        call="f(params, jnp.arange(4.0))",
        needs="haiku",
        changed="either",
    ),
    trap(
        "haiku module's attribute",
        """
        import haiku as hk
        class M(hk.Module):
            def __init__(self, k):
                super().__init__()
                self.k = k
            def __call__(self, x):
                return hk.Linear(4)(x) * self.k
        K = «2|3»
        g = hk.without_apply_rng(hk.transform(lambda x: M(K)(x)))
        params = g.init(jax.random.key(0), jnp.arange(4.0))
        @ejit
        def f(params, x):
            return g.apply(params, x)
        """,
        call="f(params, jnp.arange(4.0))",
        needs="haiku",
        changed="either",
    ),
    trap(
        "numpyro model's closure",
        """
        import numpyro, numpyro.distributions as dist
        from numpyro.infer.util import log_density
        K = «2.0|3.0»
        def model(x):
            mu = numpyro.sample("mu", dist.Normal(0, K))
            numpyro.sample("x", dist.Normal(mu, 1), obs=x)
        @ejit
        def f(x):
            return log_density(model, (x,), {}, {"mu": 0.5})[0]
        """,
        needs="numpyro",
        changed="either",
    ),
    trap(
        "numpyro handler",
        """
        import numpyro, numpyro.distributions as dist
        from numpyro import handlers
        model = handlers.substitute(lambda x: numpyro.sample("m", dist.Normal(0, 1)) * x, {"m": «2.0|3.0»})
        @ejit
        def f(x):
            return model(x)
        """,
        needs="numpyro",
        changed="either",
    ),
    trap(
        "linen module, another serial number",
        """
        from flax import linen as nn
        for _ in range(«1|3»):
            nn.Dense(1)
        m = nn.Dense(3)
        @ejit
        def f(x):
            return m.apply({"params": {"kernel": jnp.ones((4, 3)), "bias": jnp.ones(3)}}, x)
        """,
        needs="flax",
        changed="right",
    ),
]
