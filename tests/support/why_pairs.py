"""Changes that authors make to training scripts: pairs of real programs, and the words that name each change.

`tests/history/test_why_pairs.py` compiles both programs of each pair, one after the other, and reads the first line of
`ejcache why`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["MISLEADING", "PAIRS", "WhyPair"]

MLP = """
import jax, jax.numpy as jnp, numpy as np
from functools import partial

learning_rate = 0.001
momentum = 0.9
batch, width, classes = 32, 64, 10
layers = 2
dtype = jnp.float32
sizes = [width] * layers + [classes]
rng = np.random.default_rng(0)
params = [{"w": rng.normal(size=(a, b)).astype(dtype), "b": np.zeros(b, dtype)} for a, b in zip([width] + sizes, sizes)]
params = jax.tree.map(jnp.asarray, params)
opt_state = ()
x = jnp.asarray(rng.normal(size=(batch, width)), dtype)
y = jnp.asarray(rng.integers(0, classes, size=batch), jnp.int32)

def activation(h):
    return jnp.tanh(h)

def forward(params, x):
    h = x
    for layer in params[:-1]:
        h = activation(h @ layer["w"] + layer["b"])
    return h @ params[-1]["w"] + params[-1]["b"]

def loss(params, x, y):
    logits = forward(params, x)
    return jnp.mean((logits - jax.nn.one_hot(y, classes)) ** 2)

def update(params, opt_state, grads):
    return jax.tree.map(lambda p, g: p - learning_rate * g, params, grads), opt_state

@jax.jit
def train_step(params, opt_state, x, y):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    params, opt_state = update(params, opt_state, grads)
    return params, opt_state, value

jax.block_until_ready(train_step(params, opt_state, x, y))
"""

ATTENTION = """
import jax, jax.numpy as jnp, numpy as np

batch, seq, heads, dim = 4, 32, 4, 64
dropout_rate = 0.1
temperature = 1.0
causal = True
params = {name: jnp.ones((dim, dim), jnp.float32) for name in ("q", "k", "v", "o")}
scale_mask = np.linspace(0.0, 1.0, seq * seq, dtype=np.float32).reshape(seq, seq)
x = jnp.ones((batch, seq, dim), jnp.float32)
key = jax.random.key(0)

def attention(params, x, key):
    q, k, v = (jnp.reshape(x @ params[n], (*x.shape[:2], heads, -1)) for n in "qkv")
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / temperature
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((seq, seq), bool)), scores, -1e9)
    weights = jax.nn.softmax(scores)
    keep = jax.random.bernoulli(key, 1 - dropout_rate, weights.shape)
    weights = jnp.where(keep, weights, 0.0)
    out = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
    return out @ params["o"]

@jax.jit
def attend(params, x, key):
    return attention(params, x, key).sum()

jax.block_until_ready(attend(params, x, key))
"""

LOOP = """
import jax, jax.numpy as jnp, numpy as np

steps = 5
decay = 0.99
w = jnp.eye(16)
x = jnp.ones((8, 16))
table = np.arange(100, dtype=np.float32)

def cell(h, w):
    return jnp.tanh(h @ w) * decay

@jax.jit
def run(w, x):
    h = x
    for _ in range(steps):
        h = cell(h, w)
    return h

jax.block_until_ready(run(w, x))
"""

SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

devices = np.array(jax.devices())
mesh = Mesh(devices[:4].reshape(4), ("data",))
spec = P("data")
out = P("data")
x = jax.device_put(np.ones((8, 16), np.float32), NamedSharding(mesh, spec))
w = jax.device_put(np.ones((16, 16), np.float32), NamedSharding(mesh, P()))

def step(x, w):
    h = jnp.tanh(x @ w)
    return h * 2

step = jax.jit(step, out_shardings=NamedSharding(mesh, out))
jax.block_until_ready(step(x, w))
"""

SCALAR = """
import jax, jax.numpy as jnp, numpy as np
from functools import partial

x = jnp.ones((8, 16), jnp.bfloat16)
scale = 2.0
options = {}

@partial(jax.jit, static_argnames=("n", "mode"))
def apply(x, scale, n=2, mode="sum"):
    for _ in range(n):
        x = jnp.sin(x) * scale
    return x.sum(-1) if mode == "sum" else x.mean(-1)

jax.block_until_ready(apply(x, scale, **options))
"""


@dataclass(frozen=True)
class WhyPair:
    """Two programs.

    Attributes:
        title: what was changed.
        says: a regular expression that the first line must match.
        denies: a regular expression that no line may match: the wrong cause, or false advice.
        program: the text of the first one.
        edits: what is replaced in it to get the second one.
        env: variables of the two processes, if they need processes of their own.
        config: flags of JAX for the two programs.
        argv: arguments of the two processes, if they need processes of their own.
        function: whose miss is explained.
        quick: part of every test run.
    """

    title: str
    says: str
    program: str = MLP
    edits: tuple[tuple[str, str], ...] = ()
    env: tuple[dict[str, str], dict[str, str]] = ({}, {})
    config: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    argv: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    function: str = "train_step"
    quick: bool = field(default=False)
    denies: str = field(default="")

    @property
    def is_alone(self) -> bool:
        """Whether the two programs need processes of their own."""
        return bool(self.env[0] or self.env[1] or self.argv[0] or self.argv[1])

    @property
    def texts(self) -> tuple[str, str]:
        """The texts of the two programs."""
        after = self.program
        for old, new in self.edits:
            assert old in after, (self.title, old)
            after = after.replace(old, new)
        return self.program, after


SETS = """
import jax, jax.numpy as jnp

params = {name: jnp.ones(4) for name in ("decay", "momentum", "noise", "rate")}

@jax.jit
def total(params, x):
    for name in {"decay", "momentum", "noise", "rate"}:
        x = jnp.sin(x) * params[name]
    return x

total(params, jnp.ones(4))
"""


SWAPPED = """
import jax, jax.numpy as jnp

@jax.jit
def apply(x, y):
    return x - y

apply(jnp.ones(4), jnp.ones(4))
"""


def mlp(title: str, says: str, *edits: tuple[str, str], program: str = MLP, **more: Any) -> WhyPair:
    return WhyPair(title, says, program=program, edits=edits, **more)


def attention(title: str, says: str, *edits: tuple[str, str], program: str = ATTENTION, **more: Any) -> WhyPair:
    return WhyPair(title, says, program=program, edits=edits, function="attend", **more)


def loop(title: str, says: str, *edits: tuple[str, str], program: str = LOOP, **more: Any) -> WhyPair:
    return WhyPair(title, says, program=program, edits=edits, function="run", **more)


def scalar(title: str, says: str, *edits: tuple[str, str], program: str = SCALAR, **more: Any) -> WhyPair:
    return WhyPair(title, says, program=program, edits=edits, function="apply", **more)


FOUR = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
EIGHT = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}


def sharded(title: str, says: str, *edits: tuple[str, str], env: Any = (EIGHT, EIGHT), **more: Any) -> WhyPair:
    return WhyPair(title, says, program=SHARDED, edits=edits, env=env, function="step", **more)


def config(title: str, says: str, name: str, value: Any, was: Any = None, **more: Any) -> WhyPair:
    return WhyPair(title, says, config=({} if was is None else {name: was}, {name: value}), **more)


def flags(title: str, says: str, before: str, after: str, **more: Any) -> WhyPair:
    return WhyPair(title, says, env=({"XLA_FLAGS": before}, {"XLA_FLAGS": after}), **more)


SGD = "    return jax.tree.map(lambda p, g: p - learning_rate * g, params, grads), opt_state"
MOMENTUM = """    opt_state = jax.tree.map(lambda m, g: momentum * m + g, opt_state, grads)
    return jax.tree.map(lambda p, m: p - learning_rate * m, params, opt_state), opt_state"""
ZEROS = ("opt_state = ()", "opt_state = jax.tree.map(jnp.zeros_like, params)")
ADAM = """    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, opt_state[0], grads)
    nu = jax.tree.map(lambda n, g: 0.99 * n + 0.01 * g * g, opt_state[1], grads)
    params = jax.tree.map(lambda p, m, n: p - learning_rate * m / (jnp.sqrt(n) + 1e-8), params, mu, nu)
    return params, (mu, nu)"""
SQUARES = "    return jnp.mean((logits - jax.nn.one_hot(y, classes)) ** 2)"
ENTROPY = "    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))"
GLOBAL_NORM = """    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    grads = jax.tree.map(lambda g: g / norm, grads)
    params, opt_state = update"""
UNROLLED = """    h = x
    for _ in range(steps):
        h = cell(h, w)
    return h"""

PAIRS = [
    # -- numbers in the source
    mlp("learning rate", r"learning_rate changed: 0\.001 -> 0\.01 .*train\.py:5", ("0.001", "0.01"), quick=True),
    mlp(
        "learning rate in a dictionary",
        r"\blr changed: 0\.001 -> 0\.003",
        ("'lr': 0.001", "'lr': 0.003"),
        program=MLP.replace("learning_rate = 0.001", "config = {'lr': 0.001}").replace(
            "learning_rate *", "config['lr'] *"
        ),
    ),
    mlp(
        "weight decay",
        r"decay changed: 0\.1 -> 0\.2",
        ("decay = 0.1", "decay = 0.2"),
        program="decay = 0.1\n" + MLP.replace("learning_rate * g,", "learning_rate * (g + decay * p),"),
    ),
    mlp(
        "label smoothing",
        r"smoothing changed: 0\.05 -> 0\.15",
        ("smoothing = 0.05", "smoothing = 0.15"),
        program="smoothing = 0.05\n"
        + MLP.replace("jax.nn.one_hot(y, classes))", "jax.nn.one_hot(y, classes) * (1 - smoothing) - smoothing)"),
    ),
    mlp(
        "a literal in an expression",
        r"a constant changed: 3 -> 5 \(\d places\), train\.py:19",
        ("h * 3", "h * 5"),
        program=MLP.replace("tanh(h)", "tanh(h * 3)"),
    ),
    attention(
        "dropout rate",
        r"a constant changed: 0\.9 -> 0\.7, train\.py:19",
        ("dropout_rate = 0.1", "dropout_rate = 0.3"),
    ),
    attention("temperature", r"temperature changed: 1 -> 0\.7", ("temperature = 1.0", "temperature = 0.7"), quick=True),
    attention("the value of a mask", r"a constant changed: -1e\+09 -> -10000, train\.py:17", ("-1e9", "-1e4")),
    attention(
        "a captured table",
        r"the contents of a captured array changed, train\.py:15",
        ("0.0, 1.0, seq", "0.0, 2.0, seq"),
        program=ATTENTION.replace("/ temperature", "/ temperature * scale_mask"),
        quick=True,
    ),
    loop("decay", r"decay changed: 0\.99 -> 0\.9", ("0.99", "0.9")),
    loop(
        "a small captured array",
        r"a constant changed: \[1, 2, 3, 5\] -> \[1, 2, 4, 5\], train\.py:15",
        ("2.0, 3.0", "2.0, 4.0"),
        program=LOOP.replace("h = x\n", "h = x * jnp.repeat(np.array([1.0, 2.0, 3.0, 5.0], np.float32), 4)\n"),
    ),
    loop(
        "a large captured array",
        r"the contents of a captured array changed, train\.py:18",
        ("np.arange(100,", "1 + np.arange(100,"),
        program=LOOP.replace("return h\n", "return h, h.sum() + table\n"),
    ),
    loop(
        "a seed in the program",
        r"constant changed: 0 -> 1",
        ("jax.random.key(0)", "jax.random.key(1)"),
        program=LOOP.replace("h = x\n", "h = x + jax.random.normal(jax.random.key(0), x.shape)\n"),
    ),
    loop(
        "an integer in the program",
        r"constant changed: 7 -> 9",
        ("+ 7", "+ 9"),
        program=LOOP.replace("return h\n", "return h, jnp.argmax(h) + 7\n"),
    ),
    attention(
        "captured keys",
        r"the contents of a captured array changed, train\.py:27",
        ("key(5)", "key(6)"),
        program=ATTENTION.replace(
            "key = jax.random.key(0)",
            "key = jax.random.key(0)\nkeys = np.asarray(jax.random.key_data(jax.random.split(jax.random.key(5), 64)))",
        ).replace("key).sum()", "key).sum() + jnp.asarray(keys).max()"),
    ),
    # -- shapes
    mlp(
        "batch size",
        r"argument x changed: f32\[32,64\] -> f32\[64,64\]",
        ("batch, width, classes = 32", "batch, width, classes = 64"),
        quick=True,
    ),
    mlp(
        "a last, smaller batch",
        r"argument x changed: f32\[32,64\] -> f32\[7,64\]",
        ("batch, width, classes = 32", "batch, width, classes = 7"),
    ),
    mlp(
        "width of the layers",
        r"argument x changed: f32\[32,64\] -> f32\[32,128\] and 5 more",
        ("32, 64, 10", "32, 128, 10"),
    ),
    mlp(
        "number of classes",
        r"argument params\[2\]\['b'\] changed: f32\[10\] -> f32\[12\] and 1 more",
        ("32, 64, 10", "32, 64, 12"),
    ),
    mlp(
        "more layers",
        r"2 arguments were added: params\[3\]\['b'\] f32\[10\], params\[3\]\['w'\]",
        ("layers = 2", "layers = 3"),
        quick=True,
    ),
    mlp(
        "fewer layers",
        r"2 arguments were removed: params\[2\]\['b'\] f32\[10\], params\[2\]\['w'\]",
        ("layers = 2", "layers = 1"),
    ),
    attention(
        "sequence length",
        r"argument x changed: f32\[4,32,64\] -> f32\[4,48,64\]",
        ("4, 32, 4, 64", "4, 48, 4, 64"),
        quick=True,
    ),
    attention(
        "number of heads",
        r"reshape changed: f32\[4,32,4,16\] -> f32\[4,32,8,8\], train\.py:14",
        ("4, 32, 4, 64", "4, 32, 8, 64"),
    ),
    attention(
        "batch of attention",
        r"argument x changed: f32\[4,32,64\] -> f32\[8,32,64\]",
        ("= 4, 32", "= 8, 32"),
    ),
    attention(
        "dimension of the model",
        r"argument x changed: f32\[4,32,64\] -> f32\[4,32,128\] and 4 more",
        ("4, 32, 4, 64", "4, 32, 4, 128"),
    ),
    loop(
        "rank of an argument",
        r"argument x changed: f32\[8,16\] -> f32\[16\]",
        ("jnp.ones((8, 16))", "jnp.ones(16)"),
    ),
    loop(
        "images",
        r"argument x changed: f32\[8,16\] -> f32\[8,28,16\]",
        ("jnp.ones((8, 16))", "jnp.ones((8, 28, 16))"),
    ),
    scalar(
        "another batch of bfloat16",
        r"argument x changed: bf16\[8,16\] -> bf16\[4,16\]",
        ("(8, 16)", "(4, 16)"),
    ),
    # -- data types
    mlp(
        "dtype",
        r"argument x changed: f32\[32,64\] -> bf16\[32,64\] and 6 more",
        ("dtype = jnp.float32", "dtype = jnp.bfloat16"),
        quick=True,
    ),
    mlp(
        "float16",
        r"argument x changed: f32\[32,64\] -> f16\[32,64\] and 6 more",
        ("dtype = jnp.float32", "dtype = jnp.float16"),
    ),
    mlp(
        "mixed precision inside",
        r"the computation changed at train\.py:\d+ in forward: \+ \d convert",
        ("h = x\n", "h = x.astype(jnp.bfloat16)\n"),
    ),
    mlp(
        "labels of another integer type",
        r"argument y changed: i32\[32\] -> u8\[32\]",
        ("jnp.int32", "jnp.uint8"),
    ),
    scalar(
        "a Python scalar became an array",
        r"because the weak type of argument scale changed: f32\[\] weakly typed -> f32\[\] strongly typed",
        ("scale = 2.0", "scale = jnp.float32(2.0)"),
        quick=True,
    ),
    scalar(
        "an integer became a float",
        r"argument scale changed: i32\[\] -> f32\[\]",
        ("scale = 2\n", "scale = 2.5\n"),
        program=SCALAR.replace("scale = 2.0", "scale = 2"),
    ),
    scalar(
        "a scalar became a vector",
        r"argument scale changed: f32\[\] -> f32\[16\]",
        ("scale = 2.0", "scale = jnp.ones(16)"),
    ),
    scalar(
        "a NumPy scalar",
        r"the weak type of argument scale changed: f32\[\] weakly typed -> f32\[\] strongly typed",
        ("scale = 2.0", "scale = np.float32(2.0)"),
    ),
    config("x64", r"jax_enable_x64 changed: .*-> True", "jax_enable_x64", True, quick=True),
    mlp(
        "batch and learning rate",
        r"argument x changed: f32\[32,64\] -> f32\[16,64\].*learning_rate changed: 0\.001 -> 0\.1",
        ("0.001", "0.1"),
        ("= 32, 64", "= 16, 64"),
    ),
    # -- code
    mlp(
        "activation",
        r"computation changed at train\.py:\d+ in activation: .*tanh",
        ("jnp.tanh(h)", "jax.nn.relu(h)"),
        quick=True,
    ),
    mlp("activation gelu", r"computation changed at train\.py:\d+ in activation", ("jnp.tanh(h)", "jax.nn.gelu(h)")),
    mlp("loss", r"computation changed at train\.py:\d+ in loss", (SQUARES, ENTROPY)),
    mlp("optimizer momentum", r"6 arguments were added: opt_state\[0\]\['b'\]", (SGD, MOMENTUM), ZEROS),
    mlp(
        "optimizer adam",
        r"12 arguments were added: opt_state\[0\]\[0\]\['b'\]",
        (SGD, ADAM),
        (ZEROS[0], "opt_state = (jax.tree.map(jnp.zeros_like, params),) * 2"),
    ),
    mlp(
        "gradient clipping",
        r"computation changed at train\.py:\d+ in train_step",
        (
            "    params, opt_state = update",
            "    grads = jax.tree.map(lambda g: jnp.clip(g, -1.0, 1.0), grads)\n    params, opt_state = update",
        ),
    ),
    mlp(
        "global norm",
        r"the computation changed at train\.py:\d+ in train_step",
        (
            "    params, opt_state = update",
            GLOBAL_NORM,
        ),
    ),
    mlp(
        "regularisation",
        r"computation changed at train\.py:\d+ in loss",
        ("classes)) ** 2)", "classes)) ** 2) + sum(jnp.sum(p['w']**2) for p in params)"),
    ),
    mlp(
        "residual connections",
        r"computation changed at train\.py:\d+ in forward: \+ .*add",
        (
            '        h = activation(h @ layer["w"] + layer["b"])',
            '        h = h + activation(h @ layer["w"] + layer["b"])',
        ),
    ),
    mlp(
        "layer normalisation",
        r"computation changed at train\.py:\d+ in forward",
        (
            "    return h @ params[-1]",
            "    h = (h - h.mean(-1, keepdims=True)) / (h.std(-1, keepdims=True) + 1e-5)\n    return h @ params[-1]",
        ),
    ),
    mlp(
        "metrics are returned too",
        r"1 result was added: result\[3\]",
        ("return params, opt_state, value", "return params, opt_state, value, optax_like(grads)"),
        ("@jax.jit", "def optax_like(g):\n    return jnp.max(g[0]['w'])\n\n@jax.jit"),
    ),
    mlp(
        "gradients are returned too",
        r"6 results were added: result\[3\]\[0\]",
        ("return params, opt_state, value", "return params, opt_state, value, grads"),
    ),
    mlp(
        "remat",
        r"computation changed at .*: \+ optimization_barrier \(rematerialisation: jax\.checkpoint\)",
        ("jax.value_and_grad(loss)", "jax.value_and_grad(jax.checkpoint(loss))"),
        quick=True,
    ),
    mlp(
        "a bug was fixed: mean, not sum",
        r"the computation changed at train\.py:29 in loss: - 2 divide",
        ("jnp.mean((logits", "jnp.sum((logits"),
    ),
    mlp(
        "power of the loss",
        r"the computation changed at train\.py:29 in loss.*constant changed: 2 -> 4, train\.py:29",
        ("classes)) ** 2)", "classes)) ** 4)"),
    ),
    mlp(
        "function renamed",
        r"the function was renamed: train_step -> train_one_step",
        ("train_step", "train_one_step"),
        function="train_one_step",
        quick=True,
    ),
    mlp(
        "a print for debugging",
        r"\+ custom_call \S*callback \(a callback into Python: jax\.debug\.print|calls back into the process",
        ("    value, grads", "    jax.debug.print('step')\n    value, grads"),
    ),
    attention(
        "causal or not",
        r"computation changed at train\.py:\d+ in attention: - .*(select|compare|_where|tril)",
        ("causal = True", "causal = False"),
    ),
    attention(
        "softmax replaced",
        r"computation changed at train\.py:\d+ in attention",
        ("jax.nn.softmax(scores)", "jax.nn.sigmoid(scores)"),
    ),
    attention(
        "gradient of it",
        r"4 results were added: result\[\'k\'\]",
        ("return attention(params, x, key).sum()", "return jax.grad(lambda p: attention(p, x, key).sum())(params)"),
    ),
    attention(
        "the order of an einsum",
        r"the computation changed at train\.py:15 in attention: dot_general takes its operands in another order",
        ("bqhd,bkhd->bhqk", "bqhd,bkhd->bhkq"),
        quick=True,
    ),
    loop(
        "number of unrolled steps",
        r"computation changed at train\.py:11 in cell: \+ 2 dot_general, 2 tanh, 2 multiply",
        ("steps = 5", "steps = 7"),
    ),
    loop(
        "scan in place of a loop",
        r"computation changed at train\.py:15 in run: \+ while \(a loop: scan.*\)",
        (UNROLLED, "    return jax.lax.scan(lambda h, _: (cell(h, w), None), x, None, length=steps)[0]"),
        quick=True,
    ),
    loop(
        "steps of a fori_loop",
        r"steps changed: 5 -> 50, train\.py:4",
        ("steps = 5", "steps = 50"),
        program=LOOP.replace(UNROLLED, "    return jax.lax.fori_loop(0, steps, lambda i, h: cell(h, w), x)"),
    ),
    loop(
        "a loop unrolled",
        r"computation changed at .*; - while \(a loop: scan.*\)",
        ("unroll=1", "unroll=5"),
        program=LOOP.replace(
            UNROLLED, "    return jax.lax.scan(lambda h, _: (cell(h, w), None), x, None, length=steps, unroll=1)[0]"
        ),
    ),
    loop(
        "a branch",
        r"computation changed at train\.py:18 in run: \+ case \(a branch: cond, switch\)",
        ("    return h\n", "    return jax.lax.cond(h.sum() > 0, lambda h: h, lambda h: jnp.sin(h), h)\n"),
    ),
    loop(
        "a while loop",
        r"computation changed at train\.py:15 in .*: \+ while \(a loop: ",
        (UNROLLED, "    return jax.lax.while_loop(lambda h: h.sum() < 1.0, lambda h: cell(h, w), x)"),
    ),
    loop(
        "vmap over the other axis",
        r"the computation changed at train\.py:\d+ in \w+: .*transpose",
        ("h = cell(h, w)", "h = jax.vmap(cell, (1, None), 1)(h.T, w).T"),
    ),
    loop(
        "an axis of a sum",
        r"the result changed: f32\[16\] -> f32\[8\]; reduce changed: dimensions = \[0\] -> \[1\], train\.py:18",
        ("return h.sum(0)", "return h.sum(1)"),
        program=LOOP.replace("return h\n", "return h.sum(0)\n"),
    ),
    loop(
        "order of operations",
        r"the computation changed at train\.py:11 in cell",
        ("jnp.tanh(h @ w) * decay", "jnp.tanh((h * decay) @ w)"),
    ),
    loop(
        "transposed weights", r"the computation changed at train\.py:11 in cell: \+ 5 transpose", ("h @ w", "h @ w.T")
    ),
    # -- static arguments
    scalar(
        "static argument",
        r"computation changed at train\.py:12 in apply: \+ sine, multiply",
        ("options = {}", "options = {'n': 3}"),
        quick=True,
    ),
    scalar(
        "static mode", r"computation changed at train\.py:\d+ in apply", ("options = {}", "options = {'mode': 'mean'}")
    ),
    # -- precision, random numbers, settings of JAX
    mlp(
        "precision of one product",
        r"dot_general changed: precision = \[DEFAULT, DEFAULT\] -> \[HIGHEST, HIGHEST\].*train\.py:25",
        ('h @ params[-1]["w"]', 'jnp.matmul(h, params[-1]["w"], precision="highest")'),
    ),
    config(
        "precision of all products",
        r"jax_default_matmul_precision changed: .* -> .*highest",
        "jax_default_matmul_precision",
        "highest",
        quick=True,
    ),
    attention(
        "random generator",
        r"argument key changed: u32\[2\] -> u32\[4\]; .*rng_bit_generator \(random numbers: jax_default_prng_impl",
        ("jax.random.key(0)", "jax.random.key(0, impl='rbg')"),
    ),
    attention(
        "random generator by flag",
        r"argument key changed: u32\[2\] -> u32\[4\]; .*rng_bit_generator \(random numbers: jax_default_prng_impl",
        config=({}, {"jax_default_prng_impl": "rbg"}),
    ),
    attention(
        "partitionable random numbers",
        r"the setting jax_threefry_partitionable changed: .* -> False",
        config=({}, {"jax_threefry_partitionable": False}),
    ),
    scalar("default dtype", r"the setting jax_enable_x64 changed: .* -> True", config=({}, {"jax_enable_x64": True})),
    config("optimization level", r"optimization_level changed: .* -> O2", "jax_optimization_level", "O2"),
    config("memory fitting level", r"memory_fitting_level changed: .* -> O1", "jax_memory_fitting_level", "O1"),
    # -- compiler options and flags
    mlp(
        "compiler option",
        r"compiler_options changed: \+ xla_cpu_enable_fast_math=True",
        ("@jax.jit", "@partial(jax.jit, compiler_options={'xla_cpu_enable_fast_math': True})"),
        quick=True,
    ),
    mlp(
        "value of a compiler option",
        r"compiler_options changed: xla_cpu_enable_fast_math=True -> False",
        ("fast_math': True", "fast_math': False"),
        program=MLP.replace("@jax.jit", "@partial(jax.jit, compiler_options={'xla_cpu_enable_fast_math': True})"),
    ),
    flags(
        "an XLA flag", r"XLA_FLAGS changed: \+ --xla_cpu_enable_fast_math=true", "", "--xla_cpu_enable_fast_math=true"
    ),
    flags(
        "value of an XLA flag",
        r"XLA_FLAGS changed: --xla_cpu_max_isa=AVX2 -> AVX",
        "--xla_cpu_max_isa=AVX2",
        "--xla_cpu_max_isa=AVX",
    ),
    flags(
        "an XLA flag less",
        r"XLA_FLAGS changed: - --xla_allow_excess_precision=false",
        "--xla_allow_excess_precision=false",
        "",
    ),
    flags(
        "a flag and a number",
        r"XLA_FLAGS changed: \+ --xla_allow_excess_precision=false",
        "--xla_cpu_enable_fast_math=true",
        "--xla_cpu_enable_fast_math=true --xla_allow_excess_precision=false",
    ),
    WhyPair(
        "a flag on the command line",
        r"flags on the command line changed: \+ --xla_cpu_enable_fast_math=true",
        argv=((), ("--xla_cpu_enable_fast_math=true",)),
    ),
    WhyPair("x64 by a variable", r"jax_enable_x64 changed: .* -> True", env=({}, {"JAX_ENABLE_X64": "1"})),
    WhyPair(
        "namespace", r"EJCACHE_NAMESPACE changed: \(none\) -> v2", env=({}, {"EJCACHE_NAMESPACE": "v2"}), quick=False
    ),
    WhyPair(
        "precision by a variable",
        r"jax_default_matmul_precision changed: .* -> highest",
        env=({}, {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}),
    ),
    WhyPair(
        "a fresh compilation is forced", r"EASYDEL_RECOMPILE_FORCE asks", env=({}, {"EASYDEL_RECOMPILE_FORCE": "1"})
    ),
    # -- donation, devices and sharding
    mlp(
        "donation",
        r"the donation of argument params\[0\]\['b'\] and 5 more changed: none -> donated",
        ("@jax.jit", "@partial(jax.jit, donate_argnums=0)"),
        quick=True,
    ),
    mlp(
        "donation no longer",
        r"the donation of argument params\[0\]\['b'\] and 5 more changed: donated -> none",
        ("donate_argnums=0", "donate_argnums=()"),
        program=MLP.replace("@jax.jit", "@partial(jax.jit, donate_argnums=0)"),
    ),
    sharded(
        "number of devices",
        r"the number of devices changed: 4 -> 2",
        ("devices[:4].reshape(4)", "devices[:2].reshape(2)"),
    ),
    sharded(
        "number of host devices",
        r"the number of devices changed: 4 -> 8",
        ("devices[:4].reshape(4)", "devices.reshape(-1)"),
        env=(FOUR, EIGHT),
    ),
    sharded(
        "sharding of an argument",
        r"the sharding of argument x changed: P\('data'\) -> P\(None, 'data'\)",
        ('spec = P("data")', 'spec = P(None, "data")'),
    ),
    sharded(
        "replicated",
        r"the sharding of argument x changed: P\('data'\) -> P\(\)",
        ('spec = P("data")', "spec = P()"),
    ),
    sharded(
        "sharding of the result",
        r"the sharding of the result changed: P\('data'\) -> P\(None, 'data'\)",
        ('out = P("data")', 'out = P(None, "data")'),
    ),
    sharded(
        "names of the mesh",
        r"the mesh changed: data=4 -> batch=4",
        ('("data",)', '("batch",)'),
        ('P("data")', 'P("batch")'),
    ),
    sharded(
        "shape of the mesh",
        r"the mesh changed: data=4 -> data=2, model=2",
        ('reshape(4), ("data",)', 'reshape(2, 2), ("data", "model")'),
    ),
    sharded(
        "a constraint inside",
        r"computation changed at train\.py:\d+ in step: \+ .*sharding_constraint",
        (
            "    return h * 2",
            "    h = jax.lax.with_sharding_constraint(h, NamedSharding(mesh, P(None, 'data')))\n    return h * 2",
        ),
    ),
    WhyPair(
        "another hash seed",
        r"the order of a set or dict changed.* the same operations in another order, first at train\.py:9 in total",
        program=SETS,
        env=({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"}),
        function="total",
        quick=True,
    ),
    WhyPair(
        "operands swapped",
        r"subtract changed: x, y -> y, x, train\.py:6",
        program=SWAPPED,
        edits=(("x - y", "y - x"),),
        function="apply",
    ),
    sharded(
        "one device only",
        r"the number of devices changed: 4 -> 1",
        ("devices[:4].reshape(4)", "devices[:1].reshape(1)"),
    ),
]


# -- pairs in which the obvious answer is wrong ------------------------------------------------------------------------

WEAK = """
import jax, jax.numpy as jnp, numpy as np

w = jnp.full((4, 4), 0.5, jnp.float32)
x = jnp.ones((8, 4))
scale = 1.0
count = 3
pair = (1.0, 2.0)
state = {"w": w, "scale": 0.5, "decay": 0.9}

@jax.jit
def step(state, x, scale, count, pair):
    h = jnp.tanh(x @ state["w"]) * scale + (jnp.ones(4, jnp.int8) + count)
    new = {"w": state["w"] - 0.1 * (x.T @ h), "scale": state["scale"] * np.float32(0.9), "decay": state["decay"] + 1}
    return new, h * pair[0] - pair[1] * state["scale"]

after, _ = step(state, x, scale, count, pair)
"""

HALF = """
import jax, jax.numpy as jnp

x = jnp.ones((8, 4), jnp.bfloat16)
gain = 2.0

@jax.jit
def step(x, gain):
    return jnp.sin(x) * gain

step(x, gain)
"""

SEVERAL = """
import jax, jax.numpy as jnp
from functools import partial

x = jnp.ones((8, 4))
y = jnp.ones(3)
second = False

FIRST
if second:
    SECOND
"""

SIZES = """
import jax, jax.numpy as jnp, numpy as np

learning_rate = 0.25
rows, columns = 40, 8
x = jnp.ones((rows, columns))
w = jnp.ones((columns, 8))

@jax.jit
def step(x, w):
    return BODY

step(x, w)
"""

PLACED = """
import jax, jax.numpy as jnp, numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding

mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
put = lambda value, *spec: jax.device_put(value, NamedSharding(mesh, P(*spec)))
params = {"w": put(np.ones((8, 8), np.float32)), "b": put(np.ones(8, np.float32))}
x = put(np.ones((16, 8), np.float32), "data")

@jax.jit
def step(params, x):
    return jnp.tanh(x @ params["w"]) + params["b"]

step(params, x)
"""

COMMITTED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
params = {"w": jnp.ones((8, 8))}
x = jnp.ones((16, 8))

@jax.jit
def step(params, batch):
    return jnp.tanh(batch["x"] @ params["w"])

step(params, {"x": x})
"""

_UNPLACED = r"mesh changed|computation changed|constant changed|pad it|the result "
_WRONG = r"computation changed|constant changed|result changed|pass (it|the array|the constant) as an argument|pad it"


def weak(title: str, says: str, *edits: tuple[str, str], program: str = WEAK, **more: Any) -> WhyPair:
    return WhyPair(title, says, program=program, edits=edits, function="step", denies=_WRONG, **more)


def several(title: str, first: str, second: str, function: str, says: str = "it is new here", **more: Any) -> WhyPair:
    """The second program calls another function as well."""
    program = SEVERAL.replace("FIRST", first).replace("SECOND", second)
    edits = (("second = False", "second = True"),)
    denies = r" changed|pass .* as an argument|pad it"
    return WhyPair(title, says, program=program, edits=edits, function=function, denies=denies, **more)


def sized(title: str, body: str, *edits: tuple[str, str], says: str = "", denies: str = "", **more: Any) -> WhyPair:
    return WhyPair(
        title,
        says or r"because argument x changed: f32\[40,8\] -> f32\[20,8\]",
        program=SIZES.replace("BODY", body),
        edits=edits or (("rows, columns = 40", "rows, columns = 20"),),
        function="step",
        denies=denies or r"constant changed|contents of a captured|as an argument|\b(rows|columns) changed",
        **more,
    )


def placed(title: str, says: str, *edits: tuple[str, str], **more: Any) -> WhyPair:
    denies = r"computation changed|constant changed|pad it"
    return WhyPair(title, says, program=PLACED, edits=edits, env=(EIGHT, EIGHT), function="step", denies=denies, **more)


def strong(path: str, type_: str) -> str:
    return rf"because the weak type of argument {path} changed: {type_} weakly typed -> {type_} strongly typed"


MISLEADING = [
    weak(
        "a float became an array", strong("scale", r"f32\[\]"), ("scale = 1.0", "scale = jnp.float32(1.0)"), quick=True
    ),
    weak(
        "an array became a float",
        r"because the weak type of argument scale changed: f32\[\] strongly typed -> f32\[\] weakly typed",
        ("scale = jnp.float32(1.0)", "scale = 1.0"),
        program=WEAK.replace("scale = 1.0", "scale = jnp.float32(1.0)"),
    ),
    weak("an integer became an array", strong("count", r"i32\[\]"), ("count = 3", "count = jnp.int32(3)")),
    weak("a counter of JAX's", strong("count", r"i32\[\]"), ("count = 3", "count = jnp.zeros((), int)")),
    weak("NumPy's double", strong("scale", r"f32\[\]"), ("scale = 1.0", "scale = np.float64(1.0)")),
    weak("one of a pair", strong(r"pair\[0\]", r"f32\[\]"), ("(1.0, 2.0)", "(jnp.float32(1.0), 2.0)")),
    weak(
        "both of a pair",
        r"weak type of argument pair\[0\] and 1 more changed",
        ("(1.0, 2.0)", "(jnp.float32(1.0), jnp.float32(2.0))"),
    ),
    weak("in a state", strong(r"state\['scale'\]", r"f32\[\]"), ('"scale": 0.5', '"scale": jnp.float32(0.5)')),
    weak(
        "a filled array",
        strong("x", r"f32\[8,4\]"),
        ("jnp.full((8, 4), 1.0)", "jnp.ones((8, 4))"),
        program=HALF.replace("jnp.ones((8, 4), jnp.bfloat16)", "jnp.full((8, 4), 1.0)").replace(
            "gain = 2.0", "gain = jnp.bfloat16(2)"
        ),
    ),
    weak(
        "the state that the first step returns",
        strong(r"state\['scale'\]", r"f32\[\]"),
        (
            "after, _ = step(state, x, scale, count, pair)",
            "for _ in range(2): state, _ = step(state, x, scale, count, pair)",
        ),
        quick=True,
    ),
    weak("another result follows", strong("gain", r"f32\[\]"), ("gain = 2.0", "gain = jnp.float32(2.0)"), program=HALF),
    weak(
        "a schedule that returns arrays",
        strong("scale", r"f32\[\]"),
        ("scale = schedule(0)", "scale = schedule(1)"),
        program=WEAK.replace(
            "scale = 1.0", "schedule = lambda n: 1.0 if n == 0 else jnp.float32(0.5)\nscale = schedule(0)"
        ),
    ),
    several("two lambdas", "jax.jit(lambda x: x.sum())(x)", "jax.jit(lambda x: x.sum())(y)", "jit__lambda", quick=True),
    several(
        "lambdas that differ in a number", "jax.jit(lambda x: x * 2)(x)", "jax.jit(lambda x: x * 3)(x)", "jit__lambda"
    ),
    several(
        "lambdas of two functions",
        "def one(): return jax.jit(lambda x: x + 1)(x)\ndef two(): return jax.jit(lambda x: x + 2)(x)\none()",
        "two()",
        "jit__lambda",
    ),
    several(
        "closures of one name",
        "def one():\n    def step(x): return x + 1\n    return step\n"
        "def two():\n    def step(x): return x + 2\n    return step\njax.jit(one())(x)",
        "jax.jit(two())(x)",
        "step",
        quick=True,
    ),
    several(
        "methods of one name",
        "class Trainer:\n    def step(self, x): return jnp.sin(x)\n"
        "class Evaluator:\n    def step(self, x): return jnp.cos(x)\njax.jit(Trainer().step)(x)",
        "jax.jit(Evaluator().step)(x)",
        "step",
    ),
    several(
        "one name in two files",
        "def step(x): return x * 2\njax.jit(step)(x)\n"
        "other = {'jnp': jnp}\nexec(compile('def step(x): return x * 3', '/tmp/models/other.py', 'exec'), other)",
        "jax.jit(other['step'])(x)",
        "step",
    ),
    several(
        "one name for other shapes",
        "def one():\n    def run(x): return x.mean()\n    return run\n"
        "def two():\n    def run(x): return x.max()\n    return run\njax.jit(one())(x)",
        "jax.jit(two())(y)",
        "run",
    ),
    WhyPair(
        "a number in a lambda",
        r"a constant changed: 2 -> 3, train\.py:6",
        program="import jax, jax.numpy as jnp\n\nx = jnp.ones(4)\n\n\njax.jit(lambda x: x * 2)(x)\n",
        edits=(("x * 2", "x * 3"),),
        function="jit__lambda",
        denies="new here",
    ),
    WhyPair(
        "a lambda that moved",
        r"because argument x changed: f32\[4\] -> f32\[5\]",
        program="import jax, jax.numpy as jnp\nx = jnp.ones(4)\njax.jit(lambda x: x * 2)(x)\n",
        edits=(("x = jnp.ones(4)", "\n\nx = jnp.ones(5)"),),
        function="jit__lambda",
        denies="new here|constant changed",
    ),
    sized("a mean", "(x @ w).mean()", quick=True),
    sized("a mean over rows", "(x @ w).mean(0)"),
    sized("a variance with one degree less", "(x @ w).var(0, ddof=1)"),
    sized("a root of the size", "x.sum() / jnp.sqrt(x.shape[0])"),
    sized("a size as a number", "x.sum() * x.shape[0]"),
    sized("the last row", "x.at[x.shape[0] - 1].set(0.0) @ w"),
    sized("the middle row", "x[x.shape[0] // 2] + jnp.float32(x.shape[0] / 2)"),
    sized("positions", "x + np.arange(x.shape[0], dtype=np.float32)[:, None]"),
    sized("a table of the size", "x * np.linspace(0.0, 1.0, x.shape[0] * 8, dtype=np.float32).reshape(-1, 8)"),
    sized("a triangle", "np.tril(np.ones((x.shape[0],) * 2, np.float32)) @ x"),
    sized("divided by a name", "(x @ w).sum() / rows", quick=True),
    sized("attention's scale", "jax.nn.softmax(x @ x.T / np.sqrt(x.shape[0])) @ x"),
    sized(
        "another rate as well",
        "(x @ w).mean() * learning_rate",
        ("learning_rate = 0.25", "learning_rate = 0.125"),
        ("rows, columns = 40", "rows, columns = 20"),
        says=r"argument x changed: f32\[40,8\] -> f32\[20,8\]; learning_rate changed: 0\.25 -> 0\.125",
        denies=r"a constant changed",
    ),
    sized(
        "another model is not padded",
        "(x @ w).mean()",
        ("rows, columns = 40, 8", "rows, columns = 40, 16"),
        says=r"because argument [wx] changed: f32\[40,8\] -> f32\[40,16\]",
        denies=r"pad it|constant changed",
    ),
    sized(
        "only a weight is wider",
        "(x @ w).sum()",
        ("jnp.ones((columns, 8))", "jnp.ones((columns, 8, 2)).reshape(columns, 16).astype(jnp.bfloat16)"),
        says=r"because argument w changed: f32\[8,8\] -> bf16\[8,16\]",
        denies=r"pad it|constant changed",
    ),
    placed(
        "a batch that is not placed",
        r"sharding of argument x changed: P\('data'\) -> none \(committed before\)",
        ('x = put(np.ones((16, 8), np.float32), "data")', "x = np.ones((16, 8), np.float32)"),
    ),
    WhyPair(
        "a batch that is committed to one device",
        r"because the commitment of argument batch\['x'\] changed: uncommitted -> committed",
        program=COMMITTED,
        edits=(('{"x": x}', '{"x": jax.device_put(x, jax.devices()[0])}'),),
        function="step",
        denies=_UNPLACED,
        quick=True,
    ),
    WhyPair(
        "a batch that is committed no longer",
        r"because the commitment of argument batch\['x'\] changed: committed -> uncommitted",
        program=COMMITTED.replace('{"x": x}', '{"x": jax.device_put(x, jax.devices()[0])}'),
        edits=(("jax.device_put(x, jax.devices()[0])", "x"),),
        function="step",
        denies=_UNPLACED,
    ),
    WhyPair(
        "a batch on a mesh of one device",
        r"because the sharding of argument batch\['x'\] changed: none -> P\('data'\) \(uncommitted before\)",
        program=COMMITTED,
        edits=(('{"x": x}', '{"x": jax.device_put(x, NamedSharding(mesh, P("data")))}'),),
        function="step",
        denies=_UNPLACED,
    ),
    placed(
        "a weight that is split",
        r"sharding of argument params\['w'\] changed: P\(\) -> P\(None, 'model'\)",
        ('"w": put(np.ones((8, 8), np.float32))', '"w": put(np.ones((8, 8), np.float32), None, "model")'),
    ),
    placed(
        "two weights that are split",
        r"sharding of argument params\['b'\] and 1 more changed: P\(\) -> P\('model'\)",
        ('"w": put(np.ones((8, 8), np.float32))', '"w": put(np.ones((8, 8), np.float32), "model")'),
        ('"b": put(np.ones(8, np.float32))', '"b": put(np.ones(8, np.float32), "model")'),
    ),
    placed(
        "another layout",
        r"layout of argument x changed: ",
        ("step(params, x)\n", "x = jax.device_put(x, Format(Layout((1, 0)), x.sharding))\nstep(params, x)\n"),
    ),
]
"""Each names one cause, and denies the one that a comparison of two texts would give."""

PAIRS += MISLEADING
