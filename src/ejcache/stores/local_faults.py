"""Named points on the way of a local write, where a test stops, kills or forks the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["install", "reach"]

_hook: Callable[[str], None] | None = None


def install(hook: Callable[[str], None] | None) -> None:
    """Have `hook` called with the name of each point that this process reaches; None for nobody."""
    global _hook
    _hook = hook


def reach(point: str) -> None:
    """Say that `point` is reached."""
    if _hook is not None:
        _hook(point)
