"""The known contexts of libraries: what a program sets in them is compared."""

# ruff: noqa: E501  # statements of programs, each in a line of its own

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
from helpers import python_command, run_program

pytest.importorskip("ejcache.direct")
from ejcache.direct.question import TABLE

_STACK = "import haiku; from haiku._src import base; base.{}.push(len)"
SETS = {
    "flax.configurations.config": "import flax; flax.config.update('flax_preserve_adopted_names', True)",
    "flax.core.spmd._axis_rules": "import flax.linen as nn; nn.set_logical_axis_rules((('a', 'b'),))",
    "flax.linen.module._context": "from flax.linen import module; module._context.module_stack.append(1)",
    "flax.linen.module._global_interceptor_stack": "import flax.linen as nn; a = nn.intercept_methods(len); a.__enter__()",
    "flax.nnx.graphlib.GRAPH_CONTEXT": "from flax import nnx; nnx.set_graph_mode(not nnx.set_graph_mode.current_value())",
    "flax.nnx.variablelib.VARIABLE_CONTEXT": "from flax import nnx; nnx.use_eager_sharding(not nnx.using_eager_sharding())",
    "haiku._src.config.tls": "import haiku as hk; hk.config.set(check_jax_usage=True)",
    "haiku._src.base.frame_stack": _STACK.format("frame_stack"),
    "haiku._src.base.param_creator_stack": _STACK.format("param_creator_stack"),
    "haiku._src.base.param_getter_stack": _STACK.format("param_getter_stack"),
    "haiku._src.base.state_creator_stack": _STACK.format("state_creator_stack"),
    "haiku._src.base.state_getter_stack": _STACK.format("state_getter_stack"),
    "haiku._src.base.state_setter_stack": _STACK.format("state_setter_stack"),
    "haiku._src.mixed_precision._thread_local_state": "import haiku as h, jmp; h.mixed_precision.set_policy(h.Linear, jmp.get_policy('half'))",
    "haiku._src.module.interceptor_stack": "import haiku as hk; b = hk.intercept_methods(len); b.__enter__()",
    "keras.src.backend.common.global_state.GLOBAL_STATE_TRACKER": "import keras; keras.mixed_precision.set_dtype_policy('mixed_bfloat16')",
    "keras.src.backend.config._FLOATX": "import keras; keras.config.set_floatx('float16')",
    "keras.src.backend.config._EPSILON": "import keras; keras.config.set_epsilon(0.1)",
    "keras.src.backend.config._IMAGE_DATA_FORMAT": "import keras; keras.config.set_image_data_format('channels_first')",
    "chex._src.asserts_internal.DISABLE_ASSERTIONS": "import chex; chex.disable_asserts()",
    "numpyro.primitives._PYRO_STACK": "from numpyro import handlers; handlers.seed(rng_seed=1).__enter__()",
    "numpyro.distributions.distribution._VALIDATION_ENABLED": "import numpyro; numpyro.enable_validation(False)",
    "gin.config._CONFIG": "import gin; gin.bind_parameter('b/gin.macro.value', 1)",
    "gin.config._CONSTANTS": "import gin; gin.constant('K', 2)",
    "gin.config._SCOPE_MANAGER": "import gin; c = gin.config_scope('a'); c.__enter__()",
}
"""How a program sets each of them."""
CODE = """
import json
from functools import partial
from ejcache.direct.question import known_contexts
from ejcache.direct.describing.walk import whole_digest
from ejcache.direct.files.owners import Owners

look = partial(known_contexts, partial(whole_digest, owners=Owners([])))
changed = {}
for label, code in %r.items():
    exec(code.partition(";")[0])
    before = look()
    exec(code)
    after = look()
    changed[label] = after[label] != before.get(label)
print(json.dumps(changed))
"""


def test_each_context_is_noticed():
    """What a program sets in an installed library changes the digest of that context."""
    of_library = {f"{module}.{name}": module.partition(".")[0] for module, names in TABLE.items() for name in names}
    assert of_library.keys() == SETS.keys()
    sets = {label: code for label, code in SETS.items() if find_spec(of_library[label]) is not None}
    if not sets:
        pytest.skip("none of the libraries is installed")
    ran = run_program(python_command(CODE % sets), env={"KERAS_BACKEND": "jax"})
    assert json.loads(ran.stdout.splitlines()[-1]) == dict.fromkeys(sets, True)
