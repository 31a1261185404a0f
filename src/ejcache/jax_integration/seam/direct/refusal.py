"""Why a call is traced although direct mode is on."""

from __future__ import annotations

from ejcache.errors import EjcacheError

__all__ = ["RefusedError"]


class RefusedError(EjcacheError):
    """A call, or what its trace reads, cannot be described by its content, so the trace cannot be skipped.

    Args:
        reason: the sentence that `why` shows, with the path that leads to the value:
            "step → cfg.log is an _io.TextIOWrapper".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
