"""Why a call is traced although its function asks for reuse."""

from __future__ import annotations

from ejcache.errors import EjcacheError


class RefusedError(EjcacheError):
    """A call, or what its trace gave, cannot be written down, so the trace cannot be left out.

    Args:
        reason: the end of a sentence: "an argument is a Tracer".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
