"""Prints the page about the exceptions, from their docstrings."""

from __future__ import annotations

import inspect
import re

from ejcache import EjcacheError, errors
from ejcache.autotune import ConfigurationError, ConfigurationMissingError

_HEAD = """\
# Exceptions

This page lists ejcache's public exceptions. Import the last two from `ejcache.autotune`, and the others from `ejcache`.
ejcache also raises exceptions with other names. Each of them that a program can catch is a subclass of an exception on
this page. [Settings](settings.md) explains the settings, and [tuned configurations](autotune.md) explains kernels,
configurations and tuning keys.

If a command other than `ejcache run` ends with an error, and was called with `--json`, the JSON that it prints has the
name of the exception in the field `kind`. For an error that ejcache did not expect, this is the name of Python's
exception, such as `OSError`.

If the cache fails while JAX compiles or loads a program, ejcache counts the failure, logs it once, and lets JAX
compile. With the setting `raise_errors`, ejcache raises an exception instead. Without this setting, a call of a jitted
function raises an exception of this page only in three cases:

* A program would have to be compiled where `ejcache.forbid_compile()` forbids it. The call then raises
  `CompileForbiddenError`.
* JAX traces a [tunable kernel](autotune.md), and the kernel raises an exception such as `ConfigurationMissingError`.
* The function that was passed to `@ejit` as [`reuse_lowering=`](reuse.md) returns a value that ejcache does not
  accept. The call then raises `UsageError`.
"""


def _section(error: type[Exception]) -> str:
    kinds = " and ".join(f"`{base.__name__}`" for base in error.__bases__)
    text, _, attributes = inspect.cleandoc(error.__doc__ or "").partition("\n\nAttributes:\n")
    listed = re.sub(r"^    (\w+): ", r"* `\1`: ", attributes, flags=re.MULTILINE)
    return (
        "\n\n".join(part for part in (f"## `{error.__name__}`", f"{text} (A subclass of {kinds}.)", listed) if part)
        + "\n"
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
