"""The current value of each setting, and where it comes from.

The highest of these layers that has a value wins: a call in the program (`jax.config.update`, `set_cache_dir()`,
`ejcache.enable(...)`; among these the latest wins), the command line, environment variables in the order in which the
table lists them, the user's configuration file, the host's, the default.

This module does not import JAX. `jax_integration` hands it a `FlagSource` when JAX is loaded. Without one, as in the
command line tool, it reads JAX's environment variables as JAX would read them.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

from ejcache.common_errors import ACCEPTED_SIZE, SettingError
from ejcache.settings.directories import configuration_files, default_directory, may_exist, or_temporary
from ejcache.settings.environment import OTHER_VARIABLES, variables_to_compare
from ejcache.settings.parsers import YES_NO, Origin, Setting, Value, boolean, jax_reading, switch_or_location
from ejcache.settings.parsers import text as plain_text
from ejcache.settings.table import SETTINGS, Settings
from ejcache.util.log import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ejcache.settings.parsers import FlagSource


_BY_NAME: Final = {setting.name: setting for setting in SETTINGS} | {s.flag: s for s in SETTINGS if s.flag}

_OWN_VARIABLES: Final = [name for setting in SETTINGS for name in setting.variables if name.startswith("EJCACHE_")]
_ALIKE: Final = 0.8
"""Likeness (difflib's ratio) from which a name is probably a misspelling of another."""

_FULL_CACHE: Final = {"min_entry_size": -1, "min_compile_seconds": 0.0, "xla_caches": "all"}
"""What `ALLOW_FULL_CACHE=1` stands for."""

_ACTIVATING: Final = "1, 0, or the cache: a directory, written with a slash, or a URL"
_SIZE_IN_BYTES: Final = "a number of bytes without a unit"

_command_line: Mapping[str, Any] = {}


def setting_named(name: str) -> Setting:
    """Return the setting with this name, which may also be the name of its JAX flag, with or without `jax_`.

    Raises:
        UnknownSettingError: there is no such setting; the message says which one was probably meant.
    """
    found = _BY_NAME.get(name) or _BY_NAME.get(f"jax_{name}")
    if found is None:
        import difflib  # for a wrong name only

        from ejcache.errors import UnknownSettingError

        meant = difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=_ALIKE)
        raise UnknownSettingError(
            "setting", name, f"did you mean {meant[0]}?" if meant else "`ejcache config` lists them"
        )
    return found


def parse(setting: Setting, value: Any, *, source: str = "") -> Any:
    """Return `value` converted to the setting's own type.

    Raises:
        SettingError: the setting cannot have this value; the message names `source`, or else the setting.
    """
    try:
        return setting.parse(value)
    except (TypeError, ValueError, OverflowError, AttributeError) as exc:  # a file may hold a table or a list
        raise SettingError(source or setting.name, value, setting.accepted) from exc


def set_command_line(values: Mapping[str, Any]) -> None:
    """Set the layer between calls and the environment for this process, as `ejcache run --dir` does.

    Raises:
        SettingError: an unknown setting or a value that it cannot have; the layer stays as it was.
    """
    global _command_line
    _command_line = {
        setting.name: parse(setting, value, source=f"--{name.replace('_', '-')}")
        for name, value in values.items()
        for setting in (setting_named(name),)
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
        setting.name: _resolve_one(setting, flags, calls or {}, env, problems)
        or filed.get(setting.name)
        or Value(setting.default, Origin.DEFAULT, "default")
        for setting in SETTINGS
    }
    activate = _read_variable("EJCACHE", switch_or_location, _ACTIVATING, env, problems)
    if isinstance(activate, str) and values["dir"].origin not in (Origin.CALL, Origin.COMMAND_LINE):
        values["dir"] = Value(activate, Origin.ENVIRONMENT, "EJCACHE")
    if values["dir"].origin is Origin.DEFAULT:
        values["dir"] = Value(str(or_temporary(default_directory(env))), Origin.DEFAULT, "default")
    if values["preload"].origin is Origin.DEFAULT:
        from ejcache.util.cores import has_second_core  # where nobody has said it

        if not has_second_core():
            # The program would wait for what a thread loads ahead, and for the thread's own work.
            values["preload"] = Value(False, Origin.DEFAULT, "default, on one core")
    if _read_variable("ALLOW_FULL_CACHE", boolean, YES_NO, env, problems):
        for name, value in _FULL_CACHE.items():
            if values[name].origin is not Origin.CALL:  # a value that the program itself sets goes first
                values[name] = Value(value, Origin.ENVIRONMENT, "ALLOW_FULL_CACHE")
    compiles = _read_variable("EASYDEL_CACHE_COMPILES", boolean, YES_NO, env, [])  # a word that is none is no "no"
    return Settings(
        values,
        (*problems, *_misspelt(env)),
        activate=activate,
        ejit_enables=activate is not False and compiles is not False,
    )


def _read_variable(
    name: str, read: Callable[[str], Any], accepted: str, env: Mapping[str, str], problems: list[SettingError]
) -> Any:
    """Return the value of a variable that is no setting; None if it has none, or one that it cannot have."""
    text = env.get(name)
    try:
        return read(text) if text else None
    except ValueError:
        problems.append(SettingError(name, text, accepted))
        return None


def _filed_values(env: Mapping[str, str], problems: list[SettingError]) -> dict[str, Value]:
    """Return the values of the configuration files by setting name. What cannot be used is added to `problems`."""
    found: dict[str, Value] = {}
    if not any(map(may_exist, configuration_files(env))):
        return found
    from ejcache.errors import ConfigFileError
    from ejcache.settings.config_files import read_files

    for path, values in read_files(env):
        if isinstance(values, ConfigFileError):
            problems.append(values)
            continue
        for name, value in values.items():
            try:
                setting = setting_in_file(name)
                if setting.name not in found:
                    parsed = parse(setting, value, source=f"{name} in {path}")
                    found[setting.name] = Value(parsed, Origin.FILE, str(path))
            except SettingError as problem:
                problems.append(problem)
    return found


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


def _misspelt(env: Mapping[str, str]) -> list[SettingError]:
    """Return variables with nearly the name of one of ours. Others may belong to other programs."""
    found: list[SettingError] = []
    known = OTHER_VARIABLES.union(_OWN_VARIABLES)
    for name in sorted(name for name in env if name.startswith("EJCACHE_") and name not in known):
        import difflib  # for a wrong name only

        from ejcache.errors import UnknownSettingError

        meant = difflib.get_close_matches(name, _OWN_VARIABLES, n=1, cutoff=_ALIKE)
        if meant:
            found.append(UnknownSettingError("variable", name, f"did you mean {meant[0]}?"))
    return found


def _resolve_one(
    setting: Setting,
    flags: FlagSource | None,
    calls: Mapping[str, Any],
    env: Mapping[str, str],
    problems: list[SettingError],
) -> Value | None:
    """Return the value of the highest layer above the configuration files that has one."""
    for origin, source, value in _layers(setting, flags, calls, env):
        try:
            parsed = _parse_variable(setting, source, value) if origin is Origin.ENVIRONMENT else parse(setting, value)
            return Value(parsed, origin, source)
        except SettingError as problem:
            problems.append(problem)
    return None


def _layers(
    setting: Setting, flags: FlagSource | None, calls: Mapping[str, Any], env: Mapping[str, str]
) -> Iterator[tuple[Origin, str, Any]]:
    """Yield the sources that set the setting, the highest layer first: the origin, its name, and the value there."""
    name, flag = setting.name, setting.flag
    held = flags.read(flag) if flags is not None and flag else None
    if held is not None and held.origin is Origin.CALL:
        yield Origin.CALL, f"jax.config.{flag}", held.value
    if name in calls:
        yield Origin.CALL, f"ejcache.enable({name}=…)", calls[name]
    if name in _command_line:
        yield Origin.COMMAND_LINE, f"--{name.replace('_', '-')}", _command_line[name]
    if held is not None and held.origin is Origin.COMMAND_LINE:
        yield Origin.COMMAND_LINE, f"--{flag}", held.value
    for variable in setting.variables:
        text = env.get(variable)
        if text or (text == "" and _means_something_empty(setting, variable)):
            yield Origin.ENVIRONMENT, variable, text


def _means_something_empty(setting: Setting, variable: str) -> bool:
    """True if JAX reads an empty text as an empty list where it expects a list, and refuses it for a number or a
    boolean.
    """
    return variable == setting.flag.upper() and setting.parse is not plain_text


def _parse_variable(setting: Setting, variable: str, text: str) -> Any:
    accepted = setting.accepted
    if variable == setting.flag.upper():
        accepted = accepted.replace(ACCEPTED_SIZE, _SIZE_IN_BYTES)
        try:
            jax_reading(setting, text)
        except ValueError as exc:
            from ejcache.errors import JaxImportError  # where JAX cannot be imported

            with contextlib.suppress(SettingError):
                accepted = accepted.replace(_SIZE_IN_BYTES, f"{_SIZE_IN_BYTES} (write {parse(setting, text)})")
            raise JaxImportError(variable, text, accepted) from exc
    return parse(setting._replace(accepted=accepted), text, source=variable)


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
