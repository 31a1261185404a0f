"""Prints the page about the public names, from their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from typing import Any, Final, get_args

import ejcache
from ejcache import errors
from ejcache.events import Event
from ejcache.history.causes import Cause
from ejcache.jax_integration.warm_start import WarmedProgram
from ejcache.maintenance.audit import Audit
from ejcache.maintenance.eviction import EvictionReport
from ejcache.stores import base

_GROUPS: Final = {
    "Using a cache": (
        "enable",
        "disable",
        "disabled",
        "active",
        "ejit",
        "forbid_compile",
        "warm",
        "target",
        "code_digest",
        "key_of",
        "would_hit",
        "autotuned",
    ),
    "Looking at a cache and maintaining it": (
        "stats",
        "entries",
        "why",
        "prune",
        "verify",
        "clear",
        "current_settings",
        "on_event",
        "warn_recompiles",
    ),
    "Stores": ("open_store", "Store", "EntryInfo"),
    "Notebooks": ("load_ipython_extension", "unload_ipython_extension"),
    "Classes": ("CompilationCache", "Stats", "Settings", "AutotuneStore"),
}
_PROTOCOLS: Final = [
    name for name, kind in vars(base).items() if getattr(kind, "_is_protocol", False) and name != "Protocol"
]
_SECTIONS: Final = ("Args", "Returns", "Raises", "Attributes")

_RESULTS: Final = (EvictionReport, Audit, Cause, WarmedProgram, *get_args(Event))
_HEAD: Final = """\
# The Python API

`import ejcache` imports neither JAX nor a storage backend; each name is imported when it is first used. The module
`ejcache.autotune` has everything about tuning ([autotune.md](autotune.md)), `ejcache.errors` the finer kinds of some
errors, and `ejcache.events` has the events of `on_event`. Other modules of the package are internal.

A function may be called from any thread, and while other processes use the same cache.
"""
_OPTIONAL: Final = """\
## Optional protocols of a store

They are in `ejcache.stores.base`. A store supports one by having its methods.
"""
_ERRORS: Final = """\
## Errors

Every error is a name of `ejcache`, such as `ejcache.UsageError`. Indented errors are subclasses of the one above.
"""


def _plain(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else str(getattr(annotation, "__name__", annotation))
    return text.removeprefix("typing.").replace("Url", "str | os.PathLike[str]")


def _parameter(parameter: inspect.Parameter) -> str:
    text = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    text += "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
    text += parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {_plain(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        text += f" = {parameter.default!r}"
    return text


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    if name == "ejit":
        return "ejit(fun=None, /, **options)  # the parameters of jax.jit"
    shown: list[str] = []
    given_by_name = star = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if repr(parameter.default) == "<not given>":
            given_by_name = True
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            shown.append("*")
            star = True
        shown.append(_parameter(parameter))
    shown += ["**settings"] if given_by_name else []
    result = signature.return_annotation
    arrow = f" -> {_plain(result)}" if result is not signature.empty else ""
    line = f"{name}({', '.join(shown)}){arrow}"
    if len(line) > 100:
        line = f"{name}(\n" + "".join(f"    {part},\n" for part in shown) + f"){arrow}"
    return line


def _markdown(docstring: str | None) -> str:
    """A docstring in Google's style as Markdown."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    out: list[str] = []
    section = ""
    for line in lines:
        heading = re.fullmatch(r"(\w+):", line)
        if heading and heading[1] in _SECTIONS:
            section = heading[1]
            out.append(f"**{section}**\n")
        elif section and line.startswith("    ") and not line.startswith("     "):
            text = line.strip()
            named = re.match(r"([\w, ]+): (.*)", text) if section != "Returns" else None
            out.append(f"* `{named[1]}`: {named[2]}" if named else f"* {text}" if section != "Returns" else text)
        elif section and line.startswith("     "):
            out.append(f"  {line.strip()}")
        else:
            if line:
                section = ""
            out.append(line)
    return "\n".join(out).strip()


def _members(cls: type) -> list[str]:
    parts = []
    for name, member in vars(cls).items():
        if name.startswith("_"):
            continue
        raw = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if isinstance(raw, property):
            parts.append(f"#### `.{name}`\n\n{_markdown(raw.__doc__)}\n")
        elif inspect.isfunction(raw):
            parts.append(f"#### `.{name}`\n\n```python\n{_signature(name, raw)}\n```\n\n{_markdown(raw.__doc__)}\n")
    return parts


def _described(name: str, value: Any) -> str:
    if inspect.isclass(value):
        return "\n".join([f"### `{name}`\n\n{_markdown(value.__doc__)}\n", *_members(value)])
    return f"### `{name}`\n\n```python\n{_signature(name, value)}\n```\n\n{_markdown(value.__doc__)}\n"


def _tree(error: type[Exception], depth: int = 0) -> list[str]:
    lines = [f"{'  ' * depth}* `{error.__name__}`: {inspect.cleandoc(error.__doc__ or '').splitlines()[0]}"]
    for child in error.__subclasses__():
        if child.__name__ in errors.__all__:
            lines += _tree(child, depth + 1)
    return lines


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, names in _GROUPS.items():
        parts.append(f"## {title}\n")
        parts += [_described(name, getattr(ejcache, name)) for name in names]
    parts.append("## Results\n")
    parts += [_described(result.__name__, result) for result in _RESULTS]
    parts.append(_OPTIONAL)
    parts += [_described(name, getattr(base, name)) for name in _PROTOCOLS]
    parts.append(_ERRORS)
    parts.append("\n".join(_tree(ejcache.EjcacheError)) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
