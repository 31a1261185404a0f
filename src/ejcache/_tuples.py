"""Named tuples that are made quickly: `typing.NamedTuple` compiles every annotation when a module is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from collections import namedtuple

    _OF_THE_BODY = frozenset({"__module__", "__qualname__", "__classcell__"})

    class _Maker(type):
        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = body.get("__annotations__", {})
            defaults = [body[field] for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body["__module__"])  # noqa: PYI024  # see above
            for key, value in body.items():
                if key not in fields and key not in _OF_THE_BODY:
                    setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_Maker):
        """Base of a class with typed fields, as `typing.NamedTuple` is; its annotations stay texts."""


__all__ = ["NamedTuple"]
