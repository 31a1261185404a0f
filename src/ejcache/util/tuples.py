"""Named tuples that are made quickly.

`typing.NamedTuple` compiles every annotation when a module is imported, and `collections.namedtuple` a function for
each class: together a fifth of what `ejcache.enable()` takes. Here one function is compiled for each number of fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NamedTuple, Self
else:
    import types
    from collections import _tuplegetter

    _OF_THE_BODY = frozenset({"__module__", "__qualname__", "__classcell__"})
    _codes: dict[int, types.CodeType] = {}
    _names = {"_new": tuple.__new__}
    _getters: list[_tuplegetter] = []
    """By place: one does for all classes. Every object of a start brings a full collection of garbage nearer."""

    def _maker(fields: tuple[str, ...], defaults: tuple[Any, ...]) -> types.FunctionType:
        """Return `__new__` of a tuple with these fields."""
        code = _codes.get(len(fields))
        if code is None:
            names = "".join(f", _{place}" for place in range(len(fields)))
            made = eval(f"lambda _cls{names}: _new(_cls, ({names[2:]},))")  # noqa: S307  # of numbers only
            code = _codes[len(fields)] = made.__code__
        named = code.replace(co_varnames=("_cls", *fields), co_name="__new__")
        return types.FunctionType(named, _names, "__new__", defaults)

    class _Tuple(tuple):
        """What all named tuples have, as `collections.namedtuple` gives it to each of them."""

        __slots__ = ()
        _fields: tuple[str, ...] = ()

        @classmethod
        def _make(cls, values: Iterable[Any]) -> Self:
            made = tuple.__new__(cls, values)
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


__all__ = ["NamedTuple"]
