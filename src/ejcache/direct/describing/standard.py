"""Objects of Python and its standard library: containers, annotations, those with content of their own, and inert ones.

Containers are in the order in which a program meets what they hold; sets are sorted. Few programs read annotations. So
what cannot be described in one refuses nothing: its class is written instead.
"""

from __future__ import annotations

import array
import collections
import concurrent.futures
import contextvars
import dataclasses
import datetime as dt
import decimal
import functools
import gc
import inspect
import io
import logging
import operator
import os
import pathlib
import queue
import random
import re
import sys
import threading
import types
import typing
import uuid
import weakref
from typing import TYPE_CHECKING, Any, Final

from ejcache.direct.describing.code import identity
from ejcache.direct.describing.graph import is_scalar, scalar_token
from ejcache.direct.describing.names import (
    class_text,
    forbidden_attribute,
    is_project_class,
    is_subtype,
    kind_name,
    type_dict,
    type_name,
    write_module,
)
from ejcache.jax_integration.seam.direct.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ejcache.direct.describing.graph import Handler, Node


__all__ = [
    "HANDLERS",
    "INERT",
    "write_annotation",
    "write_annotations",
    "write_flag_holder",
    "write_flags",
    "write_inert",
    "write_mapping",
    "write_sequence",
    "write_set",
    "write_thread_local",
]

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


_PLAIN_KEYS: Final = frozenset(map(identity, (str, bool)))


def write_sequence(node: Node, items: Any) -> None:
    """Write the items of a list or a tuple, which `items` iterates without asking the object's class."""
    for index, item in enumerate(items):
        node.item(f"[{index}]", item)


def write_mapping(node: Node, items: Any) -> None:
    """Write the keys and values of a dictionary in its order."""
    for index, (key, value) in enumerate(items):
        if identity(type(key)) in _PLAIN_KEYS:
            text = repr(key)
            node.write(text.encode("utf-8", "surrogatepass"))
            node.child(f"[{text}]", value)
        else:
            node.child(f"[key {index}]", key)
            node.child(f"[value {index}]", value)


def write_set(node: Node, items: Any) -> None:
    """Write the members of a set, sorted: their order differs from one process to the next."""
    members = list(items)
    if all(map(is_scalar, members)):
        node.write(*sorted(map(scalar_token, members)))
    else:
        node.write(*sorted(map(node.graph.apart, members)))


def _plain_list(node: Node, value: Any) -> None:
    node.write(b"list")
    write_sequence(node, list.__iter__(value))


def _plain_dict(node: Node, value: Any) -> None:
    node.write(b"dict")
    write_mapping(node, dict.items(value))


def _set(node: Node, value: Any) -> None:
    node.write(b"set")
    write_set(node, set.__iter__(value))


def _frozenset(node: Node, value: Any) -> None:
    node.write(b"frozenset")
    write_set(node, frozenset.__iter__(value))


def _deque(node: Node, value: Any) -> None:
    node.write(b"deque", repr(value.maxlen).encode())
    write_sequence(node, collections.deque.__iter__(value))


def _ordered_dict(node: Node, value: Any) -> None:
    node.write(b"OrderedDict")
    write_mapping(node, collections.OrderedDict.items(value))


def _default_dict(node: Node, value: Any) -> None:
    node.write(b"defaultdict")
    node.child(".default_factory", value.default_factory)
    write_mapping(node, dict.items(value))


def _view(node: Node, value: Any) -> None:
    """A proxy or a view of a mapping: the collector names the mapping, whose own methods are not asked."""
    node.write(type(value).__name__.encode())
    for mapping in gc.get_referents(value):
        node.child("", mapping)


def _range(node: Node, value: Any) -> None:
    node.write(b"range", repr((value.start, value.stop, value.step)).encode())


def _slice(node: Node, value: Any) -> None:
    node.write(b"slice")
    for name in ("start", "stop", "step"):
        node.child(f".{name}", getattr(value, name))


def _bytearray(node: Node, value: Any) -> None:
    node.write(b"bytearray", bytes(value))


def _machine_array(node: Node, value: Any) -> None:
    node.write(b"array", value.typecode.encode(), value.tobytes())


_CONTAINER_HANDLERS: Final[dict[type, Handler]] = {
    list: _plain_list,
    dict: _plain_dict,
    set: _set,
    frozenset: _frozenset,
    collections.deque: _deque,
    collections.OrderedDict: _ordered_dict,
    collections.defaultdict: _default_dict,
    types.MappingProxyType: _view,
    type({}.keys()): _view,
    type({}.values()): _view,
    type({}.items()): _view,
    range: _range,
    slice: _slice,
    bytearray: _bytearray,
    array.array: _machine_array,
}


INERT: Final[tuple[type, ...]] = (
    *(logging.Logger, logging.Handler, logging.LoggerAdapter, logging.Formatter, logging.Filter),
    *(threading.Thread, threading.Event, threading.Condition, threading.Semaphore, threading.Barrier),
    *(queue.Queue, queue.SimpleQueue, concurrent.futures.Executor, concurrent.futures.Future),
)
"""Classes whose instances decide nothing that is traced: they count by their type, and so do those of subclasses."""


_READ_BY: Final = {
    logging.Logger: {"isEnabledFor", "getEffectiveLevel", "level", "disabled"},
    queue.Queue: {"get", "get_nowait", "queue", "qsize", "empty", "full"},
    concurrent.futures.Future: {"result", "exception", "done"},
    threading.Event: {"is_set", "wait"},
}
"""Names with which code reads the state of such an object."""
_UNREAD: Final = frozenset({"_cache", "handlers", "manager", "parent", "root"})
"""What leads from a logger to all others."""


def write_inert(node: Node, value: Any) -> None:
    """An object that decides nothing, unless the code names an attribute of it."""
    node.write(b"inert", class_text(type(value)).encode("utf-8", "surrogatepass"))
    own = {} if isinstance(value, queue.SimpleQueue) else getattr(value, "__dict__", {})
    members = {name.lstrip("_"): each for name, each in own.items() if name not in _UNREAD}
    opens = next((names for kind, names in _READ_BY.items() if isinstance(value, kind)), ())
    if isinstance(value, logging.Logger):
        members["level"] = (logging.Logger.getEffectiveLevel(value), logging.root.manager.disable)
        node.graph.add_namespace(node, dict.fromkeys(_READ_BY[logging.Logger], members["level"]))
        opens = ()
    node.graph.add_namespace(node, members, opens=opens)


def write_flags(node: Node, value: Any) -> None:
    """The flags of absl: the values of those that the code can name."""
    flags = object.__getattribute__(value, "__dict__").get("__flags", {})
    node.write(b"flags")
    node.graph.add_namespace(node, {name: vars(flag).get("_value") for name, flag in flags.items()})


def write_flag_holder(node: Node, value: Any) -> None:
    """What `absl.flags.DEFINE_…` gives: the value of its flag."""
    own = vars(value)
    node.write(b"flag", own["_name"].encode())
    node.child(".value", vars(vars(own["_flagvalues"])["__flags"][own["_name"]]).get("_value"))


def write_thread_local(node: Node, value: Any) -> None:
    """What this thread keeps in a thread local."""
    node.write(b"thread local", class_text(type(value)).encode())
    for name, attribute in list(threading.local.__getattribute__(value, "__dict__").items()):
        node.child(f".{name}", attribute)


def _token(node: Node, value: Any) -> None:
    node.write(type_name(type(value)).encode())


def _by_repr(node: Node, value: Any) -> None:
    node.write(class_text(type(value)).encode(), repr(value).encode())


def _by_reduce(node: Node, value: Any) -> None:
    node.write(class_text(type(value)).encode())
    for index, part in enumerate(value.__reduce__()):
        if index or not isinstance(part, type):
            node.child(f".__reduce__()[{index}]", part)


def _attribute_getter(node: Node, value: Any) -> None:
    for name in value.__reduce__()[1]:
        _note_attributes(node, name)
    _by_reduce(node, value)


def _method_caller(node: Node, value: Any) -> None:
    made, arguments, *_ = value.__reduce__()
    _note_attributes(node, made.args[0] if isinstance(made, functools.partial) else arguments[0])
    _by_reduce(node, value)


def _note_attributes(node: Node, name: str) -> None:
    names = name.split(".")
    node.graph.note_names(names)
    for each in filter(forbidden_attribute, names):
        node.refuse(f"reads {each}")


def _decimal(node: Node, value: Any) -> None:
    node.write(b"Decimal", str(decimal.Decimal.as_tuple(value)).encode())


def _path(node: Node, value: Any) -> None:
    node.write(class_text(type(value)).encode(), pathlib.PurePath.__str__(value).encode("utf-8", "surrogateescape"))


def _pattern(node: Node, value: Any) -> None:
    node.write(b"Pattern", b"%d" % value.flags)
    node.child(".pattern", value.pattern)


def _random(node: Node, value: Any) -> None:
    node.write(b"Random")
    if value is vars(random).get("_inst"):
        return  # which numbers it gives is not compared
    node.child(".getstate()", random.Random.getstate(value))


def _context_variable(node: Node, value: Any) -> None:
    node.write(b"ContextVar", value.name.encode())
    try:
        content = value.get()
    except LookupError:
        node.write(b"unset")
    else:
        node.child("", content)


def _weak_reference(node: Node, value: Any) -> None:
    referent = weakref.ref.__call__(value)
    node.write(b"weak reference")
    node.child("", referent)


def _generic_alias(node: Node, value: Any) -> None:
    node.write(b"generic")
    node.child(".__origin__", value.__origin__)
    node.child(".__args__", value.__args__)


def _union(node: Node, value: Any) -> None:
    node.write(b"union")
    node.child(".__args__", value.__args__)


def _typing_alias(node: Node, value: Any) -> None:
    """A typing construct written in Python, by its attributes."""
    node.write(class_text(type(value)).encode())
    for name in ("_name", "__origin__", "__args__", "__metadata__", "__forward_arg__"):
        attribute = getattr(value, name, None)
        if attribute is not None:
            node.child(f".{name}", attribute)


def _type_variable(node: Node, value: Any) -> None:
    node.write(class_text(type(value)).encode(), value.__name__.encode())
    for name in ("__bound__", "__constraints__", "__covariant__", "__contravariant__", "__default__"):
        attribute = getattr(value, name, None)
        if attribute is not None and type(attribute).__name__ != "NoDefaultType":
            node.child(f".{name}", attribute)


def _field(node: Node, value: Any) -> None:
    """A field of a dataclass."""
    node.quiet = True
    node.write(b"field", repr((value.init, value.repr, value.hash, value.compare, value.kw_only)).encode())
    node.child(".name", value.name)
    node.child(".default", value.default)
    node.child(".default_factory", value.default_factory)
    node.child(".metadata", value.metadata)
    write_annotation(node, ".type", value.type, {})


def _signature(node: Node, value: Any) -> None:
    node.quiet = True
    node.write(b"signature")
    for name, parameter in value.parameters.items():
        node.write(name.encode("utf-8", "surrogatepass"), str(parameter.kind).encode())
        node.child(f".parameters[{name!r}].default", parameter.default)
        write_annotation(node, f".parameters[{name!r}].annotation", parameter.annotation, {})


def _environment(node: Node, value: Any) -> None:
    del value
    node.write(b"the environment")  # what is read in it is compared by name


def _stream(node: Node, value: Any) -> None:
    for name in ("stdout", "stderr", "stdin"):
        if value is getattr(sys, name) or value is getattr(sys, f"__{name}__"):
            node.write(name.encode())
            return
    node.refuse(f"is {kind_name(value)}, an open file")


_TYPING: Final = (
    *("_AnnotatedAlias", "_CallableGenericAlias", "_CallableType", "_GenericAlias", "_LiteralGenericAlias"),
    *("_SpecialForm", "_SpecialGenericAlias", "_TupleType", "_UnionGenericAlias", "ForwardRef"),
)
_typing_aliases: dict[type, Handler] = {
    kind: _typing_alias for name in _TYPING if isinstance(kind := vars(typing).get(name), type)
}
_tuple_getter = type(vars(typing.NamedTuple("_Pair", [("first", int)]))["first"])

_lock = threading.Lock()

HANDLERS: Final[dict[type, Handler]] = {
    object: _token,
    types.ModuleType: write_module,
    type(_lock): write_inert,
    type(threading.RLock()): write_inert,
    threading.local: write_thread_local,
    contextvars.ContextVar: _context_variable,
    weakref.ref: _weak_reference,
    weakref.WeakMethod: _weak_reference,
    random.Random: _random,
    re.Pattern: _pattern,
    decimal.Decimal: _decimal,
    dataclasses.Field: _field,
    inspect.Signature: _signature,
    uuid.UUID: _by_repr,
    dt.datetime: _by_reduce,
    dt.date: _by_repr,
    dt.time: _by_reduce,
    dt.timedelta: _by_repr,
    dt.timezone: _by_reduce,
    operator.attrgetter: _attribute_getter,
    operator.itemgetter: _by_reduce,
    operator.methodcaller: _method_caller,
    pathlib.PurePosixPath: _path,
    pathlib.PureWindowsPath: _path,
    pathlib.PosixPath: _path,
    types.GenericAlias: _generic_alias,
    types.UnionType: _union,
    typing.TypeVar: _type_variable,
    typing.ParamSpec: _type_variable,
    type(sys.flags): _by_repr,
    type(sys.version_info): _by_repr,
    type(sys.float_info): _by_repr,
    type(sys.int_info): _by_repr,
    _tuple_getter: _by_reduce,
    type(vars(os)["environ"]): _environment,
    **dict.fromkeys((io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO), _stream),
    **_typing_aliases,
    **_CONTAINER_HANDLERS,
}
