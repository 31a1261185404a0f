"""The machine: the devices, the processes of the job, and what Python and JAX are."""

from __future__ import annotations

import json
import os
import platform
import sys
from typing import Any

import jax
import jaxlib


def machine(backend: Any) -> dict[str, str]:
    """Describe all of the machine that a program may depend on, by name.

    Args:
        backend: the PJRT client that programs are compiled for.
    """
    devices = [
        [
            device.platform,
            device.device_kind,
            device.id,
            device.process_index,
            list(getattr(device, "coords", ()) or ()),
            getattr(device, "slice_index", None),
        ]
        for device in backend.devices()
    ]
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "devices": json.dumps(devices, default=str),
        "processes": f"{jax.process_index()} of {jax.process_count()}",
        "platform version": str(backend.platform_version),
        "processors": f"{len(affinity(0)) if affinity is not None else os.cpu_count()} of {os.cpu_count()}",
        "python": f"{sys.version} {platform.machine()}",
        "jax": f"{jax.__version__} {jaxlib.__version__}",
    }
