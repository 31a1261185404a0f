"""What a traced function uses the integers among its inputs for: as positions, or as values.

A position, such as an index, an offset, a length or a segment, is meant for a range that nobody has declared. An
integer that is only computed with may have any value. The analysis follows each input through the equations of a jaxpr
as long as it stays an integer. Where it cannot follow, as into a kernel or a callback, the input counts as a position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    _Taint = frozenset[int]


_NOTHING: Final[frozenset[int]] = frozenset()
_INDEXED: Final = {"dynamic_slice": 1, "dynamic_update_slice": 2, "gather": 1}
"""The first operand of each that is a position; those after it are, too."""

_COMPARISONS: Final = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "lt_to", "le_to"})
_CHOICES: Final = frozenset({"argmax", "argmin", "random_seed", "random_wrap", "random_bits"})
"""What these return is no longer the input."""

_OPAQUE: Final = frozenset({"pallas_call", "while"})


@dataclass(frozen=True)
class Use:
    """What one input is used for.

    Attributes:
        position: it selects, bounds or compares with positions.
        distinct: equal positions would write one place in an order that nobody defines.
        ordered: the function was promised that its positions are sorted.
    """

    position: bool = False
    distinct: bool = False
    ordered: bool = False


def uses_of(closed: Any) -> list[Use]:
    """Find, for each input of a closed jaxpr, in which ways its integers are used."""
    found = _Uses()
    inputs = [frozenset({index}) if _is_whole(var) else _NOTHING for index, var in enumerate(closed.jaxpr.invars)]
    found.follow(closed.jaxpr, inputs)
    return [
        Use(index in found.position, index in found.distinct, index in found.ordered)
        for index in range(len(closed.jaxpr.invars))
    ]


def indexes(closed: Any) -> bool:
    """True if a closed jaxpr reads or writes anything at positions that it computes."""
    found = _Uses()
    found.follow(closed.jaxpr, [_NOTHING for _ in closed.jaxpr.invars])
    return found.indexes


class _Uses:
    def __init__(self) -> None:
        self.position: set[int] = set()
        self.distinct: set[int] = set()
        self.ordered: set[int] = set()
        self.indexes = False

    def follow(self, jaxpr: Any, inputs: Sequence[_Taint]) -> list[_Taint]:
        """Find the inputs that each output of a jaxpr may contain, given those that its own inputs contain."""
        held = dict(zip(jaxpr.invars, inputs, strict=True))

        def of(var: Any) -> _Taint:
            return _NOTHING if hasattr(var, "val") else held.get(var, _NOTHING)

        for equation in jaxpr.eqns:
            results = self._equation(equation, [of(var) for var in equation.invars])
            for var, taint in zip(equation.outvars, results, strict=True):
                held[var] = taint if _is_whole(var) else _NOTHING
        return [of(var) for var in jaxpr.outvars]

    def _equation(self, equation: Any, operands: list[_Taint]) -> list[_Taint]:
        name, params = equation.primitive.name, equation.params
        together = frozenset().union(*operands)
        outputs = len(equation.outvars)
        if name in _INDEXED or name.startswith("scatter"):
            self._positions(name, params, operands)
            return [frozenset().union(operands[0], *operands[2:3])] * outputs
        if name in _COMPARISONS:
            if not any(hasattr(var, "val") for var in equation.invars):
                self.position |= together
            return [_NOTHING] * outputs
        if name in _CHOICES:
            return [_NOTHING] * outputs
        inner = [] if name in _OPAQUE else _inner(params)
        if name == "cond":
            self.position |= operands[0]
            operands = operands[1:]
        if inner and all(len(each.invars) == len(operands) for each in inner):
            return self._inside(name, inner, operands)
        if inner or name in _OPAQUE or _calls_out(name):
            self.position |= together
            self.indexes |= name in _OPAQUE
        return [together] * outputs

    def _positions(self, name: str, params: Any, operands: list[_Taint]) -> None:
        self.indexes = True
        first = _INDEXED.get(name, 1)
        used = frozenset().union(*(operands[first:] if name in _INDEXED else operands[1:2]))
        self.position |= used
        if name == "scatter" or params.get("unique_indices"):
            self.distinct |= used
        if params.get("indices_are_sorted"):
            self.ordered |= used

    def _inside(self, name: str, inner: list[Any], operands: list[_Taint]) -> list[_Taint]:
        results = [self.follow(each, operands) for each in inner]
        together = [frozenset().union(*taints) for taints in zip(*results, strict=True)]
        if name == "scan":
            # What a step returns may be an input of the next one if it has the same type.
            (step,) = inner
            returned = list(zip((_type(var) for var in step.outvars), together, strict=True))
            again = [
                held.union(*(taint for kind, taint in returned if kind == _type(var)))
                for var, held in zip(step.invars, operands, strict=True)
            ]
            if again != operands:
                return self._inside(name, inner, again)
        return together


def _inner(params: Any) -> list[Any]:
    """Return the jaxprs among the parameters of an equation."""
    held: list[Any] = []
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr", "branches"):
        value = params.get(name)
        held += value if isinstance(value, list | tuple) else [value]
    jaxprs = [getattr(value, "jaxpr", value) for value in held]
    return [value for value in jaxprs if hasattr(value, "eqns")]


def _type(var: Any) -> tuple[Any, Any]:
    return getattr(var.aval, "shape", None), getattr(var.aval, "dtype", None)


def _calls_out(name: str) -> bool:
    return any(word in name for word in ("call", "callback", "kernel", "custom_"))


def _is_whole(var: Any) -> bool:
    import jax.numpy as jnp

    dtype = getattr(var.aval, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.integer))
