"""Renames a name of JAX's internals, in its module and in the functions of JAX that use it, as a new version would."""

from __future__ import annotations

import importlib
import sys
from types import CodeType, FunctionType
from typing import Any


def rename(module_name: str, name: str) -> None:
    """Give `name` of a module of JAX another name, everywhere in JAX.

    Args:
        module_name: `jax._src.compiler`; of an attribute that is a module, such as `jax._src.lib.xla_client`, too.
        name: of a function or a value.
    """
    above, _, last = module_name.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ImportError:
        module = getattr(importlib.import_module(above), last)
    other = f"{name}_of_another_version"
    for value in list(vars(module).values()):
        for each in list(vars(value).values()) if isinstance(value, type) else [value]:
            _rename_in(getattr(each, "__func__", each), name, other)
    known = _Renamed(module, name, other)
    for each in list(sys.modules.values()):
        if getattr(each, "__name__", "").startswith(("jax._src", "jax.experimental")):
            for alias, value in list(vars(each).items()):
                if value is module and each.__name__ != above:
                    setattr(each, alias, known)
    setattr(module, other, getattr(module, name))
    delattr(module, name)


class _Renamed:
    """A module, as the modules of JAX see it that use it: they know the other name."""

    def __init__(self, module: Any, name: str, other: str) -> None:
        vars(self).update(_module=module, _name=name, _other=other)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, self._other if name == self._name else name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, self._other if name == self._name else name, value)


def _rename_in(value: Any, name: str, other: str) -> None:
    while value is not None:
        if isinstance(value, FunctionType):
            value.__code__ = _renamed(value.__code__, name, other)
        value = getattr(value, "__wrapped__", None)


def _renamed(code: CodeType, name: str, other: str) -> CodeType:
    constants = tuple(_renamed(each, name, other) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_names=tuple(other if each == name else each for each in code.co_names), co_consts=constants)
