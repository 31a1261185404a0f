"""Annotations: what they name. Most programs never read them, so an odd one refuses nothing.

A class of the user's that is named in one is walked, because a program may build what its annotations name.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from ejcache.fingerprint.kinds.real_types import class_text, is_library_class, is_subtype, type_dict, type_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ejcache.fingerprint.kinds.graph import Node

__all__ = ["write_annotation", "write_annotations"]

_EVALUATED_LATER = sys.version_info >= (3, 14)


def write_annotations(node: Node, owner: Any) -> None:
    """Write the annotations of a function or class. Nothing where Python computes them only when asked."""
    if _EVALUATED_LATER:
        return
    if type(owner) is types.FunctionType:
        annotations = owner.__annotations__
    else:
        annotations = type_dict(owner).get("__annotations__")
    if type(annotations) is dict:
        _write_all(node, annotations)


def _write_all(node: Node, annotations: Mapping[Any, object]) -> None:
    for name, annotation in annotations.items():
        node.write(str.encode(name, "utf-8", "surrogatepass") if type(name) is str else b"")
        write_annotation(node, f".__annotations__[{name!r}]" if type(name) is str else "", annotation)


def write_annotation(node: Node, label: str, value: Any, depth: int = 8) -> None:
    """Write what one annotation names."""
    kind = type(value)
    if value is None or kind is str or kind is bool or kind is int:
        node.child(label, value)
    elif is_subtype(kind, type):
        if is_library_class(value):
            node.write(class_text(value).encode("utf-8", "surrogatepass"))
        else:
            node.child(label, value)
    elif kind is types.UnionType or kind is types.GenericAlias or type_dict(kind).get("__module__") == "typing":
        node.write(type_name(kind).encode())
        name = getattr(value, "_name", None)
        if type(name) is str:
            node.write(name.encode())
        arguments = (getattr(value, "__origin__", None), *getattr(value, "__args__", ()))
        for argument in arguments if depth else ():
            write_annotation(node, label, argument, depth - 1)
    else:
        node.write(class_text(kind).encode("utf-8", "surrogatepass"))
