"""The cases: each is a function in a module of `bench/cases`, and registers itself with `@case`."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

import bench.cases

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.context import Context
    from bench.outcome import Outcome

    Run = Callable[[Context, Outcome], None]

__all__ = ["Case", "SkipCase", "all_cases", "case"]

_cases: dict[str, Case] = {}


class SkipCase(Exception):  # noqa: N818 (it is no error)
    """Raised by a case that cannot run here; the text says why, in one sentence."""


@dataclass(frozen=True, slots=True)
class Case:
    """One benchmark.

    Attributes:
        name: what `--only` takes.
        title: one line for people: what is measured against what.
        run: fills in the outcome; what it has filled in stands when it raises.
        order: cases run, and are reported, in this order, then by name.
        when_named: it runs only if its name, or the beginning of its name, is given: it takes minutes.
    """

    name: str
    title: str
    run: Run
    order: int
    when_named: bool = False

    def is_meant_by(self, word: str) -> bool:
        """`start` means `start-tiny`, too."""
        return self.name == word or self.name.startswith(f"{word}-")


def case(name: str, *, title: str, order: int = 100, when_named: bool = False) -> Callable[[Run], Run]:
    """Register the decorated function as a case."""

    def register(run: Run) -> Run:
        if name in _cases:
            raise ValueError(f"there are two cases of the name {name}")
        _cases[name] = Case(name, title, run, order, when_named)
        return run

    return register


def all_cases() -> list[Case]:
    """Every case of every module in `bench/cases`; finding them imports neither JAX nor a store."""
    for module in pkgutil.iter_modules(bench.cases.__path__):
        import_module(f"bench.cases.{module.name}")
    return sorted(_cases.values(), key=lambda found: (found.order, found.name))
