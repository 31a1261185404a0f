"""The tool chain by content: the native libraries behind JAX, and the CPU that host code is compiled for.

The version of jaxlib is not enough: a jaxlib that somebody built, or a library that was replaced in place, has the same
version. A warm cache then gave code that crashed, or code of another compiler.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import pkgutil
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import jaxlib.version

from ejcache.keys.environment import cpu_features, library_digest, native_files
from ejcache.settings.directories import state_directory
from ejcache.settings.environment import environment_variable
from ejcache.util.log import log
from ejcache.util.threads import cores, submit

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "cpu_identity",
    "cpu_threads",
    "former_native_libraries",
    "native_libraries",
    "native_library_files",
    "read_libraries_ahead",
]

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

_EVERYTHING: Final = "every platform"
"""In place of a platform: what was counted for every one but CPU before the others were told apart."""


@cache
def native_libraries(platform: str) -> str:
    """Digest of the native libraries that compile for `platform`, by content; computed once in a process.

    The digests of single files are stored on disk, by inode, size and times, so that a start does not read hundreds of
    megabytes.
    """
    digest = library_digest(native_library_files(platform), memo=_memo())
    versions = [] if platform == "cpu" else _compiler_versions(platform)
    return hashlib.sha256("\n".join([digest, *versions]).encode()).hexdigest()


def former_native_libraries() -> str:
    """What an earlier version took for the native libraries of every platform but CPU."""
    return native_libraries(_EVERYTHING)


def read_libraries_ahead() -> None:
    """Have jaxlib's part of `native_libraries` computed in the background, if there is none on disk yet.

    Reading jaxlib takes a quarter of a second, or seconds on a cold disk: on a new host, and in each new container. The
    program imports its libraries and makes its backend meanwhile.
    """
    if not os.path.exists(_memo()):  # noqa: PTH110 (pathlib raises an error if the directory cannot be searched)
        submit(_read_jaxlib)


def _read_jaxlib() -> None:
    try:
        native_libraries("cpu")  # those of jaxlib, which are a part of every other platform's
    except OSError as exc:
        log.debug("ejcache: jaxlib is read again when its digest is needed: %s", exc)


def _memo() -> Path:
    return state_directory() / "libraries.json"


def native_library_files(platform: str) -> list[Path]:
    """The files behind `native_libraries`: those of jaxlib and, unless the platform is CPU, of its plug-in."""
    files = list(native_files(Path(jaxlib.__file__).parent))
    if platform == "cpu":
        return files
    for name in _plugins(platform):
        spec = importlib.util.find_spec(name)
        for directory in (spec and spec.submodule_search_locations) or ():
            files += native_files(directory)
    # "name:path,name:path", where a name may be missing.
    named = [part.split(":", 1) for part in (environment_variable("PJRT_NAMES_AND_LIBRARY_PATHS") or "").split(",")]
    paths = [part[-1] for part in named if len(part) > 1 and (not part[0] or _is_of(part[0], platform))]
    if _is_of("tpu", platform):
        paths.append(environment_variable("TPU_LIBRARY_PATH") or "")
    return files + [Path(path) for path in paths if path and Path(path).is_file()]


@cache
def cpu_identity() -> str:
    """The CPU of this host as code generators see it."""
    return hashlib.sha256(cpu_features().encode()).hexdigest()


@cache
def cpu_threads() -> str:
    """What decides how jaxlib before 0.11 splits a CPU program's loops; empty for newer versions."""
    if jaxlib.version.__version_info__ >= (0, 11):
        return ""
    # XLA does not split the loops if it has one thread or one core.
    return f"{cores()} cores, NPROC={environment_variable('NPROC') or ''}"


def _plugins(platform: str) -> list[str]:
    """The packages of plug-ins that may compile for `platform`."""
    names = list(_PLUGINS)
    namespace = importlib.util.find_spec("jax_plugins")
    if namespace is not None and namespace.submodule_search_locations is not None:
        names += [f"jax_plugins.{info.name}" for info in pkgutil.iter_modules(namespace.submodule_search_locations)]
    return [name for name in names if _is_of(name, platform)]


def _families(name: str) -> set[str]:
    """The known platforms that a name belongs to: JAX says `gpu` for two of them. Of any other name, "" alone."""
    if name == "gpu":
        return {"cuda", "rocm"}
    return {family for family in _COMPILERS if family and family in name} or {""}


def _is_of(name: str, platform: str) -> bool:
    """Whether the plug-in of this name may compile for `platform`."""
    return platform == _EVERYTHING or bool(_families(name) & _families(platform)) or _families(platform) == {""}


def _compiler_versions(platform: str) -> list[str]:
    families = set(_COMPILERS) if platform == _EVERYTHING or _families(platform) == {""} else _families(platform)
    beginnings = tuple(beginning for family in families for beginning in _COMPILERS[family])
    return sorted(
        f"{name}=={distribution.version}"
        for distribution in (importlib.metadata.distributions() if beginnings else ())
        if (name := (distribution.metadata["Name"] or "").lower()).startswith(beginnings)
    )
