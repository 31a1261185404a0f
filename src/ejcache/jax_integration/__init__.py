"""The only room that touches JAX: `seam` holds every contact with its internals, the rest builds on `seam`.

Here is for which JAX the room is proven, as every start asks; `forms.py` says what another one gets.
"""

from __future__ import annotations

import functools
import importlib
from typing import Final

PROVEN: Final = ("0.10", "0.11", "0.12")
"""The minor versions of JAX on which the whole suite has run with the full form: the one list of them."""
NEEDED: Final = f"JAX {PROVEN[0]} to {PROVEN[-1]}"


def is_proven(version: str) -> bool:
    """True if the full form is for this version of JAX: a release of a minor version in the list."""
    parts = version.partition("+")[0].split(".")
    return all(part.isdecimal() for part in parts) and ".".join(parts[:2]) in PROVEN


@functools.cache
def why_not_full() -> str:
    """Return why the JAX of this process does not get the full form; empty if it does. It is found out once."""
    import jax  # nothing in the room imports it before a form is chosen

    is_listed = is_proven(str(jax.__version__))
    return "; ".join(problems("patch")) if is_listed else f"the full form is for {NEEDED}"


def problems(part: str) -> list[str]:
    """Ask a part of the seam for its mismatches."""
    try:
        found: list[str] = importlib.import_module(f"ejcache.jax_integration.seam.{part}").mismatches()
    except Exception as exc:
        # JAX no longer has a module or a name that the seam uses.
        return [str(exc) or type(exc).__name__]
    return found
