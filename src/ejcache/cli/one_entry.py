"""Shows one entry with its header, and whether it is intact: `ejcache ls KEY`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from ejcache import entry
from ejcache.cli import output
from ejcache.cli.chosen_cache import open_cache
from ejcache.cli.fields import ENTRY, TableField, field_lines, print_rows, profile_text
from ejcache.cli.listing import by_program, header_facts, list_entries, profile_fields, read_header
from ejcache.cli.selection import check_wanted, choose, identify_entry
from ejcache.errors import EntryError, NotFoundError
from ejcache.history.program_text import spell_types
from ejcache.keys.key import parse_any_key
from ejcache.util.units import format_size, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ejcache.cli.chosen_cache import OpenCache
    from ejcache.cli.fields import Fields
    from ejcache.cli.listing import ListedEntry


def show_entry(key: str, directory: str | None, *, as_json: bool) -> int:
    """Print the entry that `key` names, or a line for each of several programs of that name; 1 if it is damaged.

    Raises:
        NotFoundError: there is none, or `key` is the beginning of the keys of several programs.
    """
    check_wanted(key)
    with open_cache(directory) as cache:
        found = _variants(cache, key)
        if len({row.program or row.info.key for row in found}) > 1:
            return _show_programs(cache, found, as_json=as_json)
        row = next((row for row in found if row.info.key == key), found[0])
        fields = row.fields() | {"url": cache.url, "problem": ""}
        fields |= _entry_fields(cache, row, fields)
        fields["variants"] = [
            other.fields() | {"profile": header_facts(other, cache)["profile"]}
            for other in found
            if row.program is not None
        ]
    if as_json:
        output.print_json(fields)
    else:
        _print_entry(fields)
    return int(bool(fields["problem"]))


def _show_programs(cache: OpenCache, found: Sequence[ListedEntry], *, as_json: bool) -> int:
    """Print a line for each program of one name: what tells them apart are their arguments and results."""
    headers = [read_header(cache.store, row.info.key) if cache.store is not None else None for row in found]
    signatures = [
        spell_types(str(header.extra.get("signature", ""))) if header is not None else "" for header in headers
    ]
    fields = [row.fields() | {"signature": each} for row, each in zip(found, signatures, strict=True)]
    if as_json:
        output.print_json({"url": cache.url, "entries": fields})
        return 0
    print_rows(ENTRY, ("key", "size", "last used", "arguments and results"), fields, least=("last used", "size"))
    output.say(f"{plural(len(found), 'entry', 'entries')} of {found[0].parts.name}; ejcache ls KEY shows one of them")
    return 0


def _variants(cache: OpenCache, key: str) -> list[ListedEntry]:
    """Return the variants of the program that `key` names, found in one listing."""
    parts = parse_any_key(key)
    wanted = f"{parts.logical}-{parts.environment}" if parts.logical else key
    found = by_program(choose(list_entries(cache), wanted, identify_entry, where=cache.url, all_of_a_name=True))
    if parts.logical and all(row.info.key != key for row in found):
        raise NotFoundError(f"nothing in {cache.url} has the key {key!r}")
    return found


def _entry_fields(cache: OpenCache, row: ListedEntry, listed: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    try:
        if cache.store is not None:
            entry.decode(cache.store.peek(row.info.key) or b"", key=row.info.key)
    except EntryError as exc:
        fields["problem"] = str(exc)
    header = None if cache.store is None else read_header(cache.store, row.info.key)
    if header is not None:
        noted = output.fields_of(header, "codec", "raw_size", "compile_seconds", "jax", "jaxlib", "profile_digest")
        noted |= {"writer": header.writer}
        named = output.fields_of(header, "name", "platform", "logical_key")
        fields |= noted | {name: value or listed[name] for name, value in named.items()}
        fields |= {
            "created": header.created or row.info.created,
            "payload": header.kind,
            "profile": profile_fields(header),
            "components": dict(header.components),
            "metadata": dict(header.extra),
        }
    return fields


def _print_entry(fields: dict[str, Any]) -> None:
    """Print what a person reads first, and digests last."""
    shown = fields | {
        "others": {each["variant"]: each for each in fields["variants"] if each["key"] != fields["key"]},
        "metadata": dict(_flat(fields.get("metadata") or {})),
        "components": dict(sorted((fields.get("components") or {}).items())),
    }
    lines = field_lines(_STATE, shown)
    for heading, section in (("Metadata", _METADATA), ("", _DIGESTS), ("Components", _COMPONENTS)):
        if found := field_lines(section, shown):
            lines += [[""]] * (section is not _COMPONENTS) + [[heading]] * bool(heading) + found
    output.print_pairs(lines)


def _flat(metadata: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the metadata that the writer of the entry noted; of an object, each of its values."""
    for name, value in sorted(metadata.items()):
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", each) for inner, each in sorted(value.items()))
        else:
            yield name, value


def _size(size: int, row: Fields) -> str:
    raw = f" ({format_size(row['raw_size'])} uncompressed)" if row.get("raw_size") else ""
    return format_size(size) + raw


def _moment(then: float, _: Fields) -> str:
    return f"{output.moment(then)} ({output.ago(then, now=time.time())})"


def _other(other: Fields, _: Fields) -> str:
    return f"{format_size(other['size'])}, created {output.ago(other['created'], now=time.time())}: {other['key']}"


def _text(value: Any, _: Fields) -> str:
    return str(value or "")


_STATE: Final = (
    *(TableField(name.capitalize(), name) for name in ("name", "platform", "variant")),
    TableField("Size", "size", _size),
    TableField("Compile time", "compile_seconds", lambda value, _: "" if value is None else f"{value:.2f} s"),
    TableField("Created", "created", _moment),
    TableField("Last used", "last_used", _moment),
    TableField("JAX", "jax", _text),
    TableField("jaxlib", "jaxlib", _text),
    TableField("Writer", "writer", _text),
    TableField(
        "Measured with", "profile", lambda value, _: (profile_text(value).partition(", ")[2] or "-") if value else ""
    ),
    TableField("Intact", "problem", lambda problem, _: f"no: {problem}" if problem else "yes"),
    TableField("Also ", "others", _other, has_parts=True),
)
_METADATA: Final = (TableField("  ", "metadata", lambda value, _: str(value) or "-", has_parts=True),)
_DIGESTS: Final = (
    TableField("Key", "key"),
    TableField("Program", "logical_key", _text),
    TableField("Environment", "environment_digest", _text),
    TableField("Profile", "profile_digest", _text),
)
_COMPONENTS: Final = (TableField("  ", "components", lambda value, _: str(value) or "-", has_parts=True),)
