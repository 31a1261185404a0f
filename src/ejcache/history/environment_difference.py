"""Says in words what differs between two compilations besides their programs: versions, devices, flags, settings."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.keys.key import PGLE, PLAIN, PROFILING, parse_key

if TYPE_CHECKING:
    from ejcache.journal.line import ProgramRecord

ARROW: Final = "->"

_WORDS: Final = {
    "format": "the key format of ejcache",
    "platform_version": "the platform's version",
    "namespace": "EJCACHE_NAMESPACE",
    "overrides": "compiler_options",
    "arguments": "the flags on the command line",
    "threads": "the number of threads that XLA has on this host",
    "custom_hook": "the custom key hook",
    "partitioned_calls": "the custom calls that are registered as batch partitionable",
}
_ABSENT: Final = frozenset({"partitioned_calls"})
"""Components that a key has only if there is something to say."""
_NAMED: Final = re.compile(r"^([A-Za-z_]\w*)=(.*)$", re.DOTALL)
_DEVICE: Final = re.compile(r"^(.*?) process (\d+) device (\d+)")
_COUNTS: Final = frozenset({"num_partitions", "num_replicas", "use_spmd_partitioning"})
"""Options that follow the number of devices."""
_SHOWN: Final = 6
"""Flags that are shown of each list."""


_VARIANTS: Final = {PLAIN: "compiled without", PROFILING: "compiled to be profiled", PGLE: "compiled with its profile"}


class Difference(NamedTuple):
    """One thing that the author of the program, or of its environment, changed.

    Attributes:
        kind: one of `causes.CAUSES`.
        sentence: what changed, from what to what.
        name: of the argument, the value or the variable that changed; empty if it has none.
        more: further lines.
        place: the line of the program that has what changed, `/home/me/train.py:12`; empty if it is not known.
        is_in_library: True if only a line of an installed library has it, which its user cannot change.
    """

    kind: str
    sentence: str
    name: str = ""
    more: tuple[str, ...] = ()
    place: str = ""
    is_in_library: bool = False


def environment_differences(before: ProgramRecord, after: ProgramRecord) -> list[Difference]:
    """List what changed from `before` to `after` besides the program, the most important first."""
    names = before.components.keys() | after.components.keys()
    changed = {name for name in names if before.components.get(name) != after.components.get(name)}
    found = _versions(before, after, changed) + _machine(before, after, changed)
    for name, words in _WORDS.items():
        if name in changed:
            absent = "" if name in _ABSENT else None
            values = before.details.get(name, absent), after.details.get(name, absent)
            found.append(Difference(name, _value_changes(name, words, *values)))
    if "variables" in changed:
        unknown = [Difference("variables", "environment variables changed")]
        found += _values(before, after, "variables", "the environment variable", "(not set)") or unknown
    found += _values(before, after, "settings", "the setting", "the default")
    following = _COUNTS if "devices" in changed else frozenset()
    found += _values(before, after, "options", "the compile option", "the default", following)
    if variant_of(before) != variant_of(after):
        of = _VARIANTS.get(variant_of(before), "another"), _VARIANTS.get(variant_of(after), "another")
        found.append(Difference("variant", f"PGLE changed: {of[0]} {ARROW} {of[1]}"))
    if "profile" in changed:
        found.append(Difference("profile", "the profile that it is compiled with changed"))
    known = {"computation", "compile_options", *_WORDS, *_VERSIONS, *_MACHINE, "variables", "profile"}
    found += [Difference(name, f"{name} changed") for name in sorted(changed - known)]
    # The options contain the flags, and the numbers of devices and arguments, a second time.
    if "compile_options" in changed and not found and "computation" not in changed:
        found.append(Difference("compile_options", "the compile options changed"))
    return found


_VERSIONS: Final = frozenset({"jaxlib", "native_libraries"})
_MACHINE: Final = frozenset({"devices", "machine", "cpu"})


def _versions(before: ProgramRecord, after: ProgramRecord, changed: set[str]) -> list[Difference]:
    found = []
    pairs = {name: (before.details.get(name, ""), after.details.get(name, "")) for name in ("jax", "jaxlib")}
    moved = [f"{name} {old} {ARROW} {new}" for name, (old, new) in pairs.items() if old != new and old and new]
    if "jaxlib" in changed or moved:
        found.append(Difference("jaxlib", f"the version of JAX changed: {', '.join(moved) or 'jaxlib'}"))
        changed -= {"platform_version", "native_libraries"}
    elif "native_libraries" in changed:
        sentence = "the native libraries changed, though jaxlib's version is the same (rebuilt or replaced)"
        found.append(Difference("native_libraries", sentence))
    return found


def _machine(before: ProgramRecord, after: ProgramRecord, changed: set[str]) -> list[Difference]:
    found = []
    if "devices" in changed:
        old, new = (_devices(identity.details.get("devices", "")) for identity in (before, after))
        kinds = [", ".join(sorted(each)) for each in (old, new)]
        if kinds[0] != kinds[1]:
            found.append(Difference("devices", f"the kind of device changed: {kinds[0]} {ARROW} {kinds[1]}"))
            changed.discard("machine")
        if old.total() != new.total():
            found.append(Difference("devices", f"the number of devices changed: {old.total()} {ARROW} {new.total()}"))
        if not found:
            found.append(Difference("devices", "the order or the place of the devices changed"))
    if "cpu" in changed:
        found.append(Difference("cpu", "the kind of CPU changed: the entry was compiled on another one"))
    elif "machine" in changed and not found and not changed & {"variables", "arguments"}:
        found.append(Difference("machine", "the machine changed: its topology is another one"))
    return found


def _devices(text: str) -> Counter[str]:
    return Counter((match[1] if (match := _DEVICE.match(line)) else line) for line in text.splitlines())


def _value_changes(name: str, words: str, before: str | None, after: str | None) -> str:
    if before is None or after is None:
        return f"{words} changed"
    if name in {"overrides", "arguments", *_ABSENT}:
        # Overrides say the type of each value: `name=bool:True`.
        old, new = (re.sub(r"=(?:bool|int|float|str):", "=", text).splitlines() for text in (before, after))
        return f"{words} changed: {_list_changes(old, new)}"
    return f"{words} changed: {before or '(none)'} {ARROW} {after or '(none)'}"


def _values(
    before: ProgramRecord,
    after: ProgramRecord,
    component: str,
    words: str,
    absent: str,
    ignored: frozenset[str] = frozenset(),
) -> list[Difference]:
    """Return variables, settings or options that changed; only if they were recorded for both."""
    texts = [identity.details.get(component) for identity in (before, after)]
    if None in texts:
        return []
    old, new = (_by_name(str(text)) for text in texts)
    found = []
    for name in sorted((old.keys() | new.keys()) - ignored):
        a, b = old.get(name, []), new.get(name, [])
        if a == b:
            continue
        are_flags = component == "variables" and any(value.startswith("-") for value in (*a, *b))
        change = _list_changes(a, b) if are_flags else f"{' '.join(a) or absent} {ARROW} {' '.join(b) or absent}"
        found.append(Difference(component, f"{words} {name} changed: {change}", name))
    return found


def _by_name(text: str) -> dict[str, list[str]]:
    """Return the values of each name; the first is on the line with its name."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        match = _NAMED.match(line)
        name = match[1] if match else name
        found.setdefault(name, []).append(match[2] if match else line)
    return found


def _list_changes(before: list[str], after: list[str]) -> str:
    """Return `+ --flag=1, - --other=2`; a flag whose value changed is one item."""
    gone, come = (Counter(before) - Counter(after)), (Counter(after) - Counter(before))
    values = {flag.partition("=")[0]: flag for flag in gone}
    items = []
    for flag in come:
        old = values.pop(flag.partition("=")[0], None)
        items.append(f"+ {flag}" if old is None else f"{old} {ARROW} {flag.partition('=')[2] or flag}")
    items += [f"- {flag}" for flag in values.values()]
    more = f", and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return (", ".join(items[:_SHOWN]) or "their order") + more


def variant_of(identity: ProgramRecord) -> str:
    """Return the variant in the key of a program; empty if it cannot be read."""
    parts = parse_key(identity.key.partition("~")[0])
    return parts.variant if parts is not None else ""
