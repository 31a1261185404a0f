"""How the values of settings are read that few programs set: words, sizes, destinations; and what each kind accepts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import ACCEPTED_SIZE
from ejcache.util.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    "report": "off, line (or 1) or json for stderr, or the path of a JSON file, with a slash or .json at its end",
    "xla_caches": f"all, none, or a list of {', '.join(XLA_CACHES)}",
}
"""The accepted values of each kind in words, for a setting that has none of its own."""
