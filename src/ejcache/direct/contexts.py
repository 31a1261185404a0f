"""What programs set in libraries and libraries read while they trace: contexts and configurations that are compared.

This table is all that is compared of the state of libraries, besides what the program's own code names and has patched.
A name that a version of a library lacks is left out. A library that was not imported by the end of a recorded trace has
no part in it, whatever its context is now.

Read for this: flax 0.12, haiku 0.0, keras 3, chex 0.1, numpyro 0.21, gin 0.5.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LIBRARIES", "TABLE", "known_contexts"]

TABLE: Final = (
    ("flax.configurations", "config", "the configuration of flax"),
    ("flax.core.spmd", "_axis_rules", "the logical axis rules of flax"),
    ("flax.linen.module", "_context", "the module context of linen"),
    ("flax.linen.module", "_global_interceptor_stack", "the interceptors of linen"),
    ("flax.nnx.graphlib", "GRAPH_CONTEXT", "the graph context of nnx"),
    ("flax.nnx.variablelib", "VARIABLE_CONTEXT", "the variable context of nnx"),
    ("haiku._src.config", "tls", "the configuration of haiku"),
    ("haiku._src.base", "frame_stack", "the module context of haiku"),
    ("haiku._src.base", "param_creator_stack", "the creators of parameters of haiku"),
    ("haiku._src.base", "param_getter_stack", "the getters of parameters of haiku"),
    ("haiku._src.base", "state_creator_stack", "the creators of state of haiku"),
    ("haiku._src.base", "state_getter_stack", "the getters of state of haiku"),
    ("haiku._src.base", "state_setter_stack", "the setters of state of haiku"),
    ("haiku._src.mixed_precision", "_thread_local_state", "the policies of haiku"),
    ("haiku._src.module", "interceptor_stack", "the interceptors of haiku"),
    ("keras.src.backend.common.global_state", "GLOBAL_STATE_TRACKER", "the state of keras"),
    ("keras.src.backend.config", "_FLOATX", "the floats of keras"),
    ("keras.src.backend.config", "_EPSILON", "the epsilon of keras"),
    ("keras.src.backend.config", "_IMAGE_DATA_FORMAT", "the image format of keras"),
    ("chex._src.asserts_internal", "DISABLE_ASSERTIONS", "the assertions of chex"),
    ("numpyro.primitives", "_PYRO_STACK", "the handlers of numpyro"),
    ("numpyro.distributions.distribution", "_VALIDATION_ENABLED", "the validation of numpyro"),
    ("gin.config", "_CONFIG", "the bindings of gin"),
    ("gin.config", "_CONSTANTS", "the constants of gin"),
    ("gin.config", "_SCOPE_MANAGER", "the scopes of gin"),
)
LIBRARIES: Final = frozenset(
    {module.partition(".")[0] for module, _, _ in TABLE}
    | {"blackjax", "brax", "diffrax", "equinox", "jax", "lineax", "numpy", "optax", "optimistix", "scipy"}
)
"""Packages of which users jit functions as they are (`model.apply`, `SVI.update`): the project is elsewhere."""


def known_contexts(digest: Callable[[object], str]) -> dict[str, str]:
    """Digests of the state of the libraries of the table that are imported, by what it is called.

    Args:
        digest: of a value and everything that it leads to.
    """
    found = {}
    for module, name, label in TABLE:
        names = getattr(sys.modules.get(module), "__dict__", {})
        if name in names:
            found[label] = digest(names[name])
    return found
