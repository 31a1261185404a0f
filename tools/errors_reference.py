"""Prints the page about the exceptions, from their docstrings."""

from __future__ import annotations

import inspect
import re

from ejcache import EjcacheError, errors
from ejcache.autotune import ConfigurationError, ConfigurationMissingError

_HEAD = """\
# Exceptions

This page lists the exceptions that a program can catch. Import them from `ejcache`, and the last two from
`ejcache.autotune`. ejcache also has exceptions with other names, and each of them that a program can catch is a
subclass of an exception on this page. Errors that ejcache did not expect keep Python's names, such as `OSError`, also
as `kind` in the output of `--json`. [Settings](settings.md) explains the settings, and [tuned
configurations](autotune.md) explains kernels, configurations and tuning keys.

If the cache fails while JAX compiles or loads a program, ejcache counts the failure, logs it once, and lets JAX
compile. With JAX's flag `jax_raise_persistent_cache_errors`, ejcache raises the failure instead. Without this flag, a
call of a jitted function can raise only two kinds of these exceptions: `CompileForbiddenError`, and, while JAX traces a
[tuned kernel](autotune.md), exceptions of that kernel such as `ConfigurationMissingError`. The others come from
ejcache's own functions and commands.
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
