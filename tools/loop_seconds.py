"""Compare what `ejcache advise --measure` and its estimates say of loops with what a hand-written scan does.

    python tools/loop_seconds.py [--rounds 3] [--held-out] [PROGRAM …]

Each program is written out and with `jax.lax.scan`. For compiling, the program written out, the one with scan and the
text that `--measure` makes of the former are compiled in turns; the error is that of the text against scan. For tracing
and lowering, both programs are traced and lowered in turns; the factor is the part of the seconds of spared operations
that scan spares. All is in CPU seconds, the least of the rounds. The programs of --held-out were written after the
text was made as it is. Exit status 0 if nine of ten are within 20 %.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jax import lax

from ejcache.jax_integration.lowering.block_copies import Apart
from ejcache.jax_integration.lowering.module_digest import module_text
from ejcache.jax_integration.lowering.rolled_blocks import roll, with_elements
from ejcache.jax_integration.program import LoweredProgram
from ejcache.jax_integration.seam.lowered_programs import default_placement, parsed_module
from ejcache.jax_integration.seam.patch import compile_executable
from ejcache.misses.program_text import read_text
from ejcache.util.repeated_sequences import repetitions

if TYPE_CHECKING:
    from collections.abc import Callable

_NEAR: Final = 0.2
_MOST: Final = 0.9


def array(*shape: int) -> Any:
    """An array of small numbers."""
    return (np.random.default_rng(0).normal(size=shape) * 0.1).astype(np.float32)


def stacked(layers: Any) -> Any:
    """Layers as one tree of stacks."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *layers)


def written(block: Callable[..., Any]) -> Callable[..., Any]:
    """A loss whose layers are written out."""

    def loss(layers: Any, x: Any) -> Any:
        for layer in layers:
            x = block(layer, x)
        return (x**2).mean()

    return loss


def scanned(block: Callable[..., Any]) -> Callable[..., Any]:
    """The same loss over stacked layers."""
    return lambda layers, x: (lax.scan(lambda x, layer: (block(layer, x), None), x, layers)[0] ** 2).mean()


def sgd(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A step with gradients of a loss."""
    return lambda params, x: jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x))


def adamw(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A step with an optimizer of a loss."""

    def step(params: Any, state: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x)
        updates, state = ADAMW.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


def normalised(x: Any, scale: Any) -> Any:
    """A layer norm."""
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * scale


def mlp(p: Any, x: Any) -> Any:
    """A block of two layers."""
    return x + normalised(jax.nn.gelu(x @ p["w"] + p["b"]) @ p["v"], 1.0)


def attention(p: Any, x: Any) -> Any:
    """A block of a transformer."""
    h = normalised(x, p["g"])
    q, k, v = [(h @ p[name]).reshape(*h.shape[:2], 4, -1) for name in "qkv"]
    a = jnp.einsum("bthd,bshd->bhts", q, k) / np.sqrt(q.shape[-1])
    a = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones(a.shape[-2:], bool)), a, -1e9))
    x = x + jnp.einsum("bhts,bshd->bthd", a, v).reshape(x.shape) @ p["o"]
    return x + jax.nn.gelu(normalised(x, p["h"]) @ p["w1"]) @ p["w2"]


def gru(p: Any, h: Any, x: Any) -> Any:
    """A cell."""
    z = jax.nn.sigmoid(x @ p["wz"] + h @ p["uz"])
    r = jax.nn.sigmoid(x @ p["wr"] + h @ p["ur"])
    return (1 - z) * jnp.tanh(x @ p["wn"] + (r * h) @ p["un"]) + z * h


def over_time(cell: Callable[..., Any], times: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A loss of a cell over time, written out and with scan."""

    def loop(p: Any, x: Any) -> Any:
        h = jnp.zeros((8, 32))
        for t in range(times):
            h = cell(p, h, x[:, t])
        return (h**2).mean()

    def scan(p: Any, x: Any) -> Any:
        return (lax.scan(lambda h, x: (cell(p, h, x), None), jnp.zeros((8, 32)), x.swapaxes(0, 1))[0] ** 2).mean()

    return loop, scan


def convolution(x: Any, w: Any) -> Any:
    """A convolution of images."""
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def residual(p: Any, x: Any) -> Any:
    """A block of a residual network."""
    return jax.nn.relu(x + convolution(jax.nn.relu(convolution(x, p["a"]) * p["s"]), p["b"]))


def runge_kutta(y: Any, t: Any, w: Any) -> Any:
    """A step of a solver."""

    def rate(t: Any, y: Any) -> Any:
        return jnp.tanh(y @ w) * jnp.cos(t) - y * 0.1

    a = rate(t, y)
    b = rate(t + 0.005, y + 0.005 * a)
    c = rate(t + 0.005, y + 0.005 * b)
    return y + 0.01 / 6 * (a + 2 * b + 2 * c + rate(t + 0.01, y + 0.01 * c))


def solved(y: Any, w: Any) -> Any:
    """Steps of a solver, written out."""
    for n in range(30):
        y = runge_kutta(y, n * 0.01, w)
    return y


def prices(key: Any) -> Any:
    """Random paths, written out."""
    s, h = jnp.full(10_000, jnp.log(10.0)), jnp.zeros(10_000)
    for _ in range(20):
        key, part = jax.random.split(key)
        z = jax.random.normal(part, (2, 10_000))
        s, h = s + 1e-4 + jnp.exp(h) * z[0], 0.1 * h + 0.001 * z[1]
    return jnp.maximum(jnp.exp(s) - 100, 0).mean()


def scanned_prices(key: Any) -> Any:
    """Random paths with scan."""

    def step(state: Any, _: Any) -> Any:
        key, s, h = state
        key, part = jax.random.split(key)
        z = jax.random.normal(part, (2, 10_000))
        return (key, s + 1e-4 + jnp.exp(h) * z[0], 0.1 * h + 0.001 * z[1]), None

    first = key, jnp.full(10_000, jnp.log(10.0)), jnp.zeros(10_000)
    return jnp.maximum(jnp.exp(lax.scan(step, first, None, length=20)[0][1]) - 100, 0).mean()


def graphs(p: Any, edges: Any, nodes: Any) -> Any:
    """Messages in each of many graphs."""
    return [p["w"] @ (a @ f) + p["b"] for a, f in zip(edges, nodes, strict=True)]


def scanned_graphs(p: Any, edges: Any, nodes: Any) -> Any:
    """The same with scan."""
    return lax.scan(lambda _, each: (None, p["w"] @ (each[0] @ each[1]) + p["b"]), None, (edges, nodes))[1]


ADAMW: Final = optax.adamw(1e-3)
MLP: Final = [{"w": array(64, 128), "b": array(128), "v": array(128, 64)}] * 24
ONES: Final = np.ones(64, np.float32)
TRANSFORMER: Final = [
    {**{name: array(64, 64) for name in "qkvo"}, "g": ONES, "h": ONES, "w1": array(64, 256), "w2": array(256, 64)}
] * 12
GRU: Final = {name: array(32, 32) for name in ("wz", "uz", "wr", "ur", "wn", "un")}
IMAGES: Final = [{"a": array(3, 3, 16, 16), "b": array(3, 3, 16, 16), "s": np.ones(16, np.float32)}] * 10
GATED: Final = [{"w": array(48, 96), "v": array(96, 48), "g": array(48, 96), "s": np.ones(48, np.float32)}] * 16
MIXER: Final = [{"t": array(12, 24), "u": array(24, 12), "w": array(32, 64), "v": array(64, 32)}] * 10
CELL: Final = {"w": array(32, 128), "u": array(32, 128), "b": array(128)}


def gated(p: Any, x: Any) -> Any:
    """A gated block."""
    h = x * lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6) * p["s"]
    return x + (jax.nn.silu(h @ p["w"]) * (h @ p["g"])) @ p["v"]


def mixer(p: Any, x: Any) -> Any:
    """A block that mixes patches, then channels."""
    h = normalised(x, 1.0).swapaxes(1, 2)
    x = x + (jax.nn.gelu(h @ p["t"]) @ p["u"]).swapaxes(1, 2)
    return x + jax.nn.gelu(normalised(x, 1.0) @ p["w"]) @ p["v"]


def elman(p: Any, h: Any, x: Any) -> Any:
    """A cell with a gate for each half."""
    i, f, o, g = jnp.split(x @ p["w"] + h @ p["u"] + p["b"], 4, axis=-1)
    return jax.nn.sigmoid(f) * h + jax.nn.sigmoid(i) * jnp.tanh(g) * jax.nn.sigmoid(o)


def heat(u: Any, k: Any) -> Any:
    """Steps of an equation on a grid, written out."""
    for _ in range(40):
        u = u + 0.1 * k * (jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1) - 4 * u)
        u = u.at[0].set(0.0)
    return u


def scanned_heat(u: Any, k: Any) -> Any:
    """The same with a loop."""

    def step(_: Any, u: Any) -> Any:
        u = u + 0.1 * k * (jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1) - 4 * u)
        return u.at[0].set(0.0)

    return lax.fori_loop(0, 40, step, u)


def sinkhorn(cost: Any, f: Any, g: Any) -> Any:
    """Iterations for a transport, written out."""
    for _ in range(25):
        f = -jax.nn.logsumexp((g[None] - cost) / 0.1, axis=1) * 0.1
        g = -jax.nn.logsumexp((f[:, None] - cost) / 0.1, axis=0) * 0.1
    return f.sum() + g.sum()


def scanned_sinkhorn(cost: Any, f: Any, g: Any) -> Any:
    """The same with scan."""

    def step(pair: Any, _: Any) -> Any:
        f, g = pair
        f = -jax.nn.logsumexp((g[None] - cost) / 0.1, axis=1) * 0.1
        return (f, -jax.nn.logsumexp((f[:, None] - cost) / 0.1, axis=0) * 0.1), None

    f, g = lax.scan(step, (f, g), None, length=25)[0]
    return f.sum() + g.sum()


def deep(block: Callable[..., Any], layers: Any, x: Any, step: Callable[..., Any]) -> Any:
    """A step of layers, written out and with scan."""
    both = layers, stacked(layers)
    extra = [(ADAMW.init(each),) if step is adamw else () for each in both]
    return (
        step(written(block)),
        (both[0], *extra[0], x),
        step(scanned(block)),
        (both[1], *extra[1], x),
    )


def alone(loss: Callable[..., Any]) -> Callable[..., Any]:
    """The loss alone."""
    return loss


GRU_LOSSES: Final = over_time(gru, 40)
CELL_LOSSES: Final = over_time(elman, 30)
KNOWN: Final = {
    "mlp": deep(mlp, MLP, array(16, 64), alone),
    "mlp sgd": deep(mlp, MLP, array(16, 64), sgd),
    "transformer": deep(attention, TRANSFORMER, array(2, 32, 64), alone),
    "transformer adamw": deep(attention, TRANSFORMER, array(2, 32, 64), adamw),
    "gru": (GRU_LOSSES[0], (GRU, array(8, 40, 32)), GRU_LOSSES[1], (GRU, array(8, 40, 32))),
    "gru sgd": (sgd(GRU_LOSSES[0]), (GRU, array(8, 40, 32)), sgd(GRU_LOSSES[1]), (GRU, array(8, 40, 32))),
    "resnet sgd": deep(residual, IMAGES, array(4, 16, 16, 16), sgd),
    "prices": (prices, (jax.random.key(1),), scanned_prices, (jax.random.key(1),)),
    "graphs": (
        graphs,
        ({"w": array(8, 8), "b": array(4)}, [array(8, 8)] * 60, [array(8, 4)] * 60),
        scanned_graphs,
        ({"w": array(8, 8), "b": array(4)}, array(60, 8, 8), array(60, 8, 4)),
    ),
    "runge kutta": (
        solved,
        (array(8, 32), array(32, 32)),
        lambda y, w: lax.scan(lambda y, t: (runge_kutta(y, t, w), None), y, jnp.arange(30) * 0.01)[0],
        (array(8, 32), array(32, 32)),
    ),
}
"""The programs that the text was made with: written out, its arguments, with scan, its arguments."""
HELD_OUT: Final = {
    "gated adamw": deep(gated, GATED, array(4, 16, 48), adamw),
    "mixer sgd": deep(mixer, MIXER, array(4, 12, 32), sgd),
    "cell sgd": (sgd(CELL_LOSSES[0]), (CELL, array(8, 30, 32)), sgd(CELL_LOSSES[1]), (CELL, array(8, 30, 32))),
    "heat": (heat, (array(32, 32), array(32, 32)), scanned_heat, (array(32, 32), array(32, 32))),
    "sinkhorn": (
        sinkhorn,
        (array(20, 30), array(20), array(30)),
        scanned_sinkhorn,
        (array(20, 30), array(20), array(30)),
    ),
}


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """The CPU seconds of a call, and what it returns."""
    began = time.process_time()
    made = function(*arguments)
    return time.process_time() - began, made


def compiled(text: str) -> float:
    """The CPU seconds of compiling the module of a text."""
    with parsed_module(text) as module:
        return timed(compile_executable, LoweredProgram(module, "loop", default_placement()))[0]


def traced(function: Callable[..., Any], arguments: Any) -> tuple[float, float, str]:
    """The CPU seconds of tracing and of lowering a function, and its text."""
    jax.clear_caches()
    tracing, trace = timed(jax.jit(function).trace, *arguments)
    lowering, low = timed(trace.lower)
    return tracing, lowering, module_text(low.compiler_ir(), locations=True)


def measure(name: str, rounds: int) -> float | None:
    """Measure one program and print it; returns the error of what `--measure` says, or None if it says nothing."""
    loop, loop_arguments, scan, scan_arguments = {**KNOWN, **HELD_OUT}[name]
    traces = [(traced(loop, loop_arguments), traced(scan, scan_arguments)) for _ in range(rounds)]
    (_, _, text), (_, _, scan_text) = traces[0]
    lines = [(line.name, line.type) for line in read_text(text).lines]
    spared = sum(each.spared for each in repetitions(lines)) / len(lines)
    tracing = [min(each[side][0] for each in traces) for side in (0, 1)]
    lowering = [min(each[side][1] for each in traces) for side in (0, 1)]
    seconds = tracing, lowering
    factors = [(out - rolled) / (out * spared) if spared else 0.0 for out, rolled in seconds]
    words = "; ".join(
        f"{phase} {out:.2f} s, {rolled:.2f} with scan, factor {factor:.2f}"
        for phase, (out, rolled), factor in zip(("traced", "lowered"), seconds, factors, strict=True)
    )
    with parsed_module(with_elements(text)) as module:
        try:
            roll(module)
        except Apart as exc:
            print(f"{name:18} no loop: {exc}; {words}", flush=True)
            return None
        rolled_text = str(module)
    texts = with_elements(text), with_elements(scan_text), rolled_text
    takes = [min(each) for each in zip(*([compiled(each) for each in texts] for _ in range(rounds)), strict=True)]
    error = float(takes[2] / takes[1] - 1)
    print(
        f"{name:18} compiled {takes[0]:.2f} s, {takes[1]:.2f} with scan, {takes[2]:.2f} by --measure: {error:+.0%}; "
        f"{spared:.0%} spared; {words}",
        flush=True,
    )
    return error


def main() -> int:
    """Measure the programs of these names, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--held-out", action="store_true")
    asked = parser.parse_args()
    names = asked.programs or list(HELD_OUT if asked.held_out else KNOWN)
    errors = [measure(name, asked.rounds) for name in names]
    near = sum(error is not None and abs(error) <= _NEAR for error in errors)
    print(f"{near} of {len(names)} within {_NEAR:.0%}")
    return int(near < _MOST * len(names))


if __name__ == "__main__":
    sys.exit(main())
