"""Resolves the current value of each setting, and where it comes from.

The highest of these layers that has a value wins: a call in the program (`jax.config.update`, `set_cache_dir()`,
`ejcache.enable(...)`; among these the latest wins), the command line, environment variables in the order in which the
table lists them, the user's configuration file, the host's, the default.

This module does not import JAX. `jax_integration` hands it a `FlagSource` when JAX is loaded. Without one, as in the
command line tool, it reads JAX's environment variables as JAX would read them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import ConfigFileError, SettingError
from ejcache.settings.directories import configuration_files, default_directory, may_exist, or_temporary
from ejcache.settings.environment import OTHER_VARIABLES, variables_to_compare
from ejcache.settings.table import (
    DEFAULTS,
    FLAGS,
    KINDS,
    NAMES,
    VARIABLES,
    YES_NO,
    Origin,
    Settings,
    Value,
    boolean,
    jax_reading,
    read_value,
    switch_or_location,
)
from ejcache.util.cores import has_second_core
from ejcache.util.log import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ejcache.settings.table import FlagSource


_FULL_CACHE: Final = {"min_entry_size": -1, "min_compile_seconds": 0.0, "xla_caches": "all"}
"""What `ALLOW_FULL_CACHE=1` stands for."""

_ACTIVATING: Final = "1, 0, or the cache: a directory, written with a slash, or a URL"

_command_line: Mapping[str, Any] = {}


def name_of(name: str) -> str:
    """Return the name of the setting with this name, which may also be that of its JAX flag, with or without `jax_`.

    Raises:
        UnknownSettingError: there is no such setting; the message says which one was probably meant.
    """
    found = NAMES.get(name) or NAMES.get(f"jax_{name}")
    if found is None:
        from ejcache.settings.described import setting_named  # the door to settings in words

        return setting_named(name).name
    return found


def parse(name: str, value: Any, *, source: str = "") -> Any:
    """Return `value` as the setting with this name has it.

    Raises:
        SettingError: the setting cannot have this value; the message names `source`, or else the setting.
    """
    try:
        return read_value(name, value)
    except (TypeError, ValueError, OverflowError, AttributeError) as exc:  # a file may hold a table or a list
        from ejcache.settings.described import refused  # the door to settings in words

        raise refused(name, value, source) from exc


def set_command_line(values: Mapping[str, Any]) -> None:
    """Set the layer between calls and the environment for this process, as `ejcache run --dir` does.

    Raises:
        SettingError: an unknown setting or a value that it cannot have; the layer stays as it was.
    """
    global _command_line
    _command_line = {
        setting: parse(setting, value, source=f"--{name.replace('_', '-')}")
        for name, value in values.items()
        for setting in (name_of(name),)
    }


def command_line() -> Mapping[str, Any]:
    """Return parsed values by setting name, as the latest `set_command_line` left them."""
    return _command_line


def resolve(
    *,
    flags: FlagSource | None = None,
    calls: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Return the current value of every setting.

    Args:
        flags: reads JAX's flags; None where JAX is not loaded.
        calls: values given to `ejcache.enable` for settings that are not JAX flags, already parsed.
        environ: the environment; by default that of this process.

    A value in the environment that cannot be used is reported in `Settings.problems`, and the value of the next layer
    is used: a typing error in a job's environment must not fail the job. JAX's own variables are read as strictly as
    JAX reads them. Otherwise a value that we accept would make `import jax` fail.
    """
    env = dict(os.environ) if environ is None else environ  # a look-up in os.environ takes ten times as long
    problems: list[SettingError] = []
    filed = _filed_values(env, problems)
    values = {
        name: _resolve_one(name, flags, calls or {}, env, problems)
        or filed.get(name)
        or Value(default, Origin.DEFAULT, "default")
        for name, default in DEFAULTS.items()
    }
    activate = _read_variable("EJCACHE", switch_or_location, _ACTIVATING, env, problems)
    if isinstance(activate, str) and values["dir"].origin not in (Origin.CALL, Origin.COMMAND_LINE):
        values["dir"] = Value(activate, Origin.ENVIRONMENT, "EJCACHE")
    if values["dir"].origin is Origin.DEFAULT:
        values["dir"] = Value(str(or_temporary(default_directory(env))), Origin.DEFAULT, "default")
    if values["preload"].origin is Origin.DEFAULT and not has_second_core():
        # The program would wait for what a thread loads ahead, and for the thread's own work.
        values["preload"] = Value(False, Origin.DEFAULT, "default, on one core")
    if _read_variable("ALLOW_FULL_CACHE", boolean, "", env, problems):
        for name, value in _FULL_CACHE.items():
            if values[name].origin is not Origin.CALL:  # a value that the program itself sets goes first
                values[name] = Value(value, Origin.ENVIRONMENT, "ALLOW_FULL_CACHE")
    compiles = _read_variable("EASYDEL_CACHE_COMPILES", boolean, "", env, [])  # a word that is none is no "no"
    return Settings(
        values,
        (*problems, *_misspelt(env)),
        activate=activate,
        ejit_enables=activate is not False and compiles is not False,
    )


def _read_variable(
    name: str, read: Callable[[str], Any], accepted: str, env: Mapping[str, str], problems: list[SettingError]
) -> Any:
    """Return the value of a variable that is no setting; None if it has none, or one that it cannot have.

    `accepted` are its values in words; empty for a boolean.
    """
    text = env.get(name)
    try:
        return read(text) if text else None
    except ValueError:
        problems.append(SettingError(name, text, accepted or YES_NO))
        return None


def _filed_values(env: Mapping[str, str], problems: list[SettingError]) -> dict[str, Value]:
    """Return the values of the configuration files by setting name. What cannot be used is added to `problems`."""
    found: dict[str, Value] = {}
    if not any(map(may_exist, configuration_files(env))):
        return found
    from ejcache.settings.config_files import read_files  # the door to configuration files

    for path, values in read_files(env):
        if isinstance(values, ConfigFileError):
            problems.append(values)
            continue
        for name, value in values.items():
            try:
                from ejcache.settings.described import setting_in_file  # the door to settings in words

                setting = setting_in_file(name).name
                if setting not in found:
                    parsed = parse(setting, value, source=f"{name} in {path}")
                    found[setting] = Value(parsed, Origin.FILE, str(path))
            except SettingError as problem:
                problems.append(problem)
    return found


def _misspelt(env: Mapping[str, str]) -> list[SettingError]:
    """Return variables with nearly the name of one of ours."""
    ours = [name for name in env if name.startswith("EJCACHE_")]
    known = {name for names in VARIABLES.values() for name in names} if ours else ()
    unknown = sorted(name for name in ours if name not in known and name not in OTHER_VARIABLES)
    if not unknown:
        return []

    from ejcache.settings.described import misspelt  # the door to settings in words

    return misspelt(unknown)


def _resolve_one(
    name: str,
    flags: FlagSource | None,
    calls: Mapping[str, Any],
    env: Mapping[str, str],
    problems: list[SettingError],
) -> Value | None:
    """Return the value of the highest layer above the configuration files that has one."""
    for origin, source, value in _layers(name, flags, calls, env):
        try:
            parsed = _parse_variable(name, source, value) if origin is Origin.ENVIRONMENT else parse(name, value)
            return Value(parsed, origin, source)
        except SettingError as problem:
            problems.append(problem)
    return None


def _layers(
    name: str, flags: FlagSource | None, calls: Mapping[str, Any], env: Mapping[str, str]
) -> Iterator[tuple[Origin, str, Any]]:
    """Yield the sources that set the setting, the highest layer first: the origin, its name, and the value there."""
    flag = FLAGS.get(name, "")
    held = flags.read(flag) if flags is not None and flag else None
    if held is not None and held.origin is Origin.CALL:
        yield Origin.CALL, f"jax.config.{flag}", held.value
    if name in calls:
        yield Origin.CALL, f"ejcache.enable({name}=…)", calls[name]
    if name in _command_line:
        yield Origin.COMMAND_LINE, f"--{name.replace('_', '-')}", _command_line[name]
    if held is not None and held.origin is Origin.COMMAND_LINE:
        yield Origin.COMMAND_LINE, f"--{flag}", held.value
    for variable in VARIABLES[name]:
        text = env.get(variable)
        # JAX reads an empty text as an empty list where it expects a list, and refuses it for a number or a boolean.
        if text or (text == "" and variable == flag.upper() and KINDS[name] != "text"):
            yield Origin.ENVIRONMENT, variable, text


def _parse_variable(name: str, variable: str, text: str) -> Any:
    if variable == FLAGS.get(name, "").upper():
        try:
            jax_reading(KINDS[name], text)
        except ValueError as exc:
            from ejcache.settings.described import refused_by_jax  # the door to settings in words

            raise refused_by_jax(name, text) from exc
    return parse(name, text, source=variable)


class SettingsSource:
    """Settings of this process, and the values that `ejcache.enable` was called with.

    Safe to use from several threads. A value of JAX's that a context manager sets for one thread counts in that
    thread only.

    Args:
        flags: reads JAX's flags; None where JAX is not loaded.
    """

    def __init__(self, flags: FlagSource | None = None) -> None:
        self._flags = flags
        self._calls: Mapping[str, Any] = {}
        # Replaced as a whole, so that a reader in another thread sees inputs and settings that belong together.
        self._held: tuple[tuple[Any, ...], Settings] | None = None

    @property
    def calls(self) -> Mapping[str, Any]:
        """Parsed values given to `ejcache.enable` for settings that are not JAX flags. Assign a new mapping."""
        return self._calls

    @calls.setter
    def calls(self, values: Mapping[str, Any]) -> None:
        self._calls = dict(values)

    def resolve_if_changed(self) -> Settings:
        """Return the settings as they are now.

        The same object is returned as long as no JAX flag, call, command line option or environment variable has
        changed, so that a caller can compare with `is` whether its own copy is still true.
        """
        inputs = self._inputs()
        held = self._held
        if held is not None and held[0] == inputs:
            return held[1]
        kept = (dict(inputs[0]), *inputs[1:])
        settings = resolve(flags=self._flags, calls=inputs[2])
        if self._inputs() == kept:
            # Otherwise an input changed while the settings were resolved, and they may be those of neither state.
            self._held = (kept, settings)
        return settings

    def _inputs(self) -> tuple[Any, ...]:
        """Return everything that settings depend on. The first part is live: copy it before keeping it."""
        variables = variables_to_compare()
        return variables, _command_line, self._calls, self._flags.fingerprint() if self._flags is not None else None


_process = SettingsSource()


def resolve_if_changed() -> Settings:
    """Return the settings of this process without JAX's flags and calls, resolved again only when they have changed."""
    return _process.resolve_if_changed()


_in_use: Callable[[], Settings] = resolve_if_changed


def use_settings(settings: Callable[[], Settings]) -> None:
    """Have `settings_in_use` take what this function returns, with JAX's flags and calls in the program."""
    global _in_use
    _in_use = settings


def settings_in_use() -> Settings:
    """Return the settings of this process now, with JAX's flags and the program's calls if JAX is loaded by ejcache.

    Values that cannot be used are said, each once, wherever a setting is read.
    """
    return say_problems(_in_use())


def say_problems(settings: Settings) -> Settings:
    """Log once each value that could not be used, and return `settings`."""
    for problem in settings.problems:
        warn_once(str(problem), "ejcache: %s; it is ignored", problem)
    return settings
