"""What tables, sequences, objects and classes hold, entry by entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ejcache._tuples import NamedTuple
from ejcache.fingerprint.guarding.look import PATH_SIZE, attribute_name, joined
from ejcache.fingerprint.guarding.tokens import class_dict, instance_items, is_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.fingerprint.guarding.look import Look

__all__ = ["Leaf", "leaves"]


class Leaf(NamedTuple):
    """An entry of a table, an element of a sequence, or an attribute of an object or a class."""

    name: bytes
    """The digest of what leads to it."""
    value: object
    plain: bool
    """Whether its key is plain: one that the user may use, too."""
    attribute: str
    """The attribute that it is or is in; empty if there is none."""
    nested: bool
    """Whether it is in a table that an attribute holds."""


def leaves(value: object, look: Look) -> Iterator[Leaf]:
    """What a table, a sequence, an object or a class holds, with the entries of tables in it."""
    if isinstance(value, dict):
        yield from _entries(value, b"", "", look)
    elif isinstance(value, list | set | tuple):
        for each in list(value):
            yield Leaf(look.key(each) or look.digest(each)[:PATH_SIZE], each, is_plain(each), "", False)
    elif isinstance(value, type):
        for attribute, each in look.members(value).items():
            yield Leaf(attribute_name(attribute), each, False, attribute, False)
            if isinstance(each, dict):
                yield from _entries(each, attribute_name(attribute), attribute, look)
    else:
        memos = _memos(type(value))
        for attribute, each in instance_items(value):
            if attribute in memos:
                continue
            yield Leaf(attribute_name(attribute), each, False, attribute, False)
            if isinstance(each, dict):
                yield from _entries(each, attribute_name(attribute), attribute, look)


def _entries(table: dict[Any, Any], before: bytes, attribute: str, look: Look) -> Iterator[Leaf]:
    for key, value in list(dict.items(table)):
        name = look.key(key)
        if name is None:
            continue
        path = joined(before, name) if before else name
        plain = is_plain(key)
        yield Leaf(path, value, plain, attribute, bool(before))
        if isinstance(value, dict):
            for inner, deeper in list(dict.items(value)):
                second = look.key(inner)
                if second is not None:
                    yield Leaf(joined(path, second), deeper, plain and is_plain(inner), attribute, bool(before))


_memos_of: Final[dict[type[Any], frozenset[str]]] = {}


def _memos(kind: type[Any]) -> frozenset[str]:
    """The attributes that only keep what a method has computed."""
    found = _memos_of.get(kind)
    if found is None:
        found = _memos_of[kind] = frozenset(
            name
            for each in kind.__mro__
            for name, value in class_dict(each).items()
            if "cached_property" in type(value).__name__
        )
    return found
