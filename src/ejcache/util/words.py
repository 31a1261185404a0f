"""Enumerations of words and of numbers that are made quickly.

`enum` takes a tenth of a millisecond for a class, and keeps some forty objects of it: those of a first hit were a
fifteenth of what `ejcache.enable()` takes. Members are what their class says, alone: they compare by identity, and are
found by their value (`Miss("absent")`), in their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from enum import IntEnum as Numbers
    from enum import StrEnum as Words
else:

    class _Maker(type):
        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            values = {key: value for key, value in body.items() if key[0] != "_" and type(value) in (int, str)}
            rest = {key: value for key, value in body.items() if key not in values}
            made = super().__new__(cls, name, bases, {"__slots__": (), **rest})
            if values:
                made.__members__ = {key: made.__mro__[2].__new__(made, value) for key, value in values.items()}
                for key, member in made.__members__.items():
                    setattr(made, key, member)
            return made

        def __call__(cls, value: object) -> Any:
            for member in cls.__members__.values():
                if member == value:
                    return member
            raise ValueError(f"{value!r} is not a valid {cls.__name__}")

        def __iter__(cls) -> Any:
            return iter(cls.__members__.values())

        def __reversed__(cls) -> Any:
            return reversed(cls.__members__.values())

        def __len__(cls) -> int:
            return len(cls.__members__)

        def __contains__(cls, value: object) -> bool:
            return any(member == value for member in cls)

    def _name(member: Any) -> str:
        return next(name for name, each in type(member).__members__.items() if each is member)

    class Words(str, metaclass=_Maker):  # noqa: SLOT000 (the metaclass gives them)
        """Base of words, as `enum.StrEnum` is."""

        value = property(str.__str__)
        name = property(_name)

        def __reduce__(self) -> Any:
            return type(self), (str(self),)

    class Numbers(int, metaclass=_Maker):
        """Base of numbers, as `enum.IntEnum` is."""

        value = property(int.__int__)
        name = property(_name)

        def __reduce__(self) -> Any:
            return type(self), (int(self),)


__all__ = ["Numbers", "Words"]
