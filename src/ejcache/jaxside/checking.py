"""Whether a stored executable is what a fresh compilation gives: `jax_compilation_cache_check_contents`, and sampled.

Serialised CPU executables of some programs (a `sort`) differ from compilation to compilation, and all carry the source
lines of whoever stored them, so that bytes prove nothing but equality. Where they differ, the optimised HLO decides,
without its metadata; and only if two fresh compilations agree with each other and not with the stored one.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from ejcache.jaxside import seam

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Stored", "Verdict", "judge", "serialized"]


class Verdict(Enum):
    """What a check found."""

    SAME = "same"
    """The stored executable is the fresh one, or is made of the same optimised program."""
    DIFFERENT = "different"
    """Two fresh compilations agree, and the stored one is another program."""
    UNSURE = "unsure"
    """Fresh compilations differ among themselves, or XLA does not show its programs, so nothing is proven."""


class Stored:
    """A stored executable that waits for a fresh one to be compared with.

    Args:
        raw: its serialised bytes.
        executable: what XLA loaded from them.
    """

    def __init__(self, raw: bytes, executable: Any) -> None:
        self.raw = raw
        self.program = _program(executable)


def judge(stored: Stored, fresh: Any, *, compile_again: Callable[[], Any]) -> Verdict:
    """Compare `stored` with a fresh executable; `compile_again` makes another one where that is needed to tell."""
    if serialized(fresh) == stored.raw:
        return Verdict.SAME
    program = _program(fresh)
    if program is None or stored.program is None:
        return Verdict.UNSURE
    if program == stored.program:
        return Verdict.SAME
    return Verdict.DIFFERENT if _program(compile_again()) == program else Verdict.UNSURE


def serialized(executable: Any) -> bytes | None:
    """The executable's bytes, or None if XLA cannot give them."""
    try:
        return seam.serialize_executable(executable)
    except RuntimeError:
        # XLA's errors are RuntimeErrors; what cannot be serialised is compared by its program.
        return None


def _program(executable: Any) -> str | None:
    """The optimised program, or None if XLA cannot give it: some plug-ins lack that."""
    try:
        return seam.optimised_program(executable)
    except RuntimeError:
        return None
