"""What a key says of JAX's global registries that act when XLA compiles: `seam/registries.py` knows what they hold.

A program that none of them concerns has no component of theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ejcache.cache.counters import Skip
from ejcache.jax_integration.seam.registries import own_batch_targets, registered
from ejcache.keys.functions import UndescribedError, function_digest

if TYPE_CHECKING:
    from ejcache.jax_integration.lowering.modules import ModuleDigest

_STAGES: Final = {0: "before scheduling", 1: "after scheduling"}


class UnkeyableError(Exception):
    """A Python function takes part in compiling the program, and no key could tell it from another.

    The text says why, as the end of a sentence that begins with the program's name.

    Attributes:
        skip: the kind of function.
    """

    def __init__(self, skip: Skip, reason: str) -> None:
        super().__init__(reason)
        self.skip = skip


def registered_components(computation: ModuleDigest, *, devices: int, ignore_functions: bool) -> dict[str, str]:
    """What is registered and concerns this program, by the names of the components.

    Args:
        computation: the program.
        devices: how many it runs on.
        ignore_functions: partitioners in Python do not count (`jax_remove_custom_partitioning_ptr_from_cache_key`).

    Raises:
        UnkeyableError: a registered function cannot be described, or it is not known what is registered.
    """
    components = {
        "hlo_passes": _passes(),
        "partitioned_calls": _partitioned_calls(computation, devices, ignore_functions=ignore_functions),
    }
    return {name: text for name, text in components.items() if text}


def _passes() -> str:
    """The HLO passes, a line each: name, target, stage and content."""
    seen = registered()
    if not seen.all_passes:
        raise UnkeyableError(
            Skip.HLO_PASS,
            "is compiled with HLO passes that were registered before ejcache was enabled, so it is compiled anew every "
            "time; enable ejcache before jax.extend.xla.register_hlo_module_transformation is called",
        )
    lines = []
    for each in seen.passes:
        try:
            content = function_digest(each.callback)
        except UndescribedError as exc:
            raise UnkeyableError(
                Skip.HLO_PASS,
                f"is compiled with the HLO pass {each.name!r}, whose Python function no key can describe ({exc}), so "
                "it is compiled anew every time; a function can be described if it reads only constants, functions of "
                "the same kind, and the standard library",
            ) from exc
        lines.append(f"{each.name!r} ({each.target}, {_STAGES.get(each.stage, each.stage)}, code {content})")
    return "\n".join(lines)


def _partitioned_calls(computation: ModuleDigest, devices: int, *, ignore_functions: bool) -> str:
    """The program's custom calls that were registered as partitioned by their batch, a line each."""
    if not computation.custom_calls:
        return ""
    seen = registered()
    if not ignore_functions and (named := computation.custom_calls & seen.partitioned):
        raise UnkeyableError(
            Skip.PARTITIONING,
            f"has custom calls that a registered Python function partitions ({', '.join(sorted(named))}), which has no "
            "identity outside this process, so it is compiled anew every time",
        )
    foreign = computation.batched_calls - own_batch_targets()
    if foreign - seen.batched and devices > 1 and not seen.all_calls:
        raise UnkeyableError(
            Skip.PARTITIONING,
            f"has custom calls ({', '.join(sorted(foreign))}) that may have been registered as batch partitionable "
            "before ejcache was enabled, so it is compiled anew every time; enable ejcache before JAX makes a backend",
        )
    return "\n".join(sorted(foreign & seen.batched))


def registrations() -> tuple[str, ...]:
    """All that is registered, whatever program it concerns; empty if nothing is.

    For what finds an executable without lowering its program.

    Raises:
        UnkeyableError: as for `registered_components`.
    """
    seen = registered()
    texts = [f"pass {line}" for line in _passes().splitlines()]
    texts += [f"batched {name}" for name in sorted(seen.batched - own_batch_targets())]
    texts += [f"partitioned {name}" for name in sorted(seen.partitioned)]
    return (*texts, *(() if seen.all_calls else ("and perhaps others",)))
