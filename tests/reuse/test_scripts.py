"""Scripts as people write them: a third start traces no function of theirs, whatever library the model is of.

Two need the line that `ejcache why` prints: one has a new name of its run at each start, and one adds to a table of
metrics beside its code. Each makes a new directory of outputs, or none.
"""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest
from helpers import run_program
from test_traps import HEAD

SCRIPTS = {
    "functions in a row": """
@ejit
def init(key):
    traced.append("init")
    return jax.random.normal(key, (8, 8))
@ejit
def step(w, x):
    traced.append("step")
    return w - 0.1 * (x @ w), (x @ w).sum()
@ejit
def evaluate(w, x):
    traced.append("evaluate")
    return (x @ w).mean()
def loop():
    @ejit
    def inner(w):
        traced.append("inner")
        return w * 2
    return inner
w = init(jax.random.key(0))
for _ in range(3):
    w, loss = step(w, np.ones((8, 8), np.float32))
for n in (1, 2, 3):
    evaluate(w, np.ones((8 * n, 8), np.float32))
results.append(loop()(w))
""",
    "a trainer class": """
@dataclasses.dataclass
class Config:
    width: int = 16
    rate: float = 1e-2
class Trainer:
    def __init__(self, config):
        self.config = config
        self.step = ejit(self._step, donate_argnums=0)
    def _step(self, p, x):
        traced.append("step")
        loss, g = jax.value_and_grad(lambda p: ((x @ p["w"]) ** 2).mean())(p)
        return jax.tree.map(lambda a, b: a - self.config.rate * b, p, g), loss
trainer = Trainer(Config())
p = {"w": jnp.ones((8, 16))}
for _ in range(3):
    p, loss = trainer.step(p, np.ones((4, 8), np.float32))
results.append(loss)
""",
    "cached properties": """
import functools
class Model:
    @functools.cached_property
    def table(self):
        return np.arange(8, dtype=np.float32)
    @functools.cached_property
    def step(self):
        @functools.partial(ejit, static_argnames=("train",))
        def step(w, x, *, train):
            traced.append("step")
            return w * self.table * x * (2 if train else 1)
        return step
model = Model()
w = model.step(jnp.ones(8), x=np.ones(8, np.float32), train=True)
results.append(model.step(w, x=np.ones(8, np.float32), train=False))
""",
    "a dataclass as a tree": """
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    w: jax.Array
    n: jax.Array
    tag: str = dataclasses.field(metadata={"static": True}, default="a")
@ejit
def step(s, x):
    traced.append("step")
    return dataclasses.replace(s, w=s.w - x, n=s.n + 1)
s = State(jnp.ones(8), jnp.zeros((), jnp.int32))
for _ in range(3):
    s = step(s, np.ones(8, np.float32))
results.append(s.w)
""",
    "settings as a static argument": """
import argparse
@dataclasses.dataclass(frozen=True)
class Settings:
    width: int
    name: str
parser = argparse.ArgumentParser()
parser.add_argument("--run-name", default="x")
parser.add_argument("--width", type=int, default=8)
given = parser.parse_args()
os.makedirs(f"runs/{given.run_name}", exist_ok=True)
Path(f"runs/{given.run_name}/args.json").write_text(json.dumps(vars(given)))
@ejit(static_argnums=0)
def f(settings, x):
    traced.append("f")
    return x * settings.width
results.append(f(Settings(given.width, "n"), np.ones(4, np.float32)))
""",
    "metrics beside the code": """
import time
@ejit
def loss(p, x):
    traced.append("loss")
    return (p * x).sum()
def _loss(p, x):
    traced.append("gradient")
    return (p * x).sum()
gradient = ejit(jax.grad(_loss))
p = jnp.ones(8)
for _ in range(3):
    l = loss(p, np.ones(8, np.float32))
    p = p - gradient(p, np.ones(8, np.float32))
with open("metrics.csv", "a") as file:
    file.write(f"{time.time()}\\n")
results.append(l)
""",
    "a configuration with overrides": """
import time, yaml
config = yaml.safe_load(Path("conf/config.yaml").read_text())
for word in sys.argv[1:]:
    name, _, value = word.partition("=")
    config[name] = yaml.safe_load(value)
out = Path(f"outputs/{time.time()}")
out.mkdir(parents=True)
(out / "config.yaml").write_text(yaml.safe_dump(config))
@ejit
def step(w, x):
    traced.append("step")
    return w - config["rate"] * x.sum(), (w * x).sum()
w = jnp.ones(8)
for _ in range(3):
    w, loss = step(w, np.ones(8, np.float32))
results.append(loss)
""",
    "a directory of each run": """
import uuid
run = uuid.uuid4().hex
os.environ["WANDB_RUN_ID"] = run
place = Path(f"wandb/run_{run}")
place.mkdir(parents=True)
(place / "config.yaml").write_text(run)
(place / "out.log").write_text("x")
@ejit
def step(w, x):
    traced.append("step")
    return w - x, (w * x).sum()
w = jnp.ones(8)
for _ in range(3):
    w, loss = step(w, np.ones(8, np.float32))
    with open(place / "history.jsonl", "a") as file:
        file.write("x")
results.append(loss)
""",
    "layers that are traced again": """
@ejit
def step(w, x):
    traced.append("step")
    @jax.checkpoint
    def body(c, wi):
        return jnp.tanh(c @ wi), None
    loss, g = jax.value_and_grad(lambda w: jax.lax.scan(body, x, w)[0].sum())(w)
    return w - g, loss
w = jnp.ones((4, 8, 8))
for _ in range(3):
    w, loss = step(w, np.ones((4, 8), np.float32))
results.append(loss)
""",
    "a mesh": """
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
placed = NamedSharding(mesh, P("d"))
@ejit(in_shardings=(None, placed), out_shardings=(None, NamedSharding(mesh, P())))
def step(w, x):
    traced.append("step")
    return w - (x.T @ (x @ w)), (x @ w).sum()
w = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P()))
x = jax.device_put(np.ones((8, 8), np.float32), placed)
for _ in range(3):
    w, loss = step(w, x)
results.append(loss)
""",
    "optax": """
import optax
from typing import NamedTuple
class State(NamedTuple):
    params: dict
    opt: object
    n: object
tx = optax.chain(optax.clip(1.0), optax.adamw(optax.warmup_cosine_decay_schedule(0, 1e-3, 10, 100)))
params = {"w": jnp.ones((8, 8))}
s = State(params, tx.init(params), 0)
@ejit(donate_argnums=(0,))
def step(s, x):
    traced.append("step")
    loss, g = jax.value_and_grad(lambda p: ((x @ p["w"]) ** 2).mean())(s.params)
    updates, opt = tx.update(g, s.opt, s.params)
    return State(optax.apply_updates(s.params, updates), opt, s.n + 1), loss
for _ in range(3):
    s, loss = step(s, np.ones((4, 8), np.float32))
results.append(loss)
""",
    "equinox": """
import equinox as eqx, optax
model = eqx.nn.MLP(8, 8, 16, 2, key=jax.random.key(0))
arrays, static = eqx.partition(model, eqx.is_array)
tx = optax.adam(1e-3)
opt = tx.init(arrays)
@ejit
def step(arrays, opt, x):
    traced.append("step")
    loss, g = jax.value_and_grad(lambda a: (jax.vmap(eqx.combine(a, static))(x) ** 2).mean())(arrays)
    updates, opt = tx.update(g, opt)
    return eqx.apply_updates(arrays, updates), opt, loss
for _ in range(3):
    arrays, opt, loss = step(arrays, opt, np.ones((4, 8), np.float32))
results.append(loss)
""",
    "flax": """
import flax.linen as nn, optax
from flax.training.train_state import TrainState
class M(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(8)(nn.relu(nn.Dense(16)(x)))
m = M()
@ejit
def init(key):
    traced.append("init")
    return m.init(key, jnp.ones((4, 8)))
s = TrainState.create(apply_fn=m.apply, params=init(jax.random.key(0)), tx=optax.adamw(1e-3))
@ejit(donate_argnums=0)
def step(s, x):
    traced.append("step")
    loss, g = jax.value_and_grad(lambda p: (s.apply_fn(p, x) ** 2).mean())(s.params)
    return s.apply_gradients(grads=g), loss
for _ in range(3):
    s, loss = step(s, np.ones((4, 8), np.float32))
results.append(loss)
""",
    "flax nnx": """
import optax
from flax import nnx
class Model(nnx.Module):
    def __init__(self, rngs):
        self.a, self.b = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 8, rngs=rngs)
        self.d = nnx.Dropout(0.1, rngs=rngs)
    def __call__(self, x):
        return self.b(self.d(nnx.relu(self.a(x))))
model = Model(nnx.Rngs(0))
graph, state = nnx.split((model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)))
@ejit(static_argnums=0)
def train(graph, state, x):
    traced.append("train")
    model, opt = nnx.merge(graph, state)
    loss, g = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
    opt.update(model, g)
    return nnx.state((model, opt)), loss
for _ in range(3):
    state, loss = train(graph, state, np.ones((4, 8), np.float32))
results.append(loss)
""",
}
LIBRARIES = {
    "optax": "optax",
    "equinox": "equinox",
    "flax": "flax",
    "flax nnx": "flax",
    "a configuration with overrides": "yaml",
}
WORDS = {
    "settings as a static argument": lambda number: ["--run-name", f"run{number}"],
    "a configuration with overrides": lambda _: ["rate=0.2"],
}
IGNORED = {"settings as a static argument": "--run-name", "metrics beside the code": "metrics.csv"}
LAST = '\nprint(json.dumps({"traced": traced, "result": np.asarray(results[0]).tolist()}))\n'
QUICK = "functions in a row"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == QUICK else [pytest.mark.soak]) for name in SCRIPTS]
)
def test_a_third_start_of_a_script_traces_nothing(name, tmp_path):
    """Whatever it makes at each start; and it computes what the first start computed."""
    if name in LIBRARIES and importlib.util.find_spec(LIBRARIES[name]) is None:
        pytest.skip(f"{LIBRARIES[name]} is not installed")
    place = tmp_path / "project"
    (place / "conf").mkdir(parents=True)
    (place / "train.py").write_text(HEAD + SCRIPTS[name] + LAST)
    (place / "conf/config.yaml").write_text("rate: 0.1\n")
    said = []
    for number in range(3):
        run_program([sys.executable, "-c", "pass"])  # what was just written is older than what starts now
        env = {
            "CACHE_AT": str(tmp_path / "cache"), "XDG_CACHE_HOME": str(tmp_path / "home"), "EJCACHE_REUSE_FLOOR": "0",
            "EJCACHE_REUSE_CHECK_ONE_IN": "0", "EJCACHE_REUSE_IGNORE": IGNORED.get(name),
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4" if name == "a mesh" else None,
        }  # fmt: skip
        words = WORDS[name](number) if name in WORDS else []
        done = run_program([sys.executable, "train.py", *words], cwd=place, env=env)
        said.append(json.loads(done.stdout.splitlines()[-1]))
    assert said[0]["traced"] == said[1]["traced"] != said[2]["traced"] == []
    assert said[0]["result"] == said[1]["result"] == said[2]["result"]
