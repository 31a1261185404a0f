"""The tool chain of a platform: the native libraries behind JAX, by content, and the CPU that host code is made for.

The version of jaxlib is not enough: a jaxlib that somebody built, or a library that was replaced in place, has the same
version. A warm cache then gave code that crashed, or code of another compiler.

Nothing here imports JAX, which takes seconds: a command asks, too, what this host can load.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import pkgutil
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import jaxlib.version

from ejcache.keys.environment_variables import compile_variables, read_flags_file
from ejcache.keys.toolchain import LibraryDigests, cpu_features, native_files
from ejcache.settings.directories import state_directory
from ejcache.settings.environment import all_variables, environment_variable
from ejcache.util.log import log
from ejcache.util.threads import submit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


_PLUGINS: Final = (
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

library_digests: Final = LibraryDigests()
"""What this process knows of the content of its native libraries."""


@cache
def native_libraries(platform: str) -> str:
    """Digest of the native libraries that compile for `platform`, by content; computed once in a process.

    The digests of single files are stored on disk, by inode, size and times, so that a start does not read hundreds of
    megabytes.
    """
    digest = library_digests.digest_of(native_library_files(platform), memo=_memo())
    versions = [] if platform == "cpu" else _compiler_versions(platform)
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
            library_digests.digest_of(_libraries_of(filter(_may_be_used, _plugins(chosen))), memo=_memo())
    except OSError as exc:
        log.debug("ejcache: native libraries are read again when their digests are needed: %s", exc)


def _may_be_used(plugin: str) -> bool:
    return not _finds_nothing(plugin)


def _memo() -> Path:
    return state_directory() / "libraries.json"


def native_library_files(platform: str) -> list[str]:
    """Return the files behind `native_libraries`: those of jaxlib and, unless the platform is CPU, of its plug-in."""
    files = native_files(os.path.dirname(jaxlib.__file__))  # noqa: PTH120 (a text, as the files)
    if platform == "cpu":
        return files
    files += _libraries_of(_plugins(platform))
    # "name:path,name:path", where a name may be missing.
    named = [part.split(":", 1) for part in (environment_variable("PJRT_NAMES_AND_LIBRARY_PATHS") or "").split(",")]
    paths = [part[-1] for part in named if len(part) > 1 and (not part[0] or _is_of(part[0], platform))]
    if _is_of("tpu", platform):
        paths.append(environment_variable("TPU_LIBRARY_PATH") or "")
    return files + [path for path in paths if path and Path(path).is_file()]


def _libraries_of(packages: Iterable[str]) -> list[str]:
    files: list[str] = []
    for name in packages:
        spec = importlib.util.find_spec(name)
        for directory in (spec and spec.submodule_search_locations) or ():
            files += native_files(directory)
    return files


@cache
def cpu_identity() -> str:
    """Return the CPU of this host as code generators see it."""
    return hashlib.sha256(cpu_features().encode()).hexdigest()


@cache
def cpu_threads() -> str:
    """Name the cores and the variable by which jaxlib before 0.11 splits loops on a CPU; empty for a newer one."""
    if jaxlib.version.__version_info__ >= (0, 11):
        return ""
    from ejcache.util.cores import cores  # by an older jaxlib alone

    # XLA does not split the loops if it has one thread or one core.
    return f"{cores()} cores, NPROC={environment_variable('NPROC') or ''}"


def _plugins(platform: str) -> list[str]:
    """Return the packages of plug-ins that may compile for `platform`."""
    names = [*_PLUGINS, *(f"jax_plugins.{name}" for name in _in_namespace())]
    return [name for name in names if _is_of(name, platform)]


def _in_namespace() -> list[str]:
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


def _compiler_versions(platform: str) -> list[str]:
    families = set(_COMPILERS) if _families(platform) == {""} else _families(platform)
    beginnings = tuple(beginning for family in families for beginning in _COMPILERS[family])
    return sorted({f"{name}=={version}" for name, version in installed_packages(beginnings)}) if beginnings else []


def installed_packages(beginnings: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield name and version of each installed distribution whose name begins with one of these.

    Args:
        beginnings: of names, in small letters and with hyphens.
    """
    from ejcache.util.distributions import distributions_in  # no program of a CPU asks

    for place in dict.fromkeys(sys.path):
        for each in distributions_in(place or "."):
            if each.name.startswith(beginnings):
                yield each.name, each.version


def components_of_cpu() -> dict[str, str]:
    """Make the components of keys of programs that this host compiles for its CPU, but those of its devices."""
    from ejcache.keys.library_reading import content_digest  # a hit needs it where flags name files

    variables = all_variables()
    said = compile_variables("cpu", variables, flags_files=read_flags_file(variables), content=content_digest)
    found = {
        "jaxlib": str(jaxlib.version.__version__),
        "native_libraries": native_libraries("cpu"),
        "variables": "\n".join(f"{name}={value}" for name, value in said.items()),
        "cpu": cpu_identity(),
    }
    return found | ({"threads": cpu_threads()} if cpu_threads() else {})


def has_cpu_alone() -> bool:
    """True if JAX compiles for the CPU here, because no plug-in can find a device, or because a variable says so."""
    chosen = environment_variable("JAX_PLATFORMS") or environment_variable("JAX_PLATFORM_NAME")
    if chosen:
        return chosen.strip().lower() == "cpu"
    if environment_variable("PJRT_NAMES_AND_LIBRARY_PATHS"):
        return False
    points = {point.name for point in importlib.metadata.entry_points(group="jax_plugins")}
    installed = {name for name in _PLUGINS if importlib.util.find_spec(name) is not None}
    return all(_finds_nothing(name) for name in {*points, *installed, *_in_namespace()} - {"ejcache"})


def _finds_nothing(plugin: str) -> bool:
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
