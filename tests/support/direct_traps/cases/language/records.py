"""Classes that a decorator or a base makes: dataclasses, enums, generic classes, protocols."""

from __future__ import annotations

from direct_traps.trap import trap

TRAPS = [
    trap(
        "method set on an instance",
        """
        class Model:
            def run(self, x):
                return x * 2
        model = Model()
        «|model.run = lambda x: x * 3»
        @ejit
        def f(x):
            return model.run(x)
        """,
    ),
    trap(
        "default_factory of a dataclass",
        """
        import dataclasses
        @dataclasses.dataclass
        class Conf:
            k: list = dataclasses.field(default_factory=lambda: [«2|3»])
        @ejit
        def f(x):
            return x * Conf().k[0]
        """,
    ),
    trap(
        "metadata of a dataclass field",
        """
        import dataclasses
        @dataclasses.dataclass
        class Conf:
            k: int = dataclasses.field(default=1, metadata={"scale": «2|3»})
        @ejit
        def f(x):
            return x * dataclasses.fields(Conf)[0].metadata["scale"]
        """,
        changed="either",
    ),
    trap(
        "__post_init__ of a dataclass",
        """
        import dataclasses
        @dataclasses.dataclass
        class Conf:
            k: int = 1
            def __post_init__(self):
                self.k = self.k * «2|3»
        @ejit
        def f(x):
            return x * Conf().k
        """,
    ),
    trap(
        "slot of a dataclass",
        """
        import dataclasses
        @dataclasses.dataclass(slots=True)
        class Conf:
            k: int = «2|3»
        @ejit
        def f(x):
            return x * Conf().k
        """,
    ),
    trap(
        "flag that is an alias",
        """
        import enum
        class E(enum.Flag):
            A = 1
            B = «2|4»
            C = A | B
        @ejit
        def f(x):
            return x * E.C.value
        """,
    ),
    trap(
        "order of an enum",
        """
        import enum
        class E(enum.Enum):
            «A = 2
            B = 3|B = 3
            A = 2»
        @ejit
        def f(x):
            for each in E:
                x = x * each.value + 1
            return x
        """,
    ),
    trap(
        "generic class",
        """
        import typing
        T = typing.TypeVar("T")
        class Box(typing.Generic[T]):
            def run(self, x):
                return x * «2|3»
        box = Box[int]()
        @ejit
        def f(x):
            return box.run(x)
        """,
    ),
    trap(
        "protocol",
        """
        import typing
        @typing.runtime_checkable
        class Runs(typing.Protocol):
            def run(self): ...
        class A:
            def «run|walk»(self): ...
        a = A()
        @ejit
        def f(x):
            return x * (2 if isinstance(a, Runs) else 3)
        """,
        changed="either",
    ),
    trap(
        "comparison of a user's class",
        """
        class K:
            def __eq__(self, other):
                return «True|False»
            __hash__ = None
        k = K()
        @ejit
        def f(x):
            return x * (2 if k == 1 else 3)
        """,
    ),
    trap(
        "format of a user's class",
        """
        class K:
            def __format__(self, spec):
                return "«a|ab»"
        k = K()
        @ejit
        def f(x):
            return x * len(f"{k}")
        """,
    ),
]
