"""Reads files for their digests: native libraries that no memo knows, once in an environment, and what flags name."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.keys.recorded_digests import recorded_digests
from ejcache.util.files import make_private
from ejcache.util.new_files import write_atomically
from ejcache.util.parallel import in_parallel
from ejcache.util.store_keys import is_hex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


_READERS: Final = 2
"""Libraries that are read at once: each is digested by one core, and the program wants the others."""
_PIECE_BYTES: Final = 8 << 20
"""Bytes that are read at once. A thread in the background waits for the program twice for each piece, up to 5 ms each:
in pieces of 256 KB, which `hashlib.file_digest` reads, 330 MB took 13 s beside a busy program."""
_MOST_REMEMBERED: Final = 2_000
"""Libraries in a memo: those of some forty environments. Each start reads all of it, and a host on which each job makes
an environment of its own, at a path of its own, would have ever more of them."""


def file_digests(paths: Iterable[str], read: Callable[[Path], str] | None = None) -> Iterator[tuple[str, str]]:
    """Yield the digests (hex) of files: those that pip wrote down, then those that are read.

    Args:
        paths: the files.
        read: returns the digest of one file; by default `file_digest`.

    Raises:
        OSError: a file cannot be read.
    """
    texts = {Path(path): path for path in paths}
    recorded = recorded_digests(texts)
    yield from ((texts[path], digest) for path, digest in recorded.items())
    rest = [path for path in texts if path not in recorded]
    digests = in_parallel(read or file_digest, rest, threads=min(_READERS, len(rest)))
    yield from ((texts[path], digest) for path, digest in zip(rest, digests, strict=True))


def file_digest(path: Path) -> str:
    """Digest (hex) of the content of one file; raises `OSError` if it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        piece = memoryview(bytearray(min(_PIECE_BYTES, max(1 << 16, path.stat().st_size))))
        while length := file.readinto(piece):
            digest.update(piece[:length])
    return digest.hexdigest()


def content_digest(path: str) -> str | None:
    """Digest (hex) of a file, or of the files directly in a directory by name; None if it cannot be read.

    For the files that flags name (`canonical_flags(content=…)`).
    """
    place = Path(path)
    try:
        if not place.is_dir():
            return file_digest(place)
        lines = [f"{entry.name} {file_digest(entry)}" for entry in sorted(place.iterdir()) if entry.is_file()]
    except OSError:
        return None
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def write_memo(path: Path, fresh: Mapping[str, str], *, kept: Mapping[str, object]) -> None:
    """Write digests, by the identities of files, into a memo.

    Args:
        path: the memo; nothing happens if it cannot be written.
        fresh: the digests.
        kept: what the memo has, the oldest first. What is no digest is left out, that of the files of fresh digests,
            and the oldest if it is too much.
    """
    places = {_place(identity) for identity in fresh}
    others = {
        identity: digest
        for identity, digest in kept.items()
        if isinstance(digest, str) and is_hex(digest, 64) and _place(identity) not in places
    }
    latest = list({**others, **fresh}.items())[-max(_MOST_REMEMBERED, len(fresh)) :]
    text = json.dumps({"format": 1, "libraries": dict(latest)}, indent=1)
    with suppress(OSError):
        make_private(path.parent)
        write_atomically(path, text.encode())


def _place(identity: str) -> str:
    return identity.rsplit(":", 5)[0]
