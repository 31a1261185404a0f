"""Parses the arguments of one call from text: the types and shapes of its arrays, and values as they are.

Shapes are as JAX writes them: `f32[32,128] i32[8] lr=f32[] mode:="fast"`.

    call     := argument*                       separated by spaces
    argument := (name "=")? array               an array that the program will get
              | name? ":=" json                 a value that is passed as it is: a static argument, or a Python number
    array    := type "[" sizes "]" ("@" number)?    with "@", the array is committed to the device of that number
    type     := f32, bf16, i8, u64, c64, bool … or float32, bfloat16, int8 …

A list of JSON becomes a tuple, because static arguments must be hashable.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from ejcache.errors import SettingError

_HOW: Final = (
    'arguments such as f32[32,128], lr=f32[], f32[8]@0 for an array on device 0, and mode:="fast" or :=3 for a value; '
    "what cannot be written so is compiled by a function that calls ejcache.warm"
)
_NAME: Final = re.compile(r"([A-Za-z_]\w*)?(:?=)")
_ARRAY: Final = re.compile(r"([a-z]\w*)\[((?:\s*\d+\s*(?:,\s*\d+\s*)*)?)\](?:@(\d+))?(?=\s|$)")
_SHORT: Final = re.compile(r"(bf|f|i|u|c)(\d+\w*)")
_LONG: Final = {"bf": "bfloat", "f": "float", "i": "int", "u": "uint", "c": "complex"}


class ArrayShape(NamedTuple):
    """One array.

    Attributes:
        dtype: the name of its type, `float32`.
        shape: its sizes.
        device: the number of the device that it is committed to; None if it is not.
    """

    dtype: str
    shape: tuple[int, ...]
    device: int | None = None


Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and the keyword arguments of one call."""


def parse_call(text: str) -> Arguments:
    """Return the call that a text describes: an `ArrayShape` for each array, and values as they are.

    Raises:
        SettingError: the text is not in the grammar of this module.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        named = _NAME.match(text, position)
        name, sign = (named[1] or "", named[2]) if named else ("", "=")
        position = named.end() if named else position
        if sign == ":=":
            value, position = _json(text, position)
        elif named and not name:
            raise SettingError("--shapes", text, _HOW)
        else:
            value, position = _array(text, position)
        if name in kwargs or (not name and kwargs):
            raise SettingError("--shapes", text, f"each name once, after the arguments without one; {_HOW}")
        if name:
            kwargs[name] = value
        else:
            args.append(value)
    return tuple(args), kwargs


def _array(text: str, position: int) -> tuple[ArrayShape, int]:
    found = _ARRAY.match(text, position)
    if found is None:
        raise SettingError("--shapes", text, _HOW)
    dtype, sizes, device = found.groups()
    short = _SHORT.fullmatch(dtype)
    if short is not None:
        dtype = _LONG[short[1]] + short[2]
    shape = tuple(int(size) for size in sizes.split(",")) if sizes.strip() else ()
    return ArrayShape(dtype, shape, int(device) if device is not None else None), found.end()


def _json(text: str, position: int) -> tuple[Any, int]:
    try:
        value, end = json.JSONDecoder().raw_decode(text, position)
    except (ValueError, RecursionError) as exc:
        raise SettingError("--shapes", text, _HOW) from exc
    if text[end : end + 1].strip():
        raise SettingError("--shapes", text, _HOW)
    return _hashable(value), end


def _hashable(value: Any) -> Any:
    """Return `value`, with tuples in place of lists."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
