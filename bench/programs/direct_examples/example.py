"""One function that a user of a library jits, and what it is called with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Example"]


class Example(NamedTuple):
    """A function and its call.

    Attributes:
        name: what it is, for people.
        function: as a program passes it to `jax.jit`.
        arguments: positional ones.
        options: of `jax.jit`.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any] = {}  # noqa: RUF012 (nobody changes it)
