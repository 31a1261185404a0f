"""Checks the names of JAX's internals that one thing needs: where a JAX lacks them, that thing alone is missing.

Most modules of the seam have one `Part`; `patch`, `comparing`, `file_cache` and `reuse/` check names of their own. A
`Part` gives the modules of JAX, which are empty where there are none, so that importing the seam never fails.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ejcache.util.log import warn_once

if TYPE_CHECKING:
    from collections.abc import Mapping


class Part:
    """What one thing needs of JAX.

    Args:
        gives: what is missing without it, in words: "the names of arguments in `ejcache why`".
        needs: names, by the module of JAX that has them.
    """

    def __init__(self, gives: str, needs: Mapping[str, tuple[str, ...]]) -> None:
        self.gives = gives
        self._needs = needs

    def module(self, name: str) -> Any:
        """Return a module of JAX; an empty one if this JAX has none of that name."""
        try:
            return importlib.import_module(name)
        except ImportError:
            # Some are attributes of a module: `jax._src.lib.xla_client`.
            above, _, last = name.rpartition(".")
            return getattr(sys.modules.get(above), last, ModuleType(name))

    def mismatches(self) -> list[str]:
        """List what this JAX lacks; empty if it lacks nothing."""
        return [
            f"{module}.{name} is gone"
            for module, names in self._needs.items()
            for name in names
            if not hasattr(self.module(module), name)
        ]

    @cached_property
    def fits(self) -> bool:
        """Whether this JAX lacks nothing. If it does, that is said once."""
        lacking = self.mismatches()
        if lacking:
            warn_once(("part", self.gives), "ejcache: this JAX does not give %s: %s", self.gives, "; ".join(lacking))
        return not lacking


def names_of(function: Any) -> tuple[str, ...]:
    """Return the names that the code of a function refers to; none of what is no function of Python."""
    # Others may have put something around it, as profilers do; the function itself is inside.
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return code.co_names if code is not None else ()
