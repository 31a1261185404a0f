"""Reads from the stack which function JAX compiles, and how JAX and the user name its arguments.

`UnloadedMeshExecutable.from_hlo`, which is on the stack of each compilation, has them as its own arguments. They
explain misses; where JAX has renamed something, they are left out. Equinox and Flax give JAX lists of the leaves of
their user's objects: how the user calls a leaf is found in their own frames, by the identity of the array.

Read for this: jax 0.4.38, 0.8.3, 0.10.2 and 0.12.0.1, `interpreters/pxla.py` and `pjit.py`; equinox 0.13 and
flax 0.12, the files of `_WRAPPERS`.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any, Final

import jax

from ejcache.jax_integration.seam.parts import Part
from ejcache.util.files import read_regular

if TYPE_CHECKING:
    from types import FrameType

PART: Final = Part(
    "the committed arguments of a program in `ejcache why`",
    {"jax._src.sharding_impls": ("GSPMDSharding", "UnspecifiedValue")},
)
sharding_impls = PART.module("jax._src.sharding_impls")

_CALLER: Final = "from_hlo"
_FILE: Final = "pxla.py"
_MOST: Final = 200
"""Names of arguments that are noted."""
_MOST_COMMITTED: Final = 500
"""Committed arguments up to which they are noted: all of them, or none, because a part would look like a change."""
_WRAPPERS: Final = ("/equinox/_jit.py", "/flax/nnx/transforms/compilation.py")
"""The ends of the files whose functions are given the objects of a user, and call JAX with their leaves."""
_OF_VARIABLE: Final = frozenset({".value", ".raw_value"})
"""The last part of the path of a leaf in a variable of Flax."""
_LARGEST: Final = 2_000_000
"""Bytes of a source file."""
_LONGEST: Final = 200
"""Characters of a source line."""


def facts_of_call() -> dict[str, str]:
    """Return texts about the program that this thread compiles; empty if JAX does not say.

    `defined` is where its function begins, `/home/me/train.py:14 step`, and `source` the line that is there if it is a
    lambda; `weak` are the paths of its weakly typed arguments, one a line, and `committed` those of the arguments that
    are committed to devices, or that the function places (`in_shardings`).
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (frame.f_code.co_name == _CALLER and frame.f_code.co_filename.endswith(_FILE)):
        frame = frame.f_back
    if frame is None:
        return {}
    known: dict[str, Any] = frame.f_locals
    info = known.get("all_args_info")
    debug = getattr(info, "debug_info", None)
    name, _, place = str(getattr(debug, "func_src_info", "")).partition(" at ")
    facts = {}
    if place:
        facts["defined"] = f"{place} {name}"
    if name == "<lambda>":
        file, _, line = place.rpartition(":")
        facts["source"] = _line_of(file, int(line)) if line.isdigit() else ""
    avals, names = getattr(info, "in_avals", ()), getattr(debug, "arg_names", None)
    if names is not None and len(names) == len(avals):
        weak = [str(each) for each, aval in zip(names, avals, strict=True) if getattr(aval, "weak_type", False)]
        facts["weak"] = "\n".join(weak[:_MOST])
        placed, kept = known.get("in_shardings", ()), sorted(known.get("kept_var_idx", ()))
        if PART.fits and len(placed) == len(kept) and (not kept or kept[-1] < len(names)):
            each_placed = ((names[n], avals[n], sharding) for n, sharding in zip(kept, placed, strict=True))
            committed = [str(name) for name, aval, sharding in each_placed if name and _is_committed(aval, sharding)]
            if len(committed) <= _MOST_COMMITTED:
                facts["committed"] = "\n".join(committed)
    return facts


def names_by_caller() -> dict[str, str]:
    """Return how the user calls the arguments of the program that this thread compiles, by how JAX does.

    "model.out_scale" for `dynamic_nodonate['rest'][11]`. Empty if the user's own call is one of JAX's function, or if
    a leaf is not found.
    """
    names: tuple[Any, ...] | None = None
    leaves: Any = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.endswith(_WRAPPERS):
        if frame.f_code.co_name == _CALLER and frame.f_code.co_filename.endswith(_FILE):
            names = getattr(getattr(frame.f_locals.get("all_args_info"), "debug_info", None), "arg_names", None)
        elif frame.f_code.co_filename.endswith("pjit.py"):
            leaves = frame.f_locals.get("args_flat", leaves)
        frame = frame.f_back
    while frame is not None and "self" not in frame.f_locals:
        frame = frame.f_back
    if frame is None or not names or not leaves or not frame.f_code.co_filename.endswith(_WRAPPERS):
        return {}
    function = frame.f_locals["self"]
    bound = inspect.signature(getattr(function, "__wrapped__", function)).bind_partial(
        *frame.f_locals.get("args", ()), **frame.f_locals.get("kwargs", {})
    )
    paths: dict[int, str] = {}
    for name, value in bound.arguments.items():
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            within = [jax.tree_util.keystr((key,)) for key in path]
            if within and within[-1] in _OF_VARIABLE:
                within.pop()
            paths.setdefault(id(leaf), f"{name}{''.join(within)}")
    # Constants of the program come first.
    of_leaves = map(str, names[len(names) - len(leaves) :])
    found = {name: paths.get(id(leaf), "") for name, leaf in zip(of_leaves, leaves, strict=True)}
    return found if all(found.values()) else {}


def _is_committed(aval: Any, sharding: Any) -> bool:
    """True if the caller or the function has placed the argument. On several devices JAX itself places scalars."""
    if isinstance(sharding, sharding_impls.UnspecifiedValue):
        return False
    return not (isinstance(sharding, sharding_impls.GSPMDSharding) and not getattr(aval, "shape", ()))


def _line_of(file: str, number: int) -> str:
    """Return a line of a source file as it is now; `linecache` would keep it as it was."""
    try:
        lines = read_regular(file, max_size=_LARGEST).decode().splitlines()
    except (OSError, ValueError):
        return ""
    return lines[number - 1].strip()[:_LONGEST] if 0 < number <= len(lines) else ""
