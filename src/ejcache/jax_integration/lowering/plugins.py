"""Finds the installed plug-ins of JAX: their directories, libraries and compilers, and whether one finds a device here.

Nothing here imports JAX, which takes seconds: a command asks, too, what this host can load.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.settings.environment import environment_variable
from ejcache.util.dist_info import installed_packages

if TYPE_CHECKING:
    from collections.abc import Mapping

PLUGINS: Final = (
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


def plugin_directories(platform: str, *, usable: bool = False) -> list[str]:
    """Return the directories of the packages of plug-ins that may compile for `platform`.

    Args:
        platform: as JAX names it.
        usable: only those that may find a device here.
    """
    names = [name for name in _plugins(platform) if not (usable and finds_nothing(name))]
    specs = [importlib.util.find_spec(name) for name in names]
    return [place for spec in specs if spec is not None for place in spec.submodule_search_locations or ()]


def named_libraries(platform: str) -> list[str]:
    """Return the libraries of plug-ins for `platform` that environment variables name."""
    # "name:path,name:path", where a name may be missing.
    named = [part.split(":", 1) for part in (environment_variable("PJRT_NAMES_AND_LIBRARY_PATHS") or "").split(",")]
    paths = [part[-1] for part in named if len(part) > 1 and (not part[0] or _is_of(part[0], platform))]
    if _is_of("tpu", platform):
        paths.append(environment_variable("TPU_LIBRARY_PATH") or "")
    return [path for path in paths if path and Path(path).is_file()]


def _plugins(platform: str) -> list[str]:
    """Return the packages of plug-ins that may compile for `platform`."""
    names = [*PLUGINS, *(f"jax_plugins.{name}" for name in packages_in_namespace())]
    return [name for name in names if _is_of(name, platform)]


def packages_in_namespace() -> list[str]:
    """Return the names of the plug-ins in the namespace `jax_plugins`."""
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


def compiler_versions(platform: str) -> list[str]:
    """Return names and versions of the distributions that take part in compiling for `platform`, `name==version`."""
    families = set(_COMPILERS) if _families(platform) == {""} else _families(platform)
    beginnings = tuple(beginning for family in families for beginning in _COMPILERS[family])
    return sorted({f"{name}=={version}" for name, version in installed_packages(beginnings)}) if beginnings else []


def finds_nothing(plugin: str) -> bool:
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


def has_cpu_alone() -> bool:
    """True if JAX compiles for the CPU here, because no plug-in can find a device, or because a variable says so."""
    chosen = environment_variable("JAX_PLATFORMS") or environment_variable("JAX_PLATFORM_NAME")
    if chosen:
        return chosen.strip().lower() == "cpu"
    if environment_variable("PJRT_NAMES_AND_LIBRARY_PATHS"):
        return False
    points = {point.name for point in importlib.metadata.entry_points(group="jax_plugins")}
    installed = {name for name in PLUGINS if importlib.util.find_spec(name) is not None}
    return all(finds_nothing(name) for name in {*points, *installed, *packages_in_namespace()} - {"ejcache"})
