"""The directory of a local store: its layout, and whether it can be trusted.

    <root>/                        the user's; files of plain JAX (`*-cache`, `*-atime`) and others are left alone
      CACHEDIR.TAG                 only in a directory of caches (https://bford.info/cachedir/)
      v1/                          `directory_access` decides its mode; `entries/` and others are of the shared layout
        local/
          format                   the number of this layout
          limit                    bytes that this cache may hold where nobody sets a limit; -1 for no limit
          lock                     held while a store is opened, rebuilt, cleared or swept
          reserve                  bytes without meaning, deleted if a full disk has no room for a deletion
          present/<token>          one per process that has the store open for writing, locked while it lives
          g-<random>/              one generation: an index and its values
            cache.db               diskcache's, with -wal and -shm while it is open
            <hex>/<digest>-<random>.val
            tmp/<token>_<name>     a value that the process of that token is writing
          new-<random>/            a generation that is being created
          dead-<random>/           a damaged or cleared generation that is being deleted
        quarantine/                a bounded number of damaged entries and one damaged index (`quarantine`)

The name of a generation is never used twice. SQLite finds a write-ahead log by the name of its database. If a new
database took the name of a quarantined or deleted one, a process that still has the old one open would delete the log
of the new one when it closes.

The root may be a symbolic link. Nothing below it may be one: following it would read, or delete, files that are none
of the store's.
"""

# pathlib's methods cost as much as the calls that they make, and most of these are on the path of every hit.
# ruff: noqa: PTH108, PTH116, PTH118, PTH120

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.common_errors import NotAStoreError, StoreUnavailableError, UntrustedDirectoryError
from ejcache.util.directory_access import Access, decide_access, why_untrusted
from ejcache.util.files import UnsafeFileError, open_like_directory, read_regular
from ejcache.util.store_keys import is_hex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FORMAT: Final = 1
"""The layout that this version reads and writes. A store with a higher number in `format` is not used."""
INDEX: Final = "cache.db"

MODE_RAW: Final = 1
"""diskcache's: the value is in the row."""
MODE_BINARY: Final = 2
"""diskcache's: the value is in a file. Its modes 3 and 4 are text and pickles, which are refused."""

WAL_BYTES: Final = 4 * 2**20
"""A `put` that finds the write-ahead log longer than this moves it into the database."""
RESERVE_BYTES: Final = 2**19
"""A new index takes 320 kB while it is made, most of it for SQLite's log; the deletion of an entry takes 80 kB."""
_TAG: Final = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# This file is a cache directory tag created by ejcache.\n"
    b"# For information about cache directory tags see https://bford.info/cachedir/\n"
)
_NUMBER_BYTES: Final = 64
LONGEST_ROOT: Final = 512 - len("/v1/local/new-0123456789abcdef/cache.db-journal") - 1
"""SQLite's longest path (MAX_PATHNAME of its os_unix.c), less what is below the root."""
_RESERVES: Final = 16
"""A disk that is smaller than so many reserves has none: entries need the room."""
_NUMBER_DIGITS: Final = 18
_RANDOM_BYTES: Final = 8
"""That the names of directories end with."""
_GENERATION: Final = ("g",)
_LEFTOVER: Final = ("new", "dead")
_OPENED: Final = {INDEX: stat.S_ISREG, f"{INDEX}-wal": stat.S_ISREG, f"{INDEX}-shm": stat.S_ISREG} | {
    f"{INDEX}-journal": None
}
"""What SQLite opens, and what it may be; None: it must not be there. Another file, such as a copy of the index, does no
harm."""


class Layout:
    """The paths of one store.

    Args:
        root: the directory.
        trusted: use it even if other users could have put code there.
        writing: where nothing can be read or written, the decision is not to use it; without it, it reads as empty.
    """

    def __init__(self, root: Path, *, trusted: bool = False, writing: bool = False) -> None:
        self.root = root
        self._trusted = trusted
        self._writing = writing
        self._access: Access | None = None
        self.local = os.path.join(root, "v1/local")  # as texts: a path is three objects for the garbage collector
        self.lock = f"{self.local}/lock"
        self.present = f"{self.local}/present"
        self.reserve = f"{self.local}/reserve"

    def check(self) -> bool:
        """True if the directories of a store exist.

        Raises:
            NotAStoreError: there is something else, a link to a directory for example.
            UntrustedDirectoryError: another user owns them, or can write to them.
            StoreUnavailableError: this user may not look at them.
        """
        exists = self._exists()
        self._access = None
        if self.access.why:
            from ejcache.util.directory_owners import refusal  # by what is refused only

            raise UntrustedDirectoryError(refusal(self.access.why, self.access.mend))
        if not exists:
            return False
        found = self._format()
        if found is not None and found > FORMAT:
            raise NotAStoreError(
                f"{self.local} was made by a newer ejcache (format {found}, and this version reads {FORMAT})"
            )
        return True

    def _exists(self) -> bool:
        """True if the directories of a store are there; `present` may be missing. Raises if one is no directory."""
        root = str(self.root)
        for path in (root, os.path.dirname(self.local), self.local, self.present):
            try:
                about = os.stat(path) if path == root else os.lstat(path)
            except FileNotFoundError:
                return path == self.present
            except PermissionError:
                return False  # the decision about the directory says what is closed
            except NotADirectoryError as exc:
                raise NotAStoreError(f"{path} cannot be a cache directory: a part of its path is a file") from exc
            except OSError as exc:
                raise explain_failure(Path(path), exc) from exc
            if not stat.S_ISDIR(about.st_mode):
                kind = "a symbolic link, and" if stat.S_ISLNK(about.st_mode) else "not a directory, so"
                which = "it" if path == root else root
                raise NotAStoreError(f"{path} is {kind} {which} cannot be used as a cache directory")
        return True

    @property
    def access(self) -> Access:
        """Say whether the directory is used, and who may read and write there; decided at each `check`."""
        if self._access is None:
            names = ["v1", "v1/local", "v1/local/present"]
            with contextlib.suppress(OSError):
                names += [f"v1/local/{path.name}" for path in self.generations()]
            self._access = decide_access(self.root, trusted=self._trusted, writing=self._writing, names=names)
            if not self._access.why and (why := _why_no_path(self.root)):
                self._access = Access(self.root, why=why, mend="choose another path (EJCACHE_DIR)")
        return self._access

    def make_directories(self) -> None:
        """Create missing directories; existing ones are not changed.

        Raises:
            OSError: it cannot be created.
        """
        is_new, tag = not _is_there(f"{self.local}/format"), False
        if is_new:
            from ejcache.stores.local.new_store import default_limit, holds_caches_only  # once for each store

            tag = not self.root.is_dir() or holds_caches_only(self.root)
        self.access.make("v1/local/present")
        if not is_new and self._format() is not None:
            return
        from ejcache.util.new_files import write_atomically  # once for each store

        if tag and not os.path.lexists(self.root / "CACHEDIR.TAG"):
            write_atomically(self.root / "CACHEDIR.TAG", _TAG)
        if is_new:
            # Atomically: a disk that is full now would leave an empty file, and the cache without a limit for good.
            write_atomically(f"{self.local}/limit", b"%d\n" % default_limit(self.root))
        if self._format() is None:
            write_atomically(f"{self.local}/format", b"%d\n" % FORMAT)

    def keep_reserve(self) -> None:
        """Write the reserve if it is missing or incomplete, and the disk is large enough and has room for it."""
        with contextlib.suppress(OSError):
            if os.lstat(self.reserve).st_size >= RESERVE_BYTES:
                return
        try:
            if shutil.disk_usage(self.local).total < _RESERVES * RESERVE_BYTES:
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = open_like_directory(self.reserve, flags)
            with open(fd, "wb") as file:  # noqa: PTH123 (a descriptor)
                # Random, because some file systems compress.
                file.write(os.urandom(RESERVE_BYTES))
        except OSError:
            self.drop_reserve()

    def drop_reserve(self) -> None:
        """Delete the reserve, to make room."""
        with contextlib.suppress(OSError):
            os.unlink(self.reserve)

    def limit(self) -> int:
        """Return the bytes that this cache may hold where nobody sets a limit, -1 for no limit.

        A cache that does not exist yet gets a tenth of its disk, at most 20 GB. One whose limit is damaged has none.
        """
        try:
            number = self._number("limit")
            if number is None and not _is_there(f"{self.local}/format"):
                from ejcache.stores.local.new_store import default_limit

                return default_limit(self.root)
        except OSError:  # opening the store raises the error
            return -1
        return -1 if number is None else number

    def generations(self) -> list[Path]:
        """Return the generations, the newest first; there is more than one only after a crash."""
        return sorted(self._directories(_GENERATION), key=modification_time, reverse=True)

    def leftovers(self) -> list[Path]:
        """Return generations that were being created or deleted when their process died."""
        return list(self._directories(_LEFTOVER))

    def _directories(self, kinds: tuple[str, ...]) -> Iterator[Path]:
        try:
            with os.scandir(self.local) as entries:
                for entry in entries:
                    kind, _, random = entry.name.partition("-")
                    if kind in kinds and is_hex(random, 2 * _RANDOM_BYTES) and entry.is_dir(follow_symlinks=False):
                        yield Path(self.local, entry.name)
        except FileNotFoundError:
            return

    def fresh(self, kind: str) -> Path:
        """Return a name that was never used."""
        return Path(self.local, f"{kind}-{secrets.token_hex(_RANDOM_BYTES)}")

    def unexpected(self, generation: Path, *, index: bool = True) -> str:
        """Say why the files of `generation` must not be opened, as a sentence; "" if they may.

        SQLite opens files by their names. At a pipe it would wait for good, and a rollback journal can name any file
        to be deleted ("super-journal"); ejcache's databases have none, because they are in WAL mode from the beginning.

        Args:
            generation: its directory.
            index: the index is opened, too, not only the values.

        Raises:
            OSError: it cannot be looked at.
        """
        expected = dict.fromkeys(("tmp", *"0123456789abcdef"), stat.S_ISDIR) | (_OPENED if index else {})
        with contextlib.suppress(FileNotFoundError):  # it is gone
            for name in expected.keys() & os.listdir(generation):  # noqa: PTH208
                with contextlib.suppress(FileNotFoundError):  # as SQLite's log is, when the last process closes it
                    is_expected, about = expected[name], (generation / name).lstat()
                    if is_expected is None or not is_expected(about.st_mode):
                        return f"{generation / name} is not a file or directory that ejcache makes, and has to go"
            if not self.access.others and (why := why_untrusted(generation, generation.lstat())):
                return why
        return ""

    def check_files(self, generation: Path) -> None:
        """Refuse to open a generation with `unexpected` files.

        Raises:
            StoreUnavailableError: it has some.
            OSError: it cannot be looked at.
        """
        why = self.unexpected(generation)
        if why:
            raise StoreUnavailableError(f"the index of {self.root} is not opened: {why}")

    def _format(self) -> int | None:
        number = self._number("format")
        # Anything but a small number is damage; it does not say that a newer version wrote it.
        return number if number is not None and 0 <= number < 10**9 else None

    def _number(self, name: str) -> int | None:
        try:
            data = read_regular(f"{self.local}/{name}", max_size=_NUMBER_BYTES)
        except (FileNotFoundError, UnsafeFileError):
            return None
        text = data.decode(errors="replace").strip()
        is_number = text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS
        return int(text) if is_number or text == "-1" else None


def _is_there(path: str) -> bool:
    """True if there is something; raises OSError if that cannot be seen, where `os.path.lexists` says no."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _why_no_path(root: Path) -> str:
    """Say why no index can be below `root`, as a sentence; "" if one can."""
    if os.path.expandvars(root) != str(root):  # diskcache expands it: the index would lie elsewhere
        return f"the path {root} has the name of a variable in it ($NAME), which nobody has expanded"
    length = len(os.fsencode(os.path.realpath(root)))
    if length <= LONGEST_ROOT:
        return ""
    return f"the path {root} has {length} bytes, and SQLite opens an index at a path of at most {LONGEST_ROOT}"


def explain_failure(path: Path, exc: OSError) -> StoreUnavailableError:
    """Return the error, of one sentence, that says why `path` cannot be used."""
    reason = exc.strerror or str(exc)
    for part in (path, *path.parents):
        try:
            about = part.stat()
        except OSError as failure:
            with contextlib.suppress(OSError):
                if failure.errno != errno.ENOENT:
                    continue
                why = f"{part} is a symbolic link to {part.readlink()}, which does not exist"
                return StoreUnavailableError(f"{path} cannot be used as a cache directory: {why}")
            continue
        owner = "" if about.st_uid == os.geteuid() else f"; it belongs to the user with id {about.st_uid}"
        where = "" if part == path else f" ({part} has mode {stat.S_IMODE(about.st_mode):04o}{owner})"
        if part == path:
            where = f" (mode {stat.S_IMODE(about.st_mode):04o}{owner})"
        return StoreUnavailableError(f"{path} cannot be used as a cache directory: {reason}{where}")
    return StoreUnavailableError(f"{path} cannot be used as a cache directory: {reason}")


def modification_time(path: Path) -> float:
    """Return the time of a file's last change, in seconds since the epoch; 0.0 if it is gone."""
    with contextlib.suppress(OSError):
        return path.lstat().st_mtime
    return 0.0


def remove_trees(paths: Iterable[Path]) -> None:
    """Delete directories that no process uses any more; what cannot be deleted stays."""
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
