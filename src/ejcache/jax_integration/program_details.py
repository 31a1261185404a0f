"""Collects what `ejcache why` compares besides the key: details of a compilation, and the text of its module."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import jax
from jaxlib.mlir import ir

from ejcache.history.definitions import definition_of, end_of
from ejcache.history.host_log import LARGE_CONSTANT
from ejcache.jax_integration.lowering.walking import operations_in
from ejcache.jax_integration.seam import compiling
from ejcache.jax_integration.seam.trace_settings import changed_trace_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ejcache.jax_integration.compilation import Compilation

_ELIDED: Final = "__elided__"

_EFFORTS: Final = {"9": "O0", "19": "O1", "29": "O2", "39": "O3"}
"""XLA's numbers of the levels of effort."""

_OPTIONS: Final = (
    "exec_time_optimization_effort",
    "memory_fitting_effort",
    "memory_fitting_level",
    "num_partitions",
    "num_replicas",
    "optimization_level",
    "use_auto_spmd_partitioning",
    "use_shardy_partitioner",
    "use_spmd_partitioning",
)


def notes(compilation: Compilation) -> dict[str, str]:
    """Return the version of JAX, and its settings and compile options that are not at their default, as texts."""
    settings = changed_trace_settings()
    build = compilation.placement.options.executable_build_options
    options = {name: value for name in _OPTIONS if (value := _option(build, name))}
    return {"jax": jax.__version__, "settings": _lines(settings), "options": _lines(options)}


def located_text(module: Any) -> str:
    """Return the module as text with the source lines of its operations, and digests of the constants that it leaves
    out.
    """
    text = compiling.module_text(module, locations=True)
    if _ELIDED not in text:
        return text
    return "\n".join((text, *(f"{LARGE_CONSTANT}{digest}" for digest in _large_constants(module))))


def _large_constants(module: Any) -> Iterator[str]:
    with module.context:
        for operation in operations_in(module):
            if operation.name == "stablehlo.constant":
                value = operation.attributes["value"]
                # As in the text: a splat is never left out, and neither are 64 elements.
                if isinstance(value, ir.DenseElementsAttr) and not value.is_splat and len(value) > 64:
                    yield hashlib.blake2b(_content(value), digest_size=8).hexdigest()


def _content(value: Any) -> bytes:
    try:
        return memoryview(value).tobytes()
    except (RuntimeError, TypeError, BufferError):
        return str(value).encode()  # Python has no buffers of bfloat16 and of the smaller types


def _option(build: Any, name: str) -> str:
    """Return the text of an option; empty if it is at its default, or if this jaxlib does not say."""
    try:
        value = getattr(build, name, None)
    except TypeError:  # jaxlib 0.6 has no Python type for some
        return ""
    text = str(getattr(value, "name", value))
    text = _EFFORTS.get(text, text)
    return "" if text in {"None", "False", "0", "1", "0.0", "UNKNOWN"} else text


def _lines(values: dict[str, str]) -> str:
    return "\n".join([f"{name}={value}" for name, value in sorted(values.items())])


def shorten_details(details: Mapping[str, str]) -> dict[str, str]:
    """Return details as an entry has them, which other users may read: no directories, no source.

    Which arguments are committed may be long, and the text says how they are sharded.
    """
    found = {name: text for name, text in details.items() if name not in {"source", "committed"}}
    place = definition_of(details)
    if place.file:
        found["defined"] = f"{end_of(place.file)}:{place.line} {place.name}"
    return found


def rename_details(details: Mapping[str, str], names: Mapping[str, str]) -> Mapping[str, str]:
    """Return the details in which arguments have these names; `named` says that they are the user's own."""
    if not names:
        return details
    lists = {
        what: "\n".join(names.get(each, each) for each in details[what].split("\n"))
        for what in ("weak", "committed")
        if what in details
    }
    return {**details, **lists, "named": "by the caller"}
