"""Whether an exiting interpreter may leave out its collections of cyclic garbage.

Python collects three times when it exits, and each time walks through everything that a program with JAX holds: a
tenth of the time of a short program. All that comes of it is memory, which the end of the process frees as well, unless
an object is to do something when it is freed: flush a file, end a generator's `finally`, call `__del__`. So the
collections may be left out if there is no such object. What is not in cycles is freed as ever.

Looking at the types of all objects takes a tenth of one collection.

Read for this: CPython 3.11 to 3.13, `pylifecycle.c` and `gcmodule.c`; jax 0.10.2 and 0.12.0.1, `api.clean_up`.
"""

from __future__ import annotations

import gc
import itertools
import sys
import types
from importlib.machinery import EXTENSION_SUFFIXES
from typing import TYPE_CHECKING, Any, Final

from jax._src import array, xla_bridge

from ejcache.jax_integration.seam.coordination import coordination_client

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["collections_change_nothing"]

_WRITE_NOTHING: Final = frozenset(
    {
        "PIL", "charset_normalizer", "jaxlib", "markupsafe", "ml_dtypes", "msgpack", "numpy", "optree", "psutil",
        "scipy", "simplejson", "yaml", "zstandard",
    }
)  # fmt: skip
"""Packages with compiled parts whose objects do nothing when they are freed that anybody could notice. Python does not
tell which objects of compiled parts there are, so beside an unknown package everything is collected."""


def collections_change_nothing() -> bool:
    """Whether it makes no difference, but for memory, if cyclic garbage is collected before the process ends.

    Never where another backend than CPU was made, or processes work together: drivers and servers want to be left.
    """
    clients = getattr(xla_bridge, "_backends", {}).values()
    if any(client.platform != "cpu" for client in clients) or coordination_client() is not None:
        return False
    return not _has_unknown_packages() and not _has_finalisers(gc.get_objects())


def _has_unknown_packages() -> bool:
    suffixes = tuple(EXTENSION_SUFFIXES)
    for name, module in list(sys.modules.items()):
        package = name.partition(".")[0]
        if package not in _WRITE_NOTHING and package not in sys.stdlib_module_names:
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and file.endswith(suffixes):
                return True
    return False


def _has_finalisers(objects: list[Any]) -> bool:
    finalised = {kind for kind in set(map(type, objects)) if hasattr(kind, "__del__")}
    # Those of ejcache have been closed by now.
    finalised = {kind for kind in finalised if not kind.__module__.startswith("ejcache.")}
    if not all(kind.__module__ == "_io" or kind in (types.GeneratorType, array.ArrayImpl) for kind in finalised):
        return True
    found = itertools.compress(objects, map(finalised.__contains__, map(type, objects)))
    standard = set(map(id, _standard_streams()))
    return not all(id(each) in standard or _is_done(each) for each in found)


def _is_done(thing: Any) -> bool:
    if isinstance(thing, types.GeneratorType):
        return not thing.gi_suspended
    if isinstance(thing, array.ArrayImpl):
        # Of one that is still computed, XLA would wait for the computation.
        return bool(thing.is_deleted() or thing.is_ready())
    return bool(thing.closed)


def _standard_streams() -> Iterable[Any]:
    """Python flushes them when it exits."""
    for stream in (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__):
        buffer = getattr(stream, "buffer", None)
        yield from (stream, buffer, getattr(buffer, "raw", None))
