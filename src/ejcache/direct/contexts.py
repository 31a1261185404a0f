"""What programs set in libraries and libraries read while they trace: contexts and configurations that are compared.

This table is all that is compared of the state of libraries, besides what the program's own code names and has patched.
A name that a version of a library lacks is left out. A library that was not imported by the end of a recorded trace has
no part in it, whatever its context is now.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["known_contexts"]

_TABLE: Final = (
    ("flax.configurations", "config", "the configuration of flax"),
    ("flax.linen.module", "_context", "the module context of flax"),
    ("flax.linen.spmd", "_axis_rules", "the logical axis rules of flax"),
    ("flax.core.spmd", "_axis_rules", "the logical axis rules of flax's core"),
    ("flax.nnx.module", "CONTEXT", "the module context of nnx"),
    ("flax.typing", "_axis_rules", "the logical axis rules of nnx"),
    ("haiku._src.config", "_config", "the configuration of haiku"),
    ("haiku._src.config", "tls", "the configuration of haiku in this thread"),
    ("haiku._src.base", "frame_stack", "the module context of haiku"),
    ("haiku._src.mixed_precision", "_policies", "the policies of haiku"),
    ("haiku._src.module", "method_interceptors", "the interceptors of haiku"),
    ("keras.src.backend.common.global_state", "GLOBAL_STATE_TRACKER", "the state of keras"),
    ("keras.src.backend.config", "_FLOATX", "the floats of keras"),
    ("keras.src.backend.config", "_EPSILON", "the epsilon of keras"),
    ("keras.src.backend.config", "_IMAGE_DATA_FORMAT", "the image format of keras"),
    ("chex._src.asserts_internal", "DISABLE_ASSERTIONS", "the assertions of chex"),
    ("chex._src.fake", "_fake_jit", "the fakes of chex"),
    ("numpyro.primitives", "_PYRO_STACK", "the handlers of numpyro"),
    ("numpyro.primitives", "_PYRO_PARAM_STORE", "the parameters of numpyro"),
    ("numpyro.distributions.distribution", "_VALIDATION_ENABLED", "the validation of numpyro"),
    ("gin.config", "_CONFIG", "the bindings of gin"),
    ("gin.config", "_CONSTANTS", "the constants of gin"),
)


def known_contexts(digest: Callable[[object], str]) -> dict[str, str]:
    """Digests of the state of the libraries of the table that are imported, by what it is called.

    Args:
        digest: of a value and everything that it leads to.
    """
    found = {}
    for module, name, label in _TABLE:
        names = getattr(sys.modules.get(module), "__dict__", {})
        if name in names:
            found[label] = digest(names[name])
    return found
