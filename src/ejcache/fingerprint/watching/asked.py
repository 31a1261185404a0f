"""Which attributes an installed package asks for by `getattr` and the like: its code need not say their names.

Where the name stands in the code, it is that one. Where the code computes it, it may be any that the object has.
"""

from __future__ import annotations

import dis
import operator
import sys
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Final

from ejcache.fingerprint.guarding.names import ALL_NAMES, PROCESS
from ejcache.fingerprint.guarding.places import find, is_guarded
from ejcache.fingerprint.guarding.tokens import class_dict, own_dict
from ejcache.fingerprint.watching.author import Author, author_of_module

__all__ = ["Asked", "asks_for_attributes", "hides_attribute"]

_ASKING: Final = (getattr, hasattr, vars, dir)
_METHOD: Final = "__getattribute__"
_WITH_WAYS_OUT: Final = (BuiltinFunctionType, CodeType, FrameType, FunctionType, GeneratorType, MethodType)
"""What has attributes that lead to what no walk sees: `__globals__`."""


def asks_for_attributes(called: Any) -> bool:
    """Whether a call of this asks an object for an attribute."""
    kind = type(called)
    if kind is MethodWrapperType or kind is WrapperDescriptorType:
        return bool(called.__name__ == _METHOD)
    return kind is operator.attrgetter or (kind is BuiltinFunctionType and any(called is each for each in _ASKING))


def hides_attribute(code: CodeType, offset: int, called: Any, first: object) -> bool:
    """Whether a call asks a function or the like for an attribute whose name the code does not say."""
    if type(called) is operator.attrgetter or called is hasattr or called is vars or called is dir:
        return False
    owner = called.__self__ if type(called) is MethodWrapperType else first
    return isinstance(owner, _WITH_WAYS_OUT) and offset not in _constant_names(code)


class Asked:
    """What packages have asked objects for.

    Attributes:
        attributes: names of attributes.
        places: modules, and names in them.
    """

    def __init__(self) -> None:
        self.attributes: set[str] = set()
        self.places: set[tuple[str, str]] = set()

    def note(self, code: CodeType, offset: int, called: Any, first: object) -> None:
        """Note one call, by which code of a package asks for an attribute."""
        kind = type(called)
        if kind is operator.attrgetter:
            names = [part for each in called.__reduce__()[1] for part in each.split(".")]
        else:
            constant = _constant_names(code).get(offset)
            names = [] if constant is None else [constant]
        owner = called.__self__ if kind is MethodWrapperType else first
        if isinstance(owner, ModuleType):
            self._note_module(owner, names)
        else:
            self._note_object(owner, names)

    def _note_module(self, module: ModuleType, names: list[str]) -> None:
        own = module.__dict__
        name = own.get("__name__")
        if type(name) is not str or name in PROCESS or sys.modules.get(name) is not module:
            return
        wanted = names or [ALL_NAMES, *(each for each in list(own) if not each.startswith("__"))]
        self.places.update((name, each) for each in wanted if is_guarded(name, each))

    def _note_object(self, value: object, names: list[str]) -> None:
        kind = value if isinstance(value, type) else type(value)
        module = kind.__module__
        if type(module) is not str or author_of_module(module) is not Author.PACKAGE:
            return  # the walk reads the user's objects
        if names:
            self.attributes.update(names)
        else:
            self.attributes.update(name for name in list(own_dict(value)) if type(name) is str)
            for each in kind.__mro__[:-1]:
                own = list(class_dict(each).items())
                self.attributes.update(name for name, held in own if type(held) is not FunctionType)
        if value is kind and find(module, kind.__qualname__) is kind:
            self.places.add((module, kind.__qualname__))


_constants: Final[dict[int, tuple[CodeType, dict[int, str]]]] = {}
"""By the identity of the code, which is kept: the names that calls are given as constants, by the calls' offsets."""


def _constant_names(code: CodeType) -> dict[int, str]:
    found = _constants.get(id(code))
    if found is None:
        found = _constants[id(code)] = (code, _read_constant_names(code))
    return found[1]


_IGNORED: Final = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL"})
_SIMPLE: Final = frozenset(
    {
        "LOAD_CONST",
        "LOAD_DEREF",
        "LOAD_FAST",
        "LOAD_FAST_BORROW",
        "LOAD_FAST_CHECK",
        "LOAD_GLOBAL",
        "LOAD_NAME",
        "LOAD_SMALL_INT",
    }
)
"""Instructions that do nothing but push one value."""


def _read_constant_names(code: CodeType) -> dict[int, str]:
    """Of calls with two arguments, the last one; of calls with three, the one before, if the last one is simple.

    What another path through the function can reach with another value on the stack, is not constant: `name or "k"`.
    """
    found: dict[int, str] = {}
    pushed: list[dis.Instruction] = []
    for each in dis.get_instructions(code):
        if each.is_jump_target:
            pushed.clear()
        if each.opname == "CALL":
            name = _constant_name(pushed, each.arg)
            if name is not None:
                found[each.offset] = name
        if each.opname in _SIMPLE:
            pushed.append(each)
        elif each.opname not in _IGNORED:
            pushed.clear()
    return found


def _constant_name(pushed: list[dis.Instruction], arguments: int | None) -> str | None:
    """The name that a call is given, if these instructions before it push it."""
    after = {2: 0, 3: 1}.get(arguments or 0)
    if after is None or len(pushed) <= after:
        return None
    name = pushed[-1 - after]
    return name.argval if name.opname == "LOAD_CONST" and type(name.argval) is str else None
