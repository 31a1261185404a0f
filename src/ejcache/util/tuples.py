"""Named tuples, and closed sets of words and of numbers, that are made quickly.

`typing.NamedTuple` compiles every annotation when a module is imported, and `collections.namedtuple` a function for
each class: together a fifth of what `ejcache.enable()` takes. Here one function for each number of fields is compiled
with this module, and nothing when a class is made.

`enum` takes a tenth of a millisecond for a class, and makes each member an object that the garbage collector goes
through. Nothing here asks a member for its class, its name or its order: `Miss.ABSENT` is an enumeration's for type
checkers, and `"absent"` when the program runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from enum import IntEnum as Numbers
    from enum import StrEnum as Words
    from typing import NamedTuple, Self
else:
    import types
    from collections import _tuplegetter

    _OF_THE_BODY = frozenset({"__module__", "__qualname__", "__classcell__"})
    _new = tuple.__new__
    _codes: tuple[types.CodeType, ...] = tuple(
        each.__code__
        for each in (
            lambda cls: _new(cls, ()),
            lambda cls, a: _new(cls, (a,)),
            lambda cls, a, b: _new(cls, (a, b)),
            lambda cls, a, b, c: _new(cls, (a, b, c)),
            lambda cls, a, b, c, d: _new(cls, (a, b, c, d)),
            lambda cls, a, b, c, d, e: _new(cls, (a, b, c, d, e)),
            lambda cls, a, b, c, d, e, f: _new(cls, (a, b, c, d, e, f)),
            lambda cls, a, b, c, d, e, f, g: _new(cls, (a, b, c, d, e, f, g)),
            lambda cls, a, b, c, d, e, f, g, h: _new(cls, (a, b, c, d, e, f, g, h)),
            lambda cls, a, b, c, d, e, f, g, h, i: _new(cls, (a, b, c, d, e, f, g, h, i)),
            lambda cls, a, b, c, d, e, f, g, h, i, j: _new(cls, (a, b, c, d, e, f, g, h, i, j)),
            lambda cls, a, b, c, d, e, f, g, h, i, j, k: _new(cls, (a, b, c, d, e, f, g, h, i, j, k)),
            lambda cls, a, b, c, d, e, f, g, h, i, j, k, m: _new(cls, (a, b, c, d, e, f, g, h, i, j, k, m)),
            lambda cls, a, b, c, d, e, f, g, h, i, j, k, m, n: _new(cls, (a, b, c, d, e, f, g, h, i, j, k, m, n)),
            lambda cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o: _new(cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o)),
            lambda cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o, p: _new(
                cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o, p)
            ),
            lambda cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q: _new(
                cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q)
            ),
            lambda cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q, r: _new(
                cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q, r)
            ),
            lambda cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q, r, s: _new(
                cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q, r, s)
            ),
        )
    )
    """What makes a tuple, by the number of its fields. A class with more of them needs another line."""
    _names = {"_new": _new}
    _getters: list[_tuplegetter] = []
    """By place: one does for all classes. Every object of a start brings a full collection of garbage nearer."""

    def _maker(fields: tuple[str, ...], defaults: tuple[Any, ...]) -> types.FunctionType:
        """Return `__new__` of a tuple with these fields."""
        named = _codes[len(fields)].replace(co_varnames=("_cls", *fields), co_name="__new__")
        return types.FunctionType(named, _names, "__new__", defaults)

    class _Tuple(tuple):
        """What all named tuples have, as `collections.namedtuple` gives it to each of them."""

        __slots__ = ()
        _fields: tuple[str, ...] = ()

        @classmethod
        def _make(cls, values: Iterable[Any]) -> Self:
            made = _new(cls, values)
            if len(made) != len(cls._fields):
                raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
            return made

        def _replace(self, /, **changes: Any) -> Self:
            made = self._make(map(changes.pop, self._fields, self))
            if changes:
                raise ValueError(f"Got unexpected field names: {list(changes)!r}")
            return made

        def _asdict(self) -> dict[str, Any]:
            return dict(zip(self._fields, self, strict=True))

        def __repr__(self) -> str:
            values = ", ".join(f"{field}={value!r}" for field, value in zip(self._fields, self, strict=True))
            return f"{type(self).__name__}({values})"

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)

    _BASES = (_Tuple,)
    """One for all classes, as the getters are."""

    class _Maker(type):
        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = tuple(body.get("__annotations__", ()))
            defaults = {field: body[field] for field in fields if field in body}
            kept = {key: value for key, value in body.items() if key not in fields and key not in _OF_THE_BODY}
            while len(_getters) < len(fields):
                _getters.append(_tuplegetter(len(_getters), None))
            getters = dict(zip(fields, _getters, strict=False))
            return type(
                name,
                _BASES,
                {
                    "__slots__": (),
                    "__module__": body["__module__"],
                    "__new__": _maker(fields, tuple(defaults.values())),
                    "__match_args__": fields,
                    "_fields": fields,
                    "_field_defaults": defaults,
                    **getters,
                    **kept,
                },
            )

    class NamedTuple(metaclass=_Maker):
        """Base of a class with typed fields, as `typing.NamedTuple` is; its annotations stay texts."""

    class Words:
        """Base of a set of words; a type checker takes it for `enum.StrEnum`."""

    Numbers = Words


__all__ = ["NamedTuple", "Numbers", "Words"]
