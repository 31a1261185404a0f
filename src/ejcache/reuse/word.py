"""Digests the value of `reuse_lowering`, the *word*.

It stands for everything that a function reads besides its arguments and its own code. It is a value, or a function that
returns one.

Of a word only a digest is kept. A part that cannot be compared is an error that names its place.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from typing import TYPE_CHECKING, Any, Final

import jax
import numpy as np

from ejcache.errors import UsageError
from ejcache.values.plain_data import NotWholeError, whole_digest

if TYPE_CHECKING:
    from collections.abc import Callable

_ACCEPTED: Final = "a text, a number, a path, a tuple, list or dict of such, or a configuration that holds no more"


class Word:
    """The word of one function.

    Args:
        value: what `reuse_lowering` was given.

    Raises:
        UsageError: it is no word.
    """

    def __init__(self, value: Any) -> None:
        self._function: Callable[[], Any] | None = None
        self._digest = ""
        self._changed: NotWholeError | None = None
        if _is_function(value):
            _check_parameters(value)
            self._function = value
            return
        try:
            self._digest = _digest(value)
        except NotWholeError as exc:
            self._changed = exc

    def ask(self) -> str:
        """Return a digest of the word as it is now. Raises whatever the user's function raises.

        Raises:
            UsageError: the function returned what is no word.
            NotWholeError: a file that the word stands for was changed after this process began.
        """
        if self._changed is not None:
            raise self._changed
        return self._digest if self._function is None else _digest(self._function())


def word_of(wanted: Any) -> Word | None:
    """Return the word that `reuse_lowering` was given; None where it is off.

    Raises:
        UsageError: it is no word.
    """
    return None if wanted is None or wanted is False else Word(wanted)


def _is_function(value: Any) -> bool:
    is_value = isinstance(value, (type, enum.Enum)) or dataclasses.is_dataclass(value)
    return callable(value) and not is_value


def _check_parameters(function: Any) -> None:
    try:
        inspect.signature(function).bind()
    except TypeError as exc:
        raise UsageError(
            "ejit: reuse_lowering is a function that needs arguments: give one without parameters"
        ) from exc
    except ValueError:
        return  # one of C, which says nothing of its parameters


def _digest(value: Any) -> str:
    if value is None or isinstance(value, (bool, np.bool_)):
        raise UsageError(
            f"ejit: reuse_lowering is {value}, which says nothing of what the function reads besides its arguments: "
            f"give {_ACCEPTED}, or a function that returns one; None and False switch it off"
        )
    is_dataclass = dataclasses.is_dataclass(value) and not isinstance(value, type)
    root = type(value).__name__.lower() if is_dataclass else "word"
    try:
        return whole_digest(value, root)
    except NotWholeError as exc:
        if exc.is_changed_file:
            raise
        raise UsageError(
            f"ejit: reuse_lowering: {exc.reason}, which cannot be compared: {_advice(exc.value)}"
        ) from None


def _advice(value: object) -> str:
    """Say what to give in place of a part that no word can have."""
    if isinstance(value, (jax.Array, np.ndarray)):
        return "give a digest of it, hashlib.sha256(numpy.asarray(array).tobytes()).hexdigest(), or make it an argument"
    if isinstance(value, type) or (callable(value) and hasattr(value, "__name__")):
        return "give its name, and ejcache.code_digest(module) for its code"
    for kind in (dict, list, tuple, set, str, bytes, int, float):
        if isinstance(value, kind):
            return f"give {kind.__name__}(…) of it"
    return f"give what counts of it, as {_ACCEPTED}"
