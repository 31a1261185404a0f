"""Values that look alike, and kinds of values that are seldom met."""

from __future__ import annotations

from direct_traps.trap import trap

TRAPS = [
    trap(
        "float for int",
        """
        K = «2|2.0»
        @ejit
        def f(x):
            return x * K
        """,
        call="f(jnp.arange(4))",
    ),
    trap(
        "np.float64 for float",
        """
        K = «2.0|np.float64(2.0)»
        @ejit
        def f(x):
            return x * K
        """,
        call="f(jnp.arange(4, dtype=jnp.bfloat16))",
    ),
    trap(
        "negative zero in a global",
        """
        K = {"k": [«0.0|-0.0»]}
        @ejit
        def f(x):
            return jnp.copysign(x, K["k"][0])
        """,
    ),
    trap(
        "payload of a NaN",
        """
        import struct
        K = struct.unpack("<d", struct.pack("<Q", 0x7ff8000000000000 + «1|2»))[0]
        @ejit
        def f(x):
            return x + struct.pack("<d", K)[0]
        """,
        changed="either",
    ),
    trap(
        "NaN in a global",
        """
        K = float("«nan|inf»")
        @ejit
        def f(x):
            return x + K
        """,
    ),
    trap(
        "complex constant",
        """
        K = complex(1.0, «0.0|-0.0»)
        @ejit
        def f(x):
            return jnp.angle(-K * x)
        """,
    ),
    trap(
        "huge integer",
        """
        K = 10 ** 5000 + «1|2»
        @ejit
        def f(x):
            return x * (K % 10)
        """,
    ),
    trap(
        "bool for int",
        """
        K = «True|1»
        @ejit
        def f(x):
            return x, jnp.asarray(K)
        """,
    ),
    trap(
        "subclass of int",
        """
        class K(int):
            def __mul__(self, other):
                return int(self) + other
            __rmul__ = __mul__
        k = «2|K(2)»
        @ejit
        def f(x):
            return x * (k * 5)
        """,
    ),
    trap(
        "attribute of a float's subclass",
        """
        class K(float):
            pass
        k = K(2.0)
        k.scale = «2|3»
        @ejit
        def f(x):
            return x * k.scale
        """,
    ),
    trap(
        "subclass of tuple",
        """
        class Pair(tuple):
            def total(self):
                return sum(self) + «0|1»
        pair = Pair((1, 2))
        @ejit
        def f(x):
            return x * pair.total()
        """,
    ),
    trap(
        "tuple for list",
        """
        K = «[2, 3]|(2, 3)»
        @ejit
        def f(x):
            return x * (2 if isinstance(K, list) else 3)
        """,
    ),
    trap(
        "frozenset",
        """
        K = frozenset([1, «2|3»])
        @ejit
        def f(x):
            return x * sum(K)
        """,
    ),
    trap(
        "bytes for bytearray",
        """
        K = «b"a"|bytearray(b"a")»
        @ejit
        def f(x):
            return x * (2 if isinstance(K, bytes) else 3)
        """,
    ),
    trap(
        "bytearray mutated",
        """
        K = bytearray(b"\\x01\\x01")
        K[1] = «2|3»
        @ejit
        def f(x):
            return x * K[1]
        """,
    ),
    trap(
        "memoryview",
        """
        under = bytearray(b"\\x01\\x01")
        K = memoryview(under)[1:]
        under[1] = «2|3»
        @ejit
        def f(x):
            return x * K[0]
        """,
        changed="either",
        unchanged="refused",
        why="a view of memory is not described",
    ),
    trap(
        "array.array",
        """
        import array
        K = array.array("i", [1, «2|3»])
        @ejit
        def f(x):
            return x * K[1]
        """,
    ),
    trap(
        "range",
        """
        K = range(1, 10, «2|3»)
        @ejit
        def f(x):
            return x * len(K)
        """,
    ),
    trap(
        "slice",
        """
        K = slice(0, «2|3»)
        @ejit
        def f(x):
            return x[K]
        """,
    ),
    trap(
        "string built at run time",
        """
        K = "".join(["a", "b«|c»"])
        @ejit
        def f(x):
            return x * (2 if K == "ab" else 3)
        """,
    ),
    trap(
        "string by identity",
        """
        A = "a b"
        B = «A|"".join(["a", " b"])»
        @ejit
        def f(x):
            return x * (2 if A is B else 3)
        """,
        changed="either",
    ),
    trap(
        "list by identity",
        """
        A = [1]
        B = «A|[1]»
        @ejit
        def f(x):
            return x * (2 if A is B else 3)
        """,
    ),
    trap(
        "Fraction and Decimal",
        """
        import fractions
        K = fractions.Fraction(«2|3», 2)
        @ejit
        def f(x):
            return x * float(K)
        """,
        changed="either",
    ),
    trap(
        "decimal value",
        """
        import decimal
        K = decimal.Decimal("«2.5|3.5»")
        @ejit
        def f(x):
            return x * float(K)
        """,
        changed="either",
    ),
    trap(
        "datetime constant",
        """
        import datetime
        K = datetime.timedelta(seconds=«2|3»)
        @ejit
        def f(x):
            return x * K.total_seconds()
        """,
        changed="either",
    ),
    trap(
        "path constant",
        """
        import pathlib
        K = pathlib.PurePosixPath("/a«|/b»")
        @ejit
        def f(x):
            return x * len(K.parts)
        """,
        changed="either",
    ),
    trap(
        "regular expression",
        """
        import re
        K = re.compile("«a|b»")
        @ejit
        def f(x):
            return x * (2 if K.match("a") else 3)
        """,
        changed="either",
    ),
    trap(
        "flags of a regular expression",
        """
        import re
        K = re.compile("A"«|, re.I»)
        @ejit
        def f(x):
            return x * (3 if K.match("a") else 2)
        """,
        changed="either",
    ),
    trap(
        "einsum string in a config",
        """
        cfg = {"spec": "«ij,j->i|ij,i->j»"}
        @ejit
        def f(x):
            return jnp.einsum(cfg["spec"], jnp.arange(16.0).reshape(4, 4), x)
        """,
    ),
    trap(
        "dtype in a global",
        """
        K = jnp.«float32|bfloat16»
        @ejit
        def f(x):
            return x.astype(K)
        """,
    ),
    trap(
        "structured NumPy array",
        """
        K = np.array([(1, «2|3»)], dtype=[("a", "i4"), ("b", "i4")])
        @ejit
        def f(x):
            return x * int(K["b"][0])
        """,
        changed="either",
    ),
    trap(
        "NumPy array of objects",
        """
        K = np.array([1, «2|3»], dtype=object)
        @ejit
        def f(x):
            return x * K[1]
        """,
        changed="either",
    ),
    trap(
        "NumPy strides",
        """
        K = «np.arange(4.0)|np.arange(8.0)[::2] / 2»
        @ejit
        def f(x):
            return x * K.strides[0]
        """,
        changed="either",
    ),
    trap(
        "NumPy scalar",
        """
        K = np.float32(«2|3»)
        @ejit
        def f(x):
            return x * K
        """,
    ),
    trap(
        "random key in the closure",
        """
        K = jax.random.key(«2|3»)
        @ejit
        def f(x):
            return x + jax.random.normal(K, x.shape)
        """,
    ),
]
