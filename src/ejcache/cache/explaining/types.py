"""Types and constants of StableHLO as JAX writes them: `tensor<32x32xf32>` is `f32[32,32]`."""

from __future__ import annotations

import re
import struct
from typing import Final

__all__ = ["constant_value", "jax_type", "jax_types", "partition_spec", "split_top"]

_TENSOR: Final = re.compile(r"tensor<((?:(?:\d+|\?)x)*)((?:[^<>]|<[^<>]*>)*)>")
_DTYPES: Final = {"i1": "bool", "complex<f32>": "c64", "complex<f64>": "c128"}
_FLOAT8: Final = re.compile(r"^f(\d+)E(\d+)M(\d+)(\w*)$")
_SIGNLESS: Final = re.compile(r"^u(i)(\d+)$")
_CLOSING: Final = {"(": ")", "<": ">", "{": "}", "[": "]"}
_AXES: Final = re.compile(r"\{([^{}]*)\}")
_LARGEST_SINGLE: Final = 3.4e38
_LONGEST: Final = 48
"""Characters of a constant."""


def jax_type(text: str) -> str:
    """A type as JAX writes it; any text that is not the type of an array is returned as it is."""
    return jax_types(text.strip())


def jax_types(text: str) -> str:
    """A text with every type in it as JAX writes it."""
    return _TENSOR.sub(_spelled, text)


def _spelled(match: re.Match[str]) -> str:
    dtype = match[2].partition(",")[0].strip()
    if eight := _FLOAT8.match(dtype):
        dtype = f"f{eight[1]}_e{eight[2]}m{eight[3]}{eight[4].lower()}"
    dtype = _DTYPES.get(dtype, _SIGNLESS.sub(r"u\2", dtype))
    return f"{dtype}[{','.join(match[1].rstrip('x').split('x')) if match[1] else ''}]"


def split_top(text: str) -> list[str]:
    """The parts of `text` between commas that are in no bracket and no string."""
    parts: list[str] = []
    current: list[str] = []
    closing: list[str] = []
    quoted = escaped = False
    for position, character in enumerate(text):
        if quoted:
            quoted = character != '"' or escaped
            escaped = character == "\\" and not escaped
        elif character == '"':
            quoted = True
        elif character in _CLOSING:
            closing.append(_CLOSING[character])
        elif closing and character == closing[-1] and text[position - 1 : position + 1] != "->":
            closing.pop()
        elif character == "," and not closing:
            parts.append("".join(current))
            current = []
            continue
        current.append(character)
    return [part.strip() for part in (*parts, "".join(current)) if part.strip()]


def constant_value(text: str, type_: str = "") -> str:
    """The value in `dense<…>` of an array of this type as Python writes it, cut to a few dozen characters."""
    double = type_.startswith(("f64", "c128"))
    value = text.removeprefix("dense<").removesuffix(">") if text.startswith("dense<") else text
    if '"' not in value:
        value = re.sub(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", lambda match: _number(match[0], double=double), value)
    return value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _number(text: str, *, double: bool) -> str:
    """The shortest text that means the same number in single or double precision."""
    if "." not in text and "e" not in text.lower():
        return text
    number = float(text)
    if double or abs(number) > _LARGEST_SINGLE:
        return f"{number:.17g}" if double and float(f"{number:.15g}") != number else f"{number:.15g}"
    packed = struct.pack("f", number)
    rounded = (float(f"{number:.{digits}g}") for digits in range(1, 10))
    return f"{next((each for each in rounded if struct.pack('f', each) == packed), number):.9g}"


def partition_spec(sharding: str) -> str:
    """`P('data', None)` of `#sdy.sharding<@mesh, [{"data"}, {}]>`; any other sharding as it is."""
    match = re.search(r"<@(\w+), \[(.*?)\]", sharding)
    if match is None:
        return sharding if len(sharding) <= _LONGEST else sharding[: _LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"
    axes = []
    for group in _AXES.findall(match[2]):
        names = [f"'{name}'" for name in re.findall(r'"([^"]*)"', group)]
        axes.append(f"({', '.join(names)})" if len(names) > 1 else names[0] if names else "None")
    while axes and axes[-1] == "None":
        axes.pop()
    return f"P({', '.join(axes)})"
