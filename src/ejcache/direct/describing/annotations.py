"""Annotations, with their metadata, forward references, bounds and the bases that a class was written with.

Few programs read them. So what cannot be described in one refuses nothing: its class is written instead.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import TYPE_CHECKING, Any

from ejcache.direct.describing.graph import is_scalar
from ejcache.direct.describing.real_types import class_text, is_project_class, is_subtype, type_dict
from ejcache.jax_integration.seam.direct.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ejcache.direct.describing.graph import Node

__all__ = ["write_annotation", "write_annotations"]

_EVALUATED_LATER = sys.version_info >= (3, 14)


def write_annotations(node: Node, owner: Any) -> None:
    """Write the annotations of a function or class of the project, and for a class its original bases."""
    if node.quiet or not node.graph.reads_annotations:
        return
    if type(owner) is types.FunctionType:
        scope: Mapping[str, object] = owner.__globals__
        annotations = None if _EVALUATED_LATER else owner.__annotations__
    else:
        module = sys.modules.get(str(type_dict(owner).get("__module__")))
        scope = vars(module) if module is not None else {}
        annotations = None if _EVALUATED_LATER else type_dict(owner).get("__annotations__")
        bases = type_dict(owner).get("__orig_bases__", ())
        for base in bases if type(bases) is tuple else ():
            write_annotation(node, ".__orig_bases__", base, scope)
    if _EVALUATED_LATER:
        is_function = type(owner) is types.FunctionType
        annotate = getattr(owner, "__annotate__", None) if is_function else type_dict(owner).get("__annotate_func__")
        if type(annotate) is types.FunctionType:
            node.child(".__annotate__", annotate)
    if type(annotations) is dict:
        for name, annotation in annotations.items():
            node.write(str(name).encode("utf-8", "surrogatepass"))
            write_annotation(node, f".__annotations__[{name!r}]", annotation, scope)


def write_annotation(node: Node, label: str, value: Any, scope: Mapping[str, object]) -> None:
    """Write what one annotation says; of a text also what its names stand for."""
    kind = type(value)
    if is_scalar(value):
        node.child(label, value)
        if kind is str:
            for name in _names_in(value):
                if name in scope and not is_scalar(scope[name]) and type(scope[name]) is not types.ModuleType:
                    write_annotation(node, f"{label}.{name}", scope[name], {})
    elif is_subtype(kind, type):
        if is_project_class(node, value):
            node.child(label, value, as_type=True)
        else:
            node.write(class_text(value).encode("utf-8", "surrogatepass"))
    elif node.graph.is_apart:
        # Annotations lead to functions with annotations, and so on: each would be a walk of its own.
        node.write(class_text(kind).encode("utf-8", "surrogatepass"))
    else:
        try:
            node.write(node.graph.apart(value))
        except RefusedError:
            node.write(class_text(kind).encode("utf-8", "surrogatepass"))


@functools.lru_cache(maxsize=4096)
def _names_in(text: str) -> tuple[str, ...]:
    try:
        return compile(text, "<annotation>", "eval").co_names
    except (SyntaxError, ValueError):
        return ()
