"""What is recalled of a cache: entries that nobody loads any more. A part of the policy that is stored with the cache.

    recalled := {"version": 1, "number": N, "dropped": N, "rules": [rule, …], "entries": {digests: N, …}}
    rule     := {"number": N, "recalled_by": text} with one of "all": true, "by": writer, "before": seconds since 1970,
                and with "unfinished": true while the command removes the entries
    digests  := 8 hexadecimal digits of the key's digest, and 24 of the checksum with which the entry ends

Each recall has a number, higher than all before: its time in seconds since 1970, or one more than the last. A writer
notes in each entry the number of the last recall that it knew, so a rule takes back only what was stored by processes
that did not know it. At most 1,000 entries and 24 rules are kept; `dropped` is the highest number of what is not kept
any more. A host that has not removed its copies up to that number cannot know which of them are good.

Pure functions of what is stored: no files, no clocks.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from ejcache import entry
from ejcache.errors import MALFORMED, EntryCorruptError, EntryVersionError
from ejcache.util.printable import printable
from ejcache.util.store_keys import key_digest
from ejcache.util.tuples import NamedTuple
from ejcache.util.units import plural
from ejcache.util.writer import is_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ejcache.entry import Header

VERSION: Final = 1
MOST_ENTRIES: Final = 1000
MOST_RULES: Final = 24
_MOST_TEXT: Final = 160
_KEY_DIGITS: Final = 8
_DIGITS: Final = 32
_MOST_NAME: Final = 80
_HIGHEST: Final = 1 << 36
"""Seconds since 1970, of the year 4147: the document has a most size."""


class Stamp(NamedTuple):
    """What tells whether an entry is recalled.

    Attributes:
        created: seconds since 1970, by the writer's clock.
        writer: who stored it.
        recall: the number of the last recall that the writer knew.
        checksum: with which the entry ends; empty if only rules are asked.
    """

    created: float
    writer: str
    recall: int
    checksum: bytes = b""


def stamp_of(header: Header, data: bytes) -> Stamp:
    """Return the stamp of an entry: of its header, and of all its bytes or none."""
    return Stamp(header.created, header.writer, header.recall, entry.checksum_of(data))


class Rule(NamedTuple):
    """A recall of all that a writer has stored, of all that was stored before a time, or of everything.

    Attributes:
        number: of the recall.
        by: the writer; empty for every writer.
        before: seconds since 1970; None for any time.
        recalled_by: who has recalled it.
        unfinished: the entries are still being removed.
    """

    number: int
    by: str = ""
    before: float | None = None
    recalled_by: str = ""
    unfinished: bool = False

    def includes(self, stamp: Stamp) -> bool:
        """True if the rule recalls an entry with this stamp."""
        return (
            stamp.recall < self.number
            and (not self.by or is_by(stamp.writer, self.by))
            and (self.before is None or stamp.created < self.before)
        )

    def is_like(self, other: Rule) -> bool:
        """True if both recall the same, but for their numbers."""
        return (self.by, self.before) == (other.by, other.before)

    def covers(self, other: Rule) -> bool:
        """True if this rule, which is later, recalls all that the other one does."""
        return (not self.by or self.by == other.by) and (
            self.before is None or (other.before is not None and other.before <= self.before)
        )


class Recalls(NamedTuple):
    """All that is recalled.

    Attributes:
        number: of the last recall; 0 if there was none.
        dropped: the highest number of what is not kept any more.
        rules: in the order of their numbers.
        entries: single entries, by their digests, with the number of the recall.
        checksums: the part of these digests that an entry is compared with.
        keys: the part of these digests that a key is compared with.
    """

    number: int = 0
    dropped: int = 0
    rules: tuple[Rule, ...] = ()
    entries: Mapping[str, int] = {}
    checksums: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()

    def includes(self, stamp: Stamp) -> bool:
        """True if an entry with this stamp is recalled."""
        return _checksum_digits(stamp.checksum) in self.checksums or any(rule.includes(stamp) for rule in self.rules)

    def may_include(self, key: str) -> bool:
        """True if an entry under this key may be among the single ones."""
        return bool(self.keys) and key_digest(key, _KEY_DIGITS) in self.keys

    def next_number(self, now: float) -> int:
        """Return the number of a recall that is made now."""
        return max(self.number + 1, int(now))

    def with_rule(self, rule: Rule) -> Recalls:
        """Return what is recalled with one rule more. What it covers is kept no longer.

        A rule like an unfinished one is that one, taken up again.
        """
        if any(each.unfinished and each.is_like(rule) for each in self.rules):
            return self
        rules = [each for each in self.rules if not rule.covers(each)]
        is_of_all = not rule.by and rule.before is None
        entries, dropped = ({}, 0) if is_of_all else (self.entries, self.dropped)
        if len(rules) >= MOST_RULES:
            dropped = max(dropped, rules.pop(0).number)
        return _made(rule.number, dropped, (*rules, rule), entries)

    def finished(self, rule: Rule) -> Recalls:
        """Return the same with this rule finished."""
        rules = tuple(each._replace(unfinished=False) if each.is_like(rule) else each for each in self.rules)
        return self._replace(rules=rules)

    def with_entries(self, digests: Iterable[str], number: int) -> Recalls:
        """Return what is recalled with single entries more; those that are recalled already keep their numbers."""
        new = {each: number for each in digests if each not in self.entries}
        if not new:
            return self
        kept = sorted({**self.entries, **new}.items(), key=lambda item: item[1])
        gone, kept = kept[: max(0, len(kept) - MOST_ENTRIES)], kept[-MOST_ENTRIES:]
        dropped = max([self.dropped, *(at for _, at in gone)])
        return _made(number, dropped, self.rules, dict(kept))


NOTHING: Final = Recalls()
"""Is recalled of a cache of which nothing ever was."""


def digests_of(key: str, checksum: bytes) -> str:
    """Return the digits by which one entry is recalled."""
    return key_digest(key, _KEY_DIGITS) + _checksum_digits(checksum)


def _checksum_digits(checksum: bytes) -> str:
    return checksum[: (_DIGITS - _KEY_DIGITS) // 2].hex()


def _made(number: int, dropped: int, rules: tuple[Rule, ...], entries: Mapping[str, int]) -> Recalls:
    checksums = frozenset(digests[_KEY_DIGITS:] for digests in entries)
    keys = frozenset(digests[:_KEY_DIGITS] for digests in entries)
    return Recalls(number, dropped, rules, entries, checksums, keys)


def recalls_in_words(recalls: Recalls) -> str:
    """Return what is recalled as a person reads it; empty if nothing is."""
    if not (recalls.rules or recalls.entries):
        return ""
    single = plural(len(recalls.entries), "entry", "entries") if recalls.entries else ""
    return "recalled: " + "; ".join([*map(_rule_in_words, recalls.rules), *([single] if single else [])])


def _rule_in_words(rule: Rule) -> str:
    what = f"what {printable(rule.by)} has stored" if rule.by else "everything"
    if rule.before is not None:
        what = f"what was stored before {_moment(rule.before)} by its writer's clock"
    unfinished = ", not finished: repeat the command" if rule.unfinished else ""
    return f"{what}, by {printable(rule.recalled_by)}, {_moment(rule.number)}{unfinished}"


def _moment(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
    except (OSError, OverflowError, ValueError):
        return f"{seconds:g}"


def encode_recalls(recalls: Recalls) -> dict[str, Any] | None:
    """Return what the policy keeps; None if nothing was ever recalled."""
    if not recalls.number:
        return None
    return {
        "version": VERSION,
        "number": recalls.number,
        "dropped": recalls.dropped,
        "rules": [_encode_rule(rule) for rule in recalls.rules],
        "entries": dict(recalls.entries),
    }


def _encode_rule(rule: Rule) -> dict[str, Any]:
    fields: dict[str, Any] = {"number": rule.number, "recalled_by": rule.recalled_by[:_MOST_NAME]}
    if rule.by:
        fields["by"] = rule.by[:_MOST_TEXT]
    if rule.before is not None:
        fields["before"] = rule.before
    if not rule.by and rule.before is None:
        fields["all"] = True
    return fields | ({"unfinished": True} if rule.unfinished else {})


def decode_recalls(fields: Any) -> Recalls:
    """Return what `encode_recalls` has made `fields` of; nothing recalled for None.

    Raises:
        EntryCorruptError: they are something else.
        EntryVersionError: they are of a later version.
    """
    if fields is None:
        return Recalls()
    try:
        if fields["version"] != VERSION:
            raise EntryVersionError(
                f"what is recalled is of version {str(fields['version'])[:40]}; this code reads version {VERSION}"
            )
        number, dropped = _number(fields["number"]), _number(fields["dropped"], least=0)
        rules = tuple(_decode_rule(each) for each in fields["rules"])
        entries = {_digits(digests): _number(at) for digests, at in fields["entries"].items()}
    except MALFORMED as exc:
        raise EntryCorruptError("the policy's list of what is recalled is damaged") from exc
    numbers = [dropped, *(rule.number for rule in rules), *entries.values()]
    if len(rules) > MOST_RULES or len(entries) > MOST_ENTRIES or max(numbers) > number:
        raise EntryCorruptError("the policy recalls more than it can")
    return _made(number, dropped, tuple(sorted(rules, key=lambda rule: rule.number)), entries)


def _decode_rule(fields: Mapping[str, Any]) -> Rule:
    kinds = [name for name in ("all", "by", "before") if name in fields]
    by, before, recalled_by = fields.get("by", ""), fields.get("before"), fields["recalled_by"]
    if len(kinds) != 1 or not isinstance(by, str) or not isinstance(recalled_by, str):
        raise ValueError("not a rule")
    if ("by" in fields and not by) or fields.get("all", True) is not True:
        raise ValueError("not a rule")
    if len(by) > _MOST_TEXT or len(recalled_by) > _MOST_NAME:
        raise ValueError("a text that is too long")
    if before is not None and (isinstance(before, bool) or not 0 <= float(before) < _HIGHEST):
        raise ValueError("not a time")
    return Rule(
        _number(fields["number"]),
        by,
        None if before is None else float(before),
        recalled_by,
        bool(fields.get("unfinished", False)),
    )


def _number(value: Any, *, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < _HIGHEST:
        raise ValueError("not the number of a recall")
    return value


def _digits(text: str) -> str:
    if len(text) != _DIGITS or not set(text) <= set("0123456789abcdef"):
        raise ValueError("not the digits of an entry")
    return text
