"""The functions that `direct_driver` records and serves. Each counts when it is traced."""

from __future__ import annotations

import dataclasses
import re
from collections import OrderedDict, defaultdict
from contextlib import nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

traced = 0


class Case(NamedTuple):
    """A function, what makes the arguments of its calls, the options of `jax.jit`, and what is around the calls."""

    function: Callable[..., Any]
    calls: Callable[[], list[tuple[tuple[Any, ...], dict[str, Any]]]]
    options: Mapping[str, Any] = MappingProxyType({})
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


def structure(tree: Any) -> str:
    """A tree as text, without the addresses of objects, and with the items of a mapping in any order."""
    return "\n".join(sorted(line.strip(" ,") for line in re.sub(r"0x[0-9a-f]+", "0x", str(tree)).splitlines()))


def note() -> None:
    """Called in each function when it is traced."""
    global traced
    traced += 1


def vector() -> np.ndarray[Any, Any]:
    return np.linspace(-1, 2, 24, dtype=np.float32).reshape(4, 6)


def plain() -> Case:
    def f(x: Any, y: Any) -> Any:
        note()
        return jnp.tanh(x) @ y.T + 1

    return Case(f, lambda: [((jnp.asarray(vector()), jnp.asarray(vector())), {})])


class Pair(NamedTuple):
    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Config:
    weights: Any
    rate: float = dataclasses.field(metadata={"static": True})
    activation: Any = dataclasses.field(metadata={"static": True}, default=jnp.tanh)


def trees() -> Case:
    def f(state: Any, *, scale: Any) -> Any:
        note()
        out = {"pair": Pair(state["a"] * scale, (state["b"][0], None, [])), 3: OrderedDict(z=state["a"], y=scale)}
        return (
            out | {"more": 1.5 * state["a"]}
            if "more" in out
            else {"x": out["pair"], "y": out[3], "d": defaultdict(list, k=scale)}
        )

    return Case(f, lambda: [(({"a": jnp.asarray(vector()), "b": [jnp.ones(3)]},), {"scale": 2.0})])


def registered() -> Case:
    more = lambda x: x + 1  # noqa: E731  # a function without a name of its own

    def f(config: Config) -> Any:
        note()
        return dataclasses.replace(config, weights=config.activation(config.weights) * config.rate), Config(
            1.0, 0.5, jnp.sin
        )

    return Case(f, lambda: [((Config(jnp.asarray(vector()), 0.25, more),), {})])


def donated() -> Case:
    def f(x: Any, y: Any) -> Any:
        note()
        return x + y, y * 2

    return Case(f, lambda: [((jnp.asarray(vector()), jnp.asarray(vector())), {})], {"donate_argnums": (0,)})


def static() -> Case:
    def f(x: Any, n: int, *, mode: str) -> Any:
        note()
        return [x * i for i in range(n)] if mode == "list" else x

    options = {"static_argnums": (1,), "static_argnames": ("mode",)}
    return Case(f, lambda: [((jnp.asarray(vector()), 3), {"mode": "list"})], options)


def sharded() -> Case:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))

    def f(x: Any, y: Any) -> Any:
        note()
        return x @ y, (x * 2).sum(), y

    def calls() -> Any:
        x = jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), NamedSharding(mesh, PartitionSpec("x", "y")))
        y = jax.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, PartitionSpec(None, ("x", "y"))))
        return [((x, y), {})]

    return Case(f, calls)


def given_shardings() -> Case:
    mesh = Mesh(np.array(jax.devices()).reshape(8), ("x",))
    split = NamedSharding(mesh, PartitionSpec("x"))

    def f(x: Any, y: Any) -> Any:
        note()
        return {"z": x + y.sum()}

    options = {"in_shardings": (split, None), "out_shardings": {"z": NamedSharding(mesh, PartitionSpec())}}
    return Case(f, lambda: [((np.arange(16, dtype=np.float32), np.ones(3, np.float32)), {})], options)


def one_device() -> Case:
    def f(x: Any) -> Any:
        note()
        return x + 1, jnp.zeros(3)

    return Case(f, lambda: [((jax.device_put(vector(), jax.devices()[3]),), {})])


def explicit() -> Case:
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)

    def f(x: Any) -> Any:
        note()
        return jnp.sin(x) * 2

    def calls() -> Any:
        x = jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), NamedSharding(mesh, PartitionSpec("x", "y")))
        return [((x,), {})]

    return Case(f, calls, around=lambda: jax.set_mesh(mesh))


def automatic() -> Case:
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def f(x: Any) -> Any:
        note()
        return jax.lax.with_sharding_constraint(jnp.sin(x) * 2, PartitionSpec("y"))

    def calls() -> Any:
        x = jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), NamedSharding(mesh, PartitionSpec("x", "y")))
        return [((x,), {})]

    return Case(f, calls, around=lambda: jax.set_mesh(mesh))


def pruned() -> Case:
    def f(x: Any, unused: Any, y: Any) -> Any:
        note()
        return x - y

    return Case(f, lambda: [((jnp.asarray(vector()), np.ones(5), jnp.asarray(vector()) * 2), {})])


def nothing_kept() -> Case:
    def f(x: Any) -> Any:
        note()
        return jnp.arange(4)

    return Case(f, lambda: [((jnp.asarray(vector()),), {})])


def no_outputs() -> Case:
    def f(x: Any) -> Any:
        note()
        return {"none": None, "empty": ()}

    return Case(f, lambda: [((jnp.asarray(vector()),), {})])


def no_arguments() -> Case:
    def f() -> Any:
        note()
        return jnp.eye(3)

    return Case(f, lambda: [((), {})])


def mixed() -> Case:
    def f(x: Any, s: Any) -> Any:
        note()
        return x * s

    return Case(f, lambda: [((vector(), 2.0), {}), ((jnp.asarray(vector()), 2.0), {}), ((vector(), 3.0), {})])


def keys() -> Case:
    def f(key: Any, old: Any) -> Any:
        note()
        key, other = jax.random.split(key)
        return key, jax.random.normal(other, (3,)), jax.random.uniform(old), jax.random.split(key, 3)

    return Case(f, lambda: [((jax.random.key(3), jax.random.PRNGKey(1)), {})])


def narrow() -> Case:
    def f(x: Any, y: Any) -> Any:
        note()
        return x.astype(jnp.float16) + 1, y + 1, jnp.bool_(True), x.astype(jnp.float8_e4m3fn)

    return Case(f, lambda: [((jnp.ones(4, jnp.bfloat16), jnp.arange(3, dtype=jnp.int8)), {})])


def callback() -> Case:
    def f(x: Any) -> Any:
        note()
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    return Case(f, lambda: [((jnp.ones(4),), {})])


def printing() -> Case:
    def f(x: Any) -> Any:
        note()
        jax.debug.print("{}", x)
        return x

    return Case(f, lambda: [((jnp.ones(4),), {})])


def linen() -> Case:
    import flax.linen as nn
    import optax
    from flax.training.train_state import TrainState

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(2)(nn.relu(nn.Dense(8)(x)))

    model = Model()

    def step(state: Any, x: Any) -> Any:
        note()
        loss, grads = jax.value_and_grad(lambda p: (state.apply_fn(p, x) ** 2).sum())(state.params)
        return state.apply_gradients(grads=grads), loss

    def calls() -> Any:
        params = model.init(jax.random.key(0), vector())
        tx = optax.chain(optax.clip(1.0), optax.adamw(optax.cosine_decay_schedule(1e-3, 10)))
        return [((TrainState.create(apply_fn=model.apply, params=params, tx=tx), jnp.asarray(vector())), {})]

    state = calls()[0][0][0]
    return Case(step, lambda: [((state, jnp.asarray(vector())), {})])


def nnx_split() -> Case:
    import optax
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.one = nnx.Linear(6, 8, rngs=rngs)
            self.norm = nnx.BatchNorm(8, rngs=rngs)
            self.drop = nnx.Dropout(0.1, rngs=rngs)
            self.two = nnx.Linear(8, 2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.two(self.drop(jax.nn.relu(self.norm(self.one(x)))))

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    def step(graphdef: Any, state: Any, x: Any) -> Any:
        note()
        model, optimizer = nnx.merge(graphdef, state)
        loss, grads = nnx.value_and_grad(lambda m: (m(x) ** 2).sum())(model)
        optimizer.update(model, grads)
        return nnx.split((model, optimizer)), loss

    graphdef, state = nnx.split((model, optimizer))
    return Case(step, lambda: [((graphdef, state, jnp.asarray(vector())), {})])


def equinox() -> Case:
    import equinox as eqx
    import optax

    model = eqx.nn.MLP(6, 2, 8, 2, key=jax.random.key(0))
    tx = optax.adam(1e-3)
    params, rest = eqx.partition(model, eqx.is_array)
    opt_state = tx.init(params)

    def step(params: Any, opt_state: Any, x: Any) -> Any:
        note()
        loss, grads = jax.value_and_grad(lambda p: (jax.vmap(eqx.combine(p, rest))(x) ** 2).sum())(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return eqx.apply_updates(params, updates), opt_state, loss

    return Case(step, lambda: [((params, opt_state, jnp.asarray(vector())), {})])


class Layer:
    """A class with a method to compile."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, x: Any) -> Any:
        note()
        return x * self.scale


def bound() -> Case:
    return Case(Layer(3.0).__call__, lambda: [((jnp.asarray(vector()),), {})])


def partial() -> Case:
    from jax.tree_util import Partial

    def f(function: Any, x: Any) -> Any:
        note()
        return Partial(function.func, function(x)), Partial(jnp.add, x, x)

    more = Partial(lambda x, y: x + y, jnp.ones(4))
    return Case(f, lambda: [((more, jnp.arange(4.0)), {})])


class Hidden:
    """Data of a node that nothing describes."""


@jax.tree_util.register_pytree_node_class
class Box:
    """A node that holds any object."""

    def __init__(self, value: Any, held: Any) -> None:
        self.value = value
        self.held = held

    def tree_flatten(self) -> Any:
        return (self.value,), self.held

    @classmethod
    def tree_unflatten(cls, held: Any, children: Any) -> Any:
        return cls(children[0], held)


def hidden() -> Case:
    made = Hidden()

    def f(x: Any) -> Any:
        note()
        return Box(x, made)

    return Case(f, lambda: [((jnp.ones(3),), {})])


def held() -> Case:
    made = Hidden()

    def f(box: Any) -> Any:
        note()
        return {"one": Box(box.value, [box.held, 0.5, -0.0, b"x", frozenset({"a"}), slice(1, None), 1 << 70])}

    return Case(f, lambda: [((Box(jnp.ones(3), {"key": (1, made)}["key"][1]),), {})])


def local_class() -> Case:
    class Local(NamedTuple):
        x: Any

    def f(local: Any) -> Any:
        note()
        return Local(local.x + 1)

    return Case(f, lambda: [((Local(jnp.ones(3)),), {})])


def static_object() -> Case:
    made = Hidden()

    def f(x: Any, config: Any) -> Any:
        note()
        return Box(x, config)

    return Case(f, lambda: [((jnp.ones(3), made), {})], {"static_argnums": 1})


def weak() -> Case:
    def f(x: Any, y: Any) -> Any:
        note()
        return x + 1, y * 2.0, 3

    return Case(f, lambda: [((1, jnp.arange(3)), {}), ((jnp.asarray(5), np.arange(3)), {})])


def constants() -> Case:
    table = np.arange(10_000, dtype=np.float32)

    def f(x: Any) -> Any:
        note()
        return jnp.asarray(table)[x]

    return Case(f, lambda: [((jnp.arange(3),), {})])


def collective() -> Case:
    mesh = Mesh(np.array(jax.devices()).reshape(8), ("x",))

    def f(x: Any) -> Any:
        note()
        spec = PartitionSpec("x")
        return jax.shard_map(lambda a: a + jax.lax.psum(a, "x"), mesh=mesh, in_specs=spec, out_specs=spec)(x)

    return Case(f, lambda: [((np.arange(16, dtype=np.float32),), {})])


def linear_algebra() -> Case:
    """LAPACK's functions are found when JAX lowers the first call of one."""

    def f(x: Any) -> Any:
        note()
        return jnp.linalg.svd(x), jnp.linalg.inv(x @ x.T)

    return Case(f, lambda: [((jnp.asarray(vector()),), {})])
