"""The topology of GPUs that counts in a key, in a fixed order (`xla_messages` has the numbers of its fields)."""

from __future__ import annotations

import functools
from typing import Final

from ejcache.keys.protobuf_fields import join, split
from ejcache.keys.xla_messages import BYTES, REMEMBERED, TOPOLOGY, edit, topology_without

GPU: Final = (*TOPOLOGY, 8, 1)
"""Where a topology has the description of a GPU."""


@functools.lru_cache(maxsize=REMEMBERED)
def canonical_gpu_topology(serialized: bytes) -> bytes:
    """Return the GPUs that a topology describes and how they are grouped, without the host that the process runs on.

    Protobuf writes maps in no fixed order, and the description of a GPU has some: their entries are sorted, or each
    process would have keys of its own.

    Args:
        serialized: a `PjRtTopologyDescriptionProto`.

    Raises:
        ValueError: it is not such a message.
    """
    return edit(topology_without(serialized, field=9), GPU, _with_sorted_maps)


def _with_sorted_maps(message: bytes) -> bytes:
    return join(
        field._replace(value=_sorted_entries(field.value)) if field.kind == BYTES else field
        for field in sorted(split(message))
    )


def _sorted_entries(value: bytes) -> bytes:
    """Sort the entries of a message that has nothing but maps; anything else, such as a text, stays as it is."""
    try:
        entries = split(value)
    except ValueError:
        return value
    return join(sorted(entries)) if all(entry.kind == BYTES for entry in entries) else value
