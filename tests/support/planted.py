"""Programs in each of which one thing is to be changed: its kind, and the line, which ends with `# <-`.

They are written in five styles: plain functions, flax.nnx, flax.linen, equinox, and a Trainer class.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PLANTED", "Planted"]


@dataclass(frozen=True)
class Planted:
    """A program.

    Attributes:
        kind: of the finding that must be the first one.
        style: how it is written.
        text: the program.
    """

    kind: str
    style: str
    text: str

    @property
    def title(self) -> str:
        """The name of the test."""
        return f"{self.kind}-{self.style}"

    @property
    def line(self) -> int:
        """The line to change, from 1."""
        return next(number for number, line in enumerate(self.text.splitlines(), 1) if line.endswith("# <-"))


PLAIN = """\
import jax, jax.numpy as jnp, numpy as np

def mlp(params, x):
    for w in params[:-1]:
        x = jnp.tanh(x @ w)
    return x @ params[-1]

params = [np.full((16, 16), 0.1 * n, np.float32) for n in range(1, 4)]
"""

NNX = """\
import jax, jax.numpy as jnp, numpy as np
from flax import nnx

class Model(nnx.Module):
    def __init__(self, rngs, layers=2, width=16):
        self.layers = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(layers)])

    def __call__(self, x):
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        return x

make = jax.jit(lambda: nnx.state(Model(nnx.Rngs(0))))
state = jax.tree.map(np.asarray, make())
graph = nnx.graphdef(nnx.eval_shape(lambda: Model(nnx.Rngs(0))))
"""

LINEN = """\
import jax, jax.numpy as jnp, numpy as np
import flax.linen as nn

class Model(nn.Module):
    layers: int = 2
    scale: float = 1.0

    @nn.compact
    def __call__(self, x):
        for _ in range(self.layers):
            x = nn.relu(nn.Dense(16)(x))
        return x * self.scale

model = Model()
params = jax.tree.map(np.asarray, jax.jit(model.init)(jax.random.key(0), np.ones((4, 16), np.float32)))
"""

EQUINOX = """\
import jax, jax.numpy as jnp, numpy as np
import equinox as eqx

@jax.jit
def make():
    return eqx.filter(eqx.nn.MLP(16, 16, 16, 2, key=jax.random.key(0)), eqx.is_array)

shapes = eqx.filter_eval_shape(eqx.nn.MLP, 16, 16, 16, 2, key=jax.random.key(0))
static = eqx.filter(shapes, lambda x: not hasattr(x, "shape"))
arrays = jax.tree.map(np.asarray, make())
"""

TRAINER = """\
import jax, jax.numpy as jnp, numpy as np

class Trainer:
    def __init__(self):
        self.params = {"w": np.full((16, 16), 0.1, np.float32), "b": np.zeros(16, np.float32)}

    def loss(self, params, x):
        return jnp.mean(jnp.tanh(x @ params["w"] + params["b"]) ** 2)

    def update(self, params, x):
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(self.loss)(params, x))
"""

_STYLES = {"plain": PLAIN, "nnx": NNX, "linen": LINEN, "equinox": EQUINOX, "trainer": TRAINER}


def _planted(
    kind: str,
    style: str,
    text: str,
    edits: tuple[tuple[str, str], ...] = (),
) -> Planted:
    head = _STYLES[style.partition("-")[0]]
    for old, new in edits:
        assert old in head, (kind, style, old)
        head = head.replace(old, new)
    return Planted(kind, style, head + text)


PLANTED = [
    # -- a jitted function is made anew
    _planted(
        "made_anew",
        "plain",
        """
x = np.ones((4, 16), np.float32)
for _ in range(6):
    y = jax.jit(lambda p, x: mlp(p, x).sum())(params, x)  # <-
""",
    ),
    _planted(
        "made_anew",
        "trainer",
        """
    def fit(self, batches):
        for batch in batches:
            @jax.jit  # <-
            def step(params, batch):
                return self.update(params, batch)
            self.params = step(self.params, batch)

Trainer().fit([np.ones((4, 16), np.float32)] * 6)
""",
    ),
    _planted(
        "made_anew",
        "linen",
        """
def evaluate(params, x):
    def logits(params, x):  # <-
        return model.apply(params, x)
    return jax.jit(logits)(params, x)

for n in range(6):
    evaluate(params, np.ones((4, 16), np.float32))
""",
    ),
    _planted(
        "made_anew",
        "equinox",
        """
def predict(arrays, x):
    return jax.jit(lambda a, x: jax.vmap(eqx.combine(a, static))(x))(arrays, x)  # <-

for n in range(6):
    predict(arrays, np.ones((4, 16), np.float32))
""",
    ),
    _planted(
        "made_anew",
        "trainer-partial",
        """
    def update(self, params, x, rate):
        return jax.tree.map(lambda p, g: p - rate * g, params, jax.grad(self.loss)(params, x))

    def train_batch(self, x):
        step = jax.jit(functools.partial(self.update, rate=0.1))  # <-
        self.params = step(self.params, x)

import functools
trainer = Trainer()
for _ in range(5):
    trainer.train_batch(np.ones((4, 16), np.float32))
""",
    ),
    # -- a shape varies
    _planted(
        "shape_varies",
        "plain",
        """
step = jax.jit(mlp)
for size in (3, 5, 9, 12, 17, 21):
    step(params, np.ones((size, 16), np.float32))  # <-
""",
    ),
    _planted(
        "shape_varies",
        "nnx",
        """
@jax.jit
def forward(state, x):
    return nnx.merge(graph, state)(x).sum()

def serve(requests):
    for request in requests:
        forward(state, request)  # <-

serve([np.ones((size, 16), np.float32) for size in (1, 2, 5, 6, 7, 10, 13)])
""",
    ),
    _planted(
        "shape_varies",
        "linen",
        """
apply = jax.jit(model.apply)
for length in (20, 31, 47, 52, 64):
    out = apply(params, np.ones((2, length, 16), np.float32))  # <-
""",
    ),
    _planted(
        "shape_varies",
        "trainer",
        """
    def fit(self, batches):
        step = jax.jit(self.update)
        for batch in batches:
            self.params = step(self.params, batch)  # <-

Trainer().fit([np.ones((size, 16), np.float32) for size in (32, 31, 30, 17, 9)])
""",
    ),
    # -- a number is static
    _planted(
        "static_number",
        "plain",
        """
def step(params, x, rate):
    h = mlp(params, x)
    return h * rate  # <-

step = jax.jit(step, static_argnames="rate")
for n in range(5):
    step(params, np.ones((4, 16), np.float32), rate=0.1 * (n + 3))
""",
    ),
    _planted(
        "static_number",
        "linen",
        """
for n in range(5):
    scaled = Model(scale=1.5 + n)
    jax.jit(scaled.apply)(params, np.ones((4, 16), np.float32))
""",
        edits=(("return x * self.scale", "return x * self.scale  # <-"),),
    ),
    _planted(
        "static_number",
        "equinox",
        """
@eqx.filter_jit
def step(arrays, x, temperature):
    out = jax.vmap(eqx.combine(arrays, static))(x)
    return out / temperature  # <-

for n in range(5):
    step(arrays, np.ones((4, 16), np.float32), 3.0 + n)
""",
    ),
    _planted(
        "static_number",
        "trainer",
        """
    def fit(self, batches):
        for number, batch in enumerate(batches):
            self.params = self.step(number, self.params, batch)

    def step(self, number, params, batch):
        def decayed(params, batch):
            new = self.update(params, batch)
            return {name: value * (0.7 - 0.03 * number) for name, value in new.items()}  # <-
        return jax.jit(decayed)(params, batch)

Trainer().fit([np.ones((4, 16), np.float32)] * 5)
""",
    ),
    # -- placed in another way
    _planted(
        "placement",
        "plain",
        """
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()[:1]), ("data",))

@jax.jit
def step(params, x):
    grads = jax.grad(lambda p: mlp(p, x).sum())(params)
    new = [p - 0.1 * g for p, g in zip(params, grads)]
    return jax.lax.with_sharding_constraint(new, NamedSharding(mesh, P()))

x = np.ones((4, 16), np.float32)
for _ in range(3):
    params = step(params, x)  # <-
""",
    ),
    _planted(
        "placement",
        "trainer",
        """
    def fit(self, batches):
        step = jax.jit(self.update)
        for number, batch in enumerate(batches):
            self.params = step(self.params, batch)  # <-
            if not number:
                self.params = jax.device_put(self.params, jax.devices()[0])

Trainer().fit([np.ones((4, 16), np.float32)] * 4)
""",
    ),
    _planted(
        "placement",
        "linen",
        """
@jax.jit
def step(params, x):
    grads = jax.grad(lambda p: model.apply(p, x).sum())(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

placed = [params, jax.device_put(params, jax.devices()[0])]
for each in placed:
    step(each, np.ones((4, 16), np.float32))  # <-
""",
    ),
    _planted(
        "placement",
        "nnx",
        """
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()[:1]), ("data",))

@jax.jit
def loss(state, x):
    return nnx.merge(graph, state)(x).sum()

x = np.ones((4, 16), np.float32)
for batch in (x, jax.device_put(x, NamedSharding(mesh, P("data")))):
    loss(state, batch)  # <-
""",
    ),
    # -- weak type
    _planted(
        "weak_type",
        "plain",
        """
@jax.jit
def step(params, x, scale):
    return mlp(params, x).astype(jnp.bfloat16) * scale

for scale in (1.0, np.float32(1.0)):
    step(params, np.ones((4, 16), np.float32), scale)  # <-
""",
    ),
    _planted(
        "weak_type",
        "trainer",
        """
    def fit(self, batches):
        scale = 1.0

        @jax.jit
        def step(params, x, scale):
            return self.update(params, x), (scale * x.astype(jnp.bfloat16)).sum(), scale * np.float32(0.5)

        for batch in batches:
            self.params, _, scale = step(self.params, batch, scale)  # <-

Trainer().fit([np.ones((4, 16), np.float32)] * 3)
""",
    ),
    _planted(
        "weak_type",
        "equinox",
        """
@jax.jit
def apply(arrays, x):
    return jax.vmap(eqx.combine(arrays, static))(x)

for dtype in (np.float32, jnp.bfloat16):
    apply(arrays, np.ones((4, 16), dtype))  # <-
""",
    ),
    _planted(
        "weak_type",
        "linen",
        """
apply = jax.jit(model.apply)
data = {"train": np.ones((4, 16), np.float32), "test": np.ones((4, 16), np.int32)}
for x in data.values():
    apply(params, x)  # <-
""",
    ),
    # -- a constant is large
    _planted(
        "large_constant",
        "plain",
        """
table = np.random.default_rng(0).normal(size=(16, 40_000)).astype(np.float32)

@jax.jit
def lookup(params, x):
    return mlp(params, x) @ table  # <-

lookup(params, np.ones((4, 16), np.float32))
""",
    ),
    _planted(
        "large_constant",
        "trainer",
        """
    def fit(self, batches):
        self.table = np.random.default_rng(0).normal(size=(16, 40_000)).astype(np.float32)
        step = jax.jit(self.step)
        for batch in batches:
            step(self.params, batch)

    def step(self, params, batch):
        new = self.update(params, batch)
        return new["w"] @ self.table  # <-

Trainer().fit([np.ones((4, 16), np.float32)])
""",
    ),
    _planted(
        "large_constant",
        "linen",
        """
big = np.random.default_rng(0).normal(size=(20_000, 16)).astype(np.float32)

def loss(x):
    out = model.apply(params, x)
    return jnp.sum(big @ out.T)  # <-

jax.jit(loss)(np.ones((4, 16), np.float32))
""",
    ),
    _planted(
        "large_constant",
        "equinox",
        """
positions = np.random.default_rng(0).integers(0, 9, size=(300_000,))

@eqx.filter_jit
def embed(arrays, x):
    out = jax.vmap(eqx.combine(arrays, static))(x)
    return out.sum() + positions[None] * out[0, 0]  # <-

embed(arrays, np.ones((4, 16), np.float32))
""",
    ),
    # -- one operation at a time
    _planted(
        "single_operations",
        "plain",
        """
def prepare(x):
    x = jnp.sin(x)  # <-
    x = x * 2
    x = x - x.mean()
    x = jnp.exp(x)
    x = x / x.sum()
    x = jnp.sqrt(x)
    x = jnp.where(x > 0.1, x, 0)
    x = jnp.cumsum(x)
    return jnp.sort(x)[::-1]

prepare(np.ones(77, np.float32))
""",
    ),
    _planted(
        "single_operations",
        "equinox",
        """
class Net:
    def __init__(self, key):
        keys = [jax.random.fold_in(key, n) for n in range(9)]
        self.weights = [jax.random.normal(each, (9, 9 + n)) for n, each in enumerate(keys)]
        self.scale = jnp.linspace(0, 1, 9)

    def __call__(self, x):
        h = jnp.tanh(x * self.scale) @ self.weights[0]
        return jnp.sort(jnp.cumsum(jnp.abs(h), axis=0), axis=0)

net = Net(jax.random.key(0))  # <-
""",
    ),
    _planted(
        "single_operations",
        "trainer",
        """
    def evaluate(self, x):
        h = jnp.dot(x, self.params["w"])  # <-
        h = h + self.params["b"]
        h = jnp.tanh(h)
        mean = h.mean(axis=0)
        spread = jnp.sqrt(((h - mean) ** 2).mean(axis=0))
        h = (h - mean) / (spread + 1)
        return jnp.abs(h).max() + jnp.log1p(h.sum())

Trainer().evaluate(np.ones((5, 16), np.float32))
""",
    ),
    _planted(
        "single_operations",
        "linen",
        """
def metrics(logits, labels):
    loss = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()  # <-
    right = (logits.argmax(-1) == labels).mean()
    top = jnp.sort(logits, axis=-1)[:, -3:]
    margin = top[:, -1] - top[:, 0]
    return loss, right, margin.min(), margin.max(), jnp.median(margin)

metrics(np.ones((6, 16), np.float32), np.arange(6))
""",
    ),
    _planted(
        "single_operations",
        "nnx",
        """
noise = jax.random.normal(jax.random.key(3), (7, 16))  # <-
inputs = jnp.clip(noise, -1, 1)
inputs = inputs * jnp.linspace(0, 1, 16)
inputs = inputs - inputs.min()
inputs = inputs / inputs.max()
targets = jnp.roll(inputs, 1, axis=0)
weights = jnp.exp(-jnp.arange(7) / 7)
mask = weights > 0.5
total = jnp.where(mask[:, None], targets, 0).sum()
""",
        edits=(
            ("state = jax.tree.map(np.asarray, make())\n", ""),
            ("make = jax.jit(lambda: nnx.state(Model(nnx.Rngs(0))))\n", ""),
        ),
    ),
]
