"""What a command says, without an import of JAX, of a host that compiles for its CPU alone."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import jaxlib.version

from ejcache.jax_integration.lowering.platform_toolchain import cpu_identity, cpu_threads, native_libraries
from ejcache.jax_integration.lowering.plugins import PLUGINS, finds_nothing, packages_in_namespace
from ejcache.keys.environment_variables import compile_variables, read_flags_file
from ejcache.keys.library_reading import content_digest
from ejcache.settings.environment import all_variables, environment_variable


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


def components_of_cpu() -> dict[str, str]:
    """Make the components of keys of programs that this host compiles for its CPU, but those of its devices."""
    variables = all_variables()
    said = compile_variables("cpu", variables, flags_files=read_flags_file(variables), content=content_digest)
    found = {
        "jaxlib": str(jaxlib.version.__version__),
        "native_libraries": native_libraries("cpu"),
        "variables": "\n".join(f"{name}={value}" for name, value in said.items()),
        "cpu": cpu_identity(),
    }
    return found | ({"threads": cpu_threads()} if cpu_threads() else {})
