"""Which of its two forms ejcache takes with the installed JAX.

The full form replaces functions of JAX's compiler (`seam/patch.py`), and is for the versions on which the whole suite
has run. The thin form is a store behind JAX's own cache (`thin.py`), and is for every other version: it needs one
function of JAX. If that is gone, too, JAX keeps its own cache.

Nothing here imports JAX until a form is chosen.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ejcache.common_errors import UsageError
from ejcache.util.log import warn_once
from ejcache.util.tuples import NamedTuple
from ejcache.util.words import Words

if TYPE_CHECKING:
    from collections.abc import Callable

PROVEN: Final = ("0.10", "0.11", "0.12")
"""The minor versions of JAX on which the whole suite has run with the full form: the one list of them."""
NEEDED: Final = f"JAX {PROVEN[0]} to {PROVEN[-1]}"
_GIVES: Final = "entries are checked, healed, limited, counted and shared"
_LACKS: Final = "why, agreement of ranks, PGLE's variants, preload, warm and reuse"


class Form(Words):
    """How ejcache is between JAX and a store."""

    FULL = "full"
    THIN = "thin"
    NONE = "none"
    """Not at all: JAX's own cache stays in charge."""


class ChosenForm(NamedTuple):
    """The form that the installed JAX gets.

    Attributes:
        form: the form.
        version: of the installed JAX.
        why: why it is not the full one; empty if it is.
    """

    form: Form
    version: str
    why: str = ""

    def __str__(self) -> str:
        """Say in one line what this JAX gets and what it lacks."""
        if self.form is Form.FULL:
            return f"JAX {self.version} is built as expected"
        if self.form is Form.NONE:
            return f"JAX {self.version} is not built as expected, so JAX's own cache stays in charge: {self.why}"
        return f"JAX {self.version} gets the thin form ({self.why}): {_GIVES}; {_LACKS} need {NEEDED}"


def is_proven(version: str) -> bool:
    """True if the full form is for this version of JAX: a release of a minor version in the list."""
    parts = version.partition("+")[0].split(".")
    return all(part.isdecimal() for part in parts) and ".".join(parts[:2]) in PROVEN


@functools.cache
def choose_form() -> ChosenForm:
    """Choose the form for the JAX of this process, once."""
    import jax

    version = str(jax.__version__)
    why = f"the full form is for {NEEDED}"
    if is_proven(version):
        problems = _problems("patch")
        if not problems:
            return ChosenForm(Form.FULL, version)
        why = "; ".join(problems)
    problems = _problems("file_cache")
    if problems:
        return ChosenForm(Form.NONE, version, "; ".join([why, *problems] if is_proven(version) else problems))
    return ChosenForm(Form.THIN, version, why)


def _problems(part: str) -> list[str]:
    """Ask a part of the seam for its mismatches."""
    try:
        found: list[str] = importlib.import_module(f"ejcache.jax_integration.seam.{part}").mismatches()
    except Exception as exc:
        # JAX no longer has a module or a name that the seam uses.
        return [str(exc) or type(exc).__name__]
    return found


def has_full_form(feature: str) -> bool:
    """True if this JAX gets the full form; if not, it is said once that `feature` needs it."""
    lacking = what_is_needed(feature)
    if lacking:
        warn_once(("form", feature), "ejcache: %s", lacking)
    return not lacking


def what_is_needed(feature: str) -> str:
    """Say what `feature` needs, if the installed JAX gets another form than the full one; empty if not.

    JAX is not imported for this: where it is not, its version alone is asked.
    """
    if "jax" in sys.modules:
        choice = choose_form()
        return "" if choice.form is Form.FULL else f"{feature} needs {NEEDED}, and this is JAX {choice.version}"
    try:
        version = importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        return ""
    return "" if is_proven(version) else f"{feature} needs {NEEDED}, and this is JAX {version}"


def needing_full_form(module: str, name: str) -> Any:
    """Return the public function of this name in `module`, or where the form is not the full one, one that says so."""
    if choose_form().form is Form.FULL:
        return getattr(importlib.import_module(module), name)

    def refused(*_: object, **__: object) -> NoReturn:
        raise UsageError(what_is_needed(f"ejcache.{name}"))

    refused.__name__ = refused.__qualname__ = name
    stand_in: Callable[..., NoReturn] = refused
    return stand_in
