"""The objects that a function reads, numbered in the order in which they are found: nearest first, cycles included.

Each object writes what it is by itself, and for each object that it leads to a label and a reference. Numbers, strings
and tuples are written where they are read; all others are written once, and referred to by their number. Two programs
with equal texts therefore read equal values, shared in the same way.

Of a namespace (an object, a class or a module of the project) only those members are written whose names the code that
was reached can say. Each code that is reached can say more names, so namespaces are looked at until nothing is added.
"""

from __future__ import annotations

import array
import hashlib
import sys
import types
import zlib
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ejcache.direct.describing.code import identity, plain_token
from ejcache.jax_integration.seam.direct.refusal import RefusedError
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from types import CodeType

    from ejcache.direct.describing.code import Reads
    from ejcache.direct.files.owners import Owners

    Handler = Callable[["Node", Any], None]

__all__ = ["ARROW", "Graph", "Node", "is_scalar", "scalar_token"]

ARROW: Final = " → "
"""Between a function and what it reads."""

_items: Final[Callable[[object], Iterator[object]]] = tuple.__iter__  # type: ignore[assignment]
_SCALARS: Final = frozenset(
    map(identity, (types.NoneType, bool, int, float, complex, str, bytes, types.EllipsisType, types.NotImplementedType))
)
_MAX_VALUES: Final = 1_000_000
_MAX_NAMED: Final = 4_000
_MAX_NAMED_DEPTH: Final = 16
_NOT_SCANNED: Final = sys.stdlib_module_names | {"jax", "jaxlib", "numpy", "scipy"}
"""What a program patches in these is compared where its code names it: they are large."""
_TEXTS: Final = ("__repr__", "__str__", "__format__")
_FORBIDDEN: Final = frozenset(
    {
        *("__globals__", "__builtins__", "__subclasses__", "co_filename", "co_firstlineno", "co_lines", "co_positions"),
        *("cr_frame", "f_back", "f_builtins", "f_globals", "f_lineno", "f_locals", "gi_frame", "tb_frame", "tb_lineno"),
    }
)
"""Attributes that lead from a value to what no description covers."""


def is_scalar(value: object) -> bool:
    """Whether a value is written where it is read, and leads to nothing."""
    return identity(type(value)) in _SCALARS


def scalar_token(value: object) -> bytes:
    """What such a value is."""
    return b"NotImplemented" if value is NotImplemented else plain_token(value)


class _Namespace(NamedTuple):
    node: Node
    members: Mapping[str, object]
    written: set[str]
    write: Callable[[Node, str, object], None]
    wanted: Collection[str]
    opens: Collection[str]


class Graph:
    """The walk as it goes on.

    Args:
        handler_for: the handler of a type.
        of_values: the handler of a type of JAX or NumPy; None: it is neither's.
        owners: tells the project's code from that of libraries.
        ignored: paths that are left out, such as "step.self.start_time".
        everything: write all members of namespaces.
    """

    def __init__(
        self,
        handler_for: Callable[[type], Handler],
        of_values: Callable[[type], Handler | None],
        owners: Owners,
        ignored: Collection[str] = (),
        *,
        everything: bool = False,
    ) -> None:
        self._handler_for = handler_for
        self.of_values = of_values
        self.owners = owners
        self.ignored = frozenset(ignored)
        self.tokens: dict[str, str] = {}
        self.layouts: dict[int, Any] = {}
        """What is known of the instances of a class, by its identity."""
        self.constants: set[str] = set()
        """Texts in the code that was reached."""
        self.hash_order = ""
        """Where the order of a set that the code makes may decide something."""
        self.reads_environment = False
        """A name in the environment is computed."""
        self.functions: set[str] = set()
        """The names of the project's functions that were reached."""
        self._libraries: set[str] = set()
        self._scanned: set[str] = set()
        self._identity = False
        self._scalars: list[int] = []
        self._everything = everything
        self._names: dict[str, str] = {}
        self._codes: set[int] = set()
        self._namespaces: list[_Namespace] = []
        self._nodes: list[Node] = []
        self._numbers: dict[tuple[int, bool], int] = {}
        self._values = 0
        self._hasher = hashlib.sha256()
        self._lasting = hashlib.sha256()

    def walk(self, roots: list[tuple[str, object]]) -> None:
        """Read everything that the roots lead to.

        Raises:
            RefusedError: something cannot be described by its content.
        """
        root = Node(self, None, None, "", 0)
        for name, value in roots:
            self._read(root, _write_child, (name, value))
        root.finish()
        index = 0
        while index < len(self._nodes) or self._write_members() or self._write_patches(root):
            node = self._nodes[index]
            index += 1
            self._read(node, self._handler_for(type(node.value)), node.value)
            node.finish()

        if self._identity:
            first: dict[int, int] = {}
            same = [first.setdefault(each, place) for place, each in enumerate(self._scalars)]
            self.update([b"identities", repr(same).encode()])

    def note_scalar(self, value: object) -> None:
        """Note a number or text that a name stands for: another name may stand for the same object."""
        if identity(type(value)) in _SCALARS or type(value) is tuple:
            self._scalars.append(identity(value))

    def is_named(self, *names: str) -> bool:
        """Whether the code that was reached says one of these names."""
        return not self._names.keys().isdisjoint(names)

    def _read(self, node: Node, handler: Handler, value: object) -> None:
        try:
            handler(node, value)
        except RecursionError:
            node.refuse("is nested too deeply")
        except RefusedError:
            raise
        except Exception as error:
            # Objects that are not what their type says, or that another thread changes at this moment.
            node.refuse(f"cannot be read: {type(error).__name__}: {error}")

    def note_reads(self, node: Node, reads: Reads, code: CodeType, *, project: bool) -> None:
        """Note what code names and does, wherever it is used."""
        if identity(code) in self._codes:
            return
        self._codes.add(identity(code))
        place = code.co_filename.rpartition("/")[2]
        names = {name: f"{place}:{line}" for name, line in reads.names.items()}
        if reads.formats:
            names |= dict.fromkeys(_TEXTS, f"{place}:{code.co_firstlineno}")
        self.note_names(node, names, project=project)
        if project:
            self.functions.add(code.co_name)
            self.constants |= reads.constants
            if reads.hash_order and not self.hash_order:
                self.hash_order = f"{code.co_qualname}, {place}:{code.co_firstlineno}"
            self._identity |= reads.identity
            self._everything |= reads.computed

    def note_names(self, node: Node, names: Mapping[str, str], *, project: bool = True) -> None:
        """Note names of attributes, each with the line that reads it.

        Raises:
            RefusedError: the project's code reads one that leads to what no description covers.
        """
        for name, place in names.items():
            if project and name in _FORBIDDEN:
                node.place = place
                node.refuse(f"reads {name}")
            self._names.setdefault(name, place)

    def note_library(self, module: str) -> None:
        """Note that something was written by the name that a library's module has for it."""
        self._libraries.add(module.partition(".")[0])

    def add_namespace(
        self,
        node: Node,
        members: Mapping[str, object],
        write: Callable[[Node, str, object], None] | None = None,
        *,
        wanted: Collection[str] = (),
        opens: Collection[str] = (),
    ) -> None:
        """Write those members that the code can name.

        Args:
            node: of the namespace.
            members: by name.
            write: writes a member, given the node that holds it; by default as a child.
            wanted: names that the interpreter says, which are written in any case.
            opens: names with which code reaches all members: methods that a library's class has for that.
        """
        self._namespaces.append(_Namespace(node, members, set(), write or _write_member, wanted, opens))

    def _write_members(self) -> bool:
        """Write the members that can be named by now. False: there are no more, and the walk is complete."""
        before = len(self._nodes)
        for node, members, written, write, wanted, opens in tuple(self._namespaces):
            every = self.is_named(*opens)
            names = [name for name in tuple(members) if name not in written and (every or self._is_named(name, wanted))]
            if not names:
                continue
            written.update(names)
            late = Node(self, node, None, "", node.depth)
            late.quiet = node.quiet
            for name in names:
                if name in members:
                    late.place = self._names.get(name, node.place)
                    self._read(late, _write_named, (write, name, members[name]))
            late.finish()
        return len(self._nodes) > before

    def _write_patches(self, root: Node) -> bool:
        """Write the project's functions in modules of the libraries that were reached, and in their dictionaries.

        False: there are no more.
        """
        before, new = len(self._nodes), self._libraries - self._scanned - _NOT_SCANNED
        self._scanned |= new
        late = Node(self, root, None, "", 0)
        for name, module in tuple(sys.modules.items()) if new else ():
            if name.partition(".")[0] in new:
                for member, value in tuple(getattr(module, "__dict__", {}).items()):
                    for each in tuple(value.values()) if type(value) is dict else (value,):
                        if type(each) is types.FunctionType and self.owners.is_project_function(each, unknown=False):
                            late.child(f"{name}.{member}", each)
        late.finish()
        return len(self._nodes) > before

    def _is_named(self, name: str, wanted: Collection[str]) -> bool:
        return name in self._names or name in wanted or (self._everything and name[:2] != "__")

    def apart(self, value: object) -> bytes:
        """The digest of everything that a value leads to, as if it stood alone.

        Raises:
            RefusedError: something cannot be described by its content.
        """
        graph = Graph(self._handler_for, self.of_values, self.owners, everything=True)
        graph.walk([("", value)])
        return graph.digest().encode()

    def digest(self) -> str:
        return self._hasher.hexdigest()

    def lasting_digest(self) -> str:
        """The digest without what a trace may add: results that functions remember."""
        return self._lasting.hexdigest()

    def update(self, parts: list[bytes], *, passing: list[bytes] | None = None) -> None:
        """Hash texts so that no other list of texts gives the same bytes."""
        self._lasting.update(_joined(parts))
        self._hasher.update(_joined(parts + passing if passing else parts))

    def reference(self, node: Node, label: str, value: object, *, as_type: bool = False) -> bytes:
        """What stands for a value where it is read."""
        self._values += 1
        kind = type(value)
        if kind is str:
            return b"str" + str.encode(value, "utf-8", "surrogatepass")  # type: ignore[arg-type]
        if identity(kind) in _SCALARS:
            return scalar_token(value)
        if self._values > _MAX_VALUES:
            node.refuse(f"leads to more than {_MAX_VALUES:,} values")
        if kind is tuple:
            items = [self.reference(node, f"{label}[{index}]", item) for index, item in enumerate(_items(value))]
            return b"tuple" + b"".join([b":%d:%b" % (len(item), item) for item in items])
        key = (identity(value), as_type)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._nodes)
            self._nodes.append(Node(self, node, value, label, node.depth + 1, as_type=as_type))
        return b"@%d" % number


def _joined(parts: list[bytes]) -> bytes:
    lengths = array.array("Q", map(len, parts))
    return b"".join((len(lengths).to_bytes(8, "little"), lengths.tobytes(), *parts))


class Node:
    """One object of a walk: its value, how it was reached, and what is written about it."""

    def __init__(
        self, graph: Graph, parent: Node | None, value: object, label: str, depth: int, *, as_type: bool = False
    ) -> None:
        self.graph = graph
        self.parent = parent
        self.value = value
        """Held here, so that its identity lasts as long as the walk."""
        self.label = label
        self.depth = depth
        self.place: str = parent.place if parent is not None else ""
        """File and line of the code that reads the value."""
        self.as_type = as_type
        """It is the class of an instance, which nothing calls."""
        self.quiet = False
        """What it leads to is not named one by one in the tokens."""
        self.passes = False
        """A trace may change it without changing the function: what a library keeps in a closure."""
        self._parts: list[bytes] = []
        self._passing: list[bytes] = []
        self._own: list[bytes] = []
        self._path: str | None = None

    @property
    def path(self) -> str:
        """How the function leads to this value, as a person reads it."""
        if self._path is None:
            labels: list[str] = []
            at: Node | None = self
            while at is not None and at._path is None:  # noqa: SLF001  # the parents are nodes too
                labels.append(at.label)
                at = at.parent
            if len(labels) > 2 * _MAX_NAMED_DEPTH:
                labels[_MAX_NAMED_DEPTH:-_MAX_NAMED_DEPTH] = [" … "]
            self._path = ((at._path or "") if at is not None else "") + "".join(reversed(labels))  # noqa: SLF001
        return self._path

    def write(self, *tokens: bytes) -> None:
        """Add what the object is by itself."""
        self._parts += tokens
        self._own += tokens

    def write_passing(self, token: bytes) -> None:
        """Add what a trace may change without changing the function."""
        self._passing.append(token)

    def child(self, label: str, value: object, *, as_type: bool = False) -> None:
        """Add a value that the object leads to under a name, which is added to the path."""
        graph = self.graph
        if graph.ignored and _as_written(self.path + label) in graph.ignored:
            return
        token = graph.reference(self, label, value, as_type=as_type)
        self._parts.append(label.encode("utf-8", "surrogatepass"))
        self._parts.append(token)
        if token[:1] != b"@":
            if self.quiet or not label:
                self._own.append(token)
            else:
                self._name(label, token)

    def item(self, label: str, value: object) -> None:
        """Add one of many values without a name of their own."""
        token = self.graph.reference(self, label, value)
        self._parts.append(token)
        if token[:1] != b"@":
            self._own.append(token)

    def refuse(self, reason: str) -> NoReturn:
        """Say that the object has no description: "step → cfg.log", the reason after it, and what to do.

        Raises:
            RefusedError: always.
        """
        place = f" ({self.place})" if self.place else ""
        advice = f'; ignore=["{_as_written(self.path)}"] leaves it out'
        raise RefusedError(f"{self.path} {reason}{place}{advice}")

    def finish(self) -> None:
        """Hand over what was written."""
        if self.passes:
            self.graph.update([], passing=self._parts)
        else:
            self.graph.update(self._parts, passing=self._passing)
        if self.parent is not None and self._own:
            self._name("", b"".join(self._own))

    def _name(self, label: str, token: bytes) -> None:
        tokens = self.graph.tokens
        if self.depth <= _MAX_NAMED_DEPTH and len(tokens) < _MAX_NAMED:
            tokens[self.path + label] = f"{zlib.crc32(token):08x}"


def _as_written(path: str) -> str:
    """A path as `ignore=` takes it."""
    return path.replace(ARROW, ".")


def _write_child(node: Node, named: tuple[str, object]) -> None:
    node.child(*named)


def _write_named(node: Node, named: tuple[Callable[[Node, str, object], None], str, object]) -> None:
    write, name, value = named
    write(node, name, value)


def _write_member(node: Node, name: str, value: object) -> None:
    node.child(f".{name}", value)
