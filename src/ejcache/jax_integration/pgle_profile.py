"""What PGLE measured of a program."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple


class Profile(NamedTuple):
    """What PGLE measured of a program.

    Attributes:
        data: as XLA takes it (`fdo_profile`).
        percentile: over devices and runs.
        runs: how many runs were profiled.
        devices: how many devices the program has.
        from_store: it was read from the store.
    """

    data: bytes
    percentile: int
    runs: int
    devices: int
    from_store: bool = False

    @property
    def digest(self) -> str:
        """Names the profile in the header of what was compiled with it."""
        return hashlib.sha256(self.data).hexdigest()

    def fields(self) -> dict[str, Any]:
        """Return the fields of headers that describe it."""
        return {"percentile": self.percentile, "runs": self.runs, "devices": self.devices}
