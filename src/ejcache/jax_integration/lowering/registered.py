"""What a key says of JAX's global registries that act when XLA compiles: `seam/registries.py` knows what they hold.

A program that none of them concerns has no component of theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ejcache.cache.counters import Skip
from ejcache.jax_integration.seam.registries import hlo_passes, own_batch_targets, partitioned_calls
from ejcache.keys.functions import UndescribedError, function_digest

if TYPE_CHECKING:
    from ejcache.jax_integration.lowering.modules import ModuleDigest

__all__ = ["UnkeyableError", "partitioning_component", "pass_component", "registrations"]

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


def pass_component() -> str:
    """The registered HLO passes, a line each: name, target, stage and content; empty if there are none.

    Raises:
        UnkeyableError: a pass cannot be described, or it is not known which there are.
    """
    passes = hlo_passes()
    if passes is None:
        raise UnkeyableError(
            Skip.HLO_PASS,
            "is compiled with HLO passes that were registered before ejcache was enabled, so it is compiled anew every "
            "time; enable ejcache before jax.extend.xla.register_hlo_module_transformation is called",
        )
    lines = []
    for each in passes:
        try:
            content = function_digest(each.callback)
        except UndescribedError as exc:
            raise UnkeyableError(
                Skip.HLO_PASS,
                f"is compiled with the HLO pass {each.name}, whose Python function no key can describe ({exc}), so it "
                "is compiled anew every time; a function can be described if it reads only constants, functions of the "
                "same kind, and the standard library",
            ) from exc
        lines.append(f"{each.name} ({each.target}, {_STAGES.get(each.stage, each.stage)}, code {content})")
    return "\n".join(lines)


def partitioning_component(computation: ModuleDigest, *, devices: int, ignore_functions: bool) -> str:
    """The custom calls of a program that were registered as partitioned by their batch; empty if there are none.

    Args:
        computation: the program.
        devices: how many it runs on; one device partitions nothing.
        ignore_functions: partitioners in Python do not count (`jax_remove_custom_partitioning_ptr_from_cache_key`).

    Raises:
        UnkeyableError: a Python function partitions one of its calls, or it is not known how they are partitioned.
    """
    if not computation.custom_calls:
        return ""
    calls = partitioned_calls()
    if not ignore_functions and (named := computation.custom_calls & calls.by_function):
        raise UnkeyableError(
            Skip.PARTITIONING,
            f"has custom calls that a registered Python function partitions ({', '.join(sorted(named))}), which has no "
            "identity outside this process, so it is compiled anew every time",
        )
    unknown = computation.batched_calls - calls.batched - own_batch_targets()
    if unknown and devices > 1 and not calls.complete:
        raise UnkeyableError(
            Skip.PARTITIONING,
            f"has custom calls ({', '.join(sorted(unknown))}) that may have been registered as batch partitionable "
            "before ejcache was enabled, so it is compiled anew every time; enable ejcache before JAX makes a backend",
        )
    return "\n".join(sorted(computation.batched_calls & calls.batched))


def registrations() -> tuple[str, ...]:
    """All that is registered, whatever program it concerns; empty if nothing is.

    For what finds an executable without lowering its program.

    Raises:
        UnkeyableError: as `pass_component`.
    """
    passes, calls = pass_component(), partitioned_calls()
    texts = [f"pass {line}" for line in passes.splitlines()]
    texts += [f"batched {name}" for name in sorted(calls.batched)]
    texts += [f"partitioned {name}" for name in sorted(calls.by_function)]
    return (*texts, *(() if calls.complete else ("and perhaps others",)))
