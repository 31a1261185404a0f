"""The settings as keywords in the signature of a function, for `help` and for editors that inspect a live object."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ejcache.settings.typed import SettingOptions

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["with_setting_keywords"]

P = ParamSpec("P")
R = TypeVar("R")


class _NotGiven:
    """The default of every setting's keyword: the setting keeps the value that other sources give it."""

    def __repr__(self) -> str:
        return "<not given>"


def with_setting_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Give a function whose last parameter is `**settings` a signature that names every setting instead."""
    signature = inspect.signature(function)
    named = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    settings = [
        # As text, as the annotations of the other parameters are: to evaluate all of them takes a millisecond.
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_NotGiven(), annotation=hint)
        for name, hint in SettingOptions.__annotations__.items()
    ]
    attributes: dict[str, Any] = vars(function)
    attributes["__signature__"] = signature.replace(parameters=[*named, *settings])
    return function
