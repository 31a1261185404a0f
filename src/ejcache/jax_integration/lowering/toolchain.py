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
from typing import Final

import jaxlib.version

from ejcache.keys.environment import cpu_features, library_digest, native_files
from ejcache.settings.directories import state_directory
from ejcache.settings.environment import environment_variable
from ejcache.util.log import log
from ejcache.util.threads import cores, submit

__all__ = ["cpu_identity", "cpu_threads", "native_libraries", "native_library_files", "read_libraries_ahead"]

_PLUGINS: Final = (
    "jax_cuda12_plugin",
    "jax_cuda13_plugin",
    "jax_rocm60_plugin",
    "jax_rocm7_plugin",
    "libtpu",
    "libneuronxla",
)
"""Packages of plug-ins outside the `jax_plugins` namespace."""

_COMPILERS: Final = ("nvidia-cudnn", "nvidia-cublas", "nvidia-cuda-nvcc", "nvidia-nvjitlink", "neuronx-cc", "triton")
"""Beginnings of the names of distributions whose programs and libraries take part in compiling. They have hundreds of
megabytes, so their versions are used instead of their content."""


@cache
def native_libraries(platform: str) -> str:
    """Digest of the native libraries that compile for `platform`, by content; computed once in a process.

    The digests of single files are stored on disk, by inode, size and times, so that a start does not read hundreds of
    megabytes.
    """
    digest = library_digest(native_library_files(platform), memo=_memo())
    versions = [] if platform == "cpu" else _compiler_versions()
    return hashlib.sha256("\n".join([digest, *versions]).encode()).hexdigest()


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
    """The files behind `native_libraries`: those of jaxlib and, unless the platform is CPU, of every plug-in."""
    files = list(native_files(Path(jaxlib.__file__).parent))
    if platform == "cpu":
        return files
    for directory in _plugin_directories():
        files += native_files(directory)
    named = [environment_variable("TPU_LIBRARY_PATH") or ""]
    # "name:path,name:path", where a name may be missing.
    named += [
        part.partition(":")[2] for part in (environment_variable("PJRT_NAMES_AND_LIBRARY_PATHS") or "").split(",")
    ]
    files += [Path(path) for path in named if path and Path(path).is_file()]
    return files


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


def _plugin_directories() -> list[str]:
    names = list(_PLUGINS)
    namespace = importlib.util.find_spec("jax_plugins")
    if namespace is not None and namespace.submodule_search_locations is not None:
        names += [f"jax_plugins.{info.name}" for info in pkgutil.iter_modules(namespace.submodule_search_locations)]
    directories: list[str] = []
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            directories += list(spec.submodule_search_locations)
    return directories


def _compiler_versions() -> list[str]:
    return sorted(
        f"{name}=={distribution.version}"
        for distribution in importlib.metadata.distributions()
        if (name := (distribution.metadata["Name"] or "").lower()).startswith(_COMPILERS)
    )
