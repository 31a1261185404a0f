"""Finds which options of `ejcache run` a call of `jax.config.update` overrules, and the line of that call.

ejcache is enabled when JAX makes its first backend. A library that sets a flag of JAX while it is imported has done so
by then, so the line is looked for afterwards: in the sources of the modules that are loaded. This is for a process that
ends and whose options had no effect; no other imports this module.
"""

from __future__ import annotations

import ast
import sys
import types
import warnings
from typing import TYPE_CHECKING, Any, Final

from ejcache.settings.resolve import resolve
from ejcache.settings.table import FLAGS, Origin
from ejcache.stores.location import display_url
from ejcache.util.files import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.settings.table import Settings

OPTIONS: Final = ("dir", "max_size", "min_compile_seconds")
"""The settings that `ejcache run` has an option for and that JAX has a flag for."""
_NOT_LOOKED_AT: Final = sys.stdlib_module_names | {"ejcache", "jax", "jaxlib", "numpy", "scipy"}
_LARGEST_SOURCE: Final = 4 << 20
_MOST_NAMED: Final = 3
_READING: Final = {"read", "get", "getattr", "hasattr", "getenv"}
"""Functions that take the name of a flag and set nothing."""


def describe_overruled(settings: Settings) -> str:
    """Say in a sentence which settings of the environment a call of the program overrules; empty if there are none.

    Args:
        settings: of this process, with JAX's flags.
    """
    ours = resolve()  # without JAX's flags
    wanted, done, arguments = [], [], []
    for name in OPTIONS:
        now, before = settings[name], ours[name]
        if now.origin is Origin.CALL and before.origin is Origin.ENVIRONMENT and _differ(name, now.value, before.value):
            wanted.append(f"{before.source}={_shown(name, before.value)} (--{name.replace('_', '-')})")
            done.append(f"{_setter(FLAGS[name], now.value)} sets {FLAGS[name]} to {_shown(name, now.value)}")
            arguments.append(f"{name}={_shown(name, before.value)!r}" if name == "dir" else f"{name}={before.value}")
    if not wanted:
        return ""
    return (
        f"{' and '.join(wanted)} had no effect: {', and '.join(done)}. "
        f"Remove {'that call' if len(done) == 1 else 'those calls'}, "
        f"or call ejcache.enable({', '.join(arguments)}) afterwards"
    )


def _differ(name: str, one: Any, other: Any) -> bool:
    return str(one).rstrip("/") != str(other).rstrip("/") if name == "dir" else bool(one != other)


def _shown(name: str, value: Any) -> str:
    return display_url(str(value)) if name == "dir" else str(value)


def _setter(flag: str, value: Any) -> str:
    """Return the lines that may have set the flag, the likeliest kind only; "the program" if no source has one."""
    found: dict[int, list[str]] = {}
    for file in _sources():
        try:
            source = read_regular(file, max_size=_LARGEST_SOURCE)
            if flag.encode() in source or (flag == FLAGS["dir"] and b"set_cache_dir" in source):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of the source, which the program has heard when it was compiled
                    tree = ast.parse(source)
                for likely, line in _lines(tree, flag, value):
                    found.setdefault(likely, []).append(f"{file}:{line}")
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    named = found[max(found)] if found else []
    more = f" or {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return " or ".join(named[:_MOST_NAMED]) + more if named else "the program"


def _sources() -> Iterator[str]:
    """Yield the files of Python source of the modules of the program and of its libraries, the latest import first."""
    for name, module in reversed(list(sys.modules.items())):
        if name.partition(".")[0] not in _NOT_LOOKED_AT and isinstance(module, types.ModuleType):
            # What a module answers by itself may be an import. From a script that has ended, Python takes `__file__`.
            file = vars(module).get("__file__") or getattr(vars(module).get("__loader__"), "path", None)
            if isinstance(file, str) and file.endswith(".py"):
                yield file


def _lines(tree: ast.AST, flag: str, value: Any) -> Iterator[tuple[int, int]]:
    """Yield the lines that name the flag, each with how likely it is the one that set it to `value`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = getattr(node.func, "attr", getattr(node.func, "id", ""))
            names = [each.value for each in node.args if isinstance(each, ast.Constant)]
            is_directory = function == "set_cache_dir" and flag == FLAGS["dir"]
            if is_directory or (flag in names and function not in _READING):
                yield 2 + (value in names), node.lineno
        elif isinstance(node, ast.Dict):
            for each in node.keys:
                if isinstance(each, ast.Constant) and each.value == flag:
                    yield 1, each.lineno
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and target.attr == flag:
                    yield 2, node.lineno
