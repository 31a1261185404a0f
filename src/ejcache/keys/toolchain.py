"""The tool chain by content: the native libraries behind JAX, and the CPU that host code is compiled for.

Versions are not enough: a jaxlib that somebody built, or that replaced another one, has the version of its sources
(jax#18750), and then loads the entries of the one that it replaced.
"""

# pathlib's methods cost as much as the calls that they make, and these are on the path of every hit.
# ruff: noqa: PTH113, PTH116, PTH119

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import stat
import subprocess
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.common_errors import MALFORMED
from ejcache.util.files import make_private, write_atomically
from ejcache.util.lifecycle import track_forks
from ejcache.util.store_keys import is_hex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


_SUFFIXES: Final = (".so", ".dylib", ".dll", ".pyd", ".bc")
_VERSIONED: Final = r"\.so(\.\d+)+$"
_RACY_SECONDS: Final = 3.0
"""A file changed this recently may change again without a new time stamp."""

_READERS: Final = 2
"""Libraries that are read at once: each is digested by one core, and the program wants the others."""
_PIECE_BYTES: Final = 8 << 20
"""Bytes that are read at once. A thread in the background waits for the program twice for each piece, up to 5 ms each:
in pieces of 256 KB, which `hashlib.file_digest` reads, 330 MB took 13 s beside a busy program."""


def native_files(directory: str | os.PathLike[str]) -> list[str]:
    """List the native libraries (and device bitcode) under `directory`; none if it does not exist."""
    # Each start looks through the hundreds of files of jaxlib: `os.walk` and paths as objects took three times as long.
    found = []
    directories = [os.fspath(directory)]
    while directories:
        with suppress(OSError), os.scandir(directories.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.path)
                elif _is_native(entry.name) and (entry.is_file(follow_symlinks=False) or os.path.isfile(entry.path)):
                    found.append(entry.path)  # `entry.is_file()` raises at a link that leads in a circle
    return found


def _is_native(name: str) -> bool:
    return name.endswith(_SUFFIXES) or (".so." in name and re.search(_VERSIONED, name) is not None)


class LibraryDigests:
    """Digests of native libraries, each of which a process reads once. Safe for threads and forks.

    Args:
        read: returns the digest (hex) of one file.
    """

    def __init__(self, *, read: Callable[[Path], str] | None = None) -> None:
        self._read = read or file_digest
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
        identities = _identities(os.fspath(path) for path in paths)
        if not self._known.keys() >= set(identities.values()):
            # Two threads want them at the start of a program: the one that makes the first key, and one in the
            # background.
            with self._lock:
                self._compute(identities, Path(memo) if memo is not None else None)
        lines = sorted(f"{os.path.basename(path)} {self._known[identity]}" for path, identity in identities.items())
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def _compute(self, identities: Mapping[str, str], memo: Path | None) -> None:
        """Have the digests of all these files; called with the lock held."""
        known = self._known
        if memo is not None and any(identity not in known for identity in identities.values()):
            for identity, digest in _read_memo(memo).items():
                known.setdefault(identity, digest)
        fresh: dict[str, str] = {}
        unknown = {Path(path): path for path, identity in identities.items() if identity not in known}
        for path, digest in self._found([*unknown]):
            identity = identities[unknown[path]]
            known[identity] = digest
            settled = time.time() - path.stat().st_mtime > _RACY_SECONDS
            if settled and _identity(unknown[path], {}) == identity:
                fresh[identity] = digest
        if memo is not None and fresh:
            _write_memo(memo, fresh)

    def _found(self, paths: Sequence[Path]) -> Iterator[tuple[Path, str]]:
        """Yield the digests of files of which nothing is known: those that pip wrote down, then those that are read."""
        if not paths:
            return
        from ejcache.keys.recorded_digests import recorded_digests  # by the first start in an environment only
        from ejcache.util.parallel import in_parallel

        recorded = recorded_digests(paths)
        yield from recorded.items()
        rest = [path for path in paths if path not in recorded]
        yield from zip(rest, in_parallel(self._read, rest, threads=min(_READERS, len(rest))), strict=True)


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


@cache
def cpu_features() -> str:
    """Describe the CPU of this host as code generators see it: architecture, model and instructions, in one line.

    From `/proc/cpuinfo` on Linux and `sysctl` on macOS; otherwise from Python's `platform`.
    """
    machine = platform.machine().lower()
    if platform.system() == "Darwin":
        names = ("machdep.cpu.brand_string", "machdep.cpu.features", "machdep.cpu.leaf7_features", "hw.optional")
        with suppress(OSError, subprocess.SubprocessError):
            listed = subprocess.run(["sysctl", *names], capture_output=True, text=True, timeout=10, check=False)
            if lines := sorted(listed.stdout.splitlines()):
                return f"{machine} {'; '.join(lines)}"
    with suppress(OSError):
        if described := canonical_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")):
            return f"{machine} {described}"
    return f"{machine} {platform.processor()}"


# Flags that Linux lists although they add no instruction: they say how the kernel and the hypervisor run the CPU, and
# change with an update of the kernel or the microcode, and between virtual machines of one kind. No pattern: to compile
# one of this size takes longer than the key of a program.
_NO_INSTRUCTIONS: Final = frozenset(
    """
    hypervisor rep_good nopl xtopology cpuid md_clear pti flush_l1d l1tf ssbd virt_ssbd apic xapic 2apic x2apic arat pln
    pts dtherm ida epb acpi tm tm2 pbe vmx svm vnmi vpid tpr_shadow flexpriority npt nrip_save tsc_scale vmcb_clean
    flushbyasid decodeassists pausefilter pfthreshold avic vgif overflow_recov succor smca mce mca mtrr pat pge pcid
    invpcid_single cat_l2 cat_l3 cdp_l2 cdp_l3 rdt_a mba osvw topoext skinit wdt tce bpext ibs extapic cr8_legacy
    cmp_legacy ht monitor dtes64 ds_cpl ds est xtpr pdcm dca sdbg smep smap umip la57 bus_lock_detect split_lock_detect
    tsxldtrk_kernel xsaveerptr user_shstk
    """.split()  # noqa: SIM905 (a line for each would be a page)
)
_NO_INSTRUCTIONS_BEGIN: Final = (
    *("tsc_", "arch_", "retpoline", "ibrs", "ibpb", "stibp", "amd_"),
    *("spec_", "srso", "hwp", "ept", "pse", "cqm"),
)
_NO_INSTRUCTIONS_END: Final = ("_tsc", "vmload")
# The fields that identify the model of the CPU, and those that list instruction sets, on x86 and ARM.
_MODEL_FIELDS: Final = frozenset(
    {*("vendor_id", "cpu family", "model", "isa", "uarch")}
    | {f"CPU {field}" for field in ("implementer", "architecture", "variant", "part")}
)
_FLAG_FIELDS: Final = frozenset({"flags", "Features"})


def canonical_cpuinfo(text: str) -> str:
    """Model and instruction sets in the text of `/proc/cpuinfo`, the same for any number of cores and any clock."""
    models: set[str] = set()
    instructions: set[str] = set()
    # Every core repeats the same lines.
    for line in dict.fromkeys(text.splitlines()):
        name, _, value = (part.strip() for part in line.partition(":"))
        if name in _MODEL_FIELDS:
            models.add(f"{name} {value}")
        elif name in _FLAG_FIELDS:
            instructions.update(flag for flag in value.split() if _is_instruction(flag))
    return "; ".join([*sorted(models), " ".join(sorted(instructions))]) if models or instructions else ""


def _is_instruction(flag: str) -> bool:
    return not (
        flag in _NO_INSTRUCTIONS
        or flag.startswith(_NO_INSTRUCTIONS_BEGIN)
        or flag.endswith(_NO_INSTRUCTIONS_END)
        or "perf" in flag
    )


def _identities(paths: Iterable[str]) -> dict[str, str]:
    # In every process, for some thirty files in a few directories, so links are resolved once for each directory.
    resolved: dict[str, str] = {}
    return {path: _identity(path, resolved) for path in paths}


def _identity(path: str, resolved: dict[str, str]) -> str:
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        place, status = os.path.realpath(path), os.stat(path)
    else:
        parent, name = os.path.split(path)
        if parent not in resolved:
            resolved[parent] = os.path.realpath(parent)
        place = f"{resolved[parent]}/{name}"
    # The time of change catches what keeps size and modification time, such as `cp --preserve` over the file.
    numbers = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return f"{place}:{':'.join(map(str, numbers))}"


def _place(identity: str) -> str:
    return identity.rsplit(":", 5)[0]


def _read_memo(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_bytes())
        libraries = content["libraries"] if content["format"] == 1 else {}
        return {
            identity: digest for identity, digest in libraries.items() if isinstance(digest, str) and is_hex(digest, 64)
        }
    except (OSError, *MALFORMED):
        return {}


def _write_memo(path: Path, fresh: dict[str, str]) -> None:
    places = {_place(identity) for identity in fresh}
    kept = {known: digest for known, digest in _read_memo(path).items() if _place(known) not in places}
    text = json.dumps({"format": 1, "libraries": {**kept, **fresh}}, indent=1, sort_keys=True)
    with suppress(OSError):
        make_private(path.parent)
        write_atomically(path, text.encode())
