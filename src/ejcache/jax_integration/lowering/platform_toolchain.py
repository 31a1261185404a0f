"""The native libraries behind JAX, by content, this host's CPU and devices, and which packages are installed.

The libraries and the CPU are parts of keys: they are the tool chain of a platform.

The version of jaxlib is not enough: a jaxlib that somebody built, or a library that was replaced in place, has the same
version (jax#18750). A warm cache then gave code that crashed, or code of another compiler.

Nothing here imports JAX, which takes seconds: a command asks, too, what this host can load.
"""

# pathlib's methods cost as much as the calls that they make, and these are on the path of every hit.
# ruff: noqa: PTH113, PTH116

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pkgutil
import platform as python_platform
import re
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jaxlib.version

from ejcache.errors import MALFORMED
from ejcache.keys.environment_variables import compile_variables, read_flags_file
from ejcache.settings.directories import state_directory
from ejcache.settings.environment import all_variables, environment_variable
from ejcache.util.cores import cores
from ejcache.util.dist_info import distributions_in
from ejcache.util.lifecycle import track_forks
from ejcache.util.log import log
from ejcache.util.store_keys import is_hex
from ejcache.util.threads import submit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

PLUGINS: Final = (
    "jax_cuda12_plugin",
    "jax_cuda13_plugin",
    "jax_rocm60_plugin",
    "jax_rocm7_plugin",
    "libtpu",
    "libneuronxla",
)
"""Packages of plug-ins outside the `jax_plugins` namespace."""

_COMPILERS: Final[Mapping[str, tuple[str, ...]]] = {
    "cuda": ("nvidia-cudnn", "nvidia-cublas", "nvidia-cuda-nvcc", "nvidia-nvjitlink"),
    "rocm": (),
    "tpu": (),
    "neuron": ("neuronx-cc",),
    "": ("triton",),
}
"""The platforms that are known by a part of the names of their plug-ins, and beginnings of the names of distributions
whose programs and libraries take part in compiling for them. They have hundreds of megabytes, so their versions are
used instead of their content. What is under "" counts for other platforms only, of which nothing is known."""


_NVIDIA_DEVICES: Final = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")
"""Without any of them JAX does not ask CUDA for GPUs."""

_PCI_DEVICES: Final = "/sys/bus/pci/devices"
_PCI_GOOGLE: Final = "0x1ae0"
"""The vendor of the chips of a TPU, which are on the PCI bus of a host that has them."""
_SUFFIXES: Final = (".so", ".dylib", ".dll", ".pyd", ".bc")
_VERSIONED: Final = r"\.so(\.\d+)+$"
_RACY_SECONDS: Final = 3.0
"""A file changed this recently may change again without a new time stamp."""


def plugin_directories(platform: str, *, usable: bool = False) -> list[str]:
    """Return the directories of the packages of plug-ins that may compile for `platform`.

    Args:
        platform: as JAX names it.
        usable: only those that may find a device here.
    """
    names = [name for name in _plugins(platform) if not (usable and finds_nothing(name))]
    specs = [importlib.util.find_spec(name) for name in names]
    return [place for spec in specs if spec is not None for place in spec.submodule_search_locations or ()]


def named_libraries(platform: str) -> list[str]:
    """Return the libraries of plug-ins for `platform` that environment variables name."""
    # "name:path,name:path", where a name may be missing.
    named = [part.split(":", 1) for part in (environment_variable("PJRT_NAMES_AND_LIBRARY_PATHS") or "").split(",")]
    paths = [part[-1] for part in named if len(part) > 1 and (not part[0] or _is_of(part[0], platform))]
    if _is_of("tpu", platform):
        paths.append(environment_variable("TPU_LIBRARY_PATH") or "")
    return [path for path in paths if path and Path(path).is_file()]


def _plugins(platform: str) -> list[str]:
    """Return the packages of plug-ins that may compile for `platform`."""
    names = [*PLUGINS, *(f"jax_plugins.{name}" for name in packages_in_namespace())]
    return [name for name in names if _is_of(name, platform)]


def packages_in_namespace() -> list[str]:
    """Return the names of the plug-ins in the namespace `jax_plugins`."""
    namespace = importlib.util.find_spec("jax_plugins")
    if namespace is None or namespace.submodule_search_locations is None:
        return []
    return [info.name for info in pkgutil.iter_modules(namespace.submodule_search_locations)]


def _families(name: str) -> set[str]:
    """Return the known platforms that a name belongs to: JAX says `gpu` for two of them. Of any other name, ""
    alone.
    """
    if name == "gpu":
        return {"cuda", "rocm"}
    return {family for family in _COMPILERS if family and family in name} or {""}


def _is_of(name: str, platform: str) -> bool:
    """True if the plug-in of this name may compile for `platform`."""
    return bool(_families(name) & _families(platform)) or _families(platform) == {""}


def compiler_versions(platform: str) -> list[str]:
    """Return names and versions of the distributions that take part in compiling for `platform`, `name==version`."""
    families = set(_COMPILERS) if _families(platform) == {""} else _families(platform)
    beginnings = tuple(beginning for family in families for beginning in _COMPILERS[family])
    return sorted({f"{name}=={version}" for name, version in installed_packages(beginnings)}) if beginnings else []


def installed_packages(beginnings: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield name and version of each installed distribution whose name begins with one of these.

    Args:
        beginnings: of names, in small letters and with hyphens.
    """
    for place in dict.fromkeys(sys.path):
        for each in distributions_in(place or "."):
            if each.name.startswith(beginnings):
                yield each.name, each.version


def finds_nothing(plugin: str) -> bool:
    """True if this host lacks the files by which JAX knows that a device for this plug-in is there.

    Of a plug-in that JAX does not look for in this way, nothing is known.
    """
    if _families(plugin) == {"cuda"}:
        return not any(Path(path).exists() for path in _NVIDIA_DEVICES)
    if plugin == "libtpu" and environment_variable("JAX_FORCE_TPU_INIT") is None:
        return not any(_is_of_google(path) for path in Path(_PCI_DEVICES).glob("*/vendor"))
    return False


def _is_of_google(vendor: Path) -> bool:
    try:
        return vendor.read_text().strip() == _PCI_GOOGLE
    except OSError:
        return True  # it cannot be known: JAX has to say


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


def cpu_features() -> str:
    """Describe the CPU of this host as code generators see it: architecture, model and instructions, in one line.

    From `/proc/cpuinfo` on Linux and `sysctl` on macOS; otherwise from Python's `platform`.
    """
    machine = python_platform.machine().lower()
    if python_platform.system() == "Darwin":
        names = ("machdep.cpu.brand_string", "machdep.cpu.features", "machdep.cpu.leaf7_features", "hw.optional")
        with suppress(OSError, subprocess.SubprocessError):
            listed = subprocess.run(["sysctl", *names], capture_output=True, text=True, timeout=10, check=False)
            if lines := sorted(listed.stdout.splitlines()):
                return f"{machine} {'; '.join(lines)}"
    with suppress(OSError):
        if described := canonical_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")):
            return f"{machine} {described}"
    return f"{machine} {python_platform.processor()}"


# Flags that Linux lists although they add no instruction: they say how the kernel and the hypervisor run the CPU, and
# change with an update of the kernel or the microcode, and between virtual machines of one kind. No pattern: to compile
# one of this size takes longer than the key of a program.
_NO_INSTRUCTIONS: Final = """
    hypervisor rep_good nopl xtopology cpuid md_clear pti flush_l1d l1tf ssbd virt_ssbd apic xapic 2apic x2apic arat pln
    pts dtherm ida epb acpi tm tm2 pbe vmx svm vnmi vpid tpr_shadow flexpriority npt nrip_save tsc_scale vmcb_clean
    flushbyasid decodeassists pausefilter pfthreshold avic vgif overflow_recov succor smca mce mca mtrr pat pge pcid
    invpcid_single cat_l2 cat_l3 cdp_l2 cdp_l3 rdt_a mba osvw topoext skinit wdt tce bpext ibs extapic cr8_legacy
    cmp_legacy ht monitor dtes64 ds_cpl ds est xtpr pdcm dca sdbg smep smap umip la57 bus_lock_detect split_lock_detect
    tsxldtrk_kernel xsaveerptr user_shstk
"""
_NO_INSTRUCTIONS_BEGIN: Final = (
    *("tsc_", "arch_", "retpoline", "ibrs", "ibpb", "stibp", "amd_"),
    *("spec_", "srso", "hwp", "ept", "pse", "cqm"),
)
_NO_INSTRUCTIONS_END: Final = ("_tsc", "vmload")
# The fields that identify the model of the CPU, and those that list instruction sets, on x86 and ARM.
_MODEL_FIELDS: Final = (
    *("vendor_id", "cpu family", "model", "isa", "uarch"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part"),
)
_FLAG_FIELDS: Final = ("flags", "Features")


def canonical_cpuinfo(text: str) -> str:
    """Model and instruction sets in the text of `/proc/cpuinfo`, the same for any number of cores and any clock."""
    models: set[str] = set()
    instructions: set[str] = set()
    no_instructions = set(_NO_INSTRUCTIONS.split())
    # Every core repeats the same lines.
    for line in dict.fromkeys(text.splitlines()):
        name, _, value = (part.strip() for part in line.partition(":"))
        if name in _MODEL_FIELDS:
            models.add(f"{name} {value}")
        elif name in _FLAG_FIELDS:
            instructions.update(
                flag
                for flag in value.split()
                if flag not in no_instructions
                and not flag.startswith(_NO_INSTRUCTIONS_BEGIN)
                and not flag.endswith(_NO_INSTRUCTIONS_END)
                and "perf" not in flag
            )
    return "; ".join([*sorted(models), " ".join(sorted(instructions))]) if models or instructions else ""


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


@cache
def cpu_identity() -> str:
    """Return the CPU of this host as code generators see it."""
    return hashlib.sha256(cpu_features().encode()).hexdigest()


@cache
def cpu_threads() -> str:
    """Name the cores and the variable by which jaxlib before 0.11 splits loops on a CPU; empty for a newer one."""
    if jaxlib.version.__version_info__ >= (0, 11):
        return ""

    # XLA does not split the loops if it has one thread or one core.
    return f"{cores()} cores, NPROC={environment_variable('NPROC') or ''}"


def has_cpu_alone() -> bool:
    """True if JAX compiles for the CPU here, because no plug-in can find a device, or because a variable says so."""
    chosen = environment_variable("JAX_PLATFORMS") or environment_variable("JAX_PLATFORM_NAME")
    if chosen:
        return chosen.strip().lower() == "cpu"
    if environment_variable("PJRT_NAMES_AND_LIBRARY_PATHS"):
        return False
    points = {point.name for point in importlib.metadata.entry_points(group="jax_plugins")}
    installed = {name for name in PLUGINS if importlib.util.find_spec(name) is not None}
    return all(finds_nothing(name) for name in {*points, *installed, *packages_in_namespace()} - {"ejcache"})


def components_of_cpu() -> dict[str, str]:
    """Make the components of keys of programs that this host compiles for its CPU, but those of its devices."""
    variables = all_variables()
    from ejcache.keys.file_digests import content_digest  # the door to files that have to be read

    said = compile_variables("cpu", variables, flags_files=read_flags_file(variables), content=content_digest)
    found = {
        "jaxlib": str(jaxlib.version.__version__),
        "native_libraries": native_libraries("cpu"),
        "variables": "\n".join(f"{name}={value}" for name, value in said.items()),
        "cpu": cpu_identity(),
    }
    return found | ({"threads": cpu_threads()} if cpu_threads() else {})
