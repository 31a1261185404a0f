"""Repeated blocks of real programs become loops: each operation is there once, and the module is one that XLA takes."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ejcache
from ejcache.jax_integration.block_seconds import block_seconds
from ejcache.jax_integration.lowering.block_copies import Apart
from ejcache.jax_integration.lowering.module_digest import module_text
from ejcache.jax_integration.lowering.rolled_blocks import roll, with_elements
from ejcache.jax_integration.seam.lowered_programs import parsed_module
from ejcache.misses.log import read_misses, recall_programs

LAYERS = 6
ONE = {"b": np.ones(16, np.float32), "v": np.ones((16, 8), np.float32), "w": np.ones((8, 16), np.float32)}
X = np.ones((4, 8), np.float32)


def block(p, x):
    return x + jnp.tanh(x @ p["w"] + p["b"]) @ p["v"]


def loss(layers, x):
    for p in layers:
        x = block(p, x)
    return (x**2).mean()


def scanned_loss(stacked, x):
    return (jax.lax.scan(lambda x, p: (block(p, x), None), x, stacked)[0] ** 2).mean()


def trained(loss):
    def step(params, x):
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x))

    return step


def over_time(p, x):
    h = jnp.zeros((4, 8))
    for t in range(12):
        h = jnp.tanh(h @ p["w"] @ p["v"] + x[:, t])
    return h.sum()


def steps_of_a_solver(y, w):
    """Each step has four stages that are alike: the steps become the loop, and their times one array."""

    def rate(t, y):
        return jnp.tanh(y @ w) * jnp.cos(t)

    for n in range(8):
        a = rate(n * 0.1, y)
        b = rate(n * 0.1 + 0.05, y + 0.05 * a)
        c = rate(n * 0.1 + 0.05, y + 0.05 * b)
        y = y + (a + 2 * b + 2 * c + rate(n * 0.1 + 0.1, y + 0.1 * c)) / 60
    return y


def each_alone(params, xs):
    return [jnp.tanh(x @ params["w"]) @ params["v"] for x in xs]


def rolled(function, *arguments):
    text = module_text(jax.jit(function).lower(*arguments).compiler_ir(), locations=True)
    with parsed_module(with_elements(text)) as module:
        return roll(module), str(module)


def counted(text, *names):
    return {name: len(re.findall(rf"stablehlo\.{name}\b", text)) for name in names}


def test_a_chain_of_layers():
    found, text = rolled(loss, [ONE] * LAYERS, X)
    assert found.copies == (LAYERS,)
    assert counted(text, "while", "dot_general", "tanh") == {"while": 1, "dot_general": 2, "tanh": 1}
    assert f"tensor<{LAYERS}x8x16xf32>" in text.partition("->")[0], "the layers are one argument"


def test_forwards_backwards_and_the_update():
    """The first layer, which lacks what nobody differentiates, is in the loop, and the update is on stacks."""
    found, text = rolled(trained(loss), [ONE] * LAYERS, X)
    assert found.copies == (LAYERS,) * 3
    assert found.kept == ()
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *[ONE] * LAYERS)
    theirs = module_text(jax.jit(trained(scanned_loss)).lower(stacked, X).compiler_ir())
    same = "while", "dot_general", "tanh"
    assert counted(text, *same) == counted(theirs, *same)


def test_slices_of_one_array():
    found, text = rolled(over_time, {"w": ONE["w"], "v": ONE["v"]}, np.ones((4, 12, 8), np.float32))
    assert found.copies == (12,)
    assert counted(text, "while", "slice", "concatenate") == {"while": 1, "slice": 0, "concatenate": 0}


def test_gradients_of_shared_parameters():
    """The first term of the sum over times and the last time, which nobody hands a gradient on, are in the loop."""

    def gated(p, x):
        h = jnp.zeros((4, 8))
        for t in range(12):
            h = gate(p, h, x[:, t])
        return h.sum()

    def scanned(p, x):
        return jax.lax.scan(lambda h, x: (gate(p, h, x), None), jnp.zeros((4, 8)), x.swapaxes(0, 1))[0].sum()

    def gate(p, h, x):
        z = jax.nn.sigmoid(x @ p["w"] + h @ p["u"])
        return z * h + (1 - z) * jnp.tanh(x @ p["v"] + h * z)

    params = {name: np.full((8, 8), 0.1, np.float32) for name in "uvw"}
    x = np.ones((4, 12, 8), np.float32)
    found, text = rolled(trained(gated), params, x)
    assert found.copies[:2] == (12, 12)
    same = "while", "dot_general", "tanh"
    theirs = module_text(jax.jit(trained(scanned)).lower(params, x).compiler_ir())
    assert counted(text, *same) == counted(theirs, *same)


def test_a_block_of_blocks():
    found, text = rolled(steps_of_a_solver, X, np.ones((8, 8), np.float32))
    assert found.copies == (8,)
    assert counted(text, "dot_general", "concatenate") == {"dot_general": 4, "concatenate": 0}


def test_copies_that_hand_nothing_on():
    found, text = rolled(each_alone, ONE, [X] * 8)
    assert found.copies == (8,)
    assert counted(text, "while", "dot_general") == {"while": 1, "dot_general": 2}


def test_large_constants_have_elements():
    table = np.ones((8, 8), np.float32)

    def looked_up(x):
        for _ in range(6):
            x = jnp.tanh(x @ table)
        return x

    found, text = rolled(looked_up, X)
    assert found.copies == (6,)
    assert "__elided__" not in text


def crossed(x):
    """Each line uses the first one and its own number of lines ago: no loop hands that on."""
    made = [x]
    for n in range(12):
        made.append(jnp.tanh(made[-1]) * made[n // 2])
    return made[-1]


@pytest.mark.parametrize("function", [crossed, lambda x: jnp.tanh(x) @ x.T])
def test_what_is_no_loop(function):
    with pytest.raises(Apart):
        rolled(function, X)


@pytest.fixture
def missed(tmp_path):
    ejcache.enable(str(tmp_path), min_compile_seconds=0)
    jax.jit(loss)([ONE] * LAYERS, X)
    return next(each for each in read_misses() if each.name == "jit_loss")


def test_seconds_of_both(missed):
    text = recall_programs([missed.components["computation"]])[missed.components["computation"]]
    found = block_seconds(text, missed.details)
    assert found.copies == (LAYERS,)
    assert min(found.written_out, found.looped) > 0
    with pytest.raises(Apart, match="num_partitions=4"):
        block_seconds(text, {**missed.details, "options": missed.details["options"] + "\nnum_partitions=4"})
