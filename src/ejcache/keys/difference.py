"""What differs between two compilations, in words."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ejcache.keys.key import PGLE, PLAIN, PROFILING, parse_key

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Difference", "Identity", "differences", "nearest"]

_WORDS: Final = {
    "format": "the key format of ejcache",
    "namespace": "EJCACHE_NAMESPACE",
    "computation": "the program",
    "compile_options": "the compile options",
    "overrides": "compiler_options",
    "variables": "environment variables",
    "arguments": "command line flags",
    "devices": "the devices",
    "machine": "the machine's topology",
    "cpu": "this host's CPU",
    "threads": "the threads that XLA has on this host",
    "jaxlib": "jaxlib",
    "platform_version": "the platform's version",
    "native_libraries": "the native libraries",
    "profile": "the profile",
    "custom_hook": "the custom key hook",
}
_MULTILINE: Final = frozenset({"overrides", "variables", "arguments", "devices"})
_WEIGHTS: Final = {"computation": 3.0, "compile_options": 0.5}
"""A program that differs is a greater distance than a flag; compile options mostly repeat what a flag said."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What is known of one compilation.

    Attributes:
        key: the text of its key.
        name: its module's name.
        components: digest of each named component.
        details: readable values of those that are small.
        signature: its arguments and results.
        module: digest of its module's text, if that was kept.
        created: seconds since the epoch.
    """

    key: str
    name: str
    components: Mapping[str, str]
    details: Mapping[str, str] = field(default_factory=dict)
    signature: str = ""
    module: str = ""
    created: float = 0.0


_VARIANTS: Final = {PLAIN: "compiled without", PROFILING: "compiled to be profiled", PGLE: "compiled with its profile"}


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs.

    Attributes:
        component: the component's name, or "signature".
        sentence: what differs, from what to what.
    """

    component: str
    sentence: str


def nearest(wanted: Identity, candidates: list[Identity]) -> Identity | None:
    """The candidate of the same function that differs least, the latest of equals; None if there is none."""

    def distance(candidate: Identity) -> tuple[float, float]:
        names = wanted.components.keys() | candidate.components.keys()
        apart = sum(
            _WEIGHTS.get(name, 1.0) for name in names if wanted.components.get(name) != candidate.components.get(name)
        )
        apart += (wanted.signature != candidate.signature) + (_variant(wanted) != _variant(candidate))
        return apart, -candidate.created

    same_function = [c for c in candidates if c.name == wanted.name and c.key != wanted.key and c.components]
    return min(same_function, key=distance, default=None)


def differences(before: Identity, after: Identity) -> list[Difference]:
    """What changed from `before` to `after`, the most telling first."""
    changed = [
        name
        for name in sorted(before.components.keys() | after.components.keys(), key=_rank)
        if before.components.get(name) != after.components.get(name)
    ]
    found: list[Difference] = []
    if before.signature != after.signature:
        found.append(Difference("signature", _signature(before.signature, after.signature)))
    if _variant(before) != _variant(after):
        of = _VARIANTS.get(_variant(before), "another"), _VARIANTS.get(_variant(after), "another")
        found.append(Difference("variant", f"PGLE: {of[0]} \N{RIGHTWARDS ARROW} {of[1]}"))
    # The options hold the flags a second time, so they are only worth a word if no flag says why.
    explained = {"variables", "overrides"} & set(changed)
    for name in changed:
        if name == "compile_options" and explained:
            continue
        found.append(Difference(name, _sentence(name, before.details.get(name), after.details.get(name), set(changed))))
    return found


def _variant(identity: Identity) -> str:
    parts = parse_key(identity.key.partition("~")[0])
    return parts.variant if parts is not None else ""


def _rank(name: str) -> tuple[int, str]:
    order = list(_WORDS)
    return (order.index(name) if name in order else len(order), name)


def _sentence(name: str, before: str | None, after: str | None, changed: set[str]) -> str:
    words = _WORDS.get(name, name)
    if name == "computation":
        return "the program's text differs"
    if name == "native_libraries" and "jaxlib" not in changed:
        return "the native libraries differ in content, though jaxlib's version is the same (rebuilt, or exchanged)"
    if name == "cpu":
        return "the entry was compiled on another kind of CPU"
    if before is None or after is None:
        return f"{words} differ" if words.endswith("s") else f"{words} differs"
    if name in _MULTILINE:
        lines = [
            line
            for line in difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
            if not line.startswith(("---", "+++", "@@"))
        ]
        if 0 < len(lines) <= 12:
            return f"{words}: " + ", ".join(f"{line[:1]} {line[1:]}" for line in lines)
        return f"{words} differ in {len(lines)} lines"
    return f"{words}: {before or '(none)'} \N{RIGHTWARDS ARROW} {after or '(none)'}"


def _signature(before: str, after: str) -> str:
    if len(before) + len(after) <= 200:
        return f"arguments: {before} \N{RIGHTWARDS ARROW} {after}"
    mine, theirs = after.split(", "), before.split(", ")
    if len(mine) != len(theirs):
        return f"arguments: {len(theirs)} of them \N{RIGHTWARDS ARROW} {len(mine)}"
    apart = [(number, a, b) for number, (a, b) in enumerate(zip(theirs, mine, strict=True)) if a != b]
    number, a, b = apart[0]
    more = f", and {len(apart) - 1} more" if len(apart) > 1 else ""
    return f"arguments: number {number}: {a} \N{RIGHTWARDS ARROW} {b}{more}"
