"""Finds out whether code has warned, without a change of how this process warns.

Python notes each warning that it shows in `__warningregistry__` of the module that warns, so that it shows it once. Of
a filter "always" it notes only that the module has warned.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, Final

_REGISTRY: Final = "__warningregistry__"
_VERSION: Final = "version"
_ALWAYS: Final = frozenset({"always", "all"})


def warnings_so_far() -> dict[str, Any]:
    """Return what is noted of warnings in each module; a later result is another one if a warning was shown between."""
    is_always = any(each[0] in _ALWAYS for each in tuple(warnings.filters))
    found: dict[str, Any] = {}
    for name, module in tuple(sys.modules.items()):
        registry = getattr(module, "__dict__", {}).get(_REGISTRY)
        if registry:
            shown = frozenset(registry) - {_VERSION}
            found[name] = (shown, registry.get(_VERSION)) if is_always else shown
    return {name: each for name, each in found.items() if each}
