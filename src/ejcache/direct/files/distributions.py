"""Installed distributions: what tells them apart without reading their files.

A distribution is compared by its name, its version and its `RECORD`, which has a digest of each file, as long as the
imported files have the sizes of the record and are not younger than it. A file that was changed since is compared by
its content.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Final

from ejcache.direct.files.contents import file_digest
from ejcache.util.tuples import NamedTuple

__all__ = [
    "ALWAYS_LIBRARIES",
    "Distribution",
    "distribution_named",
    "distribution_of",
    "distribution_state",
    "loaded_distributions",
]

ALWAYS_LIBRARIES: Final = frozenset({"ejcache", "jax", "jaxlib", "ml-dtypes", "numpy", "opt-einsum", "scipy"})
"""What every key names, however it was installed."""
_PACKAGERS: Final = frozenset({"conda"})
"""Installers that build each package from a directory, and say so in its provenance."""
_PROVENANCE: Final = frozenset({"archive_info", "dir_info", "vcs_info"})


class Distribution(NamedTuple):
    """An installed distribution.

    Attributes:
        name: normalised, as in "ml-dtypes".
        version: as its directory says.
        root: the directory that it is installed in, with a separator.
        directory: its `.dist-info`.
    """

    name: str
    version: str
    root: str
    directory: str

    @property
    def is_project(self) -> bool:
        """Whether nothing says that it came from an index."""
        return _is_project(self.name, self.directory)

    def top(self, path: str) -> str:
        """The top-level module of one of its files."""
        return path[len(self.root) :].partition(os.sep)[0].partition(".")[0]


def _normalised(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


@functools.cache
def _installed(root: str) -> dict[str, Distribution]:
    """The distributions in a directory, by name."""
    found: dict[str, Distribution] = {}
    with contextlib.suppress(OSError):
        for each in os.listdir(root):
            if each.endswith(".dist-info"):
                raw, _, version = each.removesuffix(".dist-info").partition("-")
                name = _normalised(raw)
                directory = os.path.join(root, each)
                found[name] = Distribution(name, version, root, directory)
    return found


@functools.cache
def _is_project(name: str, place: str) -> bool:
    if name in ALWAYS_LIBRARIES:
        return False
    directory = Path(place)
    try:
        installer = directory.joinpath("INSTALLER").read_text(encoding="utf-8").strip()
    except OSError:
        return True
    if installer in _PACKAGERS or not directory.joinpath("direct_url.json").exists():
        return False
    with contextlib.suppress(OSError, ValueError):
        about = json.loads(directory.joinpath("direct_url.json").read_text(encoding="utf-8"))
        return isinstance(about, dict) and not _PROVENANCE.isdisjoint(about)
    return True


@functools.cache
def _record(directory: str) -> bytes:
    """The `RECORD`, with a line end before each line; a line end alone if there is none."""
    try:
        return b"\n" + Path(directory, "RECORD").read_bytes()
    except OSError:
        return b"\n"


@functools.cache
def _roots(search: tuple[str, ...]) -> list[str]:
    """Those of the search path's directories in which distributions are installed, with separators."""
    return [root for each in search if each and _installed(root := os.path.join(each, ""))]


@functools.cache
def _root_of(directory: str) -> str | None:
    """The one of these directories that a directory is below or is."""
    inside = os.path.join(directory, "")
    return next((root for root in _roots(tuple(sys.path)) if inside.startswith(root)), None)


@functools.cache
def _distribution_at(root: str, top: str, rest: str) -> Distribution | None:
    installed = _installed(root)
    beginning = f"\n{top}{'/' if rest else ''}{rest}".encode()
    guess = installed.get(_normalised(top.partition(".")[0]))
    if guess is not None and (guess.is_project or beginning in _record(guess.directory)):
        return guess
    return next((each for each in installed.values() if beginning in _record(each.directory)), None)


@functools.cache
def _is_namespace(root: str, top: str) -> bool:
    return Path(root, top).is_dir() and not Path(root, top, "__init__.py").exists()


def distribution_of(path: str) -> Distribution | None:
    """The distribution that has installed a file; None if none has."""
    root = _root_of(os.path.dirname(path))
    if root is None:
        return None
    top, _, rest = path[len(root) :].replace(os.sep, "/").partition("/")
    # Of a namespace package, each file may be another distribution's.
    return _distribution_at(root, top, rest if rest and _is_namespace(root, top) else "/"[:0])


def distribution_named(name: str) -> Distribution | None:
    """The distribution of a normalised name that imports would find first."""
    for each in sys.path:
        found = _installed(os.path.join(each, "")).get(name) if each else None
        if found is not None:
            return found
    return None


def loaded_distributions() -> dict[str, tuple[Distribution, list[str]]]:
    """The distributions from an index of which modules are imported, by name, each with the files of those modules."""
    found: dict[str, tuple[Distribution, list[str]]] = {}
    for module in tuple(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if type(path) is str and (distribution := distribution_of(path)) is not None:
            found.setdefault(distribution.name, (distribution, []))[1].append(path)
    return found


_states: Final[dict[tuple[str, int], str]] = {}


def distribution_state(distribution: Distribution, files: list[str]) -> str:
    """A digest of what a distribution is, and of those of its imported files that were changed since.

    Args:
        distribution: an installed one.
        files: of its modules that are imported now.
    """
    key = (distribution.directory, len(files))
    if key not in _states:
        _states[key] = _state(distribution, files)
    return _states[key]


def _state(distribution: Distribution, files: list[str]) -> str:
    record = _record(distribution.directory)
    hasher = hashlib.sha256(f"{distribution.name} {distribution.version}\n".encode() + record)
    installed = 0
    with contextlib.suppress(OSError):
        installed = os.stat(os.path.join(distribution.directory, "RECORD")).st_mtime_ns
    recorded = dict(line.strip().partition(b",")[::2] for line in record.split(b"\n"))
    for path in sorted(set(files)):
        name = path[len(distribution.root) :].replace(os.sep, "/")
        # The digest and the size of the file, as they are written in a `RECORD`.
        digest, _, size = recorded.get(name.encode(), b"").partition(b",")
        try:
            status = os.stat(path)
        except OSError:
            hasher.update(f"{name} is gone\n".encode())
            continue
        if status.st_mtime_ns > installed or str(status.st_size).encode() != size:
            content = file_digest(path)
            if content is None or not _is_recorded(content, digest):
                hasher.update(f"{name} {content}\n".encode())
    return hasher.hexdigest()


def _is_recorded(content: str, digest: bytes) -> bool:
    import base64

    kind, _, text = digest.partition(b"=")
    with contextlib.suppress(ValueError):
        return kind == b"sha256" and base64.urlsafe_b64decode(text + b"==").hex() == content
    return False
