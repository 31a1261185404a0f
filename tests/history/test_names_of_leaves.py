"""A leaf of a user's object is named as its user calls it, whatever a library makes of the object for JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ejcache
from ejcache.history.program_text import read_text, rename_arguments
from ejcache.jax_integration.program_details import rename_details

HALF = jnp.bfloat16


def ones(*shape, dtype=np.float32):
    """An array that nothing is compiled for."""
    return jnp.asarray(np.ones(shape, dtype))


def equinox_program():
    import equinox as eqx

    class Linear(eqx.Module):
        weight: jax.Array

        def __call__(self, x):
            return self.weight @ x

    class Model(eqx.Module):
        layers: list
        out_scale: jax.Array

        def __call__(self, x):
            return self.layers[1](self.layers[0](x)) * self.out_scale

        @eqx.filter_jit
        def apply(self, x):
            return self(x)

    @eqx.filter_jit
    def forward(model, x):
        return model(x)

    model = Model([Linear(ones(4, 4)), Linear(ones(4, 4))], ones(4))
    scaled = eqx.tree_at(lambda each: each.out_scale, model, ones(4, dtype=HALF))
    weighted = eqx.tree_at(lambda each: each.layers[1].weight, model, ones(4, 4, dtype=HALF))
    x = ones(4)
    yield lambda: forward(model, x), lambda: forward(scaled, x), "argument model.out_scale changed: f32[4]"
    yield lambda: forward(model, x), lambda: forward(model=weighted, x=x), "argument model.layers[1].weight changed"
    yield lambda: model.apply(x), lambda: scaled.apply(x), "argument self.out_scale changed"
    yield lambda: forward(model, x), lambda: forward(model, ones(4, dtype=HALF)), "argument x changed"


def nnx_program():
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, dtype=jnp.float32):
            self.first = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
            self.out_scale = nnx.Param(jnp.ones(4, dtype))

        def __call__(self, x):
            return self.first(x) * self.out_scale[...]

    @nnx.jit
    def forward(model, x):
        return model(x)

    x = jnp.ones((2, 4))
    yield lambda: forward(Model(), x), lambda: forward(Model(HALF), x), "argument model.out_scale changed: f32[4]"
    yield lambda: forward(Model(), x), lambda: forward(Model(), jnp.ones((3, 4))), "argument x changed"


def linen_program():
    import flax.linen as nn

    model, x = nn.Dense(4), ones(2, 4)

    @jax.jit
    def forward(variables, x):
        return model.apply(variables, x)

    variables = {"params": {"kernel": ones(4, 4), "bias": ones(4)}}
    half = {"params": {**variables["params"], "bias": ones(4, dtype=HALF)}}
    yield lambda: forward(variables, x), lambda: forward(half, x), "argument variables['params']['bias'] changed"


@pytest.mark.parametrize("program", [equinox_program, pytest.param(nnx_program, marks=pytest.mark.soak), linen_program])
def test_the_path_in_the_users_object(program, tmp_path):
    """Why and what to do name the leaf as the user's function calls it."""
    for number, (before, after, words) in enumerate(program()):
        jax.clear_caches()
        with ejcache.enable(str(tmp_path / f"cache-{number}"), min_compile_seconds=0):
            before()
            after()
        (said,) = ejcache.why("apply" if "self" in words else "forward")
        assert words in said.sentence
        name = words.split()[1]
        assert said.kind == "shape_varies" or said.what_to_do.startswith(f"give {name} one dtype")


def test_the_same_leaf_keeps_its_name():
    """Names are put in the place of JAX's in the text and in the lists of a record, and nowhere else."""
    text = """func.func public @main(%arg0: tensor<f32> loc("d['rest'][1]")) -> tensor<f32> {\n#loc1 = loc("d")\n}"""
    names = {"d['rest'][1]": "model.scale"}
    (argument,) = read_text(rename_arguments(text, names)).arguments
    assert argument.name == "model.scale"
    assert rename_arguments(text, {}) is text
    details = {"weak": "d['rest'][1]\nother", "jax": "1"}
    assert rename_details(details, names) == {"weak": "model.scale\nother", "jax": "1", "named": "by the caller"}
    assert rename_details(details, {}) is details
