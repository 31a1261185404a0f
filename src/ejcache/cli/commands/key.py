"""`ejcache key`: a name for what a host can load, by which CI keeps archives."""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path
from typing import Annotated

from ejcache.cli import output
from ejcache.cli.chosen_cache import command_settings
from ejcache.cli.options import Dir, Json, option
from ejcache.errors import UsageError
from ejcache.jax_integration.lowering.plugins import has_cpu_alone

_DIGITS = 16


def key(
    lock: Annotated[
        list[str] | None,
        option("--lock", "FILE", "A file whose content changes the text, such as a lock file; may be repeated."),
    ] = None,
    directory: Dir = None,
    as_json: Json = False,
) -> None:
    """Print a text for the name of an archive in CI, such as `ejcache-linux-$(ejcache key)`.

    The text changes with what decides whether this host can load the programs of another host: the versions of JAX and
    jaxlib, the plug-in and native libraries, the flags and environment variables that change compiled code, and the
    accelerators, or without accelerators the kind of CPU. It also changes with the setting namespace and the content of
    --lock.
    """
    settings = command_settings(directory)
    files = {path: _digest(path) for path in lock or ()}
    name, parts = _host()
    parts |= {"jax": importlib.metadata.version("jax"), "namespace": settings.namespace}
    # The names of the files are a matter of each checkout.
    said = [*sorted(parts.items()), *sorted(("lock", digest) for digest in files.values())]
    text = f"{name}-{hashlib.sha256(repr(said).encode()).hexdigest()[:_DIGITS]}"
    if as_json:
        output.print_json({"key": text, "components": parts, "locks": files})
    else:
        output.say(text)


def _host() -> tuple[str, dict[str, str]]:
    """Return the platform that JAX compiles for here, and what decides what it can load."""
    from ejcache.jax_integration.lowering.host_cpu import components_of_cpu  # JAX itself

    # Without an import of JAX, which takes longer than all other commands of a job in CI.
    name = "cpu"
    if not has_cpu_alone():
        from ejcache.jax_integration.devices.targets import components_here  # JAX itself
        from ejcache.jax_integration.warm_start import platform  # JAX itself

        name = platform()
        if name != "cpu":
            return name, components_here(name, with_devices=True)
    return name, components_of_cpu()


def _digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as exc:
        raise UsageError(f"--lock {path}: the file cannot be read: {exc.strerror or exc}") from exc
