"""Programs of tests/keys/key_pairs.toml: each maker gives a function and its arguments, as a user would write them.

The text of this file is run from wherever a pair asks for, changed as the pair asks for.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

try:
    from jax.experimental.layout import DeviceLocalLayout as Layout  # before JAX 0.7
except ImportError:
    from jax.experimental.layout import Layout
try:
    from jax.experimental.layout import Format
except ImportError:  # before JAX 0.6
    from jax.experimental.layout import Layout as Format
try:
    from jax import ffi
except ImportError:  # before JAX 0.5
    from jax.extend import ffi
try:
    from jax import shard_map
except ImportError:  # before JAX 0.6
    from jax.experimental.shard_map import shard_map


def array(*shape, dtype="float32", sharding=None):
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)


def step(*, constant=2.0, shape=(16, 16), dtype="float32", **options):
    """Two layers with a loss, differentiated."""

    def step(weights, batch):
        def loss(weights):
            hidden = jnp.tanh(batch @ weights) * constant
            return jnp.mean(jnp.clip(hidden @ weights, -1, 1) ** 2)

        return loss(weights), jax.grad(loss)(weights)

    return jax.jit(step, **options), (array(*shape, dtype=dtype), array(4, shape[0], dtype=dtype))


def elementwise(*, operation="sin", shape=(8,), dtype="float32", **options):
    def elementwise(x):
        return getattr(jnp, operation)(x) + 1

    return jax.jit(elementwise, **options), (array(*shape, dtype=dtype),)


def renamed(*, name="one"):
    def function(x):
        return jnp.sin(x)

    function.__name__ = name
    return jax.jit(function), (array(4),)


def documented():
    def documented(x):
        scaled = x * 2
        return scaled + jnp.cos(scaled)

    return jax.jit(documented), (array(4),)


def scoped(*, scope=None):
    def scoped(x):
        if scope is None:
            return jnp.sin(x) * 2
        with jax.named_scope(scope):
            return jnp.sin(x) * 2

    return jax.jit(scoped), (array(4),)


def static(*, power=2):
    @functools.partial(jax.jit, static_argnums=1)
    def static(x, power):
        return x**power

    return static, (array(4), power)


def static_name(*, way="argnums"):
    """The same static argument, by its number or by its name."""

    def static_name(x, power):
        return x**power

    options = {"static_argnums": 1} if way == "argnums" else {"static_argnames": "power"}
    return jax.jit(static_name, **options), (array(4), 3)


def unused(**options):
    """An argument that nothing uses."""

    def unused(x, y):
        return x + 1

    return jax.jit(unused, **options), (array(4), array(5))


def tree(*, order="ab"):
    """A dictionary of arguments; in which order it was filled does not count."""

    def tree(parameters):
        return parameters["a"] @ parameters["b"]

    shapes = {"a": (3, 4), "b": (4, 5)}
    return jax.jit(tree), ({name: array(*shapes[name]) for name in order},)


def arguments(*, numpy=False):
    """Real arrays instead of their shapes."""

    def arguments(x):
        return jnp.sum(x * 2)

    return jax.jit(arguments), ((np.ones((4,), np.float32) if numpy else array(4)),)


def on_device(*, number=0):
    """All on one device."""

    def on_device(x):
        return jnp.cumsum(x) * 3

    return jax.jit(on_device), (array(8, sharding=SingleDeviceSharding(jax.local_devices()[number])),)


def mesh_of(devices, shape, names):
    return Mesh(np.array([jax.devices()[i] for i in devices]).reshape(shape), names)


def sharded(*, devices=(0, 1, 2, 3), shape=(2, 2), spec=("x", "y"), out=None, kind=None):
    """A sum over a sharded array."""
    mesh = mesh_of(devices, shape, ("x", "y"))
    placed = NamedSharding(mesh, P(*spec), **({"memory_kind": kind} if kind else {}))
    options = {} if out is None else {"out_shardings": NamedSharding(mesh, P(*out))}

    def sharded(x):
        return x * jnp.sum(x, axis=0)

    return jax.jit(sharded, **options), (array(16, 16, sharding=placed),)


def mapped(*, devices=(0, 1), axis="x", operation="psum"):
    """A collective written out."""
    mesh = mesh_of(devices, (len(devices),), (axis,))

    def mapped(x):
        if operation == "psum":
            return jax.lax.psum(x, axis)
        turn = [(i, (i + 1) % len(devices)) for i in range(len(devices))]
        return jax.lax.ppermute(x, axis, turn)

    out = P() if operation == "psum" else P(axis)
    body = shard_map(mapped, mesh=mesh, in_specs=P(axis), out_specs=out)
    return jax.jit(body), (array(8, sharding=NamedSharding(mesh, P(axis))),)


def local(*, kind="mesh"):
    """What a rank does with its own devices alone."""
    mesh = Mesh(np.array(jax.local_devices()[:2]), ("x",))
    placed = NamedSharding(mesh, P("x")) if kind == "mesh" else SingleDeviceSharding(jax.local_devices()[-1])

    def local(x):
        return jnp.sin(x) + jnp.sum(x)

    return jax.jit(local), (array(8, sharding=placed),)


def everywhere(*, order="as they are"):
    """What all devices of all ranks do together."""
    devices = sorted(jax.devices(), key=lambda device: device.id, reverse=order == "reversed")
    mesh = Mesh(np.array(devices), ("x",))

    def everywhere(x):
        return x - jnp.mean(x)

    return jax.jit(everywhere), (array(16, sharding=NamedSharding(mesh, P("x"))),)


def laid_out(*, order=(0, 1)):
    """Which axis of the argument is the major one."""
    layout = Format(Layout(order), SingleDeviceSharding(jax.devices()[0]))

    def laid_out(x):
        return x.sum(axis=0)

    return jax.jit(laid_out, in_shardings=layout), (array(8, 16),)


def foreign(*, target="a_kernel", **attributes):
    """A call of a kernel of one's own; an address of nothing stands for it, since the program is not run."""

    def foreign(x):
        return ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype))(x, **attributes)

    return jax.jit(foreign), (array(4),)


def kernel(*, factor=2):
    """A Pallas kernel for a TPU."""
    from jax.experimental import pallas as pl

    def body(x, y):
        y[...] = x[...] * factor

    program = pl.pallas_call(body, out_shape=array(8, 128))
    return jax.jit(program), (array(8, 128),), ("tpu",)


def random_numbers(*, shape=(4,)):
    def random_numbers(seed):
        return jax.random.normal(jax.random.key(seed), shape)

    return jax.jit(random_numbers), (array(dtype="uint32"),)


def loop(*, times=3, unroll=1, way="scan"):
    def loop(x):
        if way == "scan":
            return jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=times, unroll=unroll)[0]
        return jax.lax.fori_loop(0, times, lambda i, c: jnp.sin(c), x)

    return jax.jit(loop), (array(4),)


def dot(*, precision=None, result=None):
    def dot(x, y):
        return jnp.dot(x, y, precision=precision, preferred_element_type=result)

    return jax.jit(dot), (array(8, 8, dtype="bfloat16"), array(8, 8, dtype="bfloat16"))


def embedded(*, last=0.0):
    """A constant of many elements, of which the last one differs."""
    values = np.zeros((64, 64), np.float32)
    values[-1, -1] = last

    def embedded(x):
        return x @ values

    return jax.jit(embedded), (array(2, 64),)


def helpers(*, first=2.0, second=3.0, swapped=False):
    """Two helpers of one name and different bodies."""

    def make(factor):
        @jax.jit
        def helper(x):
            return jnp.sin(x) * factor

        return helper

    one, other = make(first), make(second)

    def helpers(x):
        return one(other(x)) if swapped else other(one(x))

    return jax.jit(helpers), (array(4),)


@jax.jit
def shared_helper(x):
    return jnp.where(x > 0, x, 0) * 2


@jax.jit
def another_user(x):
    return shared_helper(x) + 1


def calling(*, times=3, forget=False):
    """A helper at the top of the file that other programs use too; `forget` is a cache of JAX's that gave way."""

    def calling(x):
        for number in range(times):
            if forget and number == 1:
                jax.clear_caches()
            x = shared_helper(jnp.clip(x, -2, 2)) + another_user(x)
        return x

    return jax.jit(calling), (array(4),)


def differentiated(*, custom=False):
    def plain(x):
        return jnp.sin(x) * x

    rule = jax.custom_jvp(plain)
    rule.defjvp(lambda primals, tangents: (plain(*primals), tangents[0] * 7))

    def differentiated(x):
        return jax.grad(lambda y: (rule if custom else plain)(y).sum())(x)

    return jax.jit(differentiated), (array(4),)


def rematerialised(*, policy=None):
    policies = jax.checkpoint_policies

    def rematerialised(x):
        def layer(y):
            return jnp.sin(jnp.sin(y @ x))

        kept = {"dots": policies.dots_saveable, "all": policies.everything_saveable}.get(policy)
        return jax.grad(lambda y: jax.checkpoint(layer, policy=kept)(y).sum())(x)

    return jax.jit(rematerialised), (array(4, 4),)


def dropping(*, clips=1):
    """Work that nothing uses."""

    def dropping(x):
        for bound in range(clips - 1):
            jnp.clip(x, bound, bound + 1)
        return jnp.clip(x, 0, 1)

    return jax.jit(dropping), (array(4),)


def aliased(*, donate=()):
    def aliased(x, y):
        return x + y, x - y

    return jax.jit(aliased, donate_argnums=donate), (array(8), array(8))


def collective_order(*, axis="x"):
    mesh = mesh_of((0, 1, 2, 3), (2, 2), ("x", "y"))

    def collective_order(x):
        return jax.lax.psum(x, axis)

    spec = P(None if axis == "x" else "x", None if axis == "y" else "y")
    body = shard_map(collective_order, mesh=mesh, in_specs=P("x", "y"), out_specs=spec)
    return jax.jit(body), (array(4, 4, sharding=NamedSharding(mesh, P("x", "y"))),)


def factored(*, spread=False):
    """LAPACK's Cholesky factors of a batch of matrices, which a mesh may share."""
    sharding = NamedSharding(mesh_of((0, 1), (2,), ("x",)), P("x")) if spread else None

    def factored(x):
        return jnp.linalg.cholesky(x), jnp.linalg.eigh(x)[0]

    return jax.jit(factored), (array(8, 4, 4, sharding=sharding),)
