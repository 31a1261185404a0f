"""The known contexts of libraries: what a program sets in them is compared."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
from helpers import python_command, run_program

pytest.importorskip("ejcache.direct")
from ejcache.direct.question import TABLE

_STACK = "import haiku; from haiku._src import base; base.{}.push(len)"
SETS = {
    "the configuration of flax": "import flax; flax.config.update('flax_preserve_adopted_names', True)",
    "the logical axis rules of flax": "import flax.linen as nn; nn.set_logical_axis_rules((('a', 'b'),))",
    "the module context of linen": "from flax.linen import module; module._context.module_stack.append(1)",
    "the interceptors of linen": "import flax.linen as nn; a = nn.intercept_methods(len); a.__enter__()",
    "the graph context of nnx": "from flax import nnx; nnx.set_graph_mode(not nnx.set_graph_mode.current_value())",
    "the variable context of nnx": "from flax import nnx; nnx.use_eager_sharding(not nnx.using_eager_sharding())",
    "the configuration of haiku": "import haiku as hk; hk.config.set(check_jax_usage=True)",
    "the module context of haiku": _STACK.format("frame_stack"),
    "the creators of parameters of haiku": _STACK.format("param_creator_stack"),
    "the getters of parameters of haiku": _STACK.format("param_getter_stack"),
    "the creators of state of haiku": _STACK.format("state_creator_stack"),
    "the getters of state of haiku": _STACK.format("state_getter_stack"),
    "the setters of state of haiku": _STACK.format("state_setter_stack"),
    "the policies of haiku": "import haiku as h, jmp; h.mixed_precision.set_policy(h.Linear, jmp.get_policy('half'))",
    "the interceptors of haiku": "import haiku as hk; b = hk.intercept_methods(len); b.__enter__()",
    "the state of keras": "import keras; keras.mixed_precision.set_dtype_policy('mixed_bfloat16')",
    "the floats of keras": "import keras; keras.config.set_floatx('float16')",
    "the epsilon of keras": "import keras; keras.config.set_epsilon(0.1)",
    "the image format of keras": "import keras; keras.config.set_image_data_format('channels_first')",
    "the assertions of chex": "import chex; chex.disable_asserts()",
    "the handlers of numpyro": "from numpyro import handlers; handlers.seed(rng_seed=1).__enter__()",
    "the validation of numpyro": "import numpyro; numpyro.enable_validation(False)",
    "the bindings of gin": "import gin; gin.bind_parameter('b/gin.macro.value', 1)",
    "the constants of gin": "import gin; gin.constant('K', 2)",
    "the scopes of gin": "import gin; c = gin.config_scope('a'); c.__enter__()",
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
    of_library = {label: module.partition(".")[0] for module, _, label in TABLE}
    assert of_library.keys() == SETS.keys()
    sets = {label: code for label, code in SETS.items() if find_spec(of_library[label]) is not None}
    if not sets:
        pytest.skip("none of the libraries is installed")
    ran = run_program(python_command(CODE % sets), env={"KERAS_BACKEND": "jax"})
    assert json.loads(ran.stdout.splitlines()[-1]) == dict.fromkeys(sets, True)
