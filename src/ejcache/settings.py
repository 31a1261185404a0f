"""Every setting: what it is called, where its value comes from, and what it accepts.

This is the only reader of the environment and of JAX's flags. It does not import JAX: `jaxside` hands it a
`FlagSource` once JAX is there; before that (and in the command line tool) JAX's environment variables are read as
JAX would read them.

Where a value may come from: a call in the program (`jax.config.update`, `set_cache_dir()`,
`ejcache.enable(...)`: the latest wins) over the command line over environment variables, in the order listed with the
setting over the default.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import JaxImportError, SettingError
from ejcache.settings_directories import (
    default_directory,
    make_private,
    make_user_directory_above,
    state_directory,
    temporary_directory,
    user_directory,
)
from ejcache.settings_table import SETTINGS
from ejcache.settings_values import FlagSource, FlagValue, Origin, Setting, Value, jax_reading
from ejcache.settings_values import text as plain_text
from ejcache.units import ACCEPTED_SIZE

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "SETTINGS",
    "FlagSource",
    "FlagValue",
    "Origin",
    "Setting",
    "Settings",
    "Value",
    "environment",
    "jax_reading",
    "make_private",
    "make_user_directory_above",
    "parse",
    "resolve",
    "set_command_line",
    "setting_named",
    "state_directory",
    "temporary_directory",
    "user_directory",
]


_BY_NAME: Final = {setting.name: setting for setting in SETTINGS} | {s.flag: s for s in SETTINGS if s.flag}

_command_line: dict[str, Any] = {}


def setting_named(name: str) -> Setting:
    """The setting called `name`: its own name, or that of its JAX flag with or without `jax_`.

    Raises:
        SettingError: there is none; the message lists those there are.
    """
    found = _BY_NAME.get(name) or _BY_NAME.get(f"jax_{name}")
    if found is None:
        raise SettingError("a setting", name, ", ".join(setting.name for setting in SETTINGS))
    return found


def parse(setting: Setting, value: Any, *, source: str = "") -> Any:
    """`value` as the setting's own type.

    Raises:
        SettingError: it is not acceptable; the message names `source`, or the setting.
    """
    try:
        return setting.parser(value)
    except (TypeError, ValueError, OverflowError) as exc:
        raise SettingError(source or setting.flag or setting.name, value, setting.accepted) from exc


def set_command_line(values: Mapping[str, Any]) -> None:
    """Set the layer below calls and above the environment, for this process (`ejcache run --dir`)."""
    _command_line.clear()
    for name, value in values.items():
        setting = setting_named(name)
        _command_line[setting.name] = parse(setting, value, source=f"--{name.replace('_', '-')}")


def environment() -> Mapping[str, str]:
    """The process's environment, for the code outside this module that needs all of it (keys)."""
    return os.environ


class Settings:
    """Resolved values by name: `settings.max_size`, and where each came from: `settings["max_size"]`."""

    def __init__(self, values: Mapping[str, Value], problems: tuple[SettingError, ...] = ()) -> None:
        self._values = dict(values)
        self.problems = problems
        """Values that could not be used; the next layer's was taken instead."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name].value
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def items(self) -> list[tuple[Setting, Value]]:
        """Every setting with its value, in the order of `SETTINGS`."""
        return [(setting, self._values[setting.name]) for setting in SETTINGS]

    @property
    def disabled_reason(self) -> str:
        """Why nothing is cached, in words; empty if caching is on. Disabling always wins."""
        if not self.enabled:
            return f"{self['enabled'].source} is false"
        if self.max_size == 0:
            return f"{self['max_size'].source} is 0"
        if self.cache_dir is None:
            return f"{self['cache_dir'].source} set no directory"
        return ""


def resolve(
    *,
    flags: FlagSource | None = None,
    calls: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Every setting's value now.

    Args:
        flags: reads JAX's flags; None where JAX is not loaded.
        calls: values given to `ejcache.enable` for settings that are not JAX flags, already parsed.
        environ: the environment, if not this process's.

    A value in the environment that cannot be used is reported in `Settings.problems`, and the next layer is taken:
    a typing error in a job's environment must not fail the job. JAX's own variables are read as strictly as JAX reads
    them, or what is fine here would stop the job at `import jax`.
    """
    env = os.environ if environ is None else environ
    problems: list[SettingError] = []
    values = {
        setting.name: _resolve_one(setting, flags, calls or {}, env, problems)
        for setting in SETTINGS
    }  # fmt: skip
    if values["cache_dir"].origin is Origin.DEFAULT:
        values["cache_dir"] = Value(str(default_directory(env)), Origin.DEFAULT, "default")
    if values["full_cache"].value:
        # ALLOW_FULL_CACHE stands for three flags; a program that sets one of them itself means it.
        source = values["full_cache"].source
        for name, value in (("min_entry_size", -1), ("min_compile_seconds", 0.0), ("xla_caches", "all")):
            if values[name].origin is not Origin.CALL:
                values[name] = Value(value, values["full_cache"].origin, source)
    return Settings(values, tuple(problems))


def _resolve_one(
    setting: Setting,
    flags: FlagSource | None,
    calls: Mapping[str, Any],
    env: Mapping[str, str],
    problems: list[SettingError],
) -> Value:
    flag = flags.read(setting.flag) if flags is not None and setting.flag else None
    if flag is not None and flag.origin is Origin.CALL:
        try:
            return Value(parse(setting, flag.value), Origin.CALL, f"jax.config.{setting.flag}")
        except SettingError as problem:
            problems.append(problem)
    if setting.name in calls:
        return Value(calls[setting.name], Origin.CALL, f"ejcache.enable({setting.name}=…)")
    if setting.name in _command_line:
        return Value(_command_line[setting.name], Origin.COMMAND_LINE, f"--{_option(setting.name)}")
    if flag is not None and flag.origin is Origin.COMMAND_LINE:
        try:
            return Value(parse(setting, flag.value), Origin.COMMAND_LINE, f"--{setting.flag}")
        except SettingError as problem:
            problems.append(problem)
    for variable in setting.variables:
        text = env.get(variable)
        if text is None or (not text and not _means_something_empty(setting, variable)):
            continue
        try:
            return Value(_parse_variable(setting, variable, text), Origin.ENVIRONMENT, variable)
        except SettingError as problem:
            problems.append(problem)
    return Value(setting.default, Origin.DEFAULT, "default")


def _means_something_empty(setting: Setting, variable: str) -> bool:
    """JAX takes an empty list for an empty list, and an empty number or truth value for a mistake."""
    return variable == setting.flag.upper() and setting.parser is not plain_text


def _parse_variable(setting: Setting, variable: str, text: str) -> Any:
    accepted = setting.accepted
    if variable == setting.flag.upper():
        accepted = accepted.replace(ACCEPTED_SIZE, "a number of bytes without a unit")
        try:
            jax_reading(setting, text)
        except ValueError as exc:
            raise JaxImportError(variable, text, accepted) from exc
    try:
        return parse(setting, text, source=variable)
    except SettingError as exc:
        raise SettingError(variable, text, accepted) from exc


def _option(name: str) -> str:
    return "dir" if name == "cache_dir" else name.replace("_", "-")
