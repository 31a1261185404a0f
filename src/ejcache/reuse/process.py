"""What a program depends on of this process, whatever function is asked for: JAX, the devices, what is installed.

Also whether this start is the one in twenty that traces everything and compares.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import secrets
import sys
from typing import Any, Final

import jax
import jaxlib

from ejcache.jax_integration.lowering.key import KEY_FORMAT
from ejcache.reuse.sources import is_younger_than_process
from ejcache.settings.environment import environment_variable
from ejcache.util.distributions import distributions_in

_CHECK_ONE_IN: Final = 20
"""One start in so many traces although it could reuse, and compares."""
_EGG: Final = ".egg-info"
_DIST: Final = ".dist-info"


def number(variable: str, default: float) -> float:
    """Read a number from a variable of ours that stands in for a constant."""
    try:
        return float(environment_variable(variable) or default)
    except ValueError:
        return default


@functools.cache
def is_drawn() -> bool:
    """True if this start traces everything and compares. In a job of several processes, rank 0 draws for all."""
    one_in = checks_one_in()
    # Not `random`, whose state belongs to the user.
    return jax.process_index() == 0 and one_in > 0 and secrets.randbelow(one_in) == 0


def checks_one_in() -> int:
    """Return in how many starts one compares; 0 for never."""
    return int(number("EJCACHE_REUSE_CHECK_ONE_IN", _CHECK_ONE_IN))


def machine(backend: Any) -> list[Any]:
    """Describe the devices, the processes of the job, and what Python and JAX are.

    Args:
        backend: the PJRT client that programs are compiled for.
    """
    devices = [
        [
            device.platform,
            device.device_kind,
            device.id,
            device.process_index,
            list(map(int, getattr(device, "coords", ()) or ())),
            str(getattr(device, "slice_index", None)),
        ]
        for device in backend.devices()
    ]
    python = (sys.version, sys.flags.optimize, platform.machine())
    versions = (*python, jax.__version__, jaxlib.__version__, KEY_FORMAT)
    return [devices, jax.process_index(), jax.process_count(), str(backend.platform_version), list(map(str, versions))]


def distributions() -> str:
    """Return a digest of the names and versions of all that is installed where this process looks for modules."""
    return _distributions(tuple(sys.path))


@functools.lru_cache(maxsize=16)
def _distributions(search: tuple[str, ...]) -> str:
    found = hashlib.sha256()
    for directory in dict.fromkeys(search):
        for each in distributions_in(directory or "."):
            found.update(f"{each.name} {each.version}\n".encode("utf-8", "surrogatepass"))
        for name in _entries(directory, _EGG):
            found.update(f"{name} {_egg_version(os.path.join(directory, name))}\n".encode("utf-8", "surrogatepass"))  # noqa: PTH118
    return found.hexdigest()


def _entries(directory: str, ending: str) -> list[str]:
    try:
        return sorted(each for each in os.listdir(directory or ".") if each.endswith(ending))  # noqa: PTH208
    except OSError:
        return []


def _egg_version(path: str) -> str:
    """Return a digest of the metadata of an old installation, which often has no version in its name."""
    for file in (path, os.path.join(path, "PKG-INFO")):  # noqa: PTH118
        try:
            with open(file, "rb") as opened:  # noqa: PTH123
                return hashlib.sha256(opened.read()).hexdigest()
        except OSError:
            continue
    return ""


def why_packages_changed() -> str:
    """Say that something was installed after this process began, as the end of a sentence; empty if nothing was."""
    for directory in sys.path:
        try:
            # An installation changes the directory; only then is there anything to look for in it.
            if not is_younger_than_process(os.stat(directory or ".")):  # noqa: PTH116
                continue
            for name in _entries(directory, _DIST):
                if is_younger_than_process(os.stat(os.path.join(directory, name))):  # noqa: PTH116, PTH118
                    return f"{name.removesuffix(_DIST)} was installed after the process began"
        except OSError:
            continue
    return ""
