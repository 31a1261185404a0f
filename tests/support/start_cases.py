"""Starts of one host, one after the other, and what is to be said of what the last one compiled.

Most compile one function several times in each start, for values or shapes that differ: what changed since the last
start is then another question than what differs from the call before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["CASES", "Case", "Start"]


@dataclass(frozen=True)
class Start:
    """One start: the text of a script, and other files that it reads.

    Attributes:
        text: of the script, or of a cell.
        script: its path below the place of the case.
        files: texts by their paths there.
        cell: the name that a notebook gives the text; empty for a script.
        goes_on: True if the process of the start before it runs the text.
    """

    text: str
    script: str = "main.py"
    files: dict[str, str] = field(default_factory=dict)
    cell: str = ""
    goes_on: bool = False


@dataclass(frozen=True)
class Case:
    """Starts, and patterns of what is said.

    Attributes:
        title: names it.
        function: of which programs are looked at.
        starts: in their order.
        says: a pattern for each program that the last start compiles; one alone is that of each.
        denies: a pattern that no answer has; empty for none.
        asks_advise: whether the findings are asked for, too.
    """

    title: str
    function: str
    starts: tuple[Start, ...]
    says: tuple[str, ...]
    denies: str = ""
    asks_advise: bool = False


def edited(text: str, *edits: tuple[str, str], **more: object) -> tuple[Start, Start]:
    """A script that starts once, and again with these edits."""
    after = text
    for old, new in edits:
        assert old in after, old
        after = after.replace(old, new)
    return Start(text, **more), Start(after, **more)  # type: ignore[arg-type]


STATIC = """
import jax, jax.numpy as jnp, numpy as np
from functools import partial
G = 1.5

@partial(jax.jit, static_argnums=1)
def step(x, n):
    return jnp.sin(x) * G + n

for n in (1, 2, 3):
    step(np.ones(4, np.float32), n)
"""
PHYSICS = """
import jax, jax.numpy as jnp, numpy as np
from functools import partial
DT = 0.01
N = 64

def force(x):
    r = x[:, None] - x[None, :]
    return jnp.tanh(r).sum(axis=1)

@partial(jax.jit, static_argnames="steps")
def evolve(x, v, steps):
    def one(i, state):
        x, v = state
        v = v + DT * force(x)
        return x + DT * v, v
    return jax.lax.fori_loop(0, steps, one, (x, v))

x = np.linspace(0.0, 1.0, N).astype(np.float32)
for steps in (50, 51, 52, 53):
    evolve(x, x * 0, steps)
"""
SERVE = """
import jax, jax.numpy as jnp, numpy as np
TEMPERATURE = 0.7
LAYERS = 3
rng = np.random.default_rng(0)
weights = [rng.normal(size=(16, 16)).astype(np.float32) for _ in range(LAYERS)]

@jax.jit
def forward(weights, tokens):
    h = jnp.stack([tokens] * 16, axis=-1)
    for w in weights:
        h = jnp.tanh(h @ w)
    return jax.nn.softmax(h / TEMPERATURE, axis=-1)

for size in (9, 13, 22, 31, 40):
    forward(weights, np.ones(size, np.float32))
"""
UNROLLED = """
import jax, jax.numpy as jnp, numpy as np
from functools import partial
DECAY = 0.9

@partial(jax.jit, static_argnums=1)
def rollout(x, n):
    for _ in range(n):
        x = jnp.tanh(x) * DECAY
    return x

for n in (2, 3, 4, 5):
    rollout(np.ones(8, np.float32), n)
"""
WEAK = """
import jax, jax.numpy as jnp, numpy as np
RATE = 0.001

@jax.jit
def step(params, scale):
    return params - RATE * scale * jnp.cos(params)

params = np.ones(16, np.float32)
step(params, 1.0)
step(params, jnp.float32(2.0))
"""
LIBRARY = """
import jax, optax, numpy as np
tx = optax.adam(1e-3)
params = np.ones(4, np.float32)
state = tx.init(params)
jax.jit(tx.update)(params, state, params)
"""
ONE = """
import jax, jax.numpy as jnp, numpy as np

@jax.jit
def step(x):
    return jnp.sin(x @ x.T).sum()

step(np.ones((32, 32), np.float32))
"""
GATHER = """
import jax, jax.numpy as jnp, numpy as np
BATCH = 32

@jax.jit
def pick(images, labels):
    table = jnp.arange(10.0)
    logits = images.reshape(images.shape[0], -1)[:, :10]
    return (jnp.take_along_axis(logits, labels[:, None], axis=1) * table[labels][:, None]).mean()

pick(np.ones((BATCH, 8, 8), np.float32), np.zeros(BATCH, np.int32))
"""
MANY = STATIC.replace("(1, 2, 3)", "range(1, 25)")
HELPED = """
import jax, numpy as np
from helper_of_case import decayed

@jax.jit
def train(x):
    return decayed(x).sum()

for size in (4, 6, 8):
    train(np.ones(size, np.float32))
"""
HELPER = "import jax.numpy as jnp\nSCALE = 2.0\n\ndef decayed(x):\n    return jnp.exp(-SCALE * x)\n"

G = r"^G changed: 1.5 -> 2.5, main\.py:4 \(since the start"
CELL = "/tmp/ipykernel_4242/{}.py"
FIRST = """
import jax, jax.numpy as jnp, numpy as np

@jax.jit
def cell_step(x):
    return jnp.sin(x) * 2.5

cell_step(np.ones(4, np.float32))
"""
SECOND = FIRST.replace("2.5", "3.5")
THIRD = SECOND.replace("jnp.sin(x)", "jnp.cos(x)")

CASES = (
    Case("static: a constant", "step", edited(STATIC, ("1.5", "2.5")), (G,) * 3, "a constant changed"),
    Case(
        "static: code",
        "step",
        edited(STATIC, ("jnp.sin", "jnp.cos")),
        (r"^the computation changed at main\.py:8.*cos",) * 3,
        "a constant",
    ),
    Case("static: twenty-four values", "step", edited(MANY, ("1.5", "2.5")), (G,) * 24, "a constant changed"),
    Case(
        "static: a value more",
        "step",
        edited(STATIC, ("(1, 2, 3)", "(1, 2, 3, 7)")),
        (r"a constant changed: 3 -> 7|: 3 -> 7",),
    ),
    Case(
        "physics: a constant",
        "evolve",
        edited(PHYSICS, ("0.01", "0.02")),
        (r"^DT changed: 0.01 -> 0.02",) * 4,
        "5[0-3] ->",
    ),
    Case(
        "physics: size",
        "evolve",
        edited(PHYSICS, ("N = 64", "N = 48")),
        (r"^argument x changed: f32\[64\] -> f32\[48\]",) * 4,
        "5[0-3] ->",
    ),
    Case(
        "physics: code",
        "evolve",
        edited(PHYSICS, ("jnp.tanh(r).sum", "jnp.cos(jnp.tanh(r)).sum")),
        (r"^the computation changed at main\.py:9 in force: \+ cos",) * 4,
        "5[0-3] ->",
    ),
    Case(
        "serve: a constant",
        "forward",
        edited(SERVE, ("0.7", "0.8")),
        (r"^TEMPERATURE changed: 0.7 -> 0.8",) * 5,
        r"argument tokens",
    ),
    Case(
        "serve: layers",
        "forward",
        edited(SERVE, ("LAYERS = 3", "LAYERS = 5")),
        (r"^2 arguments were added: weights\[3\]",) * 5,
        r"argument tokens",
    ),
    Case(
        "unrolled: a constant",
        "rollout",
        edited(UNROLLED, ("0.9", "0.8")),
        (r"^DECAY changed: 0.9 -> 0.8",) * 4,
        r"tanh",
    ),
    Case(
        "unrolled: code",
        "rollout",
        edited(UNROLLED, ("jnp.tanh(x)", "jnp.sin(x)")),
        (r"^the computation changed at main\.py:9.*sin",) * 4,
        "",
    ),
    Case(
        "a helper's constant, three shapes",
        "train",
        (
            Start(HELPED, files={"helper_of_case.py": HELPER}),
            Start(HELPED, files={"helper_of_case.py": HELPER.replace("2.0", "3.0")}),
        ),
        (r"changed: -?2 -> -?3|SCALE changed: 2 -> 3|-2 -> -3",) * 3,
        r"argument x",
    ),
    Case(
        "weak types, and a constant",
        "step",
        edited(WEAK, ("0.001", "0.002")),
        (r"^RATE changed: 0.001 -> 0.002",) * 2,
        "weak",
        asks_advise=True,
    ),
    Case(
        "an argument is added",
        "step",
        (
            Start(
                ONE.replace("np.float32", "np.float64").replace(
                    "import jax,", "import jax; jax.config.update('jax_enable_x64', True)\nimport jax,"
                ),
                "other/main.py",
            ),
            Start("import jax; jax.config.update('jax_enable_x64', False)\n" + ONE, "third/main.py"),
            Start("import jax; jax.config.update('jax_enable_x64', False)\n" + ONE, "main.py"),
            Start(
                "import jax; jax.config.update('jax_enable_x64', False)\n"
                + ONE.replace("step(x):", "step(x, y):")
                .replace("sin(x @ x.T)", "sin(x @ x.T + y)")
                .replace("step(np", "step(np.ones((32, 32), np.float32), np"),
                "main.py",
            ),
        ),
        (r"^1 argument was added: y f32\[32,32\]",),
        "x64",
    ),
    Case(
        "a library's function in a script that never ran",
        "update_fn",
        (Start(LIBRARY, "one.py"), Start(LIBRARY.replace("1e-3", "5e-1"), "two.py")),
        (r"^it is new here",),
    ),
    Case("a library's function", "update_fn", edited(LIBRARY, ("1e-3", "5e-1")), (r"-0.001 -> -0.5.*since the start",)),
    Case(
        "an edit that was put back",
        "step",
        (Start(ONE), Start(ONE.replace("sin", "cos")), Start(ONE), Start(ONE.replace("sin", "tan"))),
        (r"\+ tan.*- sin",),
        "cos",
    ),
    Case(
        "a batch size",
        "pick",
        edited(GATHER, ("BATCH = 32", "BATCH = 48")),
        (r"^argument (images changed: f32\[32,8,8\] ->|labels changed: i32\[32\] ->) \S+ and 1 more \(since",),
        "gather|scatter|slice_sizes",
    ),
    Case(
        "a first start of three values",
        "step",
        (Start(STATIC),),
        (r"^it is new here", r"1 -> 2.*beside another call", r"2 -> 3.*beside another call"),
    ),
    Case(
        "a cell edited once",
        "cell_step",
        (Start(FIRST, cell=CELL.format(1)), Start(SECOND, cell=CELL.format(2), goes_on=True)),
        (r"^it is new here", r"2.5 -> 3.5.*beside"),
    ),
    Case(
        "a cell edited twice",
        "cell_step",
        (
            Start(FIRST, cell=CELL.format(1)),
            Start(SECOND, cell=CELL.format(2), goes_on=True),
            Start(THIRD, cell=CELL.format(3), goes_on=True),
        ),
        (r"^it is new here", r"2.5 -> 3.5.*beside", r"\+ cos.*- sin.*beside"),
    ),
)
