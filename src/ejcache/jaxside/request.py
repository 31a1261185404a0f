"""What JAX wants compiled, as it is handed from step to step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Request", "Target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What an executable is compiled or loaded for.

    Attributes:
        backend: PJRT's client.
        devices: in the order of the program's device assignment.
        options: XLA's compile options, with that assignment; PGLE changes them between two compilations.
        callbacks: Python functions of the host that the program calls.
    """

    backend: Any
    devices: Sequence[Any]
    options: Any
    callbacks: Sequence[Any] = ()

    @property
    def device_ids(self) -> tuple[int, ...]:
        """The devices' ids, in their order."""
        return tuple(device.id for device in self.devices)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The processes that the devices belong to, in order."""
        return tuple(sorted({device.process_index for device in self.devices}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A program that JAX wants an executable of, after the key was made and nothing was found under it.

    Attributes:
        key: of the compilation.
        module: what is compiled.
        module_name: its name, as JAX has it.
        target: what for.
    """

    key: str
    module: Any
    module_name: str
    target: Target
