"""What a test may need of the machine that it runs on: one table, each row asked once, for every skip of the suite."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CAPABILITIES", "needs", "require", "why_not"]


def _installed(*modules: str) -> Callable[[], str]:
    return lambda: "".join(f"{name} is not installed" for name in modules if find_spec(name) is None)


def _command(name: str) -> Callable[[], str]:
    return lambda: "" if shutil.which(name) else f"{name} is not installed"


def _why_no_root() -> str:
    return "" if hasattr(os, "geteuid") and os.geteuid() == 0 else "only root can become another user"


def _why_no_fork() -> str:
    return "" if hasattr(os, "fork") else "this platform has no fork"


def _why_no_linux() -> str:
    return "" if sys.platform == "linux" else "it is about Linux"


def _why_no_mount() -> str:
    name_space = ["--mount"] if not _why_no_root() else ["--map-root-user", "--mount"]
    command = ["unshare", *name_space, "mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", "/mnt"]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except OSError as exc:
        return f"unshare cannot be started: {exc}"
    return "" if tried.returncode == 0 else f"no tmpfs can be mounted here: {tried.stderr.strip()}"


def _why_no_saved_topologies() -> str:
    from jax.experimental import topologies

    return "" if hasattr(topologies.TopologyDescription, "serialize") else "this JAX saves no topologies"


def _why_no_cuda_plugin() -> str:
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    return "" if any(find_spec(name) for name in plugins) else "the plug-in of CUDA is not installed"


def _why_an_accelerator() -> str:
    found = [path for path in ("/dev/nvidiactl", "/dev/accel0") if Path(path).exists()]
    return f"this host has an accelerator: {found[0]}" if found else ""


def _why_no_ejkernel() -> str:
    return "" if find_spec("ejkernel") else "ejkernel is not installed (it supports JAX 0.10 only)"


def _why_no_azure() -> str:
    from azurite import why_no_azure

    return why_no_azure()


CAPABILITIES: Final[dict[str, Callable[[], str]]] = {
    "root": _why_no_root,
    "fork": _why_no_fork,
    "linux": _why_no_linux,
    "mount": _why_no_mount,
    "setpriv": _command("setpriv"),
    "rsync": _command("rsync"),
    "chromium": _command("chromium"),
    "C compiler": _command("cc"),
    "azure": _why_no_azure,
    "s3": _installed("s3fs", "moto"),
    "adlfs": _installed("adlfs"),
    "absl": _installed("absl"),
    "ejkernel": _why_no_ejkernel,
    "flatbuffers": _installed("flatbuffers"),
    "hatchling": _installed("hatchling", "pip"),
    "joblib": _installed("joblib"),
    "notebooks": _installed("nbclient", "ipykernel"),
    "xdist": _installed("xdist"),
    "libtpu": _installed("libtpu"),
    "CUDA's plug-in": _why_no_cuda_plugin,
    "no accelerator": _why_an_accelerator,
    "saved topologies": _why_no_saved_topologies,
}
"""Of each capability what says why it is absent; an empty text means that it is there."""


@cache
def why_not(name: str) -> str:
    """Why this capability is absent, or nothing."""
    return CAPABILITIES[name]()


def needs(*names: str) -> pytest.MarkDecorator:
    """A mark for what can run only where all of these are."""
    missing = [why_not(name) for name in names if why_not(name)]
    return pytest.mark.skipif(bool(missing), reason="; ".join(missing))


def require(*names: str) -> None:
    """Skip the test that calls this, or whose fixture does, where one of these is absent."""
    for name in names:
        if why_not(name):
            pytest.skip(why_not(name))
