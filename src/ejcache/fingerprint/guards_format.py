"""Guards as JSON: grouped by module, digests packed together.

    guards   := {"format": 2, "modules": {MODULE: module}, "variants": [{MODULE: {PATH: DIGEST}}],
                 "base_seen": true or false}
    module   := {"source": DIGEST or "", "by_source": true or false, "names": "K T lax.add", "values": DIGESTS,
                 "tables": {NAME: {"entries": PAIRS, "of": {MODULE: ENTRIES}}}}

DIGEST, DIGESTS (6 bytes each, in the order of the names), ENTRIES (4 bytes each) and PAIRS (4 and 6 bytes) are base64.
"""

from __future__ import annotations

import base64
import binascii
import struct
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import EntryCorruptError
from ejcache.fingerprint.guarding.entries import Table
from ejcache.fingerprint.guarding.look import PATH_SIZE
from ejcache.fingerprint.guarding.tokens import DIGEST_SIZE
from ejcache.fingerprint.guards import MOST_VARIANTS, Guards, ModuleGuards, Vector

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FORMAT", "decode_guards", "encode_guards"]

FORMAT: Final = 2

_PAIR: Final = struct.Struct(f"{PATH_SIZE}s{DIGEST_SIZE}s")

_MODULE: Final = {"source": str, "by_source": bool, "names": str, "values": str, "tables": dict}


def encode_guards(guards: Guards) -> dict[str, Any]:
    """Guards as values that JSON can hold."""
    return {
        "format": FORMAT,
        "modules": {name: _encode_module(each) for name, each in guards.modules.items()},
        "variants": [_encode_variant(each) for each in guards.variants],
        "base_seen": guards.base_seen,
    }


def _encode_module(guarded: ModuleGuards) -> dict[str, Any]:
    return {
        "source": _text(guarded.source or b""),
        "by_source": guarded.by_source,
        "names": " ".join(guarded.values),
        "values": _text(b"".join(guarded.values.values())),
        "tables": {name: _encode_table(each) for name, each in guarded.tables.items()},
    }


def _encode_table(table: Table) -> dict[str, Any]:
    of: dict[str, bytes] = {}
    for entry, module in table.modules.items():
        of[module] = of.get(module, b"") + entry
    pairs = b"".join(entry + digest for entry, digest in table.entries.items())
    return {"entries": _text(pairs), "of": {module: _text(entries) for module, entries in of.items()}}


def _encode_variant(variant: Vector) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for (module, path), digest in variant.items():
        found.setdefault(module, {})[path] = _text(digest)
    return found


def decode_guards(document: object) -> Guards:
    """The guards that `encode_guards` wrote.

    Raises:
        EntryCorruptError: the document is none that it writes.
    """
    found = _fields(document, {"format": int, "modules": dict, "variants": list, "base_seen": bool})
    if found["format"] != FORMAT or len(found["variants"]) > MOST_VARIANTS:
        raise EntryCorruptError("the guards have another format")
    return Guards(
        {_name(module): _decode_module(each) for module, each in found["modules"].items()},
        tuple(_decode_variant(each) for each in found["variants"]),
        found["base_seen"],
    )


def _decode_module(document: object) -> ModuleGuards:
    found = _fields(document, _MODULE)
    source = _bytes(found["source"])
    names = found["names"].split(" ") if found["names"] else []
    values = _parts(_bytes(found["values"]), DIGEST_SIZE)
    if len(names) != len(values) or len(set(names)) != len(names) or "" in names or len(source) not in (0, DIGEST_SIZE):
        raise EntryCorruptError("the guards of a module do not fit together")
    tables = {_name(name): _decode_table(each) for name, each in found["tables"].items()}
    if not tables.keys() <= set(names):
        raise EntryCorruptError("the guards of a module tell of a table without a name")
    return ModuleGuards(source or None, found["by_source"], dict(zip(names, values, strict=True)), tables)


def _decode_table(document: object) -> Table:
    found = _fields(document, {"entries": str, "of": dict})
    packed = _bytes(found["entries"])
    entries = dict(_PAIR.iter_unpack(packed)) if len(packed) % _PAIR.size == 0 else {}
    modules: dict[bytes, str] = {}
    for module, names in found["of"].items():
        modules.update(dict.fromkeys(_parts(_bytes(names), PATH_SIZE), _name(module)))
    if len(entries) * _PAIR.size != len(packed) or not modules.keys() <= entries.keys():
        raise EntryCorruptError("the guards of a table do not fit together")
    return Table(entries, modules)


def _decode_variant(document: object) -> Vector:
    if not isinstance(document, dict):
        raise EntryCorruptError("a variant of the guards is no object")
    found: Vector = {}
    for module, paths in document.items():
        if not isinstance(paths, dict):
            raise EntryCorruptError("a variant of the guards has no paths")
        for path, digest in paths.items():
            found[_name(module), _name(path)] = _bytes(digest)
    return found


def _fields(document: object, kinds: Mapping[str, type]) -> dict[str, Any]:
    """The fields of an object, which are these, of these types."""
    if not isinstance(document, dict) or document.keys() != kinds.keys():
        raise EntryCorruptError("the guards have other fields")
    if any(type(document[name]) is not kind for name, kind in kinds.items()):
        raise EntryCorruptError("a field of the guards has another type")
    return document


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise EntryCorruptError("a name in the guards is no text")
    return value


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(value: object) -> bytes:
    try:
        return binascii.a2b_base64(_name(value), strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise EntryCorruptError("a digest in the guards is no base64") from error


def _parts(content: bytes, size: int) -> list[bytes]:
    if len(content) % size:
        raise EntryCorruptError("digests in the guards are cut off")
    return [content[start : start + size] for start in range(0, len(content), size)]
