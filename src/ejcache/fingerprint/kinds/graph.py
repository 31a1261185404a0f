"""The objects that a function reads, numbered in the order in which they are found: nearest first, cycles included.

Each object writes what it is by itself, and for each object that it leads to a label and a reference. Numbers, strings
and tuples are written where they are read; all others are written once, and referred to by their number. Two programs
with equal texts therefore read equal values, shared in the same way.
"""

from __future__ import annotations

import array
import hashlib
import types
import zlib
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ejcache._tuples import NamedTuple
from ejcache.fingerprint.code import plain_token
from ejcache.fingerprint.refusal import RefusedError, path_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

    from ejcache.fingerprint.bytecode import Reads

    Handler = Callable[["Node", Any], None]

__all__ = ["ARROW", "Description", "Graph", "Node", "is_scalar", "scalar_token"]

ARROW: Final = path_text(("", ""))
"""Between a function and what it reads."""

_items: Final[Callable[[object], Iterator[object]]] = tuple.__iter__  # type: ignore[assignment]
_SCALARS: Final = frozenset(
    map(id, (types.NoneType, bool, int, float, complex, str, bytes, types.EllipsisType, types.NotImplementedType))
)
_MAX_VALUES: Final = 1_000_000
_MAX_BYTES: Final = 64 << 20
_MAX_NAMED: Final = 4_000
_MAX_NAMED_DEPTH: Final = 16


def is_scalar(value: object) -> bool:
    """Whether a value is written where it is read, and leads to nothing."""
    return id(type(value)) in _SCALARS


def scalar_token(value: object) -> bytes:
    """What such a value is."""
    return b"NotImplemented" if value is NotImplemented else plain_token(value)


class Description(NamedTuple):
    """What a handler outside this room says about a value that only it knows."""

    token: bytes = b""
    children: tuple[tuple[str, object], ...] = ()
    """Further objects to walk, each with what is added to the path: ".dtype", "[0]"."""
    size: int = 0
    """Bytes of `content`."""
    content: Callable[[], bytes | memoryview] | None = None
    """Gives bulk data, and is called only if the walk may still read that many bytes."""
    refusal: str | None = None
    """Why the value has no fingerprint, as it follows the path: "is an array of another process"."""


class Graph:
    """The walk as it goes on.

    Args:
        describe: says what only JAX and NumPy know about a value, or None.
        handler_for: the handler of a type.
    """

    def __init__(
        self, describe: Callable[[object], Description | None], handler_for: Callable[[type], Handler]
    ) -> None:
        self.describe = describe
        self.codes: dict[int, CodeType] = {}
        """User code that was reached, by identity."""
        self.functions: set[int] = set()
        """The identities of the user's functions that were reached."""
        self._attributes: set[str] = set()
        self._deferred: list[tuple[Node, str, object]] = []
        self._hash_order = False
        self._views = False
        self._view_operators = False
        self._identity = False
        self._named: list[int] = []
        self.tokens: dict[str, str] = {}
        self.layouts: dict[int, Any] = {}
        """What is known of the instances of a class, by its identity."""
        self._handler_for = handler_for
        self._nodes: list[Node] = []
        self._numbers: dict[tuple[int, bool], int] = {}
        self._values = 0
        self._bytes = 0
        self._hasher = hashlib.sha256()
        self._user_hasher = hashlib.sha256()

    def walk(self, roots: list[tuple[str, object]]) -> None:
        """Read everything that the roots lead to.

        Raises:
            RefusedError: something cannot be described by its content.
        """
        root = Node(self, None, None, "", 0)
        for name, value in roots:
            self._read(root, _write_child, (name, value))
        root.finish()
        nodes = self._nodes
        index = 0
        while index < len(nodes) or self._defer_no_longer():
            node = nodes[index]
            index += 1
            self._read(node, self._handler_for(type(node.value)), node.value)
            node.finish()

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

    def defer(self, node: Node, name: str, value: object) -> None:
        """Read a table of a library's object only if the user's code says its name."""
        self._deferred.append((node, name, value))

    def _defer_no_longer(self) -> bool:
        """Read the tables whose names have been said by now. False: there are none, and the walk is complete."""
        said = [each for each in self._deferred if each[1] in self._attributes]
        self._deferred = [each for each in self._deferred if each[1] not in self._attributes]
        before = len(self._nodes)
        for node, name, value in said:
            late = Node(self, node, None, f".{name}", node.depth + 1)
            self._read(late, _write_child, ("", value))
            late.finish()
        return len(self._nodes) > before

    def digest(self) -> str:
        return self._hasher.hexdigest()

    def user_digest(self) -> str:
        """The digest of everything but the functions of libraries and what their closures hold by themselves."""
        return self._user_hasher.hexdigest()

    def update(self, parts: list[bytes], *, of_library: bool = False) -> None:
        """Hash texts so that no other list of texts gives the same bytes."""
        lengths = array.array("Q", map(len, parts))
        text = b"".join((len(lengths).to_bytes(8, "little"), lengths.tobytes(), *parts))
        self._hasher.update(text)
        if not of_library:
            self._user_hasher.update(text)

    def reference(self, node: Node, label: str, value: object, *, member: bool) -> bytes:
        """What stands for a value where it is read."""
        self._values += 1
        kind = type(value)
        if kind is str:
            return b"str" + str.encode(value, "utf-8", "surrogatepass")  # type: ignore[arg-type]
        if id(kind) in _SCALARS:
            return scalar_token(value)
        if self._values > _MAX_VALUES:
            node.refuse(f"leads to more than {_MAX_VALUES:,} values")
        if kind is tuple:
            items = [
                self.reference(node, f"{label}[{index}]", item, member=False)
                for index, item in enumerate(_items(value))
            ]
            return b"tuple" + b"".join([b":%d:%b" % (len(item), item) for item in items])
        key = (id(value), member)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._nodes)
            self._nodes.append(Node(self, node, value, label, node.depth + 1, member=member))
        return b"@%d" % number

    def note_reads(self, reads: Reads) -> None:
        """Note what a function's bytecode names and does, wherever it is used."""
        for code in reads.codes:
            self.codes[id(code)] = code
        self._attributes |= reads.attributes
        self._hash_order |= reads.hash_order
        self._views |= reads.views
        self._view_operators |= reads.view_operators
        self._identity |= reads.identity

    def note_named(self, value: object) -> None:
        """Note a value that a variable stands for: another one may stand for the same object."""
        if id(type(value)) in _SCALARS or type(value) is tuple:
            self._named.append(id(value))

    @property
    def shared(self) -> list[int] | None:
        """Which variables stand for the same number, text or tuple, by the first of them. None: nothing asks that."""
        if not self._identity:
            return None
        first: dict[int, int] = {}
        return [first.setdefault(each, index) for index, each in enumerate(self._named)]

    @property
    def hash_order(self) -> bool:
        """Whether something may depend on the order of a set that is made while tracing."""
        return self._hash_order or (self._views and self._view_operators)

    def spend(self, node: Node, size: int) -> None:
        """Count bulk data that is about to be read."""
        self._bytes += size
        if self._bytes > _MAX_BYTES:
            node.refuse(f"makes the arrays that are read larger than {_MAX_BYTES >> 20} MiB")


class Node:
    """One object of a walk: its value, how it was reached, and what is written about it."""

    __slots__ = (
        "_own",
        "_parts",
        "_path",
        "depth",
        "graph",
        "label",
        "member",
        "of_library",
        "parent",
        "quiet",
        "value",
    )

    def __init__(
        self,
        graph: Graph,
        parent: Node | None,
        value: object,
        label: str,
        depth: int,
        *,
        member: bool = False,
    ) -> None:
        self.graph = graph
        self.parent = parent
        self.value = value
        """Held here, so that its identity lasts as long as the walk."""
        self.label = label
        self.depth = depth
        self.member = member
        """It is asked only what it contains."""
        self.quiet = False
        """What it leads to is not named one by one in the tokens: it belongs to a library."""
        self.of_library = False
        """It is a function of a library."""
        self._parts: list[bytes] = []
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

    def write_content(self, content: bytes | memoryview) -> None:
        """Add bulk data by its digest."""
        self.write(hashlib.sha256(content).digest())

    def child(self, label: str, value: object, *, member: bool = False) -> None:
        """Add a value that the object leads to under a name, which is added to the path."""
        token = self.graph.reference(self, label, value, member=member)
        self._parts.append(label.encode("utf-8", "surrogatepass"))
        self._parts.append(token)
        if token[:1] != b"@":
            if self.quiet or not label:
                self._own.append(token)
            else:
                self._name(label, token)

    def item(self, label: str, value: object) -> None:
        """Add one of many values without a name of their own."""
        token = self.graph.reference(self, label, value, member=False)
        self._parts.append(token)
        if token[:1] != b"@":
            self._own.append(token)

    def refuse(self, reason: str) -> NoReturn:
        """Say that the object has no fingerprint: "step → cfg.log", and the reason after it.

        Raises:
            RefusedError: always.
        """
        raise RefusedError(f"{self.path} {reason}")

    def finish(self) -> None:
        """Hand over what was written."""
        self.graph.update(self._parts, of_library=self.of_library)
        if self.parent is not None:
            self._name("", b"".join(self._own))

    def _name(self, label: str, token: bytes) -> None:
        tokens = self.graph.tokens
        if self.depth <= _MAX_NAMED_DEPTH and len(tokens) < _MAX_NAMED:
            tokens[self.path + label] = f"{zlib.crc32(token):08x}"


def _write_child(node: Node, named: tuple[str, object]) -> None:
    node.child(*named)
