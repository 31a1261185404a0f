"""Names in a key the Python functions that act when XLA compiles a program, or says why it has no key.

`seam/registered_functions.py` knows what is registered with JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ejcache.cache.reasons import Skip
from ejcache.jax_integration.seam.registered_functions import own_batch_targets, registered

if TYPE_CHECKING:
    from ejcache.jax_integration.lowering.module_digest import ModuleDigest
    from ejcache.jax_integration.seam.registered_functions import RegisteredFunctions

_PARTITIONING: Final = (
    "uses custom_partitioning, whose Python function has no identity outside this process, so it is compiled anew "
    "every time. If it does not change between runs, set jax_remove_custom_partitioning_ptr_from_cache_key; or use "
    "shard_map instead"
)
_PASSES: Final = (
    "is compiled where a pass over the HLO was registered (jax.extend.xla), a Python function that has no identity "
    "outside this process, so it is compiled anew every time"
)
_INSPECTION: Final = (
    "inspects shardings (jax.debug.inspect_array_sharding, visualize_array_sharding) with a Python function that is "
    "called while it compiles, so it is compiled anew every time; take that out to have it cached"
)


class UnkeyableError(Exception):
    """A Python function takes part in compiling the program, and no key could tell it from another.

    The text says why, as the end of a sentence that begins with the program's name.

    Attributes:
        skip: the kind of function.
    """

    def __init__(self, skip: Skip, reason: str) -> None:
        super().__init__(reason)
        self.skip = skip


def check_functions(computation: ModuleDigest, *, ignore_partitioning: bool) -> None:
    """Raise UnkeyableError if the module itself has Python functions that a key cannot name.

    Args:
        computation: the program.
        ignore_partitioning: partitioners do not count (`jax_remove_custom_partitioning_ptr_from_cache_key`).
    """
    if computation.custom_partitionings and not ignore_partitioning:
        raise UnkeyableError(Skip.PARTITIONING, _PARTITIONING)
    if computation.inspections:
        # No setting excuses this one: a hit would not call the function.
        raise UnkeyableError(Skip.INSPECTION, _INSPECTION)


def registered_components(computation: ModuleDigest, *, devices: int, ignore_functions: bool) -> dict[str, str]:
    """Make a component, by name, of each kind of function that a program has registered and that acts on this one.

    What JAX's own libraries register does not count.

    Args:
        computation: the program.
        devices: how many it runs on.
        ignore_functions: partitioners in Python do not count (`jax_remove_custom_partitioning_ptr_from_cache_key`).

    Raises:
        UnkeyableError: no key can name a registered function, or it is not known what is registered.
    """
    seen = registered()
    if seen.passes:
        raise UnkeyableError(Skip.HLO_PASS, _PASSES)
    if not computation.custom_calls:
        return {}
    calls = _partitioned_calls(seen, computation, devices, ignore_functions=ignore_functions)
    return {"partitioned_calls": calls} if calls else {}


def _partitioned_calls(
    seen: RegisteredFunctions, computation: ModuleDigest, devices: int, *, ignore_functions: bool
) -> str:
    """Return the program's custom calls that were registered as partitioned by their batch, a line each."""
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
