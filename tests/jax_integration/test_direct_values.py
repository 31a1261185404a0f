"""JAX's and NumPy's values in the fingerprint of a function."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ejcache.direct.describing.values import describe_value
from ejcache.direct.describing.walk import walk
from ejcache.jax_integration.seam.direct.refusal import RefusedError


def digest(value):
    """The digest of a function that reads `value`."""
    return walk({"value": value}, describe=describe_value).digest


def mesh(name):
    return Mesh(np.array(jax.devices()[:1]), (name,))


def scaled(x, k=2):
    return x * k


def custom(rule):
    function = jax.custom_jvp(scaled)
    function.defjvp(rule)
    return function


def with_attribute(k):
    function = jax.jit(scaled)
    function.k = k
    return function


def with_rules(forward, backward):
    function = jax.custom_vjp(scaled)
    function.defvjp(forward, backward)
    return function


DIFFERENT = {
    "content of a NumPy array": lambda: (np.arange(3), np.arange(1, 4)),
    "content of a JAX array": lambda: (jnp.arange(3), jnp.arange(1, 4)),
    "dtype": lambda: (np.zeros(2, "f4"), np.zeros(2, "i4")),
    "byte order": lambda: (np.zeros(2, "<f4"), np.zeros(2, ">f4")),
    "shape": lambda: (np.zeros((2, 3)), np.zeros((3, 2))),
    "weak type": lambda: (jnp.asarray(1), jnp.asarray(np.int32(1))),
    "NumPy or JAX": lambda: (np.zeros(2, "f4"), jnp.zeros(2)),
    "half precision": lambda: (jnp.ones(2, jnp.bfloat16), jnp.ones(2, jnp.float16)),
    "committed": lambda: (jnp.zeros(2), jax.device_put(jnp.zeros(2), jax.devices()[0])),
    "sharding": lambda: (
        jax.device_put(np.zeros(2), NamedSharding(mesh("x"), PartitionSpec())),
        jax.device_put(np.zeros(2), NamedSharding(mesh("y"), PartitionSpec())),
    ),
    "array of objects": lambda: (np.array([1, "a"], object), np.array([1, "b"], object)),
    "scalar": lambda: (np.float32(1), np.float64(1)),
    "nan and zero": lambda: (np.float32(0.0), np.float32(-0.0)),
    "dtypes": lambda: (np.dtype("f4"), np.dtype("f8")),
    "structured dtypes": lambda: (np.dtype([("a", "f4")]), np.dtype([("b", "f4")])),
    "scalar types": lambda: (jnp.float32, jnp.bfloat16),
    "key": lambda: (jax.random.key(0), jax.random.key(1)),
    "key's implementation": lambda: (jax.random.key(0), jax.random.key(0, impl="rbg")),
    "generator": lambda: (np.random.default_rng(0), np.random.default_rng(1)),
    "bit generator": lambda: (
        np.random.Generator(np.random.PCG64(0)),
        np.random.Generator(np.random.Philox(0)),
    ),
    "random state": lambda: (np.random.RandomState(0), np.random.RandomState(1)),
    "jitted function": lambda: (jax.jit(lambda x: x * 2), jax.jit(lambda x: x * 3)),
    "attribute of a jitted function": lambda: (with_attribute(2), with_attribute(3)),
    "static arguments of jit": lambda: (jax.jit(scaled), jax.jit(scaled, static_argnums=1)),
    "donation": lambda: (jax.jit(scaled), jax.jit(scaled, donate_argnums=0)),
    "shardings of jit": lambda: (
        jax.jit(scaled, out_shardings=NamedSharding(mesh("x"), PartitionSpec())),
        jax.jit(scaled, out_shardings=NamedSharding(mesh("x"), PartitionSpec("x"))),
    ),
    "inside vmap": lambda: (jax.vmap(lambda x: x * 2), jax.vmap(lambda x: x * 3)),
    "axis of vmap": lambda: (jax.vmap(scaled, in_axes=0), jax.vmap(scaled, in_axes=1)),
    "inside grad": lambda: (jax.grad(lambda x: x * 2), jax.grad(lambda x: x * 3)),
    "policy of checkpoint": lambda: (
        jax.checkpoint(scaled, policy=jax.checkpoint_policies.everything_saveable),
        jax.checkpoint(scaled, policy=jax.checkpoint_policies.nothing_saveable),
    ),
    "custom_jvp rule": lambda: (custom(lambda p, t: (p[0], t[0] * 2)), custom(lambda p, t: (p[0], t[0] * 3))),
    "custom_vjp rule": lambda: (
        with_rules(lambda x: (x, None), lambda r, g: (g * 2,)),
        with_rules(lambda x: (x, None), lambda r, g: (g * 3,)),
    ),
    "tree": lambda: (jax.tree.structure({"a": 1}), jax.tree.structure({"b": 1})),
    "None in a tree": lambda: (jax.tree.structure([None]), jax.tree.structure([1])),
    "shape of an abstract value": lambda: (jax.ShapeDtypeStruct((1,), "f4"), jax.ShapeDtypeStruct((2,), "f4")),
    "partition": lambda: (PartitionSpec("x"), PartitionSpec(None, "x")),
    "mesh": lambda: (mesh("x"), mesh("y")),
    "Partial": lambda: (jax.tree_util.Partial(scaled, k=2), jax.tree_util.Partial(scaled, k=3)),
    "ufunc": lambda: (np.sin, np.cos),
    "ufunc of JAX": lambda: (jnp.add, jnp.multiply),
    "primitive": lambda: (jax.lax.add_p, jax.lax.mul_p),
    "precision": lambda: (jax.lax.Precision.HIGH, jax.lax.Precision.HIGHEST),
}
"""Pairs of values that another digest must show."""


@pytest.mark.parametrize("name", DIFFERENT)
def test_digest_shows(name):
    """Two values that JAX treats differently have two digests, and each has the same one when it is made again."""
    one, other = DIFFERENT[name]()
    assert digest(one) != digest(other)
    again, _ = DIFFERENT[name]()
    assert digest(one) == digest(one)
    assert digest(again) == digest(one)


REFUSED = {
    "value is the random number generator of numpy.random": lambda: np.random.mtrand._rand,
    "value.__self__ is the random number generator of numpy.random": lambda: np.random.rand,
    "value is a NumPy function made of a Python function, which it does not show": lambda: np.frompyfunc(abs, 1, 1),
    "value is an array with fields of Python objects": lambda: np.zeros(1, [("a", object)]),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refusal(reason):
    """Values whose content is hidden or shared with the whole process are refused."""
    with pytest.raises(RefusedError) as caught:
        digest(REFUSED[reason]())
    assert caught.value.reason == reason


def test_traced_program_is_refused():
    """A program that was traced before is not read instruction by instruction."""
    with pytest.raises(RefusedError, match=r"value is a (Closed)?Jaxpr"):
        digest(jax.make_jaxpr(scaled)(1.0))


def test_deleted_array_is_refused():
    """An array that was donated has no content to read."""
    array = jnp.arange(3)
    array.delete()
    with pytest.raises(RefusedError, match="value is an array that was deleted or donated"):
        digest(array)


def test_tracer_is_refused():
    """A function that is made while tracing may close over values of the trace."""
    with pytest.raises(RefusedError, match="→ x is a value of a trace"):
        jax.jit(lambda x: digest(lambda: x) or x)(1.0)


def test_large_arrays_are_refused():
    """A function that reads very much data is not fingerprinted: hashing it would cost more than tracing."""
    read = functools.partial(scaled, k=np.zeros(65 << 20, "i1"))
    with pytest.raises(RefusedError, match=r"value.k makes the arrays that are read larger than 64 MiB"):
        digest(read)
