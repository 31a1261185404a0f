"""The extension point: how a wing of the package registers with the core, which imports none.

A wing is a folder of the package with a module `wing`, whose `WING` says what the wing adds, in texts of the form
`"module:attribute"`. A text is imported when what it names is used for the first time, so that a wing costs nothing
until then. A core without the folder has the same functions less those of the wing.

A hook is a function of a wing that the core calls at one place:

    hook    called by                       with                          returns
    jit     `ejit`, for each function       fun, the options of `ejit`    a jitted function, or None: `jax.jit` makes
                                                                          it; takes its own options out of `options`
    why     `ejcache why`, `ejcache.why()`  a name or None, a predicate   a `WingLog`, see `ejcache.misses.explanation`
    report  `ejcache report`                `--dir`                       rows of texts, the heading first
    verify  `ejcache verify --WING`         program, directory, strict,   the exit status
                                            as_json
"""

from __future__ import annotations

import functools
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Command(NamedTuple):
    """A command or a group: where it is, its line in the list of commands, and examples for its help.

    Attributes:
        place: the function of a command, or the Typer application of a group, as `"module:attribute"`.
        short_help: its line in `ejcache --help`.
        examples: command lines that its help shows.
    """

    place: str
    short_help: str
    examples: tuple[str, ...]


_NOTHING: Final[Mapping[str, Any]] = {}


class Wing(NamedTuple):
    """What a wing adds to the core.

    Attributes:
        name: of its folder.
        settings: a class whose attributes are settings (`ejcache.settings.values.setting`).
        names: the module of each name that the wing adds to `ejcache`.
        commands: its commands by name.
        hooks: the place of its function for each hook that it has.
    """

    name: str
    settings: str = ""
    names: Mapping[str, str] = _NOTHING
    commands: Mapping[str, Command] = _NOTHING
    hooks: Mapping[str, str] = _NOTHING


@functools.cache
def wings() -> tuple[Wing, ...]:
    """The wings of this installation, by name."""
    here = os.path.dirname(__file__)  # noqa: PTH120 (with pathlib this takes a millisecond of each start)
    found = sorted(name for name in os.listdir(here) if os.path.exists(f"{here}/{name}/wing.py"))  # noqa: PTH110, PTH208
    return tuple(load(f"ejcache.{name}.wing:WING") for name in found)


def hooks(name: str) -> dict[str, Callable[..., Any]]:
    """The function of each wing that has this hook, by the name of the wing."""
    return {wing.name: load(wing.hooks[name]) for wing in wings() if name in wing.hooks}


def load(place: str) -> Any:
    """What `"module:attribute"` names."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)
