"""What a case is: one program in two versions, how it is called, and what direct mode has to make of it."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field, replace
from importlib import import_module
from pkgutil import walk_packages
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PROGRAM", "Trap", "all_traps", "trap"]

PROGRAM: Final = "program.py"
"""The file that is run; it sees `ejit` as the decorator under test."""

PRELUDE: Final = """\
import jax
import jax.numpy as jnp
import numpy as np
from functools import partial
from jax import lax
from under_test import ejit
"""

DEFAULT_CALL: Final = "f(jnp.arange(4.0))"

# «first version|second version»; the first has no bar in it.
_ALTERNATIVES: Final = re.compile(r"«([^«»|]*)\|([^«»]*)»")


@dataclass(frozen=True)
class Trap:
    """One case.

    Attributes:
        files: by name, with `«v1|v2»` alternatives; `site-packages/…` is installed code.
        call: an expression that calls the function, evaluated twice in the program.
        env: environment variables, with alternatives; an empty value means that the variable is unset.
        changed: what is expected of the second version: missed, refused, plain (JAX's own miss), right (its program is
            the first version's), or either, which is anything but stale.
        unchanged: what is expected of the first version at its third start: hit, refused, plain, miss or either.
        why: why the first version does not hit, where it does not.
        repeats: the program gives the same result at each start.
        by_seed: the two versions differ in the hash seed only.
        options: options of the interpreter, of the second version.
        needs: a module without which the case is skipped.
        traced_before: the program itself traces the function before it calls it.
        loses_output: what its trace prints, logs or warns of is lost at a hit, as documented.
    """

    name: str
    group: str
    files: Mapping[str, str]
    call: str = DEFAULT_CALL
    env: Mapping[str, str] = field(default_factory=dict)
    changed: str = "missed"
    unchanged: str = "hit"
    why: str = ""
    repeats: bool = True
    by_seed: bool = False
    options: tuple[str, ...] = ()
    needs: str = ""
    loses_output: bool = False
    traced_before: bool = False

    def version(self, number: int) -> tuple[dict[str, str], str, dict[str, str]]:
        """The files, the call and the environment of version 1 or 2."""
        files = {_chosen(name, number): _chosen(text, number) for name, text in self.files.items()}
        env = {name: _chosen(value, number) for name, value in self.env.items()}
        return files, _chosen(self.call, number), env


def _chosen(text: str, number: int) -> str:
    return _ALTERNATIVES.sub(lambda found: found[number], text)


def trap(
    name: str,
    program: str,
    *,
    files: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    call: str = DEFAULT_CALL,
    changed: str = "missed",
    unchanged: str = "hit",
    why: str = "",
    repeats: bool = True,
    by_seed: bool = False,
    options: tuple[str, ...] = (),
    needs: str = "",
    loses_output: bool = False,
    traced_before: bool = False,
) -> Trap:
    """A case; its group is the module that defines it.

    Raises:
        ValueError: it does not say why the first version does not hit.
    """
    if (unchanged == "hit") == bool(why):
        raise ValueError(
            f"{name}: {'a reason, yet it hits' if why else f'no reason why it is expected as {unchanged}'}"
        )
    texts = {PROGRAM: PRELUDE + textwrap.dedent(program)}
    texts |= {each: textwrap.dedent(text).lstrip("\n") for each, text in (files or {}).items()}
    return Trap(
        name,
        "",
        texts,
        call,
        dict(env or {}),
        changed,
        unchanged,
        why,
        repeats,
        by_seed,
        options,
        needs,
        loses_output,
        traced_before,
    )


def all_traps() -> list[Trap]:
    """Every case of every module in `cases/`, in order.

    Raises:
        ValueError: two cases have one name.
    """
    import direct_traps.cases as package

    found: dict[str, Trap] = {}
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        for each in getattr(import_module(module.name), "TRAPS", []):
            if each.name in found:
                raise ValueError(f"there are two cases of the name {each.name}")
            found[each.name] = replace(each, group=module.name.rpartition(".")[2])
    return list(found.values())
