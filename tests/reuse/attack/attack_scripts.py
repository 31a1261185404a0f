# ruff: noqa: E501  # programs and their changes are tables of texts
"""Programs as people write them, each with the changes that people make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attack_inputs import _VECTOR

if TYPE_CHECKING:
    from attack_driver import Place


def _put(*new: str):
    return lambda q: setattr(q, "argv", list(new))


def argparse_with_files(p: Place) -> None:
    """argparse with arguments in files that include others."""
    p.write("proj/base.args", "--lr\n1\n@more.args\n")
    p.write("proj/more.args", "--decay\n1\n")
    p.argv = ["@base.args", "--tag", "x"]
    p.program(f"""
import argparse
parser = argparse.ArgumentParser(fromfile_prefix_chars="@")
parser.add_argument("--lr", type=int); parser.add_argument("--decay", type=int); parser.add_argument("--tag", default="")
args = parser.parse_args()
def values():
    return [args.lr, args.decay, len(args.tag)]
{_VECTOR}""")
    p.must("the named file", lambda q: q.write("proj/base.args", "--lr\n2\n@more.args\n"))
    p.listed(2, "a file that it names", lambda q: q.write("proj/more.args", "--decay\n2\n"))
    p.must("an abbreviation", _put("@base.args", "--ta", "xyz"))


def absl_flags(p: Place) -> None:
    """absl with a flag file."""
    p.write("out/flags", "--lr=1\n")
    p.argv = ["--flagfile=../out/flags", "--nofast"]
    p.program(f"""
from absl import flags
flags.DEFINE_integer("lr", 0, ""); flags.DEFINE_bool("fast", True, "")
F = flags.FLAGS
F(sys.argv)
def values():
    return [F.lr, int(F.fast)]
{_VECTOR}""")
    p.must("the flag file", lambda q: q.write("out/flags", "--lr=2\n"))
    p.must("a negation goes", _put("--flagfile=../out/flags", "--fast"))


def overrides_as_hydra(p: Place) -> None:
    """Groups of configuration that words choose, with defaults and overrides."""
    p.write("proj/conf/config.yaml", "model: small\nopt: adam\n")
    p.write("proj/conf/model/small.yaml", "width: 1\n")
    p.write("proj/conf/model/large.yaml", "width: 2\n")
    p.write("proj/conf/opt/adam.yaml", "lr: 1\n")
    p.argv = ["model=small", "+seed=1"]
    p.program(f"""
import yaml
here = Path(__file__).parent / "conf"
config = yaml.safe_load((here / "config.yaml").read_text())
for word in sys.argv[1:]:
    key, _, value = word.lstrip("+~").partition("=")
    config[key] = value
for group in ("model", "opt"):
    config.update(yaml.safe_load((here / group / (config[group] + ".yaml")).read_text()))
local = here / "local.yaml"
if local.exists():
    config.update(yaml.safe_load(local.read_text()))
def values():
    return [config["width"], config["lr"], int(config["seed"])]
{_VECTOR}""")
    p.must("another group", _put("model=large", "+seed=1"))
    p.must("another override", _put("model=small", "+seed=2"))
    p.must("a group's file", lambda q: q.write("proj/conf/model/small.yaml", "width: 3\n"))
    p.must("a default", lambda q: q.write("proj/conf/opt/adam.yaml", "lr: 3\n"))
    p.must("a new file of overrides", lambda q: q.write("proj/conf/local.yaml", "lr: 3\n"))
    p.twin("outputs of another start", lambda q: q.write("proj/outputs/2026/config.yaml", "lr: 3\n"))
    p.must(
        "a group's new file",
        lambda q: (
            q.write("proj/conf/opt/local.yaml", "lr: 8\n"),
            q.write("proj/conf/config.yaml", "model: small\nopt: local\n"),
        ),
    )


def dotenv(p: Place) -> None:
    """Settings from .env, by hand and through the environment."""
    p.write("proj/.env", "LR=1\n")
    p.write("proj/.env.production", "LR=5\n")
    p.env["APP_ENV"] = "none"
    p.program(f"""
for name in (".env", ".env." + os.environ["APP_ENV"]):
    if os.path.exists(name):
        os.environ.update(line.split("=") for line in open(name).read().split())
def values():
    return [int(os.environ["LR"]), int(os.environ.get("MOMENTUM", 0))]
{_VECTOR}""")
    p.must(".env", lambda q: q.write("proj/.env", "LR=2\n"))
    p.must("another .env", lambda q: q.env.update(APP_ENV="production"))
    p.must(".env grows", lambda q: q.write("proj/.env", "LR=1\nMOMENTUM=1\n"))
    p.must("a new .env", lambda q: q.write("proj/.env.none", "LR=7\n"))


def configuration_as_code(p: Place) -> None:
    """ml_collections style: a word names a module of configuration, and dataclasses are overridden."""
    p.write("proj/configs/__init__.py", "")
    p.write("proj/configs/base.py", "def get():\n    return dict(width=1, act='relu')\n")
    p.write(
        "proj/configs/wide.py", "from configs.base import get as base\ndef get():\n    return {**base(), 'width': 2}\n"
    )
    p.argv = ["configs/wide.py:tiny", "--config.act=tanh"]
    p.program(f"""
import importlib.util, dataclasses
path, _, variant = sys.argv[1].partition(":")
spec = importlib.util.spec_from_file_location("chosen", path)
module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)
config = module.get()
config["act"] = sys.argv[2].partition("=")[2]
def values():
    return [config["width"], len(config["act"]), len(variant)]
{_VECTOR}""")
    p.must("the named module", lambda q: q.replace("proj/configs/wide.py", "2", "3"))
    p.must(
        "what it imports",
        lambda q: (
            q.write(
                "proj/configs/base.py", "def get():\n    return dict(width=1, act='relu')\nimport configs.wide as w\n"
            )
            and q.replace("proj/configs/wide.py", "2", "4")
        ),
    )
    p.must("the variant", _put("configs/wide.py:small", "--config.act=tanh"))
    p.must("another module", _put("configs/base.py:tiny", "--config.act=tanh"))


def training(p: Place) -> None:
    """A training script of two functions, checkpoints, a log and a run's directory."""
    p.write("proj/conf/model.json", '{"width": 4, "layers": 2}')
    p.argv = ["--steps=3", "--out=runs"]
    p.env["RUN_NAME"] = "one"
    p.program("""
import dataclasses, functools, time
config = json.load(open("conf/model.json"))
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    params: dict
    step: jax.Array
    lr: float = dataclasses.field(metadata=dict(static=True), default=0.1)
@ejcache.ejit(reuse_lowering=True)
def init(key):
    traced("init")
    w = config["width"]
    return {f"l{i}": jax.random.normal(jax.random.fold_in(key, i), (w, w)) for i in range(config["layers"])}
def loss(params, x):
    for w in params.values():
        x = jnp.tanh(x @ w)
    return jnp.mean(x ** 2)
@functools.partial(ejcache.ejit, donate_argnums=0, reuse_lowering=True)
def train_step(state, x):
    traced("train_step")
    value, grads = jax.value_and_grad(loss)(state.params, x)
    params = jax.tree.map(lambda p, g: p - state.lr * g, state.params, grads)
    return dataclasses.replace(state, params=params, step=state.step + 1), value
params = init(jax.random.key(0))
state = State(params, jnp.int32(0))
os.makedirs("runs", exist_ok=True)
for _ in range(3):
    state, value = train_step(state, jnp.ones((2, config["width"])))
    print(time.time(), file=open("runs/log.json", "a"))
os.makedirs("checkpoints", exist_ok=True)
json.dump(float(value), open("checkpoints/last.json", "w"))
np.save("final.npy", np.asarray(value))
show(value, state.step)
""")
    p.must("the width", lambda q: q.write("proj/conf/model.json", '{"width": 5, "layers": 2}'))
    p.must("the layers", lambda q: q.write("proj/conf/model.json", '{"width": 4, "layers": 3}'))
    p.must("the rate", lambda q: q.replace("proj/main.py", "default=0.1", "default=0.2"))
    p.must("the loss", lambda q: q.replace("proj/main.py", "x ** 2", "x ** 4"))
    p.twin("another start", lambda q: None)
    p.twin("a run identifier", lambda q: q.env.update(WANDB_RUN_ID="b"))
    p.twin("a checkpoint", lambda q: q.write("proj/checkpoints/step_1/state.json", "1"))


def server(p: Place) -> None:
    """Weights baked into a function: an array of JAX, and numbers."""
    p.reuses = False
    p.write("out/weights.npy", b"")
    import io

    import numpy as np

    def save(q: Place, k: int) -> None:
        file = io.BytesIO()
        np.save(file, np.full(3, k, np.float32))
        q.write("out/weights.npy", file.getvalue())

    save(p, 1)
    p.program("""
import functools
weights = jnp.asarray(np.load("../out/weights.npy"))
def apply(w, x):
    traced("apply")
    return w @ x
show(ejcache.ejit(functools.partial(apply, weights), reuse_lowering=True)(jnp.ones(3)))
class Model:
    def __init__(self, w): self.w = w
    def __call__(self, x):
        traced("model")
        return self.w @ x
show(ejcache.ejit(Model(weights).__call__, reuse_lowering=True)(jnp.ones(3)))
@ejcache.ejit(reuse_lowering=True)
def closed(x):
    traced("closed")
    return jax.lax.cond(x[0] > 0, lambda: weights @ x, lambda: x.sum())
show(closed(jnp.ones(3)))
scale = weights[0]
@ejcache.ejit(reuse_lowering=True)
def scalar(x):
    traced("scalar")
    return x * scale
show(scalar(jnp.ones(3)))
@ejcache.ejit(reuse_lowering=True)
def scanned(x):
    traced("scanned")
    return jax.lax.scan(lambda c, _: (c + weights, None), x, None, length=2)[0]
show(scanned(jnp.ones(3)))
@ejcache.ejit(reuse_lowering=True)
def inner_jit(x):
    traced("inner_jit")
    return jax.jit(lambda y: y * weights)(x)
show(inner_jit(jnp.ones(3)))
@jax.custom_vjp
def cv(x): return x * weights
cv.defvjp(lambda x: (cv(x), None), lambda r, g: (g * weights,))
@ejcache.ejit(reuse_lowering=True)
def custom(x):
    traced("custom")
    return jax.grad(lambda y: cv(y).sum())(x)
show(custom(jnp.ones(3)))
""")
    p.must("other weights", lambda q: save(q, 2))


def array_made_in_the_trace(p: Place) -> None:
    """Arrays of JAX that never were constants of the jaxpr: computed while tracing, then a number."""
    p.write("proj/conf/k.json", "1")
    p.program("""
k = json.load(open("conf/k.json"))
@ejcache.ejit(reuse_lowering=True)
def step(x):
    traced("step")
    with jax.ensure_compile_time_eval():
        s = float(jnp.sum(jnp.arange(3) * k))
    return x * s
show(step(jnp.ones(2)))
""")
    p.must("the number", lambda q: q.write("proj/conf/k.json", "2"))


def registry(p: Place) -> None:
    """Functions that decorators register, found by importing all modules of a directory."""
    p.write(
        "proj/ops/__init__.py",
        "import pkgutil, importlib\nALL = {}\ndef op(f):\n    ALL[f.__name__] = f\n    return f\ndef load():\n    for m in pkgutil.iter_modules(__path__):\n        importlib.import_module('ops.' + m.name)\n",
    )
    p.write("proj/ops/add.py", "from ops import op\n@op\ndef add(x):\n    return x + 1\n")
    p.program("""
import ops
ops.load()
@ejcache.ejit(reuse_lowering=True)
def step(x):
    traced("step")
    for name in sorted(ops.ALL):
        x = ops.ALL[name](x)
    return x
show(step(jnp.float32(1)))
""")
    p.must("an operation changes", lambda q: q.replace("proj/ops/add.py", "+ 1", "+ 2"))
    p.must(
        "an operation comes",
        lambda q: q.write("proj/ops/mul.py", "from ops import op\n@op\ndef mul(x):\n    return x * 3\n"),
    )
    p.must("an operation goes", lambda q: q.path("proj/ops/add.py").unlink())


def templates(p: Place) -> None:
    """Code that is made from a template and executed."""
    p.write("proj/kernels/k.py.j2", "def kernel(x):\n    return x + {k}\n")
    p.write("proj/kernels/k.tmpl", "1")
    p.write("proj/kernels/values.json", '{"k": 1}')
    p.program("""
source = open("kernels/k.py.j2").read().format(**json.load(open("kernels/values.json")))
exec(compile(source, "<kernel>", "exec"))
@ejcache.ejit(reuse_lowering=True)
def step(x):
    traced("step")
    return kernel(x) + num("kernels/k.tmpl")
show(step(jnp.float32(1)))
""")
    p.must("the template", lambda q: q.replace("proj/kernels/k.py.j2", "x +", "x -"))
    p.must("its values", lambda q: q.write("proj/kernels/values.json", '{"k": 2}'))
    p.listed(2, "a template with another ending", lambda q: q.write("proj/kernels/k.tmpl", "2"))


def pickled_code(p: Place) -> None:
    """Marshalled and pickled code in the project: an ending that does not count, and one that does."""
    import marshal

    p.write("proj/code.pyc", marshal.dumps(compile("k = 1", "<m>", "exec")))
    p.program("""
import marshal
exec(marshal.loads(open("code.pyc", "rb").read()))
@ejcache.ejit(reuse_lowering=True)
def step(x):
    traced("step")
    return x + k
show(step(jnp.float32(1)))
""")
    p.must("the code", lambda q: q.write("proj/code.pyc", marshal.dumps(compile("k = 2", "<m>", "exec"))))


def two_functions_share_a_global(p: Place) -> None:
    """`init` leaves a number for `step` while it is traced; a later start asks for another shape."""
    p.write("out/batch.txt", "2")
    p.write("proj/conf/n.json", "7")
    p.program("""
N = 0
@ejcache.ejit(reuse_lowering=True)
def init(x):
    global N
    traced("init")
    N = num("conf/n.json")
    return x + 1
@ejcache.ejit(reuse_lowering=True)
def step(x):
    traced("step")
    return x * num("conf/n.json")
show(init(jnp.float32(1)))
show(step(jnp.ones(num("../out/batch.txt"))))
""")
    p.must("another batch", lambda q: q.write("out/batch.txt", "3"), traced="step")
    p.must("the number", lambda q: q.write("proj/conf/n.json", "8"))


def first_question_only_later(p: Place) -> None:
    """A start that stops early asks fewer questions; one that goes on asks more."""
    p.write("out/how_far.txt", "1")
    p.write("proj/conf/n.json", "1")
    p.program("""
for i in range(num("../out/how_far.txt")):
    def f(x):
        traced(f"f{i}")
        return x + i + num("conf/n.json")
    show(ejcache.ejit(f, reuse_lowering=True, name=f"f{i}")(jnp.float32(1)))
""")
    p.must("it goes on", lambda q: q.write("out/how_far.txt", "3"), traced="f2")
    p.must("configuration", lambda q: q.write("proj/conf/n.json", "2"))


def background_import(p: Place) -> None:
    """A thread imports what the trace needs."""
    p.write("lib/threaded.py", "k = 1\n")
    p.program("""
import threading
sys.path.append("../lib")
box = {}
def load():
    import threaded
    box["k"] = threaded.k
thread = threading.Thread(target=load)
thread.start()
@ejcache.ejit(reuse_lowering=True)
def step(x):
    traced("step")
    thread.join()
    return x + box["k"]
show(step(jnp.float32(1)))
thread.join()
""")
    p.must("the module", lambda q: q.write("lib/threaded.py", "k = 2\n"))


def subprocess_of_the_project(p: Place) -> None:
    """A script of the project, run as a program: its output is on the list, its file is not."""
    p.write("proj/tools/emit.py", "print(1)\n")
    p.program("""
import subprocess
k = int(subprocess.check_output([sys.executable, "tools/emit.py"]))
@ejcache.ejit(reuse_lowering=True)
def step(x):
    traced("step")
    return x + k
show(step(jnp.float32(1)))
""")
    p.must("the script", lambda q: q.write("proj/tools/emit.py", "print(2)\n"))


def main_is_imported_elsewhere(p: Place) -> None:
    """runpy, and a main file that is a shim for a module at another place."""
    p.write(
        "shim/start.py",
        "import runpy, sys\nsys.argv = ['train.py', *sys.argv[2:]]\nrunpy.run_path(PATH, run_name='__main__')\n".replace(
            "PATH", "'../proj/train.py'"
        ),
    )
    p.write("proj/conf.json", "1")
    p.write("proj/helper.py", "k = 1\n")
    p.program(
        f"""
sys.path.insert(0, str(Path(__file__).resolve().parent))
import helper
def values():
    return [num(Path(__file__).parent / "conf.json"), helper.k, 1]
{_VECTOR}""",
        "proj/train.py",
    )
    p.main, p.cwd = ["start.py", "a"], "shim"
    p.must("the script's configuration", lambda q: q.write("proj/conf.json", "2"))
    p.must("the script's module", lambda q: q.write("proj/helper.py", "k = 2\n"))
    p.must("the script", lambda q: q.replace("proj/train.py", "helper.k, 1", "helper.k, 2"))


def tested_with_unittest(p: Place) -> None:
    """python -m unittest, whose main belongs to Python: traced as usual, whatever a file says."""
    p.reuses = False
    p.write("out/k.txt", "1")
    p.program(
        """
import unittest
class T(unittest.TestCase):
    def test(self):
        @ejcache.ejit(reuse_lowering=True)
        def step(x):
            traced("step")
            return x + num("../out/k.txt")
        show(step(jnp.float32(1)))
""",
        "proj/test_it.py",
    )
    p.main = ["-m", "unittest", "test_it"]
    p.must("a number from outside", lambda q: q.write("out/k.txt", "2"))


def worker_of_multiprocessing(p: Place) -> None:
    """A worker that is spawned: traced as usual, whatever it is sent."""
    p.reuses = False
    p.write("out/k.txt", "1")
    p.program("""
import multiprocessing
def work(k):
    @ejcache.ejit(reuse_lowering=True)
    def step(x):
        traced("step")
        return x + k
    show(step(jnp.float32(1)))
    sys.stdout.flush()
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=work, args=(num("../out/k.txt"),))
    process.start(); process.join()
""")
    p.must("what it is sent", lambda q: q.write("out/k.txt", "2"))
