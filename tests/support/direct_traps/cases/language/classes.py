"""Classes: attributes found by rules, inheritance, metaclasses, registries."""

from __future__ import annotations

from direct_traps.trap import trap

TRAPS = [
    trap(
        "property",
        """
        class Conf:
            @property
            def k(self):
                return «2|3»
        conf = Conf()
        @ejit
        def f(x):
            return x * conf.k
        """,
    ),
    trap(
        "cached property",
        """
        import functools
        class Conf:
            @functools.cached_property
            def k(self):
                return «2|3»
        conf = Conf()
        @ejit
        def f(x):
            return x * conf.k
        """,
        changed="either",
        unchanged="refused",
        why="the trace fills the property, and reads it",
    ),
    trap(
        "__getattr__",
        """
        class Conf:
            def __getattr__(self, name):
                return «2|3»
        conf = Conf()
        @ejit
        def f(x):
            return x * conf.k
        """,
    ),
    trap(
        "__getattribute__",
        """
        class Conf:
            k = 1
            def __getattribute__(self, name):
                return «2|3»
        conf = Conf()
        @ejit
        def f(x):
            return x * conf.k
        """,
    ),
    trap(
        "descriptor",
        """
        class D:
            def __get__(self, instance, owner):
                return «2|3»
        class Conf:
            k = D()
        conf = Conf()
        @ejit
        def f(x):
            return x * conf.k
        """,
    ),
    trap(
        "operator",
        """
        class Scale:
            def __rmatmul__(self, x):
                return x * «2|3»
        scale = Scale()
        class Wrap:
            def __init__(self, x):
                self.x = x
            def __mul__(self, other):
                return self.x * «2|3»
        @ejit
        def f(x):
            return Wrap(x) * 1
        """,
    ),
    trap(
        "inherited method",
        """
        class Base:
            def run(self, x):
                return x * «2|3»
        class Model(Base):
            pass
        model = Model()
        @ejit
        def f(x):
            return model.run(x)
        """,
    ),
    trap(
        "override added",
        """
        class Base:
            def run(self, x):
                return x * 2
        class Model(Base):
            pass
            «|def run(self, x):
                return x * 3»
        model = Model()
        @ejit
        def f(x):
            return model.run(x)
        """,
    ),
    trap(
        "super()",
        """
        class Base:
            def run(self, x):
                return x * «2|3»
        class Model(Base):
            def run(self, x):
                return super().run(x) + 1
        model = Model()
        @ejit
        def f(x):
            return model.run(x)
        """,
    ),
    trap(
        "isinstance on another hierarchy",
        """
        class A: pass
        class B(«A|»): pass
        b = B()
        @ejit
        def f(x):
            return x * (2 if isinstance(b, A) else 3)
        """,
    ),
    trap(
        "abc registration",
        """
        import abc
        class A(abc.ABC): pass
        class B: pass
        «|A.register(B)»
        b = B()
        @ejit
        def f(x):
            return x * (3 if isinstance(b, A) else 2)
        """,
        changed="either",
    ),
    trap(
        "metaclass",
        """
        class Meta(type):
            def __getattr__(cls, name):
                return «2|3»
        class Conf(metaclass=Meta): pass
        @ejit
        def f(x):
            return x * Conf.k
        """,
    ),
    trap(
        "__call__ of a metaclass",
        """
        class Meta(type):
            def __call__(cls, *args):
                made = super().__call__(*args)
                made.k = «2|3»
                return made
        class Conf(metaclass=Meta): pass
        @ejit
        def f(x):
            return x * Conf().k
        """,
    ),
    trap(
        "__instancecheck__",
        """
        class Meta(type):
            def __instancecheck__(cls, other):
                return «True|False»
        class A(metaclass=Meta): pass
        @ejit
        def f(x):
            return x * (2 if isinstance(1, A) else 3)
        """,
    ),
    trap(
        "singledispatch",
        """
        import functools
        @functools.singledispatch
        def h(k, x):
            return x
        @h.register
        def _(k: int, x):
            return x * «2|3»
        @ejit
        def f(x):
            return h(1, x)
        """,
        changed="either",
    ),
    trap(
        "singledispatch, registered later",
        """
        import functools
        @functools.singledispatch
        def h(k, x):
            return x
        @ejit
        def f(x):
            return h(1, x)
        «|h.register(int, lambda k, x: x * 3)»
        """,
        changed="either",
    ),
    trap(
        "registry by __init_subclass__",
        """
        registry = {}
        class Base:
            def __init_subclass__(cls):
                registry[cls.__name__] = cls
        class A(Base):
            k = «2|3»
        @ejit
        def f(x):
            return x * registry["A"].k
        """,
    ),
    trap(
        "keyword of __init_subclass__",
        """
        class Base:
            def __init_subclass__(cls, k=1):
                cls.k = k
        class A(Base, k=«2|3»): pass
        @ejit
        def f(x):
            return x * A.k
        """,
    ),
    trap(
        "__subclasses__()",
        """
        class Base: pass
        class A(Base): pass
        «|class B(Base): pass»
        @ejit
        def f(x):
            return x * len(Base.__subclasses__())
        """,
        changed="either",
        unchanged="refused",
        why="it asks for the subclasses that there are in the process",
    ),
    trap(
        "__set_name__",
        """
        class D:
            def __set_name__(self, owner, name):
                self.name = name
            def __get__(self, instance, owner):
                return len(self.name)
        class Conf:
            k = D()
            «ab|abc» = k
        @ejit
        def f(x):
            return x * Conf.k
        """,
    ),
    trap(
        "__class_getitem__",
        """
        class Box:
            def __class_getitem__(cls, item):
                return item * «2|3»
        @ejit
        def f(x):
            return x * Box[2]
        """,
    ),
    trap(
        "class of an instance changed",
        """
        class A:
            k = 2
        class B:
            k = 3
        conf = A()
        conf.__class__ = «A|B»
        @ejit
        def f(x):
            return x * conf.k
        """,
    ),
    trap(
        "bases of a class changed",
        """
        class A:
            k = 2
        class B:
            k = 3
        class C(A): pass
        C.__bases__ = («A|B»,)
        @ejit
        def f(x):
            return x * C.k
        """,
    ),
    trap(
        "dict subclass with __missing__",
        """
        class Conf(dict):
            def __missing__(self, name):
                return «2|3»
        conf = Conf()
        @ejit
        def f(x):
            return x * conf["k"]
        """,
    ),
    trap(
        "dict subclass with attributes",
        """
        class Conf(dict):
            pass
        conf = Conf(a=1)
        conf.k = «2|3»
        @ejit
        def f(x):
            return x * conf.k
        """,
    ),
    trap(
        "list subclass with __iter__",
        """
        class Conf(list):
            def __iter__(self):
                return iter([«2|3»])
        conf = Conf([1])
        @ejit
        def f(x):
            return sum(x * k for k in conf)
        """,
    ),
    trap(
        "static and class methods",
        """
        class Conf:
            @staticmethod
            def a():
                return «2|3»
            @classmethod
            def b(cls):
                return cls.a()
        @ejit
        def f(x):
            return x * Conf.b()
        """,
    ),
]
