"""What a record says of its executable is compared with the executable, before that takes any argument."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.compiler import get_compile_options
from jax.core import ShapedArray

from ejcache.jax_integration.seam.backends import raw_options, target_of
from ejcache.jax_integration.seam.direct.fastpath import difference_to_executable, plain_miss, split_fastpath


@pytest.fixture(scope="module")
def program():
    """An executable, what C++ needs to run it, and the leaves of its call; one argument is unused."""
    jitted = jax.jit(lambda x, unused, y: (x @ y, x.astype("bfloat16"), x > 0), donate_argnums=0)
    leaves = (jnp.ones((4, 5)), np.float32(3), jnp.ones((5, 3)))
    executable, parts, _ = split_fastpath(plain_miss(jitted)(*leaves)[1], "f")
    return executable, parts, (jnp.ones((4, 5)), *leaves[1:])


def test_a_right_record_differs_in_nothing(program):
    """The record that JAX's own data makes fits, with an argument that the executable does not take."""
    assert difference_to_executable(*program) is None


@pytest.mark.parametrize("wrong", [ShapedArray((4, 4), np.dtype("float32")), ShapedArray((4, 3), np.dtype("int32"))])
def test_a_result_of_another_type_is_noticed(program, wrong):
    """A shape or an element type that the executable does not give is not believed."""
    executable, parts, leaves = program
    changed = parts._replace(out_avals=(wrong, *parts.out_avals[1:]))
    assert difference_to_executable(executable, changed, leaves) == "the types of its results"


def test_a_missing_result_is_noticed(program):
    """A record with fewer results than the executable has does not fit."""
    executable, parts, leaves = program
    changed = parts._replace(out_avals=parts.out_avals[1:], out_shardings=parts.out_shardings[1:])
    assert difference_to_executable(executable, changed, leaves) == "the types of its results"


def test_another_memory_is_noticed(program):
    """A record that places a result in the host's memory does not fit an executable that leaves it on the device."""
    executable, parts, leaves = program
    host = parts.out_shardings[0].with_memory_kind("pinned_host")
    changed = parts._replace(out_shardings=(host, *parts.out_shardings[1:]))
    assert difference_to_executable(executable, changed, leaves) == "the memories of its results"


def test_other_arguments_are_noticed_before_one_is_donated(program):
    """A record that gives the executable another argument does not fit, and no argument is taken."""
    executable, parts, leaves = program
    changed = parts._replace(kept=(True, True, False))
    assert difference_to_executable(executable, changed, leaves) == "the types of its arguments"
    assert not leaves[0].is_deleted()


@pytest.mark.parametrize("options", [b"", b"\xff\xff"])
def test_options_without_devices_are_none(options):
    """XLA reads damaged options as empty ones, and would end the process with them."""
    assert target_of(jax.devices()[0].client, options, [0]) is None


def test_options_for_other_devices_are_none():
    """Options for one device are not used for an executable of two, nor without an assignment of devices."""
    client = jax.devices()[0].client
    one = get_compile_options(1, 1, np.array([[0]]))
    assert target_of(client, raw_options(one), [0]) is not None
    assert target_of(client, raw_options(one), [0, 0]) is None
    assert target_of(client, raw_options(get_compile_options(1, 1)), [0]) is None
