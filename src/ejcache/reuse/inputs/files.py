"""The content of files, and when a process began."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import time
from typing import Final

from ejcache.jax_integration.seam.reuse.refusal import RefusedError
from ejcache.reuse.inputs.memo import memo_of_host
from ejcache.settings.start import status_field

CODE: Final = frozenset({
    *(".py", ".pyx", ".so", ".dylib", ".dll", ".pyd", ".c", ".cc", ".cpp", ".h", ".cu", ".cuh", ".ptx", ".cubin"),
    *(".hsaco", ".mlir", ".zip", ".egg", ".pyz", ".pth", ".pyc"),
})  # fmt: skip
LARGEST: Final = 16 << 20
"""Bytes of a file that counts by its content; a larger one counts by its size and the time of its last change."""


def content(path: str, status: os.stat_result | None = None, *, largest: int | None = LARGEST) -> str:
    """A digest of a file's content; another text if it is large, or cannot be read.

    Args:
        path: of the file.
        status: of the file, where the caller has it.
        largest: bytes; None where a file counts by its content however large it is.

    Raises:
        RefusedError: it is a pipe. To read one takes away what the program needs, or never ends.
    """
    try:
        status = status or os.stat(path)  # noqa: PTH116
        if not stat.S_ISREG(status.st_mode):
            if stat.S_ISFIFO(status.st_mode):
                raise RefusedError(f"{path} is a pipe")
            return f"no file {stat.S_IFMT(status.st_mode)} {status.st_rdev}"
        if largest is not None and status.st_size > largest:
            return f"{status.st_size} bytes {status.st_mtime_ns}"
        memo = memo_of_host()
        digest = memo.known(path, status)
        if digest is None:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            memo.keep(path, status, digest)
        return digest
    except OSError as exc:
        return f"cannot be read: {exc.errno}"


def entries_of(directory: str) -> list[os.DirEntry[str]]:
    """List a directory, in no fixed order; nothing if it cannot be read."""
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []


def is_code(path: str) -> bool:
    """True if a file's ending is one of code."""
    return ending(path) in CODE


def ending(path: str) -> str:
    """Return the ending of a file's name in small letters, ".json" of ".json" too; empty if it has none."""
    _, dot, last = path[path.rfind(os.sep) + 1 :].rpartition(".")  # for each file of a project
    return f".{last}".lower() if dot else ""


def _began() -> float:
    """Find when this process began, in seconds since the epoch; when this module was imported if nobody can say."""
    started = status_field(19) if sys.platform == "linux" else None
    if started is None:
        return time.time()
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK"))


BEGAN: Final = _began()
"""When this process began, in seconds since the epoch."""


_TICK: Final = 0.011
"""Seconds by which a process can have begun later than `BEGAN` says: Linux tells it in hundredths of a second."""


def is_younger(status: os.stat_result, *, linked: bool = False) -> bool:
    """True if a file was written, renamed or changed after this process began, or a hundredth of a second before.

    Args:
        status: of the file.
        linked: only its content counts: installers link the files of one package into many environments, and each
            link changes the file's status.
    """
    return status.st_mtime > BEGAN or (not linked and status.st_ctime > BEGAN)


def was_made_since(status: os.stat_result, *, surely: bool = False) -> bool:
    """True if a file was written or got its name after this process began, whatever time its writer gave it.

    Args:
        status: of the file.
        surely: only if that cannot have been a hundredth of a second before.
    """
    return status.st_ctime > BEGAN + (_TICK if surely else 0.0)
