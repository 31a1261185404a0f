"""Says which process of a `jax.distributed` job this one is, and how many there are. A part of the seam."""

from __future__ import annotations

from typing import Final

from ejcache.jax_integration.seam.parts import Part

PART: Final = Part("agreement of the processes of a job", {"jax._src.distributed": ("global_state",)})
jax_distributed = PART.module("jax._src.distributed")


def processes_of_job() -> int:
    """Return how many processes the job has that this one has joined by `jax.distributed`; 1 in a program of one."""
    state = getattr(jax_distributed, "global_state", None)
    if state is None or state.client is None:
        return 1
    return int(state.num_processes or 1)


def process_index() -> int:
    """Return the index of this process in its job; 0 in a program of one process."""
    return int(getattr(getattr(jax_distributed, "global_state", None), "process_id", 0) or 0)
