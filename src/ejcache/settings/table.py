"""Lists all settings, each once: an attribute of `Settings`, with type, default, flag of JAX, variables and meaning.

Also how values are read, ours and as JAX reads its own variables.
`ejcache config`, the reference of settings and the keywords of `ejcache.enable` are made from it; a test compares
`SettingOptions`, which tells type checkers what a caller may pass.
"""

from __future__ import annotations

import os
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from ejcache.errors import ACCEPTED_SIZE
from ejcache.util.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike
    from typing import Literal, Protocol, TypedDict

    from ejcache.errors import SettingError

    class SettingOptions(TypedDict, total=False):
        """Keywords of `ejcache.enable` besides `dir`, `max_size` and `read_only`."""

        enabled: bool
        min_compile_seconds: float
        min_entry_size: int
        evict: Literal["lru", "cost"]
        include_metadata_in_key: bool
        source_file_regex: str | PathLike[str] | None
        remove_custom_partitioning_ptr: bool
        expect_pgle: bool
        enable_pgle: bool
        pgle_profiling_runs: int
        pgle_aggregation_percentile: int
        xla_caches: str
        raise_errors: bool
        explain_misses: bool
        check_contents: bool
        compare: bool
        compare_calls: int
        share_binary: bool
        share_binary_timeout_ms: int
        recompile_force: bool
        local_dir: str | PathLike[str] | None
        local_max_size: int | str
        namespace: str
        trust_dir: bool
        untested_schemes: bool
        preload: bool
        report: str | PathLike[str] | None
        autotune_dir: str | PathLike[str] | None
        autotune_policy: Literal["autotune", "heuristics", "error"]
        autotune_record: bool | str | PathLike[str]

    class FlagSource(Protocol):
        """Reads JAX's flags. `jax_integration` provides one, so that this room does not import JAX."""

        def read(self, flag: str) -> Value | None:
            """Return the flag's value and origin, or None where this JAX has no such flag."""

        def fingerprint(self) -> Any:
            """Return a value that changes, by `==`, whenever `read` would answer differently for a flag. Takes 2 µs."""

    from collections.abc import Callable

YES_NO: Final = "true or false (also 1/0, yes/no, on/off)"
REPORT_OFF: Final = frozenset({"", "0", "off", "false", "no", "none"})
REPORT_LINE: Final = frozenset({"1", "line", "on", "true", "yes"})
REPORT_JSON: Final = frozenset({"json"})
XLA_CACHES: Final = ("xla_gpu_kernel_cache_file", "xla_gpu_per_fusion_autotune_cache_dir")


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


def limit(value: Any) -> int:
    return parse_size(value, unlimited=True)


def calls(value: Any) -> int:
    """Parse a number of calls: 1 or more."""
    number = integer(value)
    if number < 1:
        raise ValueError(value)
    return number


def percentile(value: Any) -> int:
    number = integer(value)
    if not 0 <= number <= 100:
        raise ValueError(value)
    return number


def pattern(value: Any) -> str | None:
    """Return the text of a regular expression."""
    import re  # of the standard library, for who sets one

    written = text(value)
    try:
        re.compile(written or "")
    except re.error as exc:
        raise ValueError(value) from exc
    return written


def report(where: str | None) -> str | None:
    """Return `off`, `line` or `json` in any of their spellings, or a path. A word alone would be a misspelt one of
    these.
    """
    if where is None or where.lower() in REPORT_OFF | REPORT_LINE | REPORT_JSON:
        return where
    if os.sep not in where and not where.endswith(".json"):
        raise ValueError(where)
    return where


def xla_caches(value: Any) -> str:
    text = str(value or "none")
    if text in {"all", "none"} or {part.strip() for part in text.split(",")} <= set(XLA_CACHES):
        return text
    raise ValueError(text)


READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "limit": limit,
    "eviction_order": eviction_order,
    "xla_caches": xla_caches,
    "calls": calls,
    "percentile": percentile,
    "pattern": pattern,
    "report": report,
    "autotune_policy": autotune_policy,
}
"""What reads a value, by the kind of the setting; `table.read_value` reads the kinds that are not here."""
ACCEPTED: Final[Mapping[str, str]] = {
    "boolean": YES_NO,
    "integer": "a whole number",
    "word": "any text",
    "text": "any text",
    "limit": f"{ACCEPTED_SIZE}, or -1 for no limit",
    "seconds": "a number of seconds, or 0 (also -1) for no minimum",
    "report": "off; line (or 1) or json, which are printed to stderr; or the path of a JSON file, with a slash or .json"
    " at its end",
    "xla_caches": f"all, none, or a comma-separated list of {', '.join(XLA_CACHES)}",
}
"""The accepted values of each kind in words, for a setting that has none of its own."""


class Origin(StrEnum):
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


def setting(
    default: Any,
    doc: str,
    *,
    kind: str = "",
    accepted: str = "",
    flag: str = "",
    others: tuple[str, ...] = (),
    jax_default: Any = None,
    read_by_jax: bool = False,
) -> Any:
    """Describe a setting, as the value of an attribute of `Settings`. A type checker takes it for the setting's value.

    Plain tuples: the garbage collector does not go through them. `described.Setting` has names for what is in one.

    Args:
        default: its value if it is set nowhere.
        doc: one line for `ejcache config` and the reference of settings.
        kind: what reads its values (`read_value`); by default, what goes with the type of `default`.
        accepted: the values that it accepts, in words, for the error message; by default, what goes with its kind.
        flag: the JAX flag with the same meaning; empty if there is none.
        others: variables that set it besides `EJCACHE_` and its name, and the flag's.
        jax_default: the flag's value in JAX if nobody has set it, where that is not `default`.
        read_by_jax: JAX itself goes by the flag, so no file and no variable of ours sets it.
    """
    return default, doc, kind, accepted, flag, others, jax_default, read_by_jax


class Settings:
    """Resolved values by name (`settings.max_size`), and where each came from (`settings["max_size"].source`).

    Args:
        values: the value of each setting.
        problems: values that could not be used.
        activate: what `EJCACHE` says: whether every process that uses JAX enables the cache, or with which one; None if
            it says nothing.
        ejit_enables: whether `@ejit` enables the cache: unless `EJCACHE` or `EASYDEL_CACHE_COMPILES` says no.
    """

    dir: str | None = setting(
        None,
        "directory or URL of the cache",
        flag="jax_compilation_cache_dir",
        accepted="a directory or a URL",
        others=("COMPILE_FUNC_DIR",),
    )
    enabled: bool = setting(True, "if false, no programs are cached", flag="jax_enable_compilation_cache")
    max_size: int = setting(
        -1,
        "largest total size of the entries: if they are larger, ejcache deletes entries in the order that `evict` sets"
        " (unset: for a cache on a local disk, a tenth of that disk and at most 20 GB; for other caches, no limit)",
        flag="jax_compilation_cache_max_size",
        kind="limit",
        accepted=f"{ACCEPTED_SIZE}, 0 for no caching, or -1 for no limit",
    )
    min_compile_seconds: float | None = setting(
        None,
        "minimum compile time: a program that compiled in less time is not stored (unset: 0.01 s for this host, 0.1"
        " s for other hosts)",
        flag="jax_persistent_cache_min_compile_time_secs",
        kind="seconds",
        jax_default=1.0,
    )
    min_entry_size: int = setting(
        0,
        "minimum size: a program whose entry has fewer bytes is not stored",
        flag="jax_persistent_cache_min_entry_size_bytes",
        accepted="a number of bytes; 0 and -1 mean no minimum",
    )
    evict: Literal["lru", "cost"] = setting(
        "lru",
        "which entries a full cache deletes first: those that were not used for the longest time (lru), or those whose"
        " uses save the fewest seconds of compiling for each byte (cost)",
        kind="eviction_order",
        accepted="lru or cost",
    )
    include_metadata_in_key: bool = setting(
        False,
        "make source file names and line numbers part of the key",
        flag="jax_compilation_cache_include_metadata_in_key",
    )
    source_file_regex: str | None = setting(
        None,
        "a regular expression whose matches JAX removes from source file names, so that the key does not contain them",
        flag="jax_hlo_source_file_canonicalization_regex",
        kind="pattern",
        accepted="a regular expression",
    )
    remove_custom_partitioning_ptr: bool = setting(
        False,
        "leave the addresses of custom_partitioning callbacks out of the key",
        flag="jax_remove_custom_partitioning_ptr_from_cache_key",
    )
    expect_pgle: bool = setting(
        False,
        "prefer entries that were compiled with a profile (PGLE), even if PGLE is off",
        flag="jax_compilation_cache_expect_pgle",
    )
    enable_pgle: bool = setting(
        False, "profile each program, then compile it again with the profile", flag="jax_enable_pgle", read_by_jax=True
    )
    pgle_profiling_runs: int = setting(
        3,
        "how many runs of a program PGLE profiles",
        flag="jax_pgle_profiling_runs",
        accepted="a number of runs",
        read_by_jax=True,
    )
    pgle_aggregation_percentile: int = setting(
        90,
        "which percentile of the devices' profiles PGLE uses",
        flag="jax_pgle_aggregation_percentile",
        kind="percentile",
        accepted="0 to 100",
        read_by_jax=True,
    )
    xla_caches: str = setting(
        "xla_gpu_per_fusion_autotune_cache_dir",
        "which of XLA's own caches for GPUs ejcache keeps beside the entries",
        flag="jax_persistent_cache_enable_xla_caches",
        kind="xla_caches",
    )
    raise_errors: bool = setting(
        False,
        "raise errors of the cache in the program instead of logging them",
        flag="jax_raise_persistent_cache_errors",
    )
    explain_misses: bool = setting(False, "log the reason for every miss", flag="jax_explain_cache_misses")
    check_contents: bool = setting(
        False,
        "after a program was loaded from the cache, also compile it, and compare the executables",
        flag="jax_compilation_cache_check_contents",
    )
    compare: bool = setting(
        False, "compile hits, too, and compare the results of their first calls with those of the fresh executables"
    )
    compare_calls: int = setting(
        3,
        "with `compare`, how many calls of a program are compared",
        kind="calls",
        accepted="a number of calls, 1 or more",
    )
    share_binary: bool = setting(
        False,
        "one process compiles a program that spans processes, and sends it to the others",
        flag="jax_share_binary_between_hosts",
    )
    share_binary_timeout_ms: int = setting(
        20 * 60 * 1000,
        "with `share_binary`, how many milliseconds other processes wait before they compile the program themselves",
        flag="jax_share_binary_between_hosts_timeout_ms",
        accepted="a number of milliseconds",
    )
    recompile_force: bool = setting(
        False, "ignore stored entries, compile, and replace them", others=("EASYDEL_RECOMPILE_FORCE",)
    )
    local_dir: str | None = setting(
        None,
        "where this host keeps copies of the entries of a shared cache (unset: `tiers/` in the default"
        " directory of `dir`, or a directory among the temporary files if `tiers/` is on a network file system)",
        accepted="a directory on a local disk",
    )
    local_max_size: int = setting(
        10 << 30,
        "largest total size of the copies that this host keeps of one shared cache",
        kind="limit",
        accepted=f"{ACCEPTED_SIZE}, 0 for none, or -1 for no limit",
    )
    read_only: bool = setting(False, "read entries, but write none")
    namespace: str = setting("", "part of every key; change it to ignore all entries stored so far")
    trust_dir: bool = setting(
        False,
        "use a cache directory even if other users own it or can write to it; they can then run code as you",
    )
    untested_schemes: bool = setting(
        False, "use storage that fsspec knows and ejcache is not tested with, such as hdfs:// or webdav://"
    )
    preload: bool = setting(
        True,
        "load the compiled programs of the last runs in the background, before the script needs them (unset: true if"
        " the process may use two cores or more, and else false)",
    )
    report: str | None = setting(None, "print or write a report when the process exits", kind="report")
    autotune_dir: str | None = setting(
        None,
        "where tuned configurations are stored (unset: in the cache)",
        accepted="a directory or a URL",
        others=("EJKERNEL_PERSISTENT_CACHE_DIR",),
    )
    autotune_policy: Literal["autotune", "heuristics", "error"] | None = setting(
        None,
        "what a tunable kernel does if it has no tuned configuration for a call: measure (autotune), run without"
        " measuring (heuristics), or raise an exception (error) (unset: autotune, unless the author of the kernel chose"
        " another one)",
        kind="autotune_policy",
        accepted="autotune, heuristics or error",
        others=("EJKERNEL_AUTOTUNE_POLICY",),
    )
    autotune_record: bool | str = setting(
        False,
        "record the shapes and types of calls of tunable kernels, for `ejcache tuned tune` to measure later; a"
        " directory or URL says where",
        kind="switch_or_location",
        accepted="true or false, or a directory or URL",
        others=("EJKERNEL_OPS_RECORD",),
    )

    def __init__(
        self,
        values: Mapping[str, Value],
        problems: tuple[SettingError, ...] = (),
        *,
        activate: bool | str | None = None,
        ejit_enables: bool = True,
    ) -> None:
        self._origins = {name: (value.origin, value.source) for name, value in values.items()}
        self.problems = problems
        self.activate = activate
        self.ejit_enables = ejit_enables
        vars(self).update({name: value.value for name, value in values.items()})

    def __getitem__(self, name: str) -> Value:
        return Value(vars(self)[name], *self._origins[name])

    def chosen(self) -> dict[str, Any]:
        """Return the values that somebody has set, by name."""
        return {name: vars(self)[name] for name, (origin, _) in self._origins.items() if origin is not Origin.DEFAULT}

    @property
    def chosen_max_size(self) -> int | None:
        """The limit of the cache in bytes, -1 for none; None if nobody has set it, and the cache's own limit counts."""
        return None if self["max_size"].origin is Origin.DEFAULT else self.max_size

    @property
    def store_limit(self) -> int | None:
        """`chosen_max_size` for a command: 0 switches caching off, and what is stored is looked at without a limit."""
        return self.chosen_max_size or (None if self.chosen_max_size is None else -1)

    @cached_property
    def floors(self) -> Floors:
        """The minimum compile times that these settings ask for: for this host, and for storage that hosts share."""
        return Floors.of(self.min_compile_seconds)

    @cached_property
    def disabled_reason(self) -> str:
        """Why nothing is cached, whatever the other settings say; empty if caching is on."""
        if not self.enabled:
            return f"{self['enabled'].source} is false"
        if self.max_size == 0:
            return f"{self['max_size'].source} is 0"
        if self.dir is None:
            return f"{self['dir'].source} set no directory"
        return ""


DECLARED: Final[dict[str, tuple[Any, str, str, str, str, tuple[str, ...], Any, bool]]] = {
    name: vars(Settings)[name] for name in Settings.__annotations__
}
"""What `setting` was given for each setting, in the order in which `Settings` declares them."""
DEFAULTS: Final = {name: default for name, (default, *_) in DECLARED.items()}
KINDS: Final = {
    name: kind or {bool: "boolean", int: "integer", str: "word"}.get(type(default), "text")
    for name, (default, _, kind, *_) in DECLARED.items()
}
"""What reads the values of each setting."""
FLAGS: Final = {name: flag for name, (_, _, _, _, flag, *_) in DECLARED.items() if flag}
"""The JAX flag of each setting that has one."""
JAX_DEFAULTS: Final = {
    flag: default if jax_default is None else jax_default
    for default, _, _, _, flag, _, jax_default, _ in DECLARED.values()
    if flag
}
"""The value of each of these flags in JAX if nobody has set it."""
VARIABLES: Final = {
    name: (
        *(() if read_by_jax else (f"EJCACHE_{name.upper()}",)),
        *((flag.upper(),) if flag else ()),
        *others,
    )
    for name, (_, _, _, _, flag, others, _, read_by_jax) in DECLARED.items()
}
"""All environment variables that set each setting; the first one that is set counts."""
NAMES: Final = {name: name for name in DECLARED} | {flag: name for name, flag in FLAGS.items()}
"""The name of each setting, by itself and by its flag."""
for _name in DECLARED:
    delattr(Settings, _name)  # only resolved settings have values


def read_value(name: str, value: Any) -> Any:
    """Return a text or a Python value as the setting with this name has it.

    Raises:
        ValueError, TypeError, OverflowError, AttributeError: the setting cannot have the value.
    """
    kind = KINDS[name]
    if kind == "text":
        return text(value)
    if kind == "word":
        return text(value) or ""
    if kind == "boolean":
        return boolean(value)
    if kind == "integer":
        return integer(value)
    if kind == "seconds":
        return floor_seconds(value)
    if kind == "switch_or_location":
        return switch_or_location(value)

    return READERS[kind](text(value) if kind == "report" else value)


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
    if kind in ("limit", "integer", "percentile"):
        return int(text)
    return float(text) if kind == "seconds" else text


_KEEP_SECONDS: Final = 0.01
"""98 % of the compile time of real programs is above it; to store the rest costs more than it saves."""
_PUBLISH_SECONDS: Final = 0.1
"""About three requests to a bucket in another region."""


class Floors(NamedTuple):
    """The floors that some settings ask for, in seconds of compiling.

    Attributes:
        keep: an executable that compiled in less is not stored at all.
        publish: an executable that compiled in less is not stored where other hosts read it.
        ask: an executable that compiled in less on this host is not asked for on shared storage.
    """

    keep: float = _KEEP_SECONDS
    publish: float = _PUBLISH_SECONDS
    ask: float = _PUBLISH_SECONDS

    def __str__(self) -> str:
        return f"{self.keep:g}" if self.keep == self.publish else f"{self.keep:g} here, {self.publish:g} to publish"

    @classmethod
    def of(cls, chosen: float | None) -> Self:
        """Make the floors of a minimum compile time that somebody has set; None: each floor has its own default."""
        return cls() if chosen is None else cls(chosen, chosen, min(chosen, _PUBLISH_SECONDS))
