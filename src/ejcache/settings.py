"""Every setting: what it is called, where its value comes from, and what it accepts.

This is the only reader of the environment and of JAX's flags. It does not import JAX: `jaxside` hands it a
`FlagSource` once JAX is there; before that (and in the command line tool) JAX's environment variables are read as
JAX would read them.

Where a value may come from: a call in the program (`jax.config.update`, `set_cache_dir()`,
`ejcache.enable(...)`: the latest wins) over the command line over environment variables, in the order listed with the
setting over the default.
"""

from __future__ import annotations

import functools
import math
import os
import stat
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from ejcache.errors import JaxImportError, SettingError
from ejcache.units import ACCEPTED_SIZE, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    "temporary_directory",
    "user_directory",
]


class Origin(StrEnum):
    """Where a value came from."""

    CALL = "call"
    COMMAND_LINE = "command line"
    ENVIRONMENT = "environment"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class FlagValue:
    """One of JAX's flags as JAX holds it now."""

    value: Any
    origin: Origin


class FlagSource(Protocol):
    """Reads JAX's flags where JAX is loaded."""

    def read(self, flag: str) -> FlagValue | None:
        """The flag's value and origin, or None where this JAX has no such flag."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        name: what `Settings`, `ejcache.enable` and `ejcache config` call it.
        parser: turns text or a Python value into the setting's own type, or raises ValueError.
        default: its value when nobody sets it.
        accepted: what the parser takes, for the error message.
        flag: the JAX flag that it is, if any.
        variables: environment variables, highest first.
        doc: one line for `ejcache config`.
    """

    name: str
    parser: Callable[[Any], Any]
    default: Any
    accepted: str
    flag: str = ""
    variables: tuple[str, ...] = ()
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Value:
    """A setting's value, and the name of what set it."""

    value: Any
    origin: Origin
    source: str


_TRUE: Final = frozenset({"true", "yes", "ok", "1", "easy", "y", "t", "on"})
_FALSE: Final = frozenset({"false", "no", "0", "n", "f", "off", ""})
_YES_NO: Final = "true or false (also 1/0, yes/no, on/off)"
_XLA_CACHES: Final = ("xla_gpu_kernel_cache_file", "xla_gpu_per_fusion_autotune_cache_dir")


def _boolean(value: Any) -> bool:
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(text)


def _text(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and not value):
        return None
    if not isinstance(value, str | os.PathLike):
        raise ValueError(value)  # noqa: TRY004 (resolve turns ValueError into SettingError)
    return os.fspath(value)


def _limit(value: Any) -> int:
    return parse_size(value, unlimited=True)


def _seconds(value: Any) -> float:
    seconds = float(value)
    if seconds != seconds:  # noqa: PLR0124 (NaN)
        raise ValueError(value)
    return seconds


def _wait(value: Any) -> float:
    seconds = _seconds(value)
    if math.isinf(seconds):
        raise ValueError(value)
    return seconds


def _integer(value: Any) -> int:
    if isinstance(value, bool) or int(value) != float(value):
        raise ValueError(value)
    return int(value)


def _xla_caches(value: Any) -> str:
    text = str(value or "none")
    if text in {"all", "none"} or {part.strip() for part in text.split(",")} <= set(_XLA_CACHES):
        return text
    raise ValueError(text)


def _salt(value: Any) -> str:
    return _text(value) or ""


def _list(value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else [os.fspath(part) for part in value]
    return tuple(part.strip() for part in parts if part.strip())


def _one_of(value: Any, *accepted: str) -> str:
    text = str(value).strip().lower()
    if text not in accepted:
        raise ValueError(text)
    return text


def _policy(value: Any) -> str:
    return _one_of(value, "autotune", "heuristics", "error")


def _stamp(value: Any) -> str:
    return _one_of(value, "hash", "json", "none")


def _jax_boolean(text: str) -> bool:
    if text.lower() in _JAX_TRUE:
        return True
    if text.lower() in _JAX_FALSE:
        return False
    raise ValueError(text)


# As `jax._src.config` reads the environment (0.10 to 0.12): less than we take, no `10GB` and no `ok`.
_JAX_TRUE: Final = frozenset({"y", "yes", "t", "true", "on", "1"})
_JAX_FALSE: Final = frozenset({"n", "no", "f", "false", "off", "0"})
_JAX_TYPES: Final[Mapping[Callable[[Any], Any], Callable[[str], Any]]] = {
    _boolean: _jax_boolean,
    _limit: int,
    _integer: int,
    _seconds: float,
}


def _flag(name: str, flag: str, parser: Callable[[Any], Any], default: Any, accepted: str, doc: str) -> Setting:
    return Setting(name, parser, default, accepted, flag, (flag.upper(),), doc)


def _variable(name: str, variable: str, parser: Callable[[Any], Any], default: Any, accepted: str, doc: str) -> Setting:
    return Setting(name, parser, default, accepted, "", (variable,), doc)


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        "cache_dir",
        _text,
        None,
        "a directory or a URL",
        "jax_compilation_cache_dir",
        ("JAX_COMPILATION_CACHE_DIR", "COMPILE_FUNC_DIR"),
        "where compiled executables are kept",
    ),
    _flag("enabled", "jax_enable_compilation_cache", _boolean, True, _YES_NO, "false disables the compilation cache"),
    _flag(
        "max_size",
        "jax_compilation_cache_max_size",
        _limit,
        -1,
        f"{ACCEPTED_SIZE}, 0 for no caching, or -1 for no limit",
        "bytes of all entries, least recently used evicted first",
    ),
    _flag(
        "min_compile_seconds",
        "jax_persistent_cache_min_compile_time_secs",
        _seconds,
        1.0,
        "a number of seconds",
        "compilations below it are not stored",
    ),
    _flag(
        "min_entry_size",
        "jax_persistent_cache_min_entry_size_bytes",
        _integer,
        0,
        "a number of bytes, 0, or -1 for no restriction",
        "entries below it are not stored",
    ),
    _flag(
        "include_metadata_in_key",
        "jax_compilation_cache_include_metadata_in_key",
        _boolean,
        False,
        _YES_NO,
        "file names and lines count as part of the program",
    ),
    _flag(
        "source_file_regex",
        "jax_hlo_source_file_canonicalization_regex",
        _text,
        None,
        "a regular expression",
        "removed from the file names that metadata puts into the key",
    ),
    _flag(
        "remove_custom_partitioning_ptr",
        "jax_remove_custom_partitioning_ptr_from_cache_key",
        _boolean,
        False,
        _YES_NO,
        "leave the address of custom_partitioning callbacks out of the key",
    ),
    _flag(
        "expect_pgle",
        "jax_compilation_cache_expect_pgle",
        _boolean,
        False,
        _YES_NO,
        "prefer profile-optimised entries even while PGLE is off",
    ),
    _flag("enable_pgle", "jax_enable_pgle", _boolean, False, _YES_NO, "profile-guided latency estimation"),
    _flag("pgle_profiling_runs", "jax_pgle_profiling_runs", _integer, 3, "a number of runs", "runs that PGLE profiles"),
    _flag(
        "pgle_aggregation_percentile",
        "jax_pgle_aggregation_percentile",
        _integer,
        90,
        "0 to 100",
        "percentile over devices that PGLE takes",
    ),
    _variable(
        "pgle_reuse",
        "EJCACHE_PGLE_REUSE",
        _boolean,
        True,
        _YES_NO,
        "compile with a kept profile of the program instead of profiling it again",
    ),
    _flag(
        "xla_caches",
        "jax_persistent_cache_enable_xla_caches",
        _xla_caches,
        "xla_gpu_per_fusion_autotune_cache_dir",
        f"all, none, or a list of {', '.join(_XLA_CACHES)}",
        "which of XLA's own caches to keep beside the entries",
    ),
    _flag(
        "raise_errors",
        "jax_raise_persistent_cache_errors",
        _boolean,
        False,
        _YES_NO,
        "let a cache error reach the program",
    ),
    _flag("explain_misses", "jax_explain_cache_misses", _boolean, False, _YES_NO, "log the reason for every miss"),
    _flag(
        "check_contents",
        "jax_compilation_cache_check_contents",
        _boolean,
        False,
        _YES_NO,
        "recompile the first hit of every key and compare",
    ),
    _flag(
        "share_binary",
        "jax_share_binary_between_hosts",
        _boolean,
        False,
        _YES_NO,
        "one process compiles for all that span a program",
    ),
    _flag(
        "share_binary_timeout_ms",
        "jax_share_binary_between_hosts_timeout_ms",
        _integer,
        20 * 60 * 1000,
        "a number of milliseconds",
        "how long the others wait for what it compiles; then they compile too",
    ),
    _variable(
        "cache_compiles",
        "EASYDEL_CACHE_COMPILES",
        _boolean,
        None,
        _YES_NO,
        "whether the first @ejit activates the store for the process (unset: it does)",
    ),
    _variable(
        "recompile_force",
        "EASYDEL_RECOMPILE_FORCE",
        _boolean,
        False,
        _YES_NO,
        "ignore what is stored, compile, replace it",
    ),
    _variable(
        "full_cache",
        "ALLOW_FULL_CACHE",
        _boolean,
        False,
        _YES_NO,
        "store everything: no floors, and all of XLA's caches",
    ),
    _variable(
        "local_dir",
        "EJCACHE_LOCAL_DIR",
        _text,
        None,
        "a directory on a local disk",
        "where this host keeps copies of a remote cache's entries (unset: with the user's other caches)",
    ),
    _variable(
        "local_max_size",
        "EJCACHE_LOCAL_MAX_SIZE",
        _limit,
        10 << 30,
        f"{ACCEPTED_SIZE}, 0 for none, or -1 for no limit",
        "bytes of those copies, for each remote cache",
    ),
    _variable(
        "gcs_credentials", "EASYDEL_GCS_CLIENT", _text, None, "the path of a file", "Google credentials for gs:// URLs"
    ),
    _variable(
        "gcs_endpoint",
        "STORAGE_EMULATOR_HOST",
        _text,
        None,
        "the URL of an emulator",
        "who is asked instead of Google for gs:// URLs",
    ),
    _variable("read_only", "EJCACHE_READ_ONLY", _boolean, False, _YES_NO, "read entries, never write any"),
    _variable(
        "namespace",
        "EJCACHE_NAMESPACE",
        _salt,
        "",
        "any text",
        "a salt in every key; another one disowns a poisoned generation",
    ),
    _variable(
        "wait_seconds",
        "EJCACHE_WAIT_SECONDS",
        _wait,
        600.0,
        "a finite number of seconds, or 0 for no waiting",
        "how long to wait for another process that compiles the same program; then it is compiled here too",
    ),
    _variable(
        "keep_module_text",
        "EJCACHE_MODULE_TEXT",
        _boolean,
        True,
        _YES_NO,
        "keep the text of compiled programs beside the entries, for `ejcache why`",
    ),
    _variable(
        "check_one_in",
        "EJCACHE_CHECK_ONE_IN",
        _integer,
        0,
        "a number of hits, or 0 for none",
        "recompile one hit in so many and compare; a proven difference is taken out",
    ),
    _variable(
        "report",
        "EJCACHE_REPORT",
        _text,
        None,
        "off, line (or 1) or json for stderr, or the path of a JSON file",
        "a report at exit",
    ),
    _variable(
        "autotune_dir",
        "EJKERNEL_PERSISTENT_CACHE_DIR",
        _text,
        None,
        "a directory or a URL",
        "where tuned configurations are kept (unset: with the executables)",
    ),
    _variable(
        "autotune_seeds",
        "EJCACHE_AUTOTUNE_SEEDS",
        _list,
        (),
        "directories or URLs with commas between",
        "read-only places of tuned configurations, below the user's own",
    ),
    _variable(
        "autotune_policy",
        "EJKERNEL_AUTOTUNE_POLICY",
        _policy,
        None,
        "autotune, heuristics or error",
        "what an operation without a tuned configuration does (unset: what its author chose)",
    ),
    _variable("autotune_log", "EJKERNEL_LOG_AUTOTUNE", _boolean, False, _YES_NO, "log every candidate's timing"),
    _variable("autotune_progress", "EJKERNEL_AUTOTUNE_PROGRESS", _boolean, False, _YES_NO, "show a bar while tuning"),
    _variable(
        "autotune_record",
        "EJKERNEL_OPS_RECORD",
        _boolean,
        False,
        _YES_NO,
        "write what operations are called with, to be tuned later",
    ),
    _variable(
        "autotune_stamp",
        "EJKERNEL_OPS_STAMP",
        _stamp,
        "none",
        "hash, json or none",
        "label operations in profiles",
    ),
    _variable("autotune_prefix", "EJKERNEL_OPS_PREFIX", _text, "ejkernel_ops#", "any text", "how those labels begin"),
    _variable(
        "autotune_smem_limit",
        "EJKERNEL_TRITON_SMEM_LIMIT",
        _integer,
        None,
        "a number of bytes",
        "shared memory that candidates may use; part of a tuned configuration's identity when set",
    ),
    _variable(
        "autotune_rda_candidates",
        "EJKERNEL_RDA_MAX_CANDIDATES",
        _integer,
        None,
        "a number",
        "how many candidates ragged decode attention tries; part of the identity when set",
    ),
)

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


def jax_reading(setting: Setting, text: str) -> Any:
    """What JAX makes of the environment variable of the setting's flag when it is imported.

    Raises:
        ValueError: its import fails.
    """
    read = _JAX_TYPES.get(setting.parser)
    return text if read is None else read(text)


def set_command_line(values: Mapping[str, Any]) -> None:
    """Set the layer below calls and above the environment, for this process (`ejcache run --dir`)."""
    _command_line.clear()
    for name, value in values.items():
        setting = setting_named(name)
        _command_line[setting.name] = parse(setting, value, source=f"--{name.replace('_', '-')}")


def environment() -> Mapping[str, str]:
    """The process's environment, for the code outside this module that needs all of it (keys)."""
    return os.environ


def user_directory() -> Path:
    """Where this user's caches are by default, on this machine."""
    return _default_directory(os.environ)


def make_private(directory: Path) -> None:
    """Make a directory for this user alone, and first, if it is below that, the user's cache directory.

    `mkdir(parents=True, mode=0o700)` leaves the parents to the umask: with an open one, others could then put entries,
    which are code, into a cache directory that was made for something else.

    Raises:
        OSError: it cannot be made.
    """
    make_user_directory_above(directory)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def make_user_directory_above(path: Path) -> None:
    """Make the user's cache directory for this user alone, if `path` is below it. Raises OSError: it cannot be made."""
    own = user_directory()
    if own in path.parents:
        own.mkdir(mode=0o700, parents=True, exist_ok=True)


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
        values["cache_dir"] = Value(str(_default_directory(env)), Origin.DEFAULT, "default")
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
    return variable == setting.flag.upper() and setting.parser is not _text


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


def _default_directory(env: Mapping[str, str]) -> Path:
    """The user's cache folder, as each system has it (XDG Base Directory Specification on Linux)."""
    root = env.get("XDG_CACHE_HOME", "")
    # A relative XDG path is invalid and to be ignored, by that specification.
    if sys.platform not in {"darwin", "win32"} and root.startswith("/"):
        return Path(root) / "ejcache"
    home = Path(env["HOME"]) if env.get("HOME") else _home()
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "ejcache"
    if sys.platform == "win32":
        return Path(env.get("LOCALAPPDATA") or home / "AppData" / "Local") / "ejcache"
    return home / ".cache" / "ejcache"


def state_directory() -> Path:
    """A folder of this user on this host for what is remembered between runs but no part of any cache."""
    return _default_directory(os.environ) / "state"


def temporary_directory() -> Path | None:
    """A folder among the temporary files that nobody else can write to: what is in it is run. None if there is none."""
    import tempfile

    try:
        path = Path(tempfile.gettempdir()) / f"ejcache-{os.getuid()}"
        path.mkdir(mode=0o700, exist_ok=True)
        about = path.lstat()
    except OSError:
        return None
    # Anyone may have made it, for its name can be guessed.
    private = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not stat.S_IMODE(about.st_mode) & 0o022
    return path if private else None


def _home() -> Path:
    try:
        return Path.home()
    except (RuntimeError, KeyError):
        # A uid without a passwd entry and no HOME, as in some containers.
        return temporary_directory() or _directory_of_this_process()


@functools.cache
def _directory_of_this_process() -> Path:
    import tempfile

    try:
        return Path(tempfile.mkdtemp(prefix="ejcache-"))
    except OSError:
        # Nothing can be written; the store will say so.
        return Path("/")
