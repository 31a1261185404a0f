"""What compiles, by content: the native libraries behind JAX, and the CPU that host code is made for.

jaxlib's version says nothing about a build of one's own, nor about a library that was exchanged in place; both gave
other programs' code, or a crash, from a warm cache.
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
from ejcache.settings import environment, state_directory

__all__ = ["cpu_identity", "cpu_threads", "native_libraries", "native_library_files"]

_PLUGINS: Final = (
    "jax_cuda12_plugin",
    "jax_cuda13_plugin",
    "jax_rocm60_plugin",
    "jax_rocm7_plugin",
    "libtpu",
    "libneuronxla",
)
"""Packages of plug-ins that lie outside the `jax_plugins` namespace."""

_COMPILERS: Final = ("nvidia-cudnn", "nvidia-cublas", "nvidia-cuda-nvcc", "nvidia-nvjitlink", "neuronx-cc", "triton")
"""Distributions whose programs and libraries take part in compiling, by the beginning of their names. They have
hundreds of megabytes, so that their versions stand for them."""


@cache
def native_libraries(platform: str) -> str:
    """Digest of the native libraries that compile for `platform`, by content; computed once in a process.

    The digests of single files are remembered on disk, by inode, size and times, so that a start does not read
    hundreds of megabytes.
    """
    digest = library_digest(native_library_files(platform), memo=state_directory() / "libraries.json")
    versions = [] if platform == "cpu" else _compiler_versions()
    return hashlib.sha256("\n".join([digest, *versions]).encode()).hexdigest()


def native_library_files(platform: str) -> list[Path]:
    """The files that `native_libraries` takes into account: jaxlib's, and of every plug-in unless for CPU."""
    files = list(native_files(Path(jaxlib.__file__).parent))
    if platform == "cpu":
        return files
    for place in _plugin_places():
        files += native_files(place)
    named = [environment().get("TPU_LIBRARY_PATH", "")]
    # "name:path,name:path", and a name may lack.
    named += [part.partition(":")[2] for part in environment().get("PJRT_NAMES_AND_LIBRARY_PATHS", "").split(",")]
    files += [Path(path) for path in named if path and Path(path).is_file()]
    return files


@cache
def cpu_identity() -> str:
    """The CPU of this host as code generators see it."""
    return hashlib.sha256(cpu_features().encode()).hexdigest()


@cache
def cpu_threads() -> str:
    """What jaxlib before 0.11 goes by when it cuts a CPU program's loops into parts; empty where it no longer does."""
    if jaxlib.version.__version_info__ >= (0, 11):
        return ""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count()
    # What XLA does with both is its own affair: the loops stay whole with one thread or one core.
    return f"{cores} cores, NPROC={environment().get('NPROC', '')}"


def _plugin_places() -> list[str]:
    names = list(_PLUGINS)
    namespace = importlib.util.find_spec("jax_plugins")
    if namespace is not None and namespace.submodule_search_locations is not None:
        names += [f"jax_plugins.{info.name}" for info in pkgutil.iter_modules(namespace.submodule_search_locations)]
    places: list[str] = []
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            places += list(spec.submodule_search_locations)
    return places


def _compiler_versions() -> list[str]:
    return sorted(
        f"{name}=={distribution.version}"
        for distribution in importlib.metadata.distributions()
        if (name := (distribution.metadata["Name"] or "").lower()).startswith(_COMPILERS)
    )
