"""The signature of a call: what JAX looks at before it traces, as JSON that is equal in any process.

    signature := an object of:
      version      2
      name         of the function
      leaves       a list of texts, one for each leaf: "float32[3,4]" and what follows
                     "~" for a weak type, " @2" for an argument that is bound to a place: the number in `places`
      places       a list of [sharding, layout]; see `shardings`, layout := null | [[axis, …], tiles, bits]
      names        of the arguments that were given by keyword, in their order
      statics      [position | name, …] of the static arguments
      devices      [[kind, how many], …] of the backend, in the order of its devices

The trees of the arguments, static arguments, options of `jax.jit` and JAX's settings are described with the function.
NumPy arrays, Python's numbers, and arrays that are bound to no device are one class: JAX compiles the same for them.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from jax.experimental.layout import Layout

from ejcache.direct.object_names import type_name
from ejcache.jax_integration.seam.direct.fastpath import key_type_name, leaf_aval
from ejcache.jax_integration.seam.direct.refusal import RefusedError

if TYPE_CHECKING:
    from ejcache.direct.call.shardings import Devices
    from ejcache.jax_integration.seam.direct.fastpath import ParsedCall

__all__ = ["argument_names", "call_signature", "encode_layout"]

_VERSION: Final = 2


def call_signature(call: ParsedCall, devices: Devices) -> str:
    """The signature of a call, as a text.

    Args:
        call: for which `why_plain` has found no reason.
        devices: of JAX's default backend.

    Raises:
        RefusedError: an argument has no description.
    """
    places = _Places(devices)
    document = {
        "version": _VERSION,
        "name": str(getattr(call.jitted, "__name__", "")),
        "leaves": [places.leaf_text(leaf) for leaf in call.leaves],
        "places": places.written,
        "names": list(call.names),
        "statics": [*call.static_positions, *call.static_names],
        "devices": _kinds(devices.backend),
    }
    return json.dumps(document, separators=(",", ":"))


def argument_names(call: ParsedCall) -> list[str]:
    """The names of the arguments whose trees a call has, in the order of the trees."""
    count = len(call.trees) - len(call.names) + len(call.static_positions)
    dynamic = [number for number in range(count) if number not in call.static_positions]
    return [f"argument {name}" for name in (*dynamic, *call.names)]


# -- leaves --------------------------------------------------------------------------------------------------------


class _Places:
    """The places that arguments are bound to, numbered in the order of the arguments."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._usual_memory = _default_memory(devices.backend)
        self._numbers: dict[Any, int] = {}
        self.written: list[Any] = []

    def leaf_text(self, leaf: Any) -> str:
        try:
            text = _aval_text(leaf_aval(leaf))
        except (TypeError, OverflowError) as exc:
            raise RefusedError(f"an argument is a {type_name(leaf)}, which JAX takes for no array") from exc
        committed = getattr(leaf, "committed", None)
        if committed is None:
            return text
        sharding = leaf.sharding
        if not committed:
            if sharding.num_devices == 1 and sharding.memory_kind in self._usual_memory:
                return text
            raise RefusedError("an argument is bound to no device, and yet on several or in another memory")
        return f"{text} @{self._number(sharding, leaf)}"

    def _number(self, sharding: Any, leaf: Any) -> int:
        layout = getattr(leaf.format, "layout", None)
        key = (sharding, layout)
        if key not in self._numbers:
            self._numbers[key] = len(self.written)
            self.written.append([self._devices.encode(sharding), encode_layout(layout)])
        return self._numbers[key]


@functools.lru_cache(maxsize=8)
def _default_memory(backend: Any) -> frozenset[str | None]:
    return frozenset({None, backend.local_devices()[0].default_memory().kind})


@functools.lru_cache(maxsize=1024)
def _aval_text(aval: Any) -> str:
    sizes = ",".join(map(str, aval.shape))
    return f"{_dtype_text(aval.dtype)}[{sizes}]{'~' if aval.weak_type else ''}"


def _dtype_text(dtype: Any) -> str:
    """The name of a type of elements; keys by the name of their implementation."""
    if isinstance(dtype, np.dtype):
        return str(dtype.name)
    name = key_type_name(dtype)
    if name is None:
        raise RefusedError(f"an argument is of {dtype}, whose implementation JAX does not know by name")
    return f"key<{name}>"


def encode_layout(layout: Any) -> Any:
    """A layout of an array in memory; None for the default one.

    Raises:
        RefusedError: it is left to the compiler.
    """
    if layout is None:
        return None
    if not isinstance(layout, Layout):
        raise RefusedError("a layout is left to the compiler")
    tiles = None if layout.tiling is None else [list(map(int, tile)) for tile in layout.tiling]
    return [list(map(int, layout.major_to_minor)), tiles, int(layout.sub_byte_element_size_in_bits)]


def _kinds(backend: Any) -> list[list[Any]]:
    kinds: list[list[Any]] = []
    for device in backend.devices():
        kind = f"{device.platform} {device.device_kind}"
        if kinds and kinds[-1][0] == kind:
            kinds[-1][1] += 1
        else:
            kinds.append([kind, 1])
    return kinds
