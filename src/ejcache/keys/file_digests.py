"""Digests files by content: native libraries, once in an environment, and files that flags name.

Of a library that pip installed, the RECORD of its distribution has the SHA-256 and the size. pip writes a library a
second or two before RECORD, and gives a file to one environment alone; other installers link one file into many. So a
file is taken for what RECORD says if

* INSTALLER says pip, and the file is regular, of that size, and has one name;
* it was modified before RECORD was, and at most two minutes before. Who changes a file after pip, even at once, leaves
  it a later time, and an image builder that gives all files one time leaves it the same;
* its status was changed (ctime) at most a minute after that of RECORD was, which also sees `cp -p` over the file. Where
  an environment was copied or unpacked as a whole, all its files changed then.

In a new container a start so reads none of its 800 MB of libraries. What has an equal size and such times is believed.
All others are read.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import csv
import hashlib
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.util.dist_info import distributions_in
from ejcache.util.files import make_private, write_atomically
from ejcache.util.store_keys import is_hex
from ejcache.util.threads import in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_BEFORE_RECORD: Final = 120.0
_CHANGED_AFTER: Final = 60.0
_INSTALLER: Final = "pip"


def recorded_digests(paths: Iterable[Path]) -> dict[Path, str]:
    """Return the digests (hex) of those of these files that are as pip installed them."""
    sites: dict[Path, dict[str, Path]] = {}  # the files by their names in RECORD, by the directory of distributions
    has_distributions: dict[Path, bool] = {}
    for path in paths:
        for above in path.parents:
            if above not in has_distributions:
                has_distributions[above] = next(distributions_in(str(above)), None) is not None
            if has_distributions[above]:
                sites.setdefault(above, {})[path.relative_to(above).as_posix()] = path
                break
    found: dict[Path, str] = {}
    for site, wanted in sites.items():
        words = {_first_word(name.partition("/")[0]) for name in wanted}
        for each in distributions_in(str(site)):
            if _first_word(each.name) in words:
                with contextlib.suppress(OSError, ValueError, csv.Error):
                    found.update(_believed(site, site / each.metadata, wanted))
    return found


def _first_word(name: str) -> str:
    """Return the `jax` of `jax_plugins` and of `jax-cuda13-pjrt`: a distribution's files are in packages named
    alike.
    """
    return name.lower().replace("_", "-").partition("-")[0]


def _believed(site: Path, metadata: Path, wanted: dict[str, Path]) -> Iterator[tuple[Path, str]]:
    """Yield the files among `wanted` of one distribution that are as it was installed, and their digests.

    Raises:
        OSError, ValueError, csv.Error: the distribution's files cannot be read.
    """
    if (metadata / "INSTALLER").read_text(encoding="utf-8").strip() != _INSTALLER:
        return
    record = metadata / "RECORD"
    installed = record.lstat()
    real = os.path.realpath(site)
    with record.open(encoding="utf-8", newline="") as lines:
        for row in csv.reader(lines):
            path = wanted.get(row[0]) if len(row) == 3 else None
            digest = None if path is None else _sha256(row[1])
            if path is None or digest is None or not row[2].isdecimal():
                continue
            is_there = os.path.realpath(path.parent) == f"{real}/{row[0]}".rpartition("/")[0]  # not behind a link
            if is_there and _is_as_installed(path.lstat(), int(row[2]), installed):
                yield path, digest


def _is_as_installed(file: os.stat_result, size: int, record: os.stat_result) -> bool:
    return (
        stat.S_ISREG(file.st_mode)
        and stat.S_ISREG(record.st_mode)
        and file.st_nlink == 1
        and file.st_size == size
        and 0.0 < record.st_mtime - file.st_mtime <= _BEFORE_RECORD
        and file.st_ctime - record.st_ctime <= _CHANGED_AFTER
    )


def _sha256(text: str) -> str | None:
    """Return the digest (hex) in a column of RECORD; None if it is of another kind."""
    kind, _, value = text.partition("=")
    try:
        digest = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    except (binascii.Error, ValueError):
        return None
    return digest.hex() if kind == "sha256" and len(digest) == 32 else None


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
