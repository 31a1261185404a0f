"""The tool chain of a platform: the native libraries behind JAX, by content, and the CPU that host code is made for.

The version of jaxlib is not enough: a jaxlib that somebody built, or a library that was replaced in place, has the same
version. A warm cache then gave code that crashed, or code of another compiler.

Nothing here imports JAX, which takes seconds: a command asks, too, what this host can load.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from typing import TYPE_CHECKING, Final

import jaxlib.version

from ejcache.keys.toolchain import LibraryDigests, cpu_features, native_files
from ejcache.settings.directories import state_directory
from ejcache.settings.environment import environment_variable
from ejcache.util.log import log
from ejcache.util.threads import submit

if TYPE_CHECKING:
    from pathlib import Path

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
        from ejcache.jax_integration.lowering.plugins import compiler_versions

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
            from ejcache.jax_integration.lowering.plugins import usable_libraries

            library_digests.digest_of(usable_libraries(chosen), memo=_memo())
    except OSError as exc:
        log.debug("ejcache: native libraries are read again when their digests are needed: %s", exc)


def _memo() -> Path:
    return state_directory() / "libraries.json"


def native_library_files(platform: str) -> list[str]:
    """Return the files behind `native_libraries`: those of jaxlib and, unless the platform is CPU, of its plug-in."""
    files = native_files(os.path.dirname(jaxlib.__file__))  # noqa: PTH120 (a text, as the files)
    if platform == "cpu":
        return files
    from ejcache.jax_integration.lowering.plugins import plugin_libraries

    return files + plugin_libraries(platform)


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
