"""Objects of Python and its standard library: containers, annotations, and inert ones.

Containers are in the order in which a program meets what they hold; sets are sorted. What has a content of its own,
such as a date, a pattern or a typing construct, is written as it would be pickled.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextvars
import functools
import gc
import logging
import queue
import sys
import threading
import types
import typing
import weakref
from typing import TYPE_CHECKING, Any, Final

from ejcache.direct.describing.code import identity, plain_token
from ejcache.direct.describing.graph import is_scalar, scalar_token
from ejcache.direct.describing.names import FLAGS, class_text, write_module

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ejcache.direct.describing.graph import Handler, Node


__all__ = ["BASES", "BY_TEXT", "CONTENT", "HANDLERS", "singleton_name", "write_annotations", "write_sequence"]


def write_annotations(node: Node, annotations: Mapping[str, Any], scope: Mapping[str, object]) -> None:
    """Write the annotations of a function or class, with what texts in them name in the scope of its module."""
    for name, annotation in annotations.items() if not node.quiet else ():
        label = f".__annotations__[{name!r}]"
        node.child(label, annotation, as_type=True)
        for each in _names_in(annotation) if type(annotation) is str else ():
            if each in scope and type(scope[each]) is not types.ModuleType:
                node.child(f"{label}.{each}", scope[each], as_type=True)


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


def _write_mapping(node: Node, items: Any) -> None:
    """Write the keys and values of a dictionary in its order."""
    for index, (key, value) in enumerate(items):
        if identity(type(key)) in _PLAIN_KEYS:
            text = repr(key)
            node.write(text.encode("utf-8", "surrogatepass"))
            node.child(f"[{text}]", value)
        else:
            node.child(f"[key {index}]", key)
            node.child(f"[value {index}]", value)


def _write_set(node: Node, items: Any) -> None:
    """Write the members of a set, sorted: their order differs from one process to the next."""
    members = list(items)
    if all(map(is_scalar, members)):
        node.write(*sorted(map(scalar_token, members)))
    else:
        node.write(*sorted(map(node.graph.apart, members)))


def _default_dict(node: Node, value: Any) -> None:
    node.child(".default_factory", _default_factory(value))
    _write_mapping(node, dict.items(value))


def _deque(node: Node, value: Any) -> None:
    node.write(repr(_max_length(value)).encode())
    write_sequence(node, collections.deque.__iter__(value))


_default_factory: Any = vars(collections.defaultdict)["default_factory"].__get__
_max_length: Any = vars(collections.deque)["maxlen"].__get__
_arguments: Any = vars(BaseException)["args"].__get__


def _scalar(read: Callable[[Any], object]) -> Handler:
    return lambda node, value: node.write(plain_token(read(value)))


def _content(kind: type, write: Handler) -> tuple[type, Handler]:
    name = kind.__name__.encode()

    def write_named(node: Node, value: Any) -> None:
        node.write(name)
        write(node, value)

    return kind, write_named


CONTENT: Final = tuple(
    _content(*each)
    for each in (
        (collections.OrderedDict, lambda node, value: _write_mapping(node, collections.OrderedDict.items(value))),
        (collections.defaultdict, _default_dict),
        (dict, lambda node, value: _write_mapping(node, dict.items(value))),
        (list, lambda node, value: write_sequence(node, list.__iter__(value))),
        (tuple, lambda node, value: write_sequence(node, tuple.__iter__(value))),
        (set, lambda node, value: _write_set(node, set.__iter__(value))),
        (frozenset, lambda node, value: _write_set(node, frozenset.__iter__(value))),
        (collections.deque, _deque),
        (int, _scalar(int.__index__)),
        (float, _scalar(float.__float__)),
        (complex, _scalar(complex.__complex__)),
        (str, _scalar(str.__str__)),
        (bytes, _scalar(lambda value: bytes.__getitem__(value, slice(None)))),
        (BaseException, lambda node, value: node.child(".args", _arguments(value))),
    )
)
"""What built-in classes hold, without asking the class of the object, which may be derived from them."""


def _view(node: Node, value: Any) -> None:
    """A proxy or a view of a mapping: the collector names the mapping, whose own methods are not asked."""
    node.write(type(value).__name__.encode())
    for mapping in gc.get_referents(value):
        node.child("", mapping)


_INERT: Final[tuple[type, ...]] = (
    *(logging.Logger, logging.Handler, logging.LoggerAdapter, logging.Formatter, logging.Filter),
    *(threading.Thread, threading.Event, threading.Condition, threading.Semaphore, threading.Barrier),
    *(queue.Queue, queue.SimpleQueue, concurrent.futures.Executor, concurrent.futures.Future),
)
"""Classes whose instances decide nothing that is traced: they count by their type, and so do those of subclasses."""
_READ_BY: Final = {
    queue.Queue: {"get", "get_nowait", "queue", "qsize", "empty", "full"},
    concurrent.futures.Future: {"result", "exception", "done"},
    threading.Event: {"is_set", "wait"},
}
"""Names with which code reads the state of such an object."""
_LEVEL: Final = ("isEnabledFor", "getEffectiveLevel", "level", "disabled")
"""Names with which code reads the level of a logger."""
_UNREAD: Final = frozenset({"_cache", "handlers", "level", "manager", "parent", "root"})
"""What leads from a logger to all others."""


def _inert(node: Node, value: Any) -> None:
    """An object that decides nothing, unless the code names an attribute of it."""
    node.write(b"inert", class_text(type(value)).encode("utf-8", "surrogatepass"))
    own = getattr(value, "__dict__", {})
    members = {name.lstrip("_"): each for name, each in own.items() if name not in _UNREAD}
    if isinstance(value, logging.Logger):
        level = logging.Logger.getEffectiveLevel(value), logging.root.manager.disable
        node.graph.add_namespace(node, dict.fromkeys(_LEVEL, level))
    opens = next((names for kind, names in _READ_BY.items() if isinstance(value, kind)), ())
    node.graph.add_namespace(node, members, opens=opens)


def _flags(node: Node, value: Any) -> None:
    """The flags of absl: the values of those that the code can name."""
    flags = object.__getattribute__(value, "__dict__").get("__flags", {})
    node.write(b"flags")
    node.graph.add_namespace(node, {name: vars(flag).get("_value") for name, flag in flags.items()})


def _flag_holder(node: Node, value: Any) -> None:
    """What `absl.flags.DEFINE_…` gives: the value of its flag."""
    own = vars(value)
    node.write(b"flag", own["_name"].encode())
    node.child(".value", vars(vars(own["_flagvalues"])["__flags"][own["_name"]]).get("_value"))


def _thread_local(node: Node, value: Any) -> None:
    """What this thread keeps in a thread local."""
    node.write(b"thread local", class_text(type(value)).encode())
    for name, attribute in list(threading.local.__getattribute__(value, "__dict__").items()):
        node.child(f".{name}", attribute)


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


def _type_variable(node: Node, value: Any) -> None:
    node.write(class_text(type(value)).encode(), value.__name__.encode())
    for name in ("__bound__", "__constraints__", "__covariant__", "__contravariant__", "__default__"):
        attribute = getattr(value, name, None)
        if attribute is not None and type(attribute).__name__ != "NoDefaultType":
            node.child(f".{name}", attribute)


_SINGLETONS: Final = (
    *(("sys", f"{around}{name}{around}") for name in ("stdout", "stderr", "stdin") for around in ("", "__")),
    *(("os", "environ"), ("random", "_inst"), ("numpy.random.mtrand", "_rand")),
)
"""Objects of the process: what is read in the environment is compared by name, and which numbers come is not compared.
"""


def singleton_name(value: object) -> str | None:
    """The name of an object that each process has; None if it is none of these."""
    names = (each for each in _SINGLETONS if value is getattr(sys.modules.get(each[0]), each[1], None))
    return next(map(".".join, names), None)


_lock = threading.Lock()
HANDLERS: Final[dict[type, Handler]] = {
    **dict(CONTENT),
    types.MappingProxyType: _view,
    type({}.keys()): _view,
    type({}.values()): _view,
    type({}.items()): _view,
    types.ModuleType: write_module,
    type(_lock): _inert,
    type(threading.RLock()): _inert,
    contextvars.ContextVar: _context_variable,
    weakref.ref: _weak_reference,
    weakref.WeakMethod: _weak_reference,
    typing.TypeVar: _type_variable,
    typing.ParamSpec: _type_variable,
}
BASES: Final[tuple[tuple[type, Handler], ...]] = (
    (types.ModuleType, write_module),
    (threading.local, _thread_local),
    *((kind, _inert) for kind in _INERT),
)
"""Classes whose subclasses are written as they are."""
BY_TEXT: Final[dict[str, Handler]] = {FLAGS: _flags, "absl.flags._flagvalues:FlagHolder": _flag_holder}
"""By the name of the class, which is not imported for that."""
