"""Guards: what must still hold of the libraries for a trace to come out as it did.

For each library function that ran, the function itself and every name that it may read are found again by module and
name, and compared with what they were. Tables and objects are compared entry by entry. Functions without a name of
their own (lambdas, what C code wraps) are guarded by the source file of their module.

Some of these values are set lazily while a program traces, so they differ without meaning between the end of the trace,
where a record is made, and the time before it, where it is checked. A process that traces and gets the same program
adds what it saw as a *variant*: a whole vector of values. Values of different vectors are never mixed.
"""

from __future__ import annotations

import builtins
import itertools
import sys
import warnings
from collections import defaultdict
from random import Random
from types import FunctionType, GeneratorType, ModuleType
from typing import TYPE_CHECKING, Final

from ejcache._tuples import NamedTuple
from ejcache.fingerprint.guarding.entries import Table, record_table, table_difference, tells_apart
from ejcache.fingerprint.guarding.look import Look
from ejcache.fingerprint.guarding.memos import MEMO, remembered
from ejcache.fingerprint.guarding.names import ALL_NAMES, HIDDEN, WARNING_FILTERS, names_read
from ejcache.fingerprint.guarding.places import (
    MISSING,
    find,
    is_guarded,
    is_table,
    outer_path,
    source_contains,
    source_digest,
    source_file,
)
from ejcache.fingerprint.guarding.tokens import ABSENT, functions_of, nested_codes, short, token, token_of_module
from ejcache.fingerprint.refusal import RefusedError
from ejcache.fingerprint.watching.author import Author, author_of_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import CodeType

    from ejcache.fingerprint.coverage import LibraryCode
    from ejcache.fingerprint.watching.asked import Asked

__all__ = [
    "MOST_VARIANTS",
    "Guards",
    "ModuleGuards",
    "Vector",
    "check_guards",
    "current_values",
    "make_guards",
    "stepped",
]

MOST_VARIANTS: Final = 4

_UNLOADED: Final = b"u"
"""In place of a digest: the module is not loaded, and its source is what it was."""


class ModuleGuards(NamedTuple):
    """What is guarded in one module."""

    source: bytes | None
    """The digest of its source file; None if it has none that can be relied on."""
    by_source: bool
    """Whether the source counts also while the module is loaded: functions of it ran that have no name."""
    values: Mapping[str, bytes]
    """Dotted path → digest."""
    tables: Mapping[str, Table]
    """Dotted path → entries."""


Vector = dict[tuple[str, str], bytes]
"""(module, path) → digest, of what differs from the guards; entries of tables have their own paths."""


class Guards(NamedTuple):
    """What must still hold of the libraries, and other states that were seen to give the same program."""

    modules: Mapping[str, ModuleGuards]
    variants: tuple[Vector, ...] = ()
    base_seen: bool = False
    """Whether a trace began in the state of `modules`, which is the state after the trace that made the record."""

    def match(self, current: Vector) -> int | str:
        """0 if nothing differs, the number of the variant that differs so, or the first difference as a sentence."""
        if not current:
            return 0
        for number, variant in enumerate(self.variants, 1):
            if variant == current:
                return number
        module, path = min(current, key=lambda place: (not place[1], place))
        return _sentence(module, path)

    def with_variant(self, current: Vector) -> Guards:
        """These guards, with one more state in which the same program was traced; at most 4."""
        if not current or current in self.variants or len(self.variants) >= MOST_VARIANTS:
            return self
        return self._replace(variants=(*self.variants, current))


def _sentence(module: str, path: str) -> str:
    if not path:
        return f"the source of {module} is not what it was"
    name = path.partition("|")[0]
    shown = {ALL_NAMES: f"the namespace of {module}", HIDDEN: f"what {module} hides of the built-in names"}
    return f"{shown.get(name, f'{module}.{name}')} is not what it was"


def make_guards(library: Iterable[LibraryCode], asked: Asked | None = None) -> Guards:
    """The guards of the library functions that ran, from the values that they read now.

    Args:
        library: the code objects that ran, with their globals.
        asked: what they asked for by names that are not in their code.

    Raises:
        RefusedError: a function has neither a name nor a source.
    """
    ran = list(library)
    paths: dict[str, set[str]] = defaultdict(set)
    nameless: dict[str, list[CodeType]] = defaultdict(list)
    attributes: set[str] = set()
    if asked is not None:
        attributes |= asked.attributes
        for where, name in asked.places:
            paths[where].add(name)
    for each in ran:
        for code in nested_codes(each.code):
            attributes.update(code.co_names)
        module = _module_of(each)
        if module is None:
            continue
        place = _place(each, module)
        if place is None:
            nameless[module].append(each.code)
        else:
            paths[place[0]].add(place[1])
        paths[module].update(())
        if sys.modules[module].__dict__ is each.namespace:
            for where, name in names_read(each.code, each.namespace):
                if is_guarded(where, name):
                    paths[where].add(name)
    for module, names in list(paths.items()):
        for name in list(names):
            value = _value(module, name)
            kind = value if isinstance(value, type) else type(value)
            # What an object of a library does is in its class, which code may never name.
            if is_table(kind) and kind.__module__ in sys.modules and find(kind.__module__, kind.__qualname__) is kind:
                paths[kind.__module__].add(kind.__qualname__)
    look = Look()
    codes = {id(code) for each in ran for code in nested_codes(each.code)}
    return Guards(
        {
            module: _guard_module(module, names, nameless.get(module, []), codes, attributes, look)
            for module, names in sorted(paths.items())
        }
    )


def _module_of(each: LibraryCode) -> str | None:
    """The loaded module that a code object belongs to; None for the constructor of a named tuple, which only packs."""
    name = each.namespace.get("__name__")
    if isinstance(name, str) and name in sys.modules:
        return name
    if each.owner is not None and each.owner[0].__module__ in sys.modules:
        return each.owner[0].__module__
    if isinstance(name, str) and name.startswith("namedtuple_"):
        return None
    raise RefusedError(f"{each.code.co_qualname} of {each.code.co_filename} is in no module")


def _place(each: LibraryCode, module: str) -> tuple[str, str] | None:
    """The module and path at which the function is found, or None if it is not found by its name."""
    if each.owner is not None:
        kind, attribute = each.owner
        path: str | None = f"{kind.__qualname__}.{attribute}"
        module = kind.__module__
    else:
        path = outer_path(each.code)
    if path is None:
        return None
    value = find(module, path)
    if value is MISSING:
        return None
    for function in functions_of(value):
        if any(code is each.code for code in nested_codes(function.__code__)):
            return module, path
    return None


def _guard_module(
    module: str, names: set[str], nameless: list[CodeType], ran: set[int], attributes: set[str], look: Look
) -> ModuleGuards:
    path = source_file(module)
    digest = None if path is None else source_digest(path)
    # A file that has changed since it was imported says nothing about the code that ran.
    written = [code for code in nameless if not code.co_filename.startswith("<")]
    if path is not None and digest is not None and not source_contains(module, path, written):
        digest = None
    if nameless and digest is None:
        raise RefusedError(f"{nameless[0].co_qualname} of {module} has neither a name nor an unchanged source")
    values: dict[str, bytes] = {}
    tables: dict[str, Table] = {}
    for name in sorted(names):
        value = _value(module, name)
        values[name] = ABSENT if value is MISSING else _digest(module, name, value, look)
        if value is not MISSING and is_table(value) and _is_at_home(module, name, value, look):
            table = record_table(value, ran, attributes, look)
            if table is not None:
                tables[name] = table
    return ModuleGuards(digest, bool(nameless), values, tables)


def _value(module: str, name: str) -> object:
    if (module, name) == WARNING_FILTERS:
        return _error_filters()
    if name.endswith(MEMO):
        return remembered(module, name.removesuffix(MEMO))
    if name == ALL_NAMES:
        own = sys.modules[module].__dict__
        return sorted(
            each for each, value in list(own.items()) if not isinstance(value, ModuleType) and each[:1] != "_"
        )
    if name == HIDDEN:
        return sorted(sys.modules[module].__dict__.keys() & vars(builtins).keys() - _OF_EVERY_MODULE)
    return find(module, name)


def _error_filters() -> list[str]:
    """The filters up to the last one that makes errors of warnings. What others show or hide is lost at a hit."""
    filters = list(warnings.filters)
    last = max((index for index, each in enumerate(filters, 1) if each[0] == "error"), default=0)
    return [_filter_text(each) for each in filters[:last]]


def _filter_text(each: tuple[object, ...]) -> str:
    action, message, category, module, line = each
    texts = [getattr(pattern, "pattern", pattern) for pattern in (message, module)]
    return repr((action, texts, token(category), line))


def _is_at_home(module: str, name: str, value: object, look: Look) -> bool:
    """Whether a value is described here. A class is described in its own module, if it is found there."""
    return not isinstance(value, type) or look.home(value) in (None, (module, name))


_STEPPED: Final = frozenset({itertools.count, GeneratorType})
"""What goes on at each use. JAX numbers its objects with such values, which says nothing about a program."""


def stepped(before: Vector) -> str | None:
    """What a trace has changed in a library that is not set up once, but goes on: a counter, a generator of numbers.

    A start that does not trace would leave it as it was, and what the program does next would come out differently.

    Args:
        before: what differed before the trace from the state after it.
    """
    for module, path in sorted(before):
        digest = before[module, path]
        value = find(module, path) if path and "|" not in path else None
        goes_on = type(value) in (int, float, str) or type(value) in _STEPPED or isinstance(value, Random)
        if goes_on and digest not in (ABSENT, short(None)):
            return f"tracing changes {module}.{path}"
    return None


_OF_EVERY_MODULE: Final = frozenset({"__build_class__", "__doc__", "__loader__", "__name__", "__package__", "__spec__"})


def _digest(module: str, name: str, value: object, look: Look) -> bytes:
    kind = type(value)
    if kind is FunctionType or kind is ModuleType:
        return look.digest(value)
    if isinstance(value, type):
        # Of a table, only its type: its entries are compared one by one.
        whole = is_table(value) and _is_at_home(module, name, value, look)
        return short((token(value), look.shape(value))) if whole else look.digest(value)
    if issubclass(kind, Random) and author_of_module(module) is Author.PACKAGE:
        return short(("random", value.getstate()))  # type: ignore[attr-defined]
    if kind in _STEPPED and author_of_module(module) is Author.PACKAGE and not tells_apart(module, name):
        if kind is GeneratorType:
            raise RefusedError(f"{module}.{name} is a generator")
        return short((kind.__name__, repr(value)))
    return short(token(value, 0)) if is_table(value) else look.digest(value)


def current_values(guards: Guards) -> Vector:
    """What of the guarded values is now not what it was. Empty: everything holds.

    Raises:
        RefusedError: the values cannot be read.
    """
    try:
        return _current_values(guards)
    except Exception as error:  # a library, or a program that has changed one, may do anything
        raise RefusedError(f"what libraries read cannot be compared ({error!r})") from error


def _current_values(guards: Guards) -> Vector:
    found: Vector = {}
    look = Look()
    for module, guarded in guards.modules.items():
        if module not in sys.modules:
            # A part of a library that is imported when it is first needed, or one that this program does not import.
            path = source_file(module)
            if guarded.source is None or path is None or source_digest(path) != guarded.source:
                found[module, ""] = _UNLOADED
            continue
        if guarded.by_source:
            path = source_file(module)
            now = None if path is None else source_digest(path)
            if now != guarded.source:
                found[module, ""] = now or ABSENT
        _compare(module, guarded, guards.modules, found, look)
    return found


def _compare(module: str, guarded: ModuleGuards, known: Mapping[str, object], found: Vector, look: Look) -> None:
    # Of most names the value is what the module holds; `_value` knows the others.
    own = {} if module == WARNING_FILTERS[0] else sys.modules[module].__dict__
    for name, was in guarded.values.items():
        value = own.get(name, MISSING)
        kind = type(value)
        if (kind is FunctionType or kind is ModuleType) and look.digest(value) == was:
            continue
        if value is MISSING:
            value = _value(module, name)
        now = ABSENT if value is MISSING else _digest(module, name, value, look)
        if now != was:
            if not _is_submodule(name, was, value, known):
                found[module, name] = now
            continue
        table = guarded.tables.get(name)
        if table is not None:
            for entry, digest in table_difference(table, value, known, look).items():
                found[module, f"{name}|{entry}"] = digest


def _is_submodule(name: str, was: bytes, value: object, known: Mapping[str, object]) -> bool:
    """Whether a name is only there, or not yet there, because a part of the library is imported lazily."""
    if was == ABSENT:
        return isinstance(value, ModuleType)
    if value is not MISSING:
        return False
    return any(
        each not in sys.modules and each.endswith(f".{name}") and was == short(token_of_module(each)) for each in known
    )


def check_guards(guards: Guards) -> str | None:
    """The first difference in words, or None if every guard holds, in one of the states that are known."""
    try:
        found = guards.match(current_values(guards))
    except RefusedError as error:
        return error.reason
    return found if isinstance(found, str) else None
