"""JAX's own state: flags, contexts, meshes, devices."""

from __future__ import annotations

from direct_traps.trap import trap


def _flag(name: str, one: str, two: str) -> str:
    return f'jax.config.update("{name}", «{one}|{two}»)\n'


_MESH = """
jax.config.update("jax_num_cpu_devices", 2)
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
"""

TRAPS = [
    trap(
        "x64",
        _flag("jax_enable_x64", "False", "True") + "f = ejit(lambda x: x + jnp.ones(4))",
        call="f(jnp.arange(4))",
    ),
    trap(
        "x64 of a block",
        "f = ejit(lambda x: x + jnp.ones(4))",
        call="f(jnp.arange(4)) if «True|False» else jax.enable_x64(True).__enter__() or f(jnp.arange(4))",
    ),
    trap(
        "matmul precision",
        _flag("jax_default_matmul_precision", "'bfloat16'", "'float32'") + "f = ejit(lambda x: x @ x)",
    ),
    trap(
        "matmul precision of a block in the trace",
        """
        precision = «"bfloat16"|"float32"»
        @ejit
        def f(x):
            with jax.default_matmul_precision(precision):
                return x @ x
        """,
    ),
    trap(
        "default PRNG",
        _flag("jax_default_prng_impl", "'threefry2x32'", "'rbg'")
        + "f = ejit(lambda x: x + jax.random.normal(jax.random.key(0), x.shape))",
    ),
    trap(
        "threefry_partitionable",
        _flag("jax_threefry_partitionable", "False", "True")
        + "f = ejit(lambda x: x + jax.random.normal(jax.random.key(0), x.shape))",
    ),
    trap(
        "dtype promotion",
        _flag("jax_numpy_dtype_promotion", "'standard'", "'strict'") + "f = ejit(lambda x: x + jnp.ones(4, jnp.int32))",
        changed="either",
    ),
    trap(
        "rank promotion",
        _flag("jax_numpy_rank_promotion", "'allow'", "'raise'") + "f = ejit(lambda x: x + jnp.ones((2, 4)))",
        changed="either",
    ),
    trap(
        "debug_nans",
        _flag("jax_debug_nans", "False", "True") + "f = ejit(lambda x: x / 0)",
        call="f(jnp.zeros(3))",
        changed="plain",
    ),
    trap(
        "random_seed_offset",
        _flag("jax_random_seed_offset", "0", "1")
        + "f = ejit(lambda x: x + jax.random.normal(jax.random.PRNGKey(0), x.shape))",
    ),
    trap("disable_jit", _flag("jax_disable_jit", "False", "True") + "f = ejit(lambda x: x * 2)", changed="plain"),
    trap(
        "checking of leaks",
        _flag("jax_check_tracer_leaks", "False", "True") + "f = ejit(lambda x: x * 2)",
        changed="either",
    ),
    trap(
        "flag read in the trace",
        _flag("jax_log_compiles", "False", "True")
        + """
@ejit
def f(x):
    return x * (3 if jax.config.jax_log_compiles else 2)
""",
        changed="either",
    ),
    trap(
        "x64 read in the trace",
        _flag("jax_enable_x64", "False", "True")
        + """
@ejit
def f(x):
    return x * (3 if jax.config.jax_enable_x64 else 2)
""",
        call="f(jnp.arange(4, dtype=jnp.int32))",
    ),
    trap(
        "flag made by the program",
        """
        from jax._src import config
        state = config.bool_state(name="trap_flag", default=«False|True», help="")
        @ejit
        def f(x):
            return x * (3 if state.value else 2)
        """,
    ),
    trap(
        "compiler options of the backend",
        _flag("jax_cpu_enable_async_dispatch", "True", "False") + "f = ejit(lambda x: x * 2)",
        changed="either",
    ),
    trap(
        "softmax of a custom jvp",
        _flag("jax_softmax_custom_jvp", "True", "False") + "f = ejit(jax.grad(lambda x: jax.nn.softmax(x)[0]))",
        changed="either",
    ),
    trap(
        "mesh in the context",
        _MESH
        + """
«mesh = None|mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))»
if mesh is not None:
    jax.set_mesh(mesh)
@ejit
def f(x):
    return x * (2 if jax.sharding.get_abstract_mesh().empty else 3)
""",
        changed="either",
    ),
    trap(
        "mesh axis names",
        _MESH
        + """
mesh = jax.make_mesh((2,), («"d"|"e"»,), axis_types=(AxisType.Auto,))
jax.set_mesh(mesh)
@ejit
def f(x):
    return x * (2 if jax.sharding.get_abstract_mesh().axis_names == ("d",) else 3)
""",
        changed="either",
    ),
    trap(
        "explicit axes",
        _MESH
        + """
mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.«Auto|Explicit»,))
jax.set_mesh(mesh)
@ejit
def f(x):
    return x * (2 if jax.sharding.get_abstract_mesh().axis_types == (AxisType.Auto,) else 3)
""",
        changed="either",
    ),
    trap(
        "mesh in a global",
        _MESH
        + """
mesh = Mesh(np.array(jax.devices())«|[::-1]», ("d",))
@ejit
def f(x):
    return lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P("d")))
""",
        changed="either",
    ),
    trap(
        "spec of a constraint",
        _MESH
        + """
mesh = Mesh(np.array(jax.devices()), ("d",))
spec = P(«"d"|None»)
@ejit
def f(x):
    return lax.with_sharding_constraint(x * 2, NamedSharding(mesh, spec))
""",
    ),
    trap(
        "closure of a shard_map",
        _MESH
        + """
mesh = Mesh(np.array(jax.devices()), ("d",))
K = «2|3»
def body(x):
    return x * K + lax.axis_index("d")
@ejit
def f(x):
    return jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"))(x)
""",
    ),
    trap(
        "named_scope",
        """
        @ejit
        def f(x):
            with jax.named_scope("«a|b»"):
                return x * «2|3»
        """,
    ),
    trap(
        "named_call",
        """
        def h(x):
            return x * «2|3»
        g = jax.named_call(h, name="a")
        @ejit
        def f(x):
            return g(x)
        """,
    ),
    trap(
        "number of devices",
        """
        jax.config.update("jax_num_cpu_devices", «1|2»)
        @ejit
        def f(x):
            return x * jax.device_count()
        """,
    ),
    trap(
        "devices by a helper of the library",
        """
        jax.config.update("jax_num_cpu_devices", «1|2»)
        n = len(jax.devices())
        @ejit
        def f(x):
            return x * n
        """,
    ),
    trap(
        "default backend",
        """
        @ejit
        def f(x):
            return x * (2 if jax.default_backend() == "cpu" else 3)
        """,
        changed="right",
    ),
    trap(
        "XLA_FLAGS",
        "f = ejit(lambda x: jnp.sin(x) * 2)",
        env={"XLA_FLAGS": "«|--xla_cpu_enable_fast_math=true»"},
        changed="either",
    ),
]
