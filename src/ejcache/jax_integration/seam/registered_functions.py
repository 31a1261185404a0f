"""Notes, while ejcache is enabled, which custom calls and passes a program registers with JAX to act when XLA compiles.

The lowered module does not show what is registered. XLA keeps these registries in C++ and lists none of them. So the
Python functions that fill them are replaced by ones that also note what is registered. Some things are known of what
was registered before:

* Passes over the HLO: whether JAX's function that registers passes was ever called. CPython counts in the bytecode of a
  function how often it ran.
* Custom calls that are partitioned by their batch dimensions, or by a Python function. Until JAX looks for plug-ins, it
  keeps these registrations in a list. What was registered later, but before ejcache was enabled, is not known.

docs/keys.md lists the other registries, and why they need nothing.

Read for this: jax and jaxlib 0.4.38, 0.6.2, 0.8.3, 0.10.2 and 0.12.0.1, `xla_transform.py`, `ffi.py`,
`custom_partitioning.py`, `xla_bridge.py`, `lax/linalg.py`; XLA's `xla_transform.cc` and
`custom_call_batch_partitioner.cc`.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from ejcache.jax_integration.seam.parts import Part

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType

_OWN_BATCHED: Final = ("gpu_linalg", "gpu_solver", "gpu_sparse", "lapack")
"""The modules whose custom calls `jax._src.lax.linalg` registers when it is imported."""
_WARMUP: Final = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t) + 3 * ctypes.sizeof(ctypes.c_void_p) + 4
"""Where Python 3.11 counts in a code object how often it ran."""


@functools.cache
def own_batch_targets() -> frozenset[str]:
    """Return the custom calls of JAX's own libraries that every process registers as partitioned by their batch."""
    from jax._src.lax import linalg

    modules = [getattr(linalg, name, None) for name in _OWN_BATCHED]
    return frozenset(name for module in modules for name in getattr(module, "batch_partitionable_targets", list)())


def may_have_run(function: FunctionType) -> bool:
    """True if a function was called before, or if this interpreter cannot tell."""
    return not _can_tell() or _has_run(function)


def _has_run(function: FunctionType) -> bool:
    """True if a function was called before; anything but a Python function counts as called."""
    code = getattr(function, "__code__", None)
    # A copy has never run.
    return code is None or _counters(code) != _counters(code.replace())


def _counters(code: CodeType) -> bytes:
    if not hasattr(sys, "monitoring"):  # Python 3.11
        return ctypes.string_at(id(code) + _WARMUP, 2)
    return bytes(getattr(code, "_co_code_adaptive"))  # noqa: B009 (the type has no such attribute)


def _can_tell() -> bool:
    """True if this interpreter counts as expected; one without the specialising interpreter does not."""
    sample = FunctionType(_sample.__code__.replace(), globals())
    before = _has_run(sample)
    sample()
    return not before and _has_run(sample)


def _sample() -> int:
    return len(())


PART: Final = Part(
    "keys of programs whose passes or partitioners a program has registered",
    {
        "jax._src.lib.xla_client": ("register_custom_call_partitioner",),
        "jax._src.xla_bridge": ("_plugin_callbacks", "_plugins_registered"),
    },
)
jax_lib = PART.module("jax._src.lib")
xla_bridge = PART.module("jax._src.xla_bridge")
xla_client = PART.module("jax._src.lib.xla_client")

_REGISTER: Final = "register_xla_transform"
_BATCHED: Final = "register_custom_call_as_batch_partitionable"
_PARTITIONED: Final = "register_custom_call_partitioner"
_OWN_PARTITIONER: Final = "CustomSPMDPartitioning"
"""What `custom_partitioning` registers."""


class RegisteredFunctions:
    """What is known of the registries.

    Attributes:
        passes: an HLO pass was registered, or may have been.
        batched: the custom calls that are partitioned by their batch dimensions.
        partitioned: the custom calls that a Python function partitions, but those of `custom_partitioning`: they say in
            the module which function that is.
        all_calls: no other custom calls are partitioned in one of these ways.
    """

    def __init__(self) -> None:
        self.passes = False
        self.batched: set[str] = set()
        self.partitioned: set[str] = set()
        self.all_calls = True


_seen = RegisteredFunctions()
_originals: dict[tuple[Any, str], Any] = {}


def watch() -> None:
    """Note from now on what is registered, and find out what was registered before."""
    global _seen
    _seen = RegisteredFunctions()
    registering = getattr(sys.modules.get("jax._src.xla_transform"), "register_hlo_module_transformation", None)
    if registering is not None:
        _seen.passes = may_have_run(registering)
    # JAX asks plug-ins to register the calls, too, and until it has found the plug-ins it keeps the requests.
    _seen.all_calls = PART.fits and not xla_bridge._plugins_registered
    for request in getattr(xla_bridge, "_plugin_callbacks", ()):
        if isinstance(request, functools.partial):
            _note_registration(getattr(request.func, "__name__", ""), request.args, request.keywords)
    passes = _passes_module()
    for name in dir(passes):
        if name.startswith(_REGISTER):
            _replace(passes, name)
    for name in (_BATCHED, _PARTITIONED):
        if hasattr(xla_client, name):
            _replace(xla_client, name)


def unwatch() -> None:
    """Put JAX's functions back."""
    for (module, name), original in _originals.items():
        setattr(module, name, original)
    _originals.clear()


def registered() -> RegisteredFunctions:
    """Return all that is registered now."""
    return _seen


# -- noting --------------------------------------------------------------------------------------------------------


def _replace(module: Any, name: str) -> None:
    original = _originals.setdefault((module, name), getattr(module, name))

    @functools.wraps(original)
    def noting(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        _note_registration(name, arguments, named)
        return result

    setattr(module, name, noting)


def _note_registration(function: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    if function.startswith(_REGISTER):
        _seen.passes = True
        return
    name = arguments[0] if arguments else named.get("name", named.get("target_name"))
    if function == _BATCHED:
        _seen.batched.add(name)
    elif function == _PARTITIONED and name != _OWN_PARTITIONER:
        _seen.partitioned.add(name)


def _passes_module() -> Any:
    """Return None in a jaxlib that has no such passes, before 0.10.2."""
    return getattr(jax_lib, "_xla", None)
