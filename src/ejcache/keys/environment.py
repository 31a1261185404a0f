"""What compiles: the tool chain by content, and the environment variables that a compiler reads.

The tool chain: native libraries by content, and the CPU that host code is compiled for.

Versions are not enough: a jaxlib that somebody built, or that replaced another one, has the version of its sources
(jax#18750), and then loads the entries of the one that it replaced.

The environment variables that change what a compiler makes, in normal form. The environment is an argument.
"""

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
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.keys.flags import ContentDigest, canonical_flags, split_flags, split_words
from ejcache.util.files import make_private, write_atomically
from ejcache.util.lifecycle import track_forks

if TYPE_CHECKING:
    from collections.abc import Iterable


_SUFFIXES: Final = (".so", ".dylib", ".dll", ".pyd", ".bc")
_VERSIONED: Final = r"\.so(\.\d+)+$"
_RACY_SECONDS: Final = 3.0
"""A file changed this recently may change again without a new time stamp."""

_PIECE_BYTES: Final = 8 << 20
"""Bytes that are read at once. A thread in the background waits for the program twice for each piece, up to 5 ms each:
in pieces of 256 KB, which `hashlib.file_digest` reads, 330 MB took 13 s beside a busy program."""


# In this process: identity of a file → digest of its content. There are as many as native libraries.
_digests: dict[str, str] = {}


class _Computing:
    """Held by the thread that computes digests, so that another one waits for them."""

    def __init__(self) -> None:
        self.after_fork_in_child()
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """The thread that holds it does not exist here."""
        self.lock = threading.RLock()  # reentrant: a signal handler may compile a program


_computing: Final = _Computing()


def native_files(directory: str | os.PathLike[str]) -> tuple[Path, ...]:
    """The native libraries (and device bitcode) under `directory`, sorted; none if there is no such directory."""
    found = [
        Path(parent, name)
        for parent, _, names in os.walk(directory)
        for name in names
        if name.endswith(_SUFFIXES) or (".so." in name and re.search(_VERSIONED, name))
    ]
    return tuple(sorted(path for path in found if path.is_file()))


def library_digest(paths: Iterable[str | os.PathLike[str]], *, memo: str | os.PathLike[str] | None = None) -> str:
    """Digest (hex) of files by name and content; their directories and their order do not count.

    Args:
        paths: files; their directories are not part of the digest.
        memo: a file on a local disk that remembers digests by path, device, inode, size and times of change, so that
            300 MB of libraries are not read at every start. A memo that is damaged, missing or cannot be written is
            ignored. Processes may share it; the last writer wins.

    Raises:
        OSError: a library cannot be read.
    """
    identities = _identities(map(Path, paths))
    # Two threads want them at the start of a program: the one that makes the first key, and one in the background.
    with _computing.lock:
        _compute(identities, Path(memo) if memo is not None else None)
    lines = sorted(f"{path.name} {_digests[identity]}" for path, identity in identities.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _compute(identities: Mapping[Path, str], memo: Path | None) -> None:
    """Have the digests of all these files; called with the lock held."""
    if memo is not None and any(identity not in _digests for identity in identities.values()):
        for identity, digest in _read_memo(memo).items():
            _digests.setdefault(identity, digest)
    fresh: dict[str, str] = {}
    for path, identity in identities.items():
        if identity not in _digests:
            _digests[identity] = _digest_file(path)
            settled = time.time() - path.stat().st_mtime > _RACY_SECONDS
            if settled and _identity(path, {}) == identity:
                fresh[identity] = _digests[identity]
    if memo is not None and fresh:
        _write_memo(memo, fresh)


def content_digest(path: str) -> str | None:
    """Digest (hex) of a file, or of the files directly in a directory by name; None if it cannot be read.

    For the files that flags name (`canonical_flags(content=…)`).
    """
    place = Path(path)
    try:
        if not place.is_dir():
            return _digest_file(place)
        lines = [f"{entry.name} {_digest_file(entry)}" for entry in sorted(place.iterdir()) if entry.is_file()]
    except OSError:
        return None
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@cache
def cpu_features() -> str:
    """The CPU of this host as code generators see it: architecture, model and instruction sets, one line of text.

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


def _identities(paths: Iterable[Path]) -> dict[Path, str]:
    # In every process, for some thirty files in a few directories, so links are resolved once for each directory.
    resolved: dict[str, str] = {}
    return {path: _identity(path, resolved) for path in paths}


def _identity(path: Path, resolved: dict[str, str]) -> str:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        place, status = os.path.realpath(path), path.stat()
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


def _digest_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        piece = memoryview(bytearray(min(_PIECE_BYTES, max(1 << 16, path.stat().st_size))))
        while length := file.readinto(piece):
            digest.update(piece[:length])
    return digest.hexdigest()


def _read_memo(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_bytes())
        libraries = content["libraries"] if content["format"] == 1 else {}
        return {
            identity: digest
            for identity, digest in libraries.items()
            if isinstance(digest, str) and re.fullmatch(r"[0-9a-f]{64}", digest)
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _write_memo(path: Path, fresh: dict[str, str]) -> None:
    places = {_place(identity) for identity in fresh}
    kept = {known: digest for known, digest in _read_memo(path).items() if _place(known) not in places}
    text = json.dumps({"format": 1, "libraries": {**kept, **fresh}}, indent=1, sort_keys=True)
    with suppress(OSError):
        make_private(path.parent)
        write_atomically(path, text.encode())


FlagsFile = Mapping[str, str]
"""Text of the files that variables name in place of flags, by path."""

_GPU_PLATFORMS: Final = frozenset({"gpu", "cuda", "rocm"})

# Read by cuBLAS, cuDNN and Triton while XLA compiles and autotunes; each changes the code or the algorithm chosen.
_GPU_VARIABLES: Final = """
    CUBLAS_WORKSPACE_CONFIG CUBLASLT_WORKSPACE_SIZE CUDA_FORCE_PTX_JIT DISABLE_LLVM_OPT DISABLE_PTXAS_OPT
    NVIDIA_TF32_OVERRIDE TF_CUDNN_DETERMINISTIC TF_DETERMINISTIC_OPS
"""
# Triton's directories and what it prints; the beginnings of names.
_TRITON_IGNORED: Final = """
    TRITON_ALWAYS_COMPILE TRITON_CACHE_ TRITON_DUMP_ TRITON_ENABLE_LLVM_DEBUG TRITON_ENABLE_PYTHON_STACKTRACE
    TRITON_HOME TRITON_KERNEL_DUMP TRITON_LLVM_DEBUG_ONLY TRITON_PARTITION_SCHEDULING_ TRITON_PRINT_AUTOTUNING
    TRITON_REPRODUCER_PATH
"""
# What matters at run time only, what differs between the processes of a job, and where files are written.
_NEURON_IGNORED: Final = """
    NEURON_COMPILE_CACHE_URL NEURON_DUMP_ NEURON_FORCE_PJRT_PLUGIN_REGISTRATION NEURON_FRAMEWORK_DEBUG NEURON_LOG_
    NEURON_NUM_RECENT_MODELS_TO_KEEP NEURON_PARALLEL_COMPILE_ NEURON_PJRT_PROCESS NEURON_PROFILE NEURON_RT_
"""


class _NeuronKind(Enum):
    """How the occurrences of one option of neuronx-cc become its effect."""

    SCALAR = """
        --auto-cast --auto-cast-type --distribution-strategy --logical-nc-config --model-type --optlevel --target
    """  # takes a value, and the last one decides (argparse)
    SWITCH = """
        --enable-experimental-O1 --enable-fast-context-switch --enable-fast-loading-neuron-binaries
        --enable-mixed-precision-accumulation --enable-saturate-infinity
    """
    DROPPED = "--cache_dir --cache-dir --dump --logfile --logfile-verbose --verbose"  # takes a value: caches and logs
    DROPPED_SWITCH = "--retry_failed_compilation"


_NEURON: Final = {name: kind for kind in _NeuronKind for name in kind.value.split()}
_NEURON_SHORT: Final = {"-O": "--optlevel", "-lnc": "--logical-nc-config", "--lnc": "--logical-nc-config"}


def compile_variables(
    platform: str,
    environ: Mapping[str, str],
    *,
    flags_files: FlagsFile | None = None,
    content: ContentDigest | None = None,
) -> dict[str, str]:
    """The variables of `environ` that change what the compiler of `platform` makes, in normal form.

    Args:
        platform: PJRT platform (`cpu`, `cuda`, `rocm`, `tpu`, `neuron`, a plug-in's).
        environ: the environment when the compiler read it.
        flags_files: text of the file that `XLA_FLAGS` names where it does not start with a dash; without it, such a
            value counts verbatim.
        content: as in `canonical_flags`.
    """
    variables: dict[str, str] = {}
    xla_flags = environ.get("XLA_FLAGS", "")
    if not xla_flags.lstrip(" \t\r\n").startswith("-") and flags_files:
        xla_flags = flags_files.get(xla_flags, xla_flags)
    if tokens := canonical_flags(split_flags(xla_flags), content=content):
        variables["XLA_FLAGS"] = _lines(tokens)
    name = platform.lower()
    if name not in ("cpu", *_GPU_PLATFORMS):
        # Only libtpu reads it, but a plug-in of another name may contain libtpu.
        tokens = canonical_flags(split_words(environ.get("LIBTPU_INIT_ARGS", "")), content=content)
        if tokens:
            variables["LIBTPU_INIT_ARGS"] = _lines(tokens)
    if name in _GPU_PLATFORMS:
        variables |= {known: environ[known] for known in _GPU_VARIABLES.split() if environ.get(known)}
        variables |= _beginning_with("TRITON_", environ, ignored=_TRITON_IGNORED)
    variables.update(neuron_variables(platform, environ))
    return dict(sorted(variables.items()))


def neuron_variables(platform: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The `NEURON_*` variables that change what neuronx-cc makes, in normal form; none on another platform.

    `NEURON_CC_FLAGS` is brought into normal form. Run-time and per-process variables are left out. Every other
    `NEURON_*` variable counts verbatim, because an unknown one may matter.
    """
    if platform.lower() != "neuron":
        return {}
    variables = _beginning_with("NEURON_", environ, ignored=_NEURON_IGNORED)
    variables.pop("NEURON_CC_FLAGS", None)
    if tokens := _canonical_neuron_flags(environ.get("NEURON_CC_FLAGS", "")):
        variables["NEURON_CC_FLAGS"] = _lines(tokens)
    return dict(sorted(variables.items()))


def _beginning_with(prefix: str, environ: Mapping[str, str], *, ignored: str) -> dict[str, str]:
    """The variables whose names begin so, and with none of the ignored beginnings."""
    beginnings = tuple(ignored.split())
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(prefix) and value and not name.startswith(beginnings)
    }


def _lines(tokens: tuple[str, ...]) -> str:
    # A token may contain spaces (a quoted value), but never a line break.
    return "\n".join(tokens)


def _canonical_neuron_flags(text: str) -> tuple[str, ...]:
    """neuronx-cc options: the known ones by name, then the unknown ones, verbatim and in order."""
    if any(mark in text for mark in "'\"\\"):
        return (text,)
    words = text.split()
    known: dict[str, str] = {}
    unknown: list[str] = []
    at = 0
    while at < len(words):
        name, separator, value = words[at].partition("=")
        at += 1
        if name[:2] == "-O" and not separator and name[2:].isdigit():
            name, separator, value = "--optlevel", "=", name[2:]
        name = _NEURON_SHORT.get(name, name)
        kind = _NEURON.get(name)
        takes_value = kind in (_NeuronKind.SCALAR, _NeuronKind.DROPPED)
        if takes_value and not separator and at < len(words) and not words[at].startswith("-"):
            separator, value = "=", words[at]
            at += 1
        if (kind is _NeuronKind.DROPPED and separator) or kind is _NeuronKind.DROPPED_SWITCH:
            continue
        if takes_value and separator:
            known[name] = f"{name}={value}"
        elif kind is _NeuronKind.SWITCH and not separator:
            known[name] = name
        elif any(full.startswith(name) and full != name for full in _NEURON):
            # argparse accepts the beginning of an option's name, so the order of all of them may matter.
            return tuple(words)
        else:
            unknown.append(f"{name}{separator}{value}")
    return (*(known[name] for name in sorted(known)), *unknown)
