"""Tables and objects that libraries read, entry by entry.

Tables of libraries grow when parts of a library are imported, in an order that differs between processes. So the
entries that mattered are compared, and of new ones those that the user may have made.
"""

from __future__ import annotations

import re
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from ejcache._tuples import NamedTuple
from ejcache.fingerprint.guarding.leaves import Leaf, leaves
from ejcache.fingerprint.guarding.look import OPERATORS, PATH_SIZE, Look, attribute_name
from ejcache.fingerprint.guarding.tokens import ABSENT, DIGEST_SIZE, is_plain, nested_codes, short
from ejcache.fingerprint.library import is_library_module

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

__all__ = ["Table", "record_table", "table_difference", "tells_apart"]

_COUNTER: Final = re.compile(r"_(id|ids|uid|count|counter|next|next_id|num_calls)$")

_COUNTING: Final = frozenset({"brax", "diffrax", "equinox", "flax", "haiku", "jax", "keras", "numpyro", "optax"})
"""Packages of which it is known that such attributes only tell objects apart."""

_PRESENT: Final = b"\1" * DIGEST_SIZE
"""In place of a digest: there is an entry of this name, and what it holds was not used."""


class Table(NamedTuple):
    """What is guarded of a table or an object."""

    entries: Mapping[bytes, bytes]
    """Digest of what leads to an entry → digest of its value."""
    modules: Mapping[bytes, str]
    """Digest of what leads to an entry → the library's module that makes it; empty if tracing makes it."""


def record_table(value: object, ran: Container[int], attributes: Container[str], look: Look) -> Table | None:
    """What is to be guarded of a table or an object, or None if nothing is.

    Args:
        value: the table or object.
        ran: the identities of the code objects that ran.
        attributes: the names of attributes that library code mentions.
        look: at the libraries.
    """
    entries: dict[bytes, bytes] = {}
    modules: dict[bytes, str] = {}
    attributed = not isinstance(value, dict | list | set | tuple)
    order: list[bytes] = []
    held: set[bytes] = set()
    for leaf in leaves(value, look):
        if attributed and leaf.attribute not in attributes and leaf.attribute not in OPERATORS:
            continue
        held.add(leaf.name)
        if isinstance(value, type) and not leaf.nested and _is_own(value, leaf, look):
            continue
        digest, module = _entry(value, leaf, ran, look)
        if digest is None:
            if leaf.plain or isinstance(leaf.value, dict):
                entries.setdefault(leaf.name, _PRESENT)
            continue
        was = entries.get(leaf.name)
        entries[leaf.name] = digest if was is None else short(sorted((was, digest)))
        if module is None and is_plain(leaf.value) and isinstance(value, dict) and not leaf.plain:
            modules[leaf.name] = _BY_TRACING
        elif module is None:
            order.append(leaf.name)
        elif not attributed or leaf.nested:
            named = (
                leaf.plain if isinstance(value, dict) or leaf.nested else isinstance(leaf.value, type | FunctionType)
            )
            modules[leaf.name] = module if named else _BY_TRACING
    if isinstance(value, list | tuple):
        entries[_ORDER] = short(order)
    if attributed and not isinstance(value, type):
        # What the object does not hold, and its class does: an attribute that is set later hides it.
        for leaf in leaves(type(value), look):
            free = leaf.attribute in attributes and not leaf.nested and leaf.name not in held
            if free and (is_plain(leaf.value) or type(leaf.value) is FunctionType):
                entries[leaf.name] = ABSENT
    return Table(entries, modules) if entries or not attributed else None


_BY_TRACING: Final = ""
"""In place of a module: JAX makes entries for what it meets while it traces."""

_ORDER: Final = b"\0" * PATH_SIZE
"""In place of an entry: the order of a list's elements."""


def _entry(holder: object, leaf: Leaf, ran: Container[int], look: Look) -> tuple[bytes | None, str | None]:
    """The digest of an entry that may have mattered, and the library's module that makes it."""
    value = leaf.value
    if isinstance(value, dict):
        return None, None
    functions = look.functions(value)
    if not functions:
        if _is_memo(holder, leaf):
            return None, None
        kind = value if isinstance(value, type) else type(value)
        module = str(kind.__module__)
        return look.digest(value), module if not is_plain(value) and is_library_module(module) else None
    if look.is_by_user(value):
        return look.digest(value), None
    if any(id(code) in ran for each in functions for code in nested_codes(each.__code__)):
        return look.digest(value), functions[0].__module__
    return None, None


def _is_own(kind: type[Any], leaf: Leaf, look: Look) -> bool:
    """Whether a method is found by its own name, too, where it is guarded if it ran, or holds nothing."""
    function = leaf.value
    if type(function) is FunctionType:
        path = f".{function.__qualname__}"
        return path.endswith(f".{leaf.attribute}") and any(
            path == f".{each.__qualname__}.{leaf.attribute}" for each in kind.__mro__
        )
    return not isinstance(function, dict) and not is_plain(function) and not look.functions(function)


def _is_memo(holder: object, leaf: Leaf) -> bool:
    """Whether an object counts there, or an object of JAX remembers something there, or will: `_stripped_weak_type`."""
    if not leaf.attribute.startswith("_") or leaf.nested:
        return False
    kind = holder if isinstance(holder, type) else type(holder)
    if type(leaf.value) is int:
        return tells_apart(str(kind.__module__), leaf.attribute)
    if leaf.value is not None and is_plain(leaf.value):
        return False
    return str(type(holder).__module__).startswith("jax.")


def tells_apart(module: str, name: str) -> bool:
    """Whether a number of this name is known only to tell objects apart."""
    return module.partition(".")[0] in _COUNTING and _COUNTER.search(name) is not None


def table_difference(table: Table, value: object, known: Container[str], look: Look) -> dict[str, bytes]:
    """The entries that are not what they were, with their digests now.

    Args:
        table: what was.
        value: the table or object now.
        known: the modules of which something is guarded: they were loaded then.
        look: at the libraries.
    """
    if isinstance(value, type):
        members = look.library_members(value)
        if members is not None:
            return _class_difference(table, members, look)
    found: dict[str, bytes] = {}
    seen: dict[bytes, bytes] = {}
    order: list[bytes] = []
    for leaf in leaves(value, look):
        name = leaf.name
        was = table.entries.get(name)
        if was is None:
            if _is_new(table, value, leaf, known, look):
                found[name.hex()] = _PRESENT
        elif was == _PRESENT:
            seen[name] = look.digest(leaf.value) if look.is_by_user(leaf.value) else _PRESENT
        else:
            digest = look.digest(leaf.value)
            if name not in table.modules:
                order.append(name)
            seen[name] = digest if name not in seen else short(sorted((seen[name], digest)))
    if isinstance(value, list | tuple):
        seen[_ORDER] = short(order)
    for name, was in table.entries.items():
        now = seen.get(name, ABSENT)
        if now != was and not (now == ABSENT and _may_come(table, name, was)):
            found[name.hex()] = now
    return found


def _class_difference(table: Table, members: Mapping[bytes, object], look: Look) -> dict[str, bytes]:
    """The same for a class of which the user wrote nothing: only what was there counts."""
    found: dict[str, bytes] = {}
    for name, was in table.entries.items():
        now = _PRESENT if was == _PRESENT else look.digest(members[name]) if name in members else ABSENT
        if now != was and not (now == ABSENT and _may_come(table, name, was)):
            found[name.hex()] = now
    return found


def _may_come(table: Table, name: bytes, was: bytes) -> bool:
    """Whether an entry that is not there is made later, by an import or by tracing itself."""
    if was == _PRESENT:
        return True
    module = table.modules.get(name)
    return module is not None and (module == _BY_TRACING or module not in sys.modules)


def _is_new(table: Table, holder: object, leaf: Leaf, known: Container[str], look: Look) -> bool:
    """Whether an entry that was not there may be the user's: one that no import has made."""
    if isinstance(leaf.value, dict):
        return False
    attributed = not isinstance(holder, dict | list | set | tuple)
    if attributed and not leaf.nested:
        # An attribute that no library code mentions: only the user's methods of a library's class count.
        kind = type(leaf.value)
        if not isinstance(holder, type) or (kind is not FunctionType and not hasattr(kind, "__get__")):
            return False
        return look.is_by_user(leaf.value)
    if leaf.nested and attribute_name(leaf.attribute) not in table.entries:
        return False
    if is_plain(leaf.value):
        return leaf.plain
    functions = look.functions(leaf.value)
    if functions:
        return look.is_by_user(leaf.value) or (leaf.plain and functions[0].__module__ in known)
    kind = leaf.value if isinstance(leaf.value, type) else type(leaf.value)
    return not is_library_module(str(kind.__module__))
