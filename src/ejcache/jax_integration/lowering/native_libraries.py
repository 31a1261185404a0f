"""Digests the native libraries behind JAX by content, each once in a process.

The version of jaxlib is not enough: a jaxlib that somebody built, or a library that was replaced in place, has the same
version (jax#18750). A warm cache then gave code that crashed, or code of another compiler.
"""

# pathlib's methods cost as much as the calls that they make, and these are on the path of every hit.
# ruff: noqa: PTH113, PTH116

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jaxlib.version

from ejcache.errors import MALFORMED
from ejcache.jax_integration.lowering.plugins import compiler_versions, named_libraries, plugin_directories
from ejcache.settings.directories import state_directory
from ejcache.settings.environment import environment_variable
from ejcache.util.lifecycle import track_forks
from ejcache.util.log import log
from ejcache.util.store_keys import is_hex
from ejcache.util.threads import submit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_SUFFIXES: Final = (".so", ".dylib", ".dll", ".pyd", ".bc")
_VERSIONED: Final = r"\.so(\.\d+)+$"
_RACY_SECONDS: Final = 3.0
"""A file changed this recently may change again without a new time stamp."""


def native_files(*given: str | os.PathLike[str]) -> list[str]:
    """List the native libraries (and device bitcode) under directories; none in one that does not exist."""
    # Each start looks through the hundreds of files of jaxlib: `os.walk` and paths as objects took three times as long.
    found = []
    directories = [os.fspath(directory) for directory in given]
    while directories:
        with suppress(OSError), os.scandir(directories.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.path)
                    continue
                name = entry.name
                is_native = name.endswith(_SUFFIXES) or (".so." in name and re.search(_VERSIONED, name) is not None)
                if is_native and (entry.is_file(follow_symlinks=False) or os.path.isfile(entry.path)):
                    found.append(entry.path)  # `entry.is_file()` raises at a link that leads in a circle
    return found


class LibraryDigests:
    """Digests of native libraries, each of which a process reads once. Safe for threads and forks.

    Args:
        read: returns the digest (hex) of one file.
    """

    def __init__(self, *, read: Callable[[Path], str] | None = None) -> None:
        self._read = read
        self._known: dict[str, str] = {}  # by the identity of a file
        self.after_fork_in_child()
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Have another lock: the thread that holds it does not exist here."""
        self._lock = threading.RLock()  # reentrant: a signal handler may compile a program

    def digest_of(self, paths: Iterable[str | os.PathLike[str]], *, memo: str | os.PathLike[str] | None = None) -> str:
        """Digest (hex) of files by name and content; their directories and their order do not count.

        Args:
            paths: files; their directories are not part of the digest.
            memo: a file on a local disk that remembers digests by path, device, inode, size and times of change, so
                that 300 MB of libraries are not read at every start. A memo that is damaged, missing or cannot be
                written is ignored. Processes may share it; the last writer wins.

        Raises:
            OSError: a library cannot be read.
        """
        identities = _identities([os.fspath(path) for path in paths])
        known, wanted = self._known, set(identities.values())
        if not known.keys() >= wanted:
            # Two threads want them at the start of a program: the one that makes the first key, and one in the
            # background.
            with self._lock:
                if memo is not None and not known.keys() >= wanted:
                    remembered = _read_memo(memo)  # of all environments of this user
                    for identity in wanted - known.keys():
                        digest = remembered.get(identity)
                        if isinstance(digest, str) and is_hex(digest, 64):
                            known[identity] = digest
                if not known.keys() >= wanted:
                    self._add(identities, memo)
        lines = [f"{path.rpartition('/')[2]} {known[identity]}" for path, identity in identities.items()]
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()

    def _add(self, identities: Mapping[str, str], memo: str | os.PathLike[str] | None) -> None:
        """Have the digests of those of these files that are not known; called with the lock held."""
        fresh: dict[str, str] = {}
        unknown = {path: identity for path, identity in identities.items() if identity not in self._known}
        from ejcache.keys.file_digests import file_digests, write_memo  # the door to files that have to be read

        for path, digest in file_digests(unknown, self._read):
            identity = unknown[path]
            self._known[identity] = digest
            settled = time.time() - os.stat(path).st_mtime > _RACY_SECONDS
            if settled and _identities([path])[path] == identity:
                fresh[identity] = digest
        if memo is not None and fresh:
            write_memo(Path(memo), fresh, kept=_read_memo(memo))


def _identities(paths: Iterable[str]) -> dict[str, str]:
    """Return for each file what tells its content from any other that it may have had: its place, numbers and times.

    Raises:
        OSError: a file is not there.
    """
    # In every process, for some thirty files in a few directories, so links are resolved once for each directory.
    resolved: dict[str, str] = {}
    found = {}
    for path in paths:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            place, status = os.path.realpath(path), os.stat(path)
        else:
            name = path.rpartition("/")[2]
            parent = path[: len(path) - len(name)]
            if parent not in resolved:
                resolved[parent] = os.path.realpath(parent)
            place = f"{resolved[parent]}/{name}"
        # The time of change catches what keeps size and modification time, such as `cp --preserve` over the file.
        changed = f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"
        found[path] = f"{place}:{status.st_dev}:{status.st_ino}:{changed}"
    return found


def _read_memo(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a memo has for the identities of files, unchecked; nothing if it cannot be read."""
    try:
        content = json.loads(Path(path).read_bytes())
        libraries = content["libraries"] if content["format"] == 1 else {}
    except (OSError, *MALFORMED):
        return {}
    return libraries if isinstance(libraries, dict) else {}


# -- of this process -----------------------------------------------------------------------------------------------

library_digests: Final = LibraryDigests()
"""What this process knows of the content of its native libraries."""


@cache
def native_libraries(platform: str) -> str:
    """Digest of the native libraries that compile for `platform`, by content; computed once in a process.

    The digests of single files are stored on disk, by inode, size and times, so that a start does not read hundreds of
    megabytes.
    """
    digest = library_digests.digest_of(native_library_files(platform), memo=_memo())
    versions = []
    if platform != "cpu":
        versions = compiler_versions(platform)
    return hashlib.sha256("\n".join([digest, *versions]).encode()).hexdigest()


def read_libraries_ahead() -> None:
    """Have the digests of `native_libraries` computed in the background, if there are none on disk yet.

    Where pip has not written them down (`recorded_digests`), reading jaxlib takes a quarter of a second and the plug-in
    of a GPU twice that, or seconds on a cold disk: on a new host, and in each new container. The program imports its
    libraries and makes its backend meanwhile.
    """
    if not os.path.exists(_memo()):  # noqa: PTH110 (pathlib raises an error if the directory cannot be searched)
        submit(_read_libraries)


def _read_libraries() -> None:
    try:
        native_libraries("cpu")  # those of jaxlib, which are a part of every other platform's
        chosen = environment_variable("JAX_PLATFORMS") or environment_variable("JAX_PLATFORM_NAME") or ""
        if chosen.strip().lower() != "cpu":
            library_digests.digest_of(native_files(*plugin_directories(chosen, usable=True)), memo=_memo())
    except OSError as exc:
        log.debug("ejcache: native libraries are read again when their digests are needed: %s", exc)


def _memo() -> Path:
    return state_directory() / "libraries.json"


def native_library_files(platform: str) -> list[str]:
    """Return the files behind `native_libraries`: those of jaxlib and, unless the platform is CPU, of its plug-in."""
    files = native_files(os.path.dirname(jaxlib.__file__))  # noqa: PTH120 (a text, as the files)
    if platform == "cpu":
        return files

    return files + native_files(*plugin_directories(platform)) + named_libraries(platform)
