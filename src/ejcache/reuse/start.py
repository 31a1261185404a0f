"""Describes this start: its devices and versions, and whether it traces everything to check what is stored.

One start in twenty traces everything that it could reuse, and compares it with what is stored.
"""

from __future__ import annotations

import functools
import platform
import secrets
import sys
from typing import Any, Final

import jax
import jaxlib

from ejcache.jax_integration.lowering.key import KEY_FORMAT
from ejcache.settings.environment import environment_number

_CHECK_ONE_IN: Final = 20
"""One start in so many traces although it could reuse, and compares."""


@functools.cache
def is_drawn() -> bool:
    """True if this start traces everything and compares. In a job of several processes, rank 0 draws for all."""
    one_in = checks_one_in()
    # Not `random`, whose state belongs to the user.
    return jax.process_index() == 0 and one_in > 0 and secrets.randbelow(one_in) == 0


def checks_one_in() -> int:
    """Return in how many starts one compares; 0 for never."""
    return int(environment_number("EJCACHE_REUSE_CHECK_ONE_IN", _CHECK_ONE_IN))


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
