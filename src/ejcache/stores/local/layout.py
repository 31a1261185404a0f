"""Lays out the directory of a local store: where its files are, how they are made and removed, and the default limit.

    <root>/                        the user's; files of plain JAX (`*-cache`, `*-atime`) and others are left alone
      CACHEDIR.TAG                 only in a directory of caches (https://bford.info/cachedir/)
      v1/                          `directory_access` decides its mode; `entries/` and others are of shared storage
        local/
          <2 hex>/<escaped key>    an entry; its time of modification is that of its last use
          tmp/<random>             a file that is being written, locked by its writer
          format                   the number of this layout
          limit                    bytes that this cache may hold where nobody sets a limit; -1 for no limit
          lock                     held while files change
          counters                 lines that processes append
          counting                 held by the process that counts the files for a new order
          order-<inode>-<random>/  diskcache's: the sum of sizes, and hints at what may be evicted next (`order`)
          changes                  the changes to files that the order does not have yet (`changes`)
          layer                    on an overlay: when this mount of it was first used
          dead-<random>/           what is being deleted
        quarantine/                a bounded number of damaged entries (`quarantine`)

The entries are the store; all else can be made again from them. Below `<2 hex>/` it is as it is below `v1/entries/` of
shared storage. The name of an order has the inode of `local`, so that a copy of a cache does not use a copied order.

The root may be a symbolic link. Nothing below it may be one: following it would read, or delete, files that are none
of the store's.
"""

# pathlib's methods cost as much as the calls that they make, and most of these are on the path of every hit.
# ruff: noqa: PTH104, PTH112, PTH114, PTH116, PTH118, PTH120, PTH208

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.errors import (
    NotAStoreError,
    StoreUnavailableError,
    UntrustedDirectoryError,
)
from ejcache.stores.local.failures import explain_failure
from ejcache.util.directory_access import Access, decide_access, refusal
from ejcache.util.files import UnsafeFileError, make_below, open_regular, read_regular, write_atomically
from ejcache.util.locks import try_lock
from ejcache.util.store_keys import is_hex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FORMAT: Final = 2
"""The layout that this version reads and writes."""
_FIRST: Final = 1
"""The layout that kept entries in one database; no version reads it any more."""
_TAG: Final = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# This file is a cache directory tag created by ejcache.\n"
    b"# For information about cache directory tags see https://bford.info/cachedir/\n"
)
_NUMBER_BYTES: Final = 64
MAX_ENTRY_BYTES: Final = 9 * 2**28
"""No entry is larger; a larger file is none."""
START_BYTES: Final = 8192
"""Bytes of an entry in which its header nearly always is."""
PAIRS: Final = tuple(f"{number:02x}" for number in range(256))
_LARGEST_LIMIT: Final = 20 * 10**9
_SHARE_OF_DISK: Final = 10
"""The limit of a cache is at most a tenth of its disk."""
_PLAIN_JAX: Final = r".*-(cache|atime)|\.lockfile|xla_gpu_.*"
_NUMBER_DIGITS: Final = 18
_RANDOM_BYTES: Final = 8
"""That the names of directories end with."""
_LAYERED: Final = ("overlay", "aufs", "fuse.fuse-overlayfs", "fuse.unionfs", "fuse.unionfs-fuse")
"""File systems that copy a file of a lower layer before it changes."""
_BOOT: Final = "/proc/sys/kernel/random/boot_id"
_DIRECTORY: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", 0)

_LONGEST_ROOT: Final = 512 - len("/v1/local/order-0123456789abcdef-0123456789abcdef/cache.db-journal") - 1
"""SQLite's longest path (MAX_PATHNAME of its os_unix.c), less what is below the root."""


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
        self.temporary = os.path.join(self.local, "tmp")
        self.counters = f"{self.local}/counters"
        self.counting = f"{self.local}/counting"
        self.changes = f"{self.local}/changes"

    def check(self) -> bool:
        """True if the directories of a store exist, with all that is made with them.

        Raises:
            NotAStoreError: there is something else, a link to a directory for example.
            UntrustedDirectoryError: another user owns them, or can write to them.
            StoreUnavailableError: this user may not look at them.
        """
        exists = self._exists()
        self._access = None
        if self.access.why:
            raise UntrustedDirectoryError(refusal(self.access.why, self.access.mend))
        if not exists:
            return False
        found = self._format()
        if found is not None and found > FORMAT:
            raise NotAStoreError(
                f"{self.local} was made by a newer ejcache (format {found}, and this version reads {FORMAT})"
            )
        if found == _FIRST:
            raise NotAStoreError(
                f"{self.local} was made by an earlier ejcache, whose entries this version does not read;"
                f" `rm -r {self.local}` removes it"
            )
        return found is not None and os.path.isdir(self.temporary)

    def _exists(self) -> bool:
        """True if the directories of a store are there. Raises if one is no directory."""
        root = str(self.root)
        for path in (root, os.path.dirname(self.local), self.local, self.temporary):
            try:
                about = os.stat(path) if path == root else os.lstat(path)
            except FileNotFoundError:
                return path == self.temporary
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
            names = ("v1", "v1/local")
            self._access = decide_access(self.root, trusted=self._trusted, writing=self._writing, names=names)
            if not self._access.why and (why := _why_no_order(self.root)):
                self._access = Access(self.root, why=why, mend="choose another path (EJCACHE_DIR)")
        return self._access

    def make_directories(self) -> None:
        """Create missing directories; existing ones are not changed.

        Raises:
            OSError: it cannot be created.
        """
        is_new, tag = not _is_there(f"{self.local}/format"), False
        if is_new:
            tag = not self.root.is_dir() or _holds_caches_only(self.root)
        self.access.make("v1/local/tmp")
        if not is_new and self._format() is not None:
            return

        if tag and not os.path.lexists(self.root / "CACHEDIR.TAG"):
            write_atomically(self.root / "CACHEDIR.TAG", _TAG)
        if is_new:
            # Atomically: a disk that is full now would leave an empty file, and the cache without a limit for good.
            write_atomically(f"{self.local}/limit", b"%d\n" % default_limit(self.root))
        if self._format() is None:
            write_atomically(f"{self.local}/format", b"%d\n" % FORMAT)

    def limit(self) -> int:
        """Return the bytes that this cache may hold where nobody sets a limit, -1 for no limit.

        A cache that does not exist yet gets a tenth of its disk, at most 20 GB. One whose limit is damaged has none.
        """
        try:
            number = self._number("limit")
            if number is None and not _is_there(f"{self.local}/format"):
                return default_limit(self.root)
        except OSError:  # opening the store raises the error
            return -1
        return -1 if number is None else number

    def orders(self) -> list[str]:
        """Return the directories of orders, also of those that were copied here: those of this directory first."""
        own = f"order-{os.stat(self.local).st_ino:x}-"
        return sorted(self._named("order-"), key=lambda path: not path.startswith(f"{self.local}/{own}"))

    def fresh_order(self) -> str:
        """Return a name for an order of this directory that was never used.

        SQLite finds a journal by the name of its database, and would apply that of a deleted one to a new one.
        """
        return f"{self.local}/order-{os.stat(self.local).st_ino:x}-{secrets.token_hex(_RANDOM_BYTES)}"

    def is_own_order(self, path: str) -> bool:
        """True if the order at `path` was made for this directory."""
        return path.startswith(f"{self.local}/order-{os.stat(self.local).st_ino:x}-")

    def put_away(self, paths: Iterable[str]) -> None:
        """Move directories away, so that nobody finds them any more, for `remove_dead`."""
        for path in paths:
            try:
                os.rename(path, f"{self.local}/dead-{secrets.token_hex(_RANDOM_BYTES)}")
            except FileNotFoundError:
                continue
            except OSError:  # a directory in a lower layer of an overlay cannot be renamed
                shutil.rmtree(path, ignore_errors=True)

    def remove_dead(self) -> None:
        """Delete what was put away, as far as that is possible."""
        for path in self._named("dead-"):
            shutil.rmtree(path, ignore_errors=True)

    def _named(self, start: str) -> Iterator[str]:
        for each in scan(self.local):
            random = each.name.rpartition("-")[2]
            if each.name.startswith(start) and is_hex(random, 2 * _RANDOM_BYTES) and each.is_dir(follow_symlinks=False):
                yield each.path

    # -- entries ---------------------------------------------------------------------------------------------------

    def open_parent(self, name: str) -> tuple[int, str]:
        """Open the directory of the entry of this name; return it with the last part of the name. No link is followed.

        Raises:
            OSError: it is not there, or is a link.
        """
        first, *parts = name.split("/")
        directory = os.open(f"{self.local}/{first}", _DIRECTORY)
        for part in parts[:-1]:  # of a long key
            try:
                below = os.open(part, _DIRECTORY, dir_fd=directory)
            finally:
                os.close(directory)
            directory = below
        return directory, parts[-1]

    def look_at(self, name: str) -> os.stat_result | None:
        """Return the status of an entry's file; None if there is none."""
        try:
            directory, last = self.open_parent(name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return self.look_below(directory, last)
        finally:
            os.close(directory)

    def look_below(self, directory: int, last: str) -> os.stat_result | None:
        """Return the status of a file in an open directory; None if there is none."""
        try:
            about = os.stat(last, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return about if stat.S_ISREG(about.st_mode) else None

    def make_parent(self, name: str) -> tuple[int, str]:
        """Open the directory of an entry as `open_parent` does, and make it if it is not there.

        Raises:
            StoreUnavailableError: a link is in its place.
            OSError: it can be neither made nor opened.
        """
        try:
            return self.open_parent(name)
        except (FileNotFoundError, NotADirectoryError):
            above = f"{self.local}/{name.rpartition('/')[0]}"
            if os.path.islink(above):
                raise StoreUnavailableError(f"{above} is a symbolic link, so nothing is stored there") from None
            make_below(Path(above))
            return self.open_parent(name)

    def remove(self, name: str) -> bool:
        """Remove the file of an entry; False if there is none.

        Raises:
            OSError: it cannot be removed.
        """
        try:
            directory, last = self.open_parent(name)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            os.unlink(last, dir_fd=directory)
        except FileNotFoundError:
            return False
        finally:
            os.close(directory)
        return True

    def start_of(self, name: str) -> bytes:
        """Return the first bytes of an entry, in which its header is; nothing if they cannot be read."""
        try:
            directory, last = self.open_parent(name)
        except OSError:
            return b""
        try:
            descriptor = open_regular(last, dir_fd=directory)
        except OSError:
            return b""
        finally:
            os.close(directory)
        try:
            return os.read(descriptor, START_BYTES)
        except OSError:
            return b""
        finally:
            os.close(descriptor)

    def walk(self, pairs: Iterable[str] = PAIRS) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the name and the status of each file of an entry, in those of the 256 directories."""
        for pair in pairs:
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISDIR(os.lstat(f"{self.local}/{pair}").st_mode):
                    yield from self._files(pair)

    def _files(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        for each in scan(f"{self.local}/{folder}"):
            try:
                about = each.stat(follow_symlinks=False)
            except OSError:
                continue
            if not each.name.isascii():
                continue  # no name of ours
            if stat.S_ISREG(about.st_mode):
                yield f"{folder}/{each.name}", about
            elif each.name.endswith("+") and stat.S_ISDIR(about.st_mode):
                yield from self._files(f"{folder}/{each.name}")

    def lower_until(self) -> int:
        """Return until when, in nanoseconds, files were changed that may lie in a lower layer; 0 where none can.

        A program in a container starts with the files of its image. A change to one of them copies it, and the first
        change of anything in this mount comes after all of them: it is noted in the file `layer`.
        """
        device = os.stat(self.local).st_dev
        if os.major(device) or _filesystem(device) not in _LAYERED:
            return 0
        mark = f"{self.local}/layer"
        try:
            boot = Path(_BOOT).read_text().strip()
            this = f"{boot} {device} {os.stat(self.local).st_ino}\n".encode()
            if not os.path.lexists(mark) or read_regular(mark, max_size=1 << 10) != this:
                write_atomically(mark, this)
            return os.lstat(mark).st_ctime_ns
        except OSError:
            return 2**63  # nothing can be written there

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


def _filesystem(device: int) -> str:
    """Return the type of the file system with this number; empty if nothing says it."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
            left, _, right = line.partition(" - ")
            if left.split(" ")[2] == number:
                return right.partition(" ")[0]
    return ""


def scan(path: str) -> list[os.DirEntry[str]]:
    """Return what is in a directory; nothing if it is not there, or is no directory."""
    try:
        with os.scandir(path) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def default_limit(root: Path) -> int:
    """Return the bytes that a new cache may hold where nobody sets a limit: a tenth of its disk, at most 20 GB."""
    for path in (root, *root.parents):
        with contextlib.suppress(OSError):
            return min(_LARGEST_LIMIT, shutil.disk_usage(path).total // _SHARE_OF_DISK)
    return _LARGEST_LIMIT


def _holds_caches_only(root: Path) -> bool:
    """True if all that is in the directory was made by a cache: ours, or JAX's own."""
    with contextlib.suppress(OSError):
        names = (path.name for path in root.iterdir())
        return all(name in {"v1", "CACHEDIR.TAG"} or re.fullmatch(_PLAIN_JAX, name) for name in names)
    return False


def sweep(layout: Layout) -> None:
    """Delete what processes were writing that died."""
    try:
        folder = os.open(layout.temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                fd = open_regular(name, dir_fd=folder)
                try:
                    if is_hex(name, 2 * _RANDOM_BYTES) and try_lock(fd):
                        os.unlink(name, dir_fd=folder)
                finally:
                    os.close(fd)
    finally:
        os.close(folder)


def _why_no_order(root: Path) -> str:
    """Say why the order of eviction cannot be kept below `root`, as a sentence; "" if one can."""
    if os.path.expandvars(root) != str(root):  # diskcache expands it: the order would lie elsewhere
        return f"the path {root} has the name of a variable in it ($NAME), which nobody has expanded"
    length = len(os.fsencode(os.path.realpath(root)))
    if length <= _LONGEST_ROOT:
        return ""
    return f"the path {root} has {length} bytes, and SQLite opens a database at a path of at most {_LONGEST_ROOT}"
