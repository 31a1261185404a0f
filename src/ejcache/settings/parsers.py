"""How most values of settings are read, ours and as JAX reads its own variables; and what is known of a value."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from ejcache.util.tuples import NamedTuple
from ejcache.util.words import Words

if TYPE_CHECKING:
    from typing import Protocol

    class FlagSource(Protocol):
        """Reads JAX's flags. `jax_integration` provides one, so that this room does not import JAX."""

        def read(self, flag: str) -> Value | None:
            """Return the flag's value and origin, or None where this JAX has no such flag."""

        def fingerprint(self) -> Any:
            """Return a value that changes, by `==`, whenever `read` would answer differently for a flag. Takes 2 µs."""


class Origin(Words):
    """Where a value came from."""

    CALL = "call"
    COMMAND_LINE = "command line"
    ENVIRONMENT = "environment"
    FILE = "configuration file"
    DEFAULT = "default"


class Value(NamedTuple):
    """The value of a setting or of a flag of JAX, and what set it.

    Attributes:
        value: the value.
        origin: where it came from.
        source: the name of what set a setting.
    """

    value: Any
    origin: Origin
    source: str = ""


_TRUE: Final = ("true", "yes", "ok", "1", "easy", "y", "t", "on")
_FALSE: Final = ("false", "no", "0", "n", "f", "off", "")


def boolean(value: Any) -> bool:
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(text)


def switch_or_location(value: Any) -> bool | str:
    """Parse a boolean, or else a directory or URL, as for `EJCACHE`. `none` is a mistake rather than a directory."""
    try:
        return boolean(value)
    except ValueError:
        if "/" not in str(value):
            raise
        return str(value)


def text(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and not value):
        return None
    if not isinstance(value, str | os.PathLike):
        raise ValueError(value)  # noqa: TRY004 (resolve turns ValueError into SettingError)
    return os.fspath(value)


def floor_seconds(value: Any) -> float:
    """Return seconds, 0 or more. JAX's users write -1 for no floor, as they must for the floor in bytes."""
    number = float(value)
    if not (number >= 0 or number == -1):
        raise ValueError(value)
    return max(number, 0.0)


def integer(value: Any) -> int:
    if isinstance(value, bool) or int(value) != float(value):
        raise ValueError(value)
    return int(value)


# `jax._src.config` (0.10 to 0.12) accepts less in the environment than we do: neither `10GB` nor `ok`.
_JAX_TRUE: Final = ("y", "yes", "t", "true", "on", "1")
_JAX_FALSE: Final = ("n", "no", "f", "false", "off", "0")


def jax_reading(kind: str, text: str) -> Any:
    """Return the value that JAX takes from a variable of its own, for a setting of this kind, when JAX is imported.

    Raises:
        ValueError: with this text, the import of JAX fails.
    """
    if kind == "boolean":
        if text.lower() in _JAX_TRUE:
            return True
        if text.lower() in _JAX_FALSE:
            return False
        raise ValueError(text)
    if kind in ("limit", "integer"):
        return int(text)
    return float(text) if kind == "seconds" else text
