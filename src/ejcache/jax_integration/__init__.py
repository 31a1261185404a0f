"""Which parts of `seam` fit the installed JAX, as every start asks.

Of the package, only `seam` touches JAX's internals. The rest of this room builds on it.
"""

from __future__ import annotations

import functools
import importlib
from typing import Final

PROVEN: Final = ("0.10", "0.11", "0.12")
"""The minor versions of JAX on which restarts without tracing are proven (`reuse`). All else goes by what is there."""
NEEDED: Final = f"JAX {PROVEN[0]} to {PROVEN[-1]}"
_PARTS: Final = (
    *("autotune.tracing", "backends", "called_function", "calling_line", "compilation_watch", "compiling"),
    *("flags", "job", "kernel_dialects", "pickling", "topologies", "trace_settings", "tracebacks"),
    "registered_functions",
)
"""The modules of the seam that have a `PART`."""


def is_proven(version: str) -> bool:
    """True if restarts without tracing are for this version of JAX: a release of a minor version in the list."""
    parts = version.partition("+")[0].split(".")
    return all(part.isdecimal() for part in parts) and ".".join(parts[:2]) in PROVEN


@functools.cache
def why_not_ours() -> str:
    """Return why the seam cannot take the compilations of this JAX; empty if it can. It is found out once."""
    return "; ".join(_problems("patch"))


@functools.cache
def why_not_behind() -> str:
    """Return why JAX's own cache takes no store of ours; empty if it does."""
    return "; ".join(_problems("file_cache"))


def in_charge() -> tuple[str, str]:
    """Say what keeps the executables of this JAX: "ours", "behind" JAX's cache, or "jax"; and that in a line."""
    import jax  # nothing in the room imports it before somebody asks

    version, why = str(jax.__version__), why_not_ours()
    if not why:
        return "ours", f"JAX {version} is built as expected"
    lacking = why_not_behind()
    if lacking:
        more = f"{why}; {lacking}"
        return "jax", f"JAX {version} is not built as expected, so JAX's own cache stays in charge: {more}"
    kept = "entries are kept under JAX's own keys, without why, agreement of ranks, preload and warm"
    return "behind", f"JAX {version} is not built as expected ({why}): {kept}"


def missing_parts() -> list[str]:
    """Say, in a line for each, what this JAX does not give."""
    found = []
    for name in _PARTS:
        part = importlib.import_module(f"ejcache.jax_integration.seam.{name}").PART
        if lacking := part.mismatches():
            found.append(f"{part.gives}: {'; '.join(lacking)}")
    return found


def _problems(name: str) -> list[str]:
    try:
        found: list[str] = importlib.import_module(f"ejcache.jax_integration.seam.{name}").mismatches()
    except Exception as exc:
        # JAX no longer has a module or a name that the seam uses.
        return [str(exc) or type(exc).__name__]
    return found
