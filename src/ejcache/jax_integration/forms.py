"""Which of its two forms ejcache takes with the installed JAX.

The full form replaces functions of JAX's compiler (`seam/patch.py`), and is for the versions on which the whole suite
has run. The thin form is a store behind JAX's own cache (`thin.py`), and is for every other version: it needs one
function of JAX. If that is gone, too, JAX keeps its own cache.

Nothing here imports JAX until a form is chosen. A start in the full form does not come here: `why_not_full` is enough.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ejcache.common_errors import UsageError
from ejcache.jax_integration import NEEDED, is_proven, problems, why_not_full
from ejcache.util.log import warn_once
from ejcache.util.tuples import NamedTuple, Words

if TYPE_CHECKING:
    from collections.abc import Callable

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


@functools.cache
def choose_form() -> ChosenForm:
    """Choose the form for the JAX of this process, once."""
    import jax

    version, why = str(jax.__version__), why_not_full()
    if not why:
        return ChosenForm(Form.FULL, version)
    lacking = problems("file_cache")
    if lacking:
        return ChosenForm(Form.NONE, version, "; ".join([why, *lacking] if is_proven(version) else lacking))
    return ChosenForm(Form.THIN, version, why)


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
