"""Gives what JAX's own key of a program has, as far as ours needs it. A part of the seam."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jaxlib.version
from jax._src import cache_key as jax_cache_key
from jax._src.lib import xla_client
from jaxlib.mlir import ir

if TYPE_CHECKING:
    from collections.abc import Sequence


def jaxlib_version() -> str:
    """Return the version of jaxlib as JAX's own key has it."""
    return str(jaxlib.version.__version__)


def module_name(module: Any) -> str:
    """Return the module's symbol name, `jit_train_step`."""
    return str(ir.StringAttr(module.operation.attributes["sym_name"]).value)


def serialized_options(options: Any) -> bytes:
    """Return the compile options as JAX's own key has them, the device assignment put in order on every platform.

    JAX strips the assignment on GPU only; elsewhere a rank's own device ids kept it from every other rank's entries.
    """
    collected: list[bytes] = []
    collector = SimpleNamespace(update=collected.append)
    jax_cache_key._hash_serialized_compile_options(collector, options, strip_device_assignment=True)
    return b"".join(collected)


def extra_flag_prefixes() -> tuple[str, ...]:
    """Return beginnings of command line arguments that a user has added to the key."""
    return tuple(jax_cache_key.get_flag_prefixes())


def topology_bytes(devices: Sequence[Any]) -> bytes | None:
    """Return the serialised topology of `devices`, where this jaxlib gives it (0.11 and later)."""
    asked = getattr(xla_client, "get_topology_for_devices", None)
    serialize = getattr(asked(devices), "serialize", None) if asked is not None else None
    return bytes(serialize()) if serialize is not None else None


def custom_hook() -> str:
    """Call the hook by which a user adds a text to every key."""
    return str(jax_cache_key.custom_hook())
