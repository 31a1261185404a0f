"""Finds what a person means by a text: an entry by its name, or by its key or the beginning of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from ejcache.errors import NotFoundError, SettingError
from ejcache.keys.key import parse_any_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ejcache.cli.listing import ListedEntry

Item = TypeVar("Item")

_SHORTEST: Final = 6
"""Characters from which a text counts as the beginning of a digest. A shorter one may be the beginning of a word."""
_SHORT_DIGEST: Final = re.compile(f"[0-9a-f]{{1,{_SHORTEST - 1}}}")
_NAMED: Final = 20
"""Keys that a message names."""


class AmbiguousError(NotFoundError):
    """Several things have the name that was given."""


@dataclass(frozen=True, slots=True)
class Identifiers:
    """The texts by which a person may name something.

    Attributes:
        key: its key.
        names: other texts that name it in full.
        digests: texts whose beginning names it.
        program: equal for variants of one program; None for what has no variants.
    """

    key: str
    names: frozenset[str]
    digests: tuple[str, ...] = ()
    program: object = None


def match(items: Iterable[Item], wanted: str, identify: Callable[[Item], Identifiers]) -> tuple[list[Item], bool]:
    """Return the item whose key is `wanted`, or else those of that name, or else those whose key begins with it.

    A name comes before the beginning of a key, because a name may also be the beginning of another name.

    Returns:
        The items, and whether `wanted` is their key or name rather than the beginning of a key.

    Raises:
        SettingError: `wanted` is empty.
    """
    check_wanted(wanted)
    names = {wanted, f"jit_{wanted}"}  # JAX calls the module of a function `train` `jit_train`
    named: list[Item] = []
    begun: list[Item] = []
    for item in items:
        identifiers = identify(item)
        if identifiers.key == wanted:
            return [item], True
        digests = identifiers.digests if len(wanted) >= _SHORTEST else ()
        if not names.isdisjoint(identifiers.names):
            named.append(item)
        elif any(text.startswith(wanted) for text in (identifiers.key, *digests)):
            begun.append(item)
    return named or begun, bool(named)


def choose(
    items: Iterable[Item],
    wanted: str,
    identify: Callable[[Item], Identifiers],
    *,
    where: str,
    all_of_a_name: bool = False,
) -> list[Item]:
    """Find what a person means by `wanted`: one item, or the variants of one program.

    Args:
        items: to choose from.
        wanted: a key, the beginning of one, or a name.
        identify: gives the texts that name an item.
        where: the location, for messages.
        all_of_a_name: a name means all items that have it.

    Raises:
        NotFoundError: nothing matches.
        AmbiguousError: several items of different programs do.
        SettingError: `wanted` is empty.
    """
    found, exact = match(items, wanted, identify)
    if not found:
        short = f"; the beginning of a digest needs {_SHORTEST} characters" if _SHORT_DIGEST.fullmatch(wanted) else ""
        raise NotFoundError(f"nothing in {where} has the key or name {wanted!r}{short}")
    programs = {identify(item).program for item in found}
    one_program = len(programs) == 1 and None not in programs
    if len(found) == 1 or one_program or (all_of_a_name and exact):
        return found
    keys = sorted(identify(item).key for item in found)
    more = [f"and {len(keys) - _NAMED:,} more"] if len(keys) > _NAMED else []
    message = f"{len(keys)} keys in {where} match {wanted!r}; give one of them:"
    raise AmbiguousError("\n  ".join([message, *keys[:_NAMED], *more]))


def check_wanted(wanted: str) -> None:
    """Refuse an empty text, which every key begins with; a shell variable may be unset. Raises SettingError."""
    if not wanted.strip():
        raise SettingError("KEY", wanted, "a key, the beginning of one, or a name")


def identify_key(key: str) -> Identifiers:
    """Return the texts that name the entry under `key`."""
    parts = parse_any_key(key)
    digest = f"{parts.logical}-{parts.environment}" if parts.logical else key.removeprefix(f"{parts.name}-")
    program = (parts.logical, parts.environment) if parts.logical else None
    return Identifiers(key, frozenset({parts.name}), (digest,), program)


def identify_entry(row: ListedEntry) -> Identifiers:
    """Return the texts that name a listed entry."""
    return identify_key(row.info.key)
