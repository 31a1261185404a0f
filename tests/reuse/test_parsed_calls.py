"""What is seen of a call before it is traced and of its program afterwards, and why each must be JAX's own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ejcache.jax_integration.seam.reuse.calls import RefusedError, parse_call, why_plain
from ejcache.jax_integration.seam.reuse.lowered_program import encode_program, lower

X = np.ones(2)


class OwnFloat(float):
    """JAX traces it as it likes."""


def test_a_static_argument_is_counted_from_the_end_of_the_positional_ones():
    """Arguments by keyword do not count."""
    call = parse_call(jax.jit(lambda *args, k: args[0] + k, static_argnums=-1), (X, 2), {"k": X})
    assert (call.static_positions, call.statics) == ((1,), (2,))


def test_a_function_without_its_options_is_refused():
    """Pickles of jitted functions lack them, so nobody knows which arguments are static."""
    with pytest.raises(RefusedError, match="a copy from a pickle"):
        parse_call(lambda x: x, (X,), {})


def test_every_argument_is_looked_at():
    """One that is strange makes the call JAX's own, wherever it stands."""
    donated = jnp.ones(2)
    donated.delete()
    for strange, said in ((OwnFloat(1), "an argument is a "), (donated, "an argument was donated before")):
        for args in ((strange, X), (X, strange), (jnp.ones(2), strange)):
            assert str(why_plain(parse_call(jax.jit(lambda *args: args), args, {}))).startswith(said)
    assert why_plain(parse_call(jax.jit(lambda *args: args), (X, jnp.ones(2), 1.0), {})) is None


def test_what_calls_back_into_python_is_not_written():
    """On TPU a callback is no custom call in the module, so that only JAX's list says that there is one."""
    lowered = lower(jax.jit(lambda x: x + 1), (X,), {})
    encode_program(lowered)
    lowered.computation.compile_args["host_callbacks"] = [lambda x: x]
    with pytest.raises(RefusedError, match="calls back into Python"):
        encode_program(lowered)
