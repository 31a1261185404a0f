"""Removes debug locations from the Mosaic and Triton kernels in a module, so that moving a line changes no key."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from typing import TYPE_CHECKING, Any, Final

from jaxlib.mlir import ir, passmanager

from ejcache.errors import MALFORMED
from ejcache.jax_integration.seam.kernel_dialects import kernel_context

if TYPE_CHECKING:
    from collections.abc import Callable

_MOSAIC_TPU: Final = "tpu_custom_call"
# Other custom calls whose configuration is a dictionary, and its field with the kernel.
_KERNEL_FIELDS: Final = {"__gpu$xla.gpu.triton": "ir", "mosaic_gpu_v2": "module", "mosaic_gpu": "module"}
_MAGIC: Final = b"ML\xefR"


class KernelStripper:
    """Removes the debug locations from the kernels of one module's custom calls, in place. For one thread only.

    Kernels are read in a context of their own: registering dialects in the program's context would change what that
    accepts.
    """

    def __init__(self) -> None:
        self._context: Any = None

    def strip(self, operation: Any, target: str) -> None:
        """Strip the kernel of `operation`, a custom call of `target`, if it has one that can be read faithfully."""
        attributes = operation.attributes
        if target == _MOSAIC_TPU:
            if "backend_config" in attributes and isinstance(attributes["backend_config"], ir.StringAttr):
                config = strip_mosaic_config(attributes["backend_config"].value, self._strip_locations)
                attributes["backend_config"] = ir.StringAttr.get(config)
        elif target in _KERNEL_FIELDS:
            for name in ("backend_config", "mhlo.backend_config"):
                if name in attributes and isinstance(attributes[name], ir.DictAttr):
                    attributes[name] = self._stripped_config(attributes[name], _KERNEL_FIELDS[target])

    def _stripped_config(self, config: Any, field: str) -> Any:
        entries = {named.name: named.attr for named in config}
        kernel = entries.get(field)
        if not isinstance(kernel, ir.StringAttr):
            return config
        content = kernel.value_bytes
        stripped = self._strip_locations(content)
        if stripped is None:
            return config
        entries[field] = ir.StringAttr.get(stripped)
        given = entries.get("kernel_hash")
        # Mosaic identifies a kernel within a process by a digest of the kernel with its locations.
        if isinstance(given, ir.StringAttr) and given.value_bytes == hashlib.sha256(content).digest():
            entries["kernel_hash"] = ir.StringAttr.get(hashlib.sha256(stripped).digest())
        return ir.DictAttr.get(entries)

    def _strip_locations(self, kernel: bytes) -> bytes | None:
        """Remove the debug locations from a kernel; None if it has another format, or if that might lose something."""
        if not kernel.startswith(_MAGIC) or len(kernel) <= len(_MAGIC) or not kernel[len(_MAGIC)] & 1:
            return None
        version = kernel[len(_MAGIC)] >> 1
        if self._context is None:
            self._context = kernel_context()
        if self._context is None:
            return None
        with self._context, ir.Location.unknown():
            try:
                module = ir.Module.parse(kernel)
                # Serialised Mosaic consists of operations that no dialect knows. If an operation was written by a
                # dialect that is not loaded here, MLIR reads it as an unknown one and drops its properties, without an
                # error. So check that the kernel is written back as the same bytes.
                if _bytecode(module, version) != kernel:
                    return None
                passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
                return _bytecode(module, version)
            except (ir.MLIRError, ValueError):
                return None


def _bytecode(module: Any, version: int) -> bytes:
    output = io.BytesIO()
    module.operation.write_bytecode(output, desired_version=version)
    return output.getvalue()


def strip_mosaic_config(config: str, strip: Callable[[bytes], bytes | None]) -> str:
    """Return the `backend_config` of a `tpu_custom_call` without debug locations; unchanged if it has another form.

    Args:
        config: JSON text; `custom_call_config.body` is a kernel in base64, `custom_call_config.debug_locations` holds
            its locations where JAX has taken them out of it (0.11 and newer).
        strip: a kernel without its debug locations, or None if it cannot be read.
    """
    try:
        parsed: Any = json.loads(config)
        call = parsed["custom_call_config"]
        body = base64.b64decode(call["body"], validate=True)
    except MALFORMED:
        return config
    if call.pop("debug_locations", None) is None and (stripped := strip(body)) is not None:
        call["body"] = base64.b64encode(stripped).decode()
    return json.dumps(parsed, separators=(",", ":"), sort_keys=True)
