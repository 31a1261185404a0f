"""Prints the page about the exceptions, from their docstrings."""

from __future__ import annotations

import inspect
import re

from ejcache import EjcacheError, errors
from ejcache.autotune import ConfigurationError, ConfigurationMissingError

_HEAD = """\
# Exceptions

A program catches one of these. Each is a name of `ejcache`, but for the last two, which are of `ejcache.autotune`.
An exception with a finer name, such as one that a traceback or `--json` shows, is a subclass of one of them.

Absence is not an error: `get` returns `None`. A failure of the cache does not reach the program that compiles: it is
counted and logged once, unless `jax_raise_persistent_cache_errors` is set. So these come from calls of ejcache itself,
and from commands.
"""


def _section(error: type[Exception]) -> str:
    kinds = " and ".join(f"`{base.__name__}`" for base in error.__bases__)
    text, _, attributes = inspect.cleandoc(error.__doc__ or "").partition("\n\nAttributes:\n")
    listed = re.sub(r"^    (\w+): ", r"* `\1`: ", attributes, flags=re.MULTILINE)
    return (
        "\n\n".join(part for part in (f"## `{error.__name__}`", f"{text} (A kind of {kinds}.)", listed) if part) + "\n"
    )


def _tree(error: type[Exception]) -> list[type[Exception]]:
    """Return the public exceptions below one, each after the one that it is a kind of."""
    below = [each for child in error.__subclasses__() for each in _tree(child)]
    return [error, *below] if error.__name__ in errors.__all__ else below


def page() -> str:
    """Return the whole page."""
    listed = [*_tree(EjcacheError), ConfigurationError, ConfigurationMissingError]
    return "\n".join([_HEAD, *map(_section, dict.fromkeys(listed))])


if __name__ == "__main__":
    print(page(), end="")
