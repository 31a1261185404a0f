"""Describes what is recalled of a cache, which nobody loads any more: a part of the policy that is stored with it.

    recalled := {"version": 1, "rules": [rule, …], "entries": [digests, …]}
    rule     := {"at": seconds since 1970, "recalled_by": text} with one of "all": true, "by": writer, "before": seconds
    digests  := 8 hexadecimal digits of the key's digest, and 24 of the checksum with which the entry ends

What an entry's header says may condemn it and never exempts it: who may write entries chooses what it says. A rule by
writer takes back what the header dates before the recall; so a process that knows the recall dates what it stores no
earlier than that, and can store again. The rule of everything does not decide what is read: a recall of everything
begins a place under another name (`stores.epochs`), and entries that were there are not found. It decides what is
copied from another cache or a file, by the date in the header.

At most 1,000 entries, 24 rules by writer or time and the last recall of everything are kept. A recall that does not fit
is refused: a host that was away may still have copies of what an earlier one takes back. A recall of everything removes
all earlier ones.

Pure functions of what is stored: no files, no clocks.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ejcache import entry
from ejcache.errors import MALFORMED, EntryCorruptError, EntryVersionError, UsageError
from ejcache.util.printable import printable
from ejcache.util.store_keys import key_digest
from ejcache.util.units import plural
from ejcache.util.writer import is_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ejcache.entry import Header

VERSION: Final = 1
MOST_ENTRIES: Final = 1000
MOST_RULES: Final = 24
MOST_TEXT: Final = 160
_KEY_DIGITS: Final = 8
_DIGITS: Final = 32
_MOST_NAME: Final = 80
_HIGHEST: Final = 1 << 36
"""Seconds since 1970, of the year 4147: the document has a most size."""


class Stamp(NamedTuple):
    """What can condemn an entry.

    Attributes:
        created: seconds since the epoch, by the writer's clock.
        writer: who stored it.
        checksum: with which the entry ends; empty if only rules are asked.
    """

    created: float
    writer: str
    checksum: bytes = b""


def stamp_of(header: Header, data: bytes) -> Stamp:
    """Return the stamp of an entry: of its header, and of all its bytes or none."""
    return Stamp(header.created, header.writer, entry.checksum_of(data))


class Rule(NamedTuple):
    """A recall of all that a writer has stored, of all that was stored before a time, or of everything.

    Attributes:
        at: when it was recalled, in seconds since the epoch.
        by: the writer; empty for every writer.
        before: seconds since the epoch, no later than `at`; None for any time.
        recalled_by: who has recalled it.
    """

    at: float
    by: str = ""
    before: float | None = None
    recalled_by: str = ""

    @property
    def is_of_all(self) -> bool:
        """True for a recall of everything."""
        return not self.by and self.before is None

    def includes(self, stamp: Stamp) -> bool:
        """True if the rule recalls an entry with this stamp."""
        limit = self.at if self.before is None else self.before
        return stamp.created < limit and (not self.by or is_by(stamp.writer, self.by))

    def replaces(self, other: Rule) -> bool:
        """True if this rule, which is later, recalls all that the other one does."""
        if self.is_of_all:
            return True
        if self.by or other.by:
            return self.by == other.by
        return self.before is not None and other.before is not None and other.before <= self.before


class Recalls(NamedTuple):
    """All that is recalled.

    Attributes:
        rules: in the order of their times.
        entries: single entries, by their digests.
        checksums: the part of these digests that an entry is compared with.
        keys: the part of these digests that a key is compared with.
        since: the time of the last rule; what is stored by who knows it is dated no earlier. 0 without a rule.
    """

    rules: tuple[Rule, ...] = ()
    entries: frozenset[str] = frozenset()
    checksums: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    since: float = 0.0

    def condemns(self, stamp: Stamp) -> bool:
        """True if nobody is to load an entry with this stamp that is where the policy says that entries are."""
        return self._names(stamp) or any(rule.includes(stamp) for rule in self.rules if not rule.is_of_all)

    def keeps_out(self, stamp: Stamp) -> bool:
        """True if an entry with this stamp is not copied to the cache: everything that was recalled is meant, too."""
        return self._names(stamp) or any(rule.includes(stamp) for rule in self.rules)

    def _names(self, stamp: Stamp) -> bool:
        return _checksum_digits(stamp.checksum) in self.checksums

    def may_include(self, key: str) -> bool:
        """True if an entry under this key may be among the single ones."""
        return bool(self.keys) and key_digest(key, _KEY_DIGITS) in self.keys

    def with_rule(self, rule: Rule) -> Recalls:
        """Return what is recalled with one rule more; raises UsageError if there are too many."""
        rules = [each for each in self.rules if not rule.replaces(each)]
        if sum(not each.is_of_all for each in rules) >= MOST_RULES:
            raise UsageError(
                f"{MOST_RULES} recalls by writer or time are in force, which is as many as a cache keeps: "
                "`ejcache recall --all` takes back everything, and begins anew"
            )
        return _made((*rules, rule), frozenset() if rule.is_of_all else self.entries)

    def with_entries(self, digests: Iterable[str]) -> Recalls:
        """Return what is recalled with single entries more; raises UsageError if there are too many."""
        entries = self.entries.union(digests)
        if len(entries) > MOST_ENTRIES:
            raise UsageError(
                f"a cache keeps {MOST_ENTRIES:,} recalls of single entries, and these would be {len(entries):,}: "
                "recall them with --before, --by or --all"
            )
        return _made(self.rules, entries)


NOTHING: Final = Recalls()
"""Is recalled of a cache of which nothing ever was."""


def digests_of(key: str, checksum: bytes) -> str:
    """Return the digits by which one entry is recalled."""
    return key_digest(key, _KEY_DIGITS) + _checksum_digits(checksum)


def _checksum_digits(checksum: bytes) -> str:
    return checksum[: (_DIGITS - _KEY_DIGITS) // 2].hex()


def _made(rules: tuple[Rule, ...], entries: frozenset[str]) -> Recalls:
    ordered = tuple(sorted(rules, key=lambda rule: rule.at))
    checksums = frozenset(digests[_KEY_DIGITS:] for digests in entries)
    keys = frozenset(digests[:_KEY_DIGITS] for digests in entries)
    return Recalls(ordered, entries, checksums, keys, ordered[-1].at if ordered else 0.0)


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
    return f"{what}, by {printable(rule.recalled_by)}, {_moment(rule.at)}"


def _moment(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
    except (OSError, OverflowError, ValueError):
        return f"{seconds:g}"


def encode_recalls(recalls: Recalls) -> dict[str, Any] | None:
    """Return what the policy keeps; None if nothing is recalled."""
    if recalls == NOTHING:
        return None
    return {
        "version": VERSION,
        "rules": [_encode_rule(rule) for rule in recalls.rules],
        "entries": sorted(recalls.entries),
    }


def _encode_rule(rule: Rule) -> dict[str, Any]:
    fields: dict[str, Any] = {"at": rule.at, "recalled_by": rule.recalled_by[:_MOST_NAME]}
    if rule.by:
        fields["by"] = rule.by
    if rule.before is not None:
        fields["before"] = rule.before
    return fields | ({"all": True} if rule.is_of_all else {})


def decode_recalls(fields: Any) -> Recalls:
    """Return what `encode_recalls` has made `fields` of; nothing recalled for None.

    Raises:
        EntryCorruptError: they are something else.
        EntryVersionError: they are of a later version.
    """
    if fields is None:
        return NOTHING
    try:
        if fields["version"] != VERSION:
            raise EntryVersionError(
                f"what is recalled is of version {str(fields['version'])[:40]}; this code reads version {VERSION}"
            )
        rules = tuple(_decode_rule(each) for each in fields["rules"])
        entries = frozenset(map(_digits, fields["entries"]))
    except MALFORMED as exc:
        raise EntryCorruptError("the policy's list of what is recalled is damaged") from exc
    of_all = sum(rule.is_of_all for rule in rules)
    if of_all > 1 or len(rules) - of_all > MOST_RULES or len(entries) > MOST_ENTRIES:
        raise EntryCorruptError("the policy recalls more than it can")
    return _made(rules, entries)


def _decode_rule(fields: Mapping[str, Any]) -> Rule:
    kinds = [name for name in ("all", "by", "before") if name in fields]
    by, recalled_by = fields.get("by", ""), fields["recalled_by"]
    if len(kinds) != 1 or not isinstance(by, str) or not isinstance(recalled_by, str):
        raise ValueError("not a rule")
    if ("by" in fields and not by) or fields.get("all", True) is not True:
        raise ValueError("not a rule")
    if len(by) > MOST_TEXT or len(recalled_by) > _MOST_NAME:
        raise ValueError("a text that is too long")
    before = None if "before" not in fields else _seconds(fields["before"])
    return Rule(_seconds(fields["at"]), by, before, recalled_by)


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _HIGHEST:
        raise ValueError("not a time")
    return float(value)


def _digits(text: Any) -> str:
    if not isinstance(text, str) or len(text) != _DIGITS or not set(text) <= set("0123456789abcdef"):
        raise ValueError("not the digits of an entry")
    return text
