"""Describes settings to a person who asks, or who has set one wrongly."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ejcache.errors import ACCEPTED_SIZE, JaxImportError, SettingError, UnknownSettingError
from ejcache.settings.table import ACCEPTED, DECLARED, JAX_DEFAULTS, KINDS, NAMES, VARIABLES, Settings, read_value

if TYPE_CHECKING:
    from collections.abc import Iterable

_ALIKE: Final = 0.8
"""Likeness (difflib's ratio) from which a name is probably a misspelling of another."""
_SIZE_IN_BYTES: Final = "a number of bytes without a unit"


class Setting(NamedTuple):
    """One setting.

    Attributes:
        name: its name in `Settings`, `ejcache.enable` and `ejcache config`.
        default: its value if it is set nowhere.
        doc: one line for `ejcache config` and the reference of settings.
        kind: how its values are read (`table.read_value`).
        accepted: the values that it accepts, in words.
        flag: the JAX flag with the same meaning; empty if there is none.
        variables: all environment variables that set it; the first one that is set counts.
        jax_default: the flag's value in JAX if nobody has set it.
        read_by_jax: JAX itself goes by the flag, so no file and no variable of ours sets it.
        annotation: the type of its value, as text.
    """

    name: str
    default: Any
    doc: str
    kind: str
    accepted: str
    flag: str
    variables: tuple[str, ...]
    jax_default: Any
    read_by_jax: bool
    annotation: str


SETTINGS: Final = tuple(
    Setting(
        name=name,
        default=default,
        doc=doc,
        kind=KINDS[name],
        accepted=accepted or ACCEPTED[KINDS[name]],
        flag=flag,
        variables=VARIABLES[name],
        jax_default=JAX_DEFAULTS.get(flag),
        read_by_jax=read_by_jax,
        annotation=Settings.__annotations__[name],
    )
    for name, (default, doc, _, accepted, flag, _, _, read_by_jax) in DECLARED.items()
)
"""Every setting, in the order in which `Settings` declares them."""

_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


def setting_named(name: str) -> Setting:
    """Return the setting with this name, which may also be the name of its JAX flag, with or without `jax_`.

    Raises:
        UnknownSettingError: there is no such setting; the message says which one was probably meant.
    """
    found = NAMES.get(name) or NAMES.get(f"jax_{name}")
    if found is None:
        import difflib  # each start would wait for it

        meant = difflib.get_close_matches(name, NAMES, n=1, cutoff=_ALIKE)
        raise UnknownSettingError(
            "setting", name, f"did you mean {meant[0]}?" if meant else "`ejcache config` lists them"
        )
    return _BY_NAME[found]


def setting_in_file(name: str) -> Setting:
    """Return the setting with this name, if a configuration file may set it.

    Raises:
        UnknownSettingError: there is no such setting.
        SettingError: a file cannot set it.
    """
    setting = setting_named(name)
    if setting.read_by_jax:
        others = ", ".join(each.name for each in SETTINGS if each.read_by_jax)
        raise SettingError("a setting in a configuration file", name, f"any but {others}")
    return setting


def refused(name: str, value: Any, source: str) -> SettingError:
    """Return the error of a setting that cannot have this value, which `source` gives it."""
    setting = _BY_NAME[name]
    return SettingError(source or name, value, _in_bytes(setting) if _is_of_jax(setting, source) else setting.accepted)


def refused_by_jax(name: str, text: str) -> SettingError:
    """Return the error of a variable of JAX, with whose text JAX cannot be imported; it says what to write instead."""
    setting = _BY_NAME[name]
    accepted = _in_bytes(setting)
    with contextlib.suppress(TypeError, ValueError, OverflowError, AttributeError):
        meant = read_value(name, text)
        accepted = accepted.replace(_SIZE_IN_BYTES, f"{_SIZE_IN_BYTES} (write {meant})")
    return JaxImportError(setting.flag.upper(), text, accepted)


def _in_bytes(setting: Setting) -> str:
    return setting.accepted.replace(ACCEPTED_SIZE, _SIZE_IN_BYTES)


def _is_of_jax(setting: Setting, source: str) -> bool:
    return bool(setting.flag) and source == setting.flag.upper()


def misspelt(variables: Iterable[str]) -> list[SettingError]:
    """Return those with nearly the name of one of our variables. Others may belong to other programs."""
    ours = [name for names in VARIABLES.values() for name in names if name.startswith("EJCACHE_")]
    found: list[SettingError] = []
    for name in variables:
        import difflib  # each start would wait for it

        meant = difflib.get_close_matches(name, ours, n=1, cutoff=_ALIKE)
        if meant:
            found.append(UnknownSettingError("variable", name, f"did you mean {meant[0]}?"))
    return found
