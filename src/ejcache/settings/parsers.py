"""The parsers of settings, ours and those with which JAX reads its own variables; and what a setting is made of."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from ejcache.common_errors import ACCEPTED_SIZE
from ejcache.util.tuples import NamedTuple
from ejcache.util.words import Words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    class FlagSource(Protocol):
        """Reads JAX's flags. `jax_integration` provides one, so that this room does not import JAX."""

        def read(self, flag: str) -> FlagValue | None:
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


class FlagValue(NamedTuple):
    """One of JAX's flags as JAX holds it now."""

    value: Any
    origin: Origin


class Value(NamedTuple):
    """A setting's value, and the name of what set it."""

    value: Any
    origin: Origin
    source: str


class Setting(NamedTuple):
    """One setting.

    Attributes:
        default: its value if it is set nowhere.
        doc: one line for `ejcache config` and the reference of settings.
        parse: turns text or a Python value into the setting's own type, or raises ValueError; by default, what goes
            with the type of `default`.
        accepted: the values that `parse` accepts, in words, for the error message; by default, what goes with `parse`.
        flag: the JAX flag with the same meaning; empty if there is none.
        others: variables that set it besides `EJCACHE_` and its name, and the flag's.
        jax_default: the flag's value in JAX if nobody has set it, where that is not `default`.
        read_by_jax: JAX itself goes by the flag, so no file and no variable of ours sets it.
        name: its name in `Settings`, `ejcache.enable` and `ejcache config`: that of the attribute which declares it.
        variables: all environment variables that set it; the first one that is set counts.
        annotation: the type of its value, as text.
    """

    default: Any
    doc: str
    parse: Callable[[Any], Any] = str
    accepted: str = ""
    flag: str = ""
    others: tuple[str, ...] = ()
    jax_default: Any = None
    read_by_jax: bool = False
    name: str = ""
    annotation: str = ""
    variables: tuple[str, ...] = ()


setting: Final[Callable[..., Any]] = Setting
"""Declares a setting, as the value of an attribute of a class. A type checker takes the attribute for its value."""


def eviction_order(value: Any) -> str:
    """Parse a word of the setting `evict`."""
    text = str(value).strip().lower()
    if text not in {"lru", "cost"}:
        raise ValueError(text)
    return text


def autotune_policy(value: Any) -> str:
    """Parse a word of the setting `autotune_policy`."""
    text = str(value).strip().lower()
    if text not in {"autotune", "heuristics", "error"}:
        raise ValueError(text)
    return text


def declared_settings(by: type) -> list[Setting]:
    """Return the settings that a class declares, in their order."""
    found = []
    for name, each in vars(by).items():
        if isinstance(each, Setting):
            parse = _OF_TYPE[type(each.default)] if each.parse is str else each.parse
            flag = (each.flag.upper(),) if each.flag else ()
            named = () if each.read_by_jax else (f"EJCACHE_{name.upper()}",)
            found.append(
                each._replace(
                    parse=parse,
                    accepted=each.accepted or _ACCEPTED[parse],
                    name=name,
                    annotation=by.__annotations__[name],
                    variables=tuple(sorted((*named, *flag, *each.others), key=_is_of_others)),
                )
            )
    return found


def _is_of_others(variable: str) -> bool:
    return not variable.startswith("EJCACHE_")


_TRUE: Final = frozenset({"true", "yes", "ok", "1", "easy", "y", "t", "on"})
_FALSE: Final = frozenset({"false", "no", "0", "n", "f", "off", ""})
YES_NO: Final = "true or false (also 1/0, yes/no, on/off)"
REPORT_OFF: Final = frozenset({"", "0", "off", "false", "no", "none"})
REPORT_LINE: Final = frozenset({"1", "line", "on", "true", "yes"})
REPORT_JSON: Final = frozenset({"json"})
XLA_CACHES: Final = ("xla_gpu_kernel_cache_file", "xla_gpu_per_fusion_autotune_cache_dir")


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


def limit(value: Any) -> int:
    from ejcache.util.units import parse_size  # few programs give a size

    return parse_size(value, unlimited=True)


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


def report(value: Any) -> str | None:
    """Return `off`, `line` or `json` in any of their spellings, or a path. A word alone would be a misspelt one of
    these.
    """
    where = text(value)
    if where is None or where.lower() in REPORT_OFF | REPORT_LINE | REPORT_JSON:
        return where
    if os.sep not in where and not where.endswith(".json"):
        raise ValueError(value)
    return where


def xla_caches(value: Any) -> str:
    text = str(value or "none")
    if text in {"all", "none"} or {part.strip() for part in text.split(",")} <= set(XLA_CACHES):
        return text
    raise ValueError(text)


def word(value: Any) -> str:
    return text(value) or ""


_OF_TYPE: Final[Mapping[type, Callable[[Any], Any]]] = {
    bool: boolean,
    int: integer,
    str: word,
    type(None): text,
}
_ACCEPTED: Final[Mapping[Callable[[Any], Any], str]] = {
    boolean: YES_NO,
    integer: "a whole number",
    word: "any text",
    text: "any text",
    limit: f"{ACCEPTED_SIZE}, or -1 for no limit",
    floor_seconds: "a number of seconds, or 0 (also -1) for no minimum",
    report: "off, line (or 1) or json for stderr, or the path of a JSON file, with a slash or .json at its end",
    xla_caches: f"all, none, or a list of {', '.join(XLA_CACHES)}",
}


def _jax_boolean(text: str) -> bool:
    if text.lower() in _JAX_TRUE:
        return True
    if text.lower() in _JAX_FALSE:
        return False
    raise ValueError(text)


# `jax._src.config` (0.10 to 0.12) accepts less in the environment than we do: neither `10GB` nor `ok`.
_JAX_TRUE: Final = frozenset({"y", "yes", "t", "true", "on", "1"})
_JAX_FALSE: Final = frozenset({"n", "no", "f", "false", "off", "0"})
_JAX_TYPES: Final[Mapping[Callable[[Any], Any], Callable[[str], Any]]] = {
    boolean: _jax_boolean,
    limit: int,
    integer: int,
    floor_seconds: float,
}


def jax_reading(setting: Setting, text: str) -> Any:
    """Return the value that JAX takes from the environment variable of the setting's flag when JAX is imported.

    Raises:
        ValueError: with this text, the import of JAX fails.
    """
    read = _JAX_TYPES.get(setting.parse)
    return text if read is None else read(text)
