"""Values of many layers, stacked along a new first axis in a module: how a stack is made of them, sliced and filled.

What the copies of a block have from outside, such as the parameters of a layer, is taken from one stack in a loop. That
stack may be there, because the values are its slices. Else arguments of the program become one argument, as the leaves
of stacked layers are, and other values are concatenated. All functions insert where MLIR's insertion point is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ejcache.jax_integration.lowering.block_copies import Apart
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

SLICE = "stablehlo.slice"


class Slices(NamedTuple):
    """The values of all copies, as slices of one value along one axis.

    Attributes:
        source: what is sliced.
        axis: along which.
        base: where the slice of the first copy begins.
        stride: how much further that of the next one begins.
        sizes: of each slice.
    """

    source: Any
    axis: int
    base: int
    stride: int
    sizes: tuple[int, ...]


def tensor_type(value: Any) -> Any:
    """The type of a value, with its shape."""
    return ir.RankedTensorType(value.type)


def stacked_type(type_: Any, count: int) -> Any:
    """The type of so many values of this type, stacked."""
    return ir.RankedTensorType.get([count, *type_.shape], type_.element_type)


def integer(value: int) -> Any:
    """A scalar."""
    return stablehlo.constant(ir.DenseElementsAttr.get(np.asarray(value, np.int32)))


def zeros(type_: Any) -> Any:
    """An array of zeros; raises `Apart` for elements that are no numbers."""
    element = type_.element_type
    name = str(element)
    if name.startswith(("f", "bf")):
        zero = ir.FloatAttr.get(element, 0.0)
    elif name.startswith(("i", "ui")):
        zero = ir.IntegerAttr.get(element, 0)
    else:
        raise Apart(f"a value has elements of type {name}")
    scalar = stablehlo.constant(ir.DenseElementsAttr.get_splat(ir.RankedTensorType.get([], element), zero))
    return stablehlo.broadcast_in_dim(type_, scalar, ir.DenseI64ArrayAttr.get([])) if type_.shape else scalar


def take(stack: Any, type_: Any, number: int) -> Any:
    """The value with this number."""
    return stablehlo.reshape(type_, _range(stack, number, number + 1))


def take_in_loop(stack: Any, which: Slices, number: Any, type_: Any) -> Any:
    """The value whose number is a value of the module."""
    if which.stride != 1:
        number = stablehlo.multiply(number, integer(which.stride))
    if which.base:
        number = stablehlo.add(number, integer(which.base))
    zero = integer(0)
    indices = [number if axis == which.axis else zero for axis in range(len(which.sizes))]
    part = stablehlo.dynamic_slice(stack, indices, ir.DenseI64ArrayAttr.get(which.sizes))
    return part if list(which.sizes) == list(type_.shape) else stablehlo.reshape(type_, part)


def put_in_loop(stack: Any, value: Any, number: Any) -> Any:
    """The stack with this value in the place whose number is a value of the module."""
    type_ = tensor_type(value)
    row = stablehlo.reshape(stacked_type(type_, 1), value)
    zero = integer(0)
    return stablehlo.dynamic_update_slice(stack, row, [number, *[zero] * len(type_.shape)])


def repeat(value: Any, count: int) -> Any:
    """A stack of one value, so many times."""
    type_ = tensor_type(value)
    axes = ir.DenseI64ArrayAttr.get(range(1, len(type_.shape) + 1))
    return stablehlo.broadcast_in_dim(stacked_type(type_, count), value, axes)


def whole_stack(which: Slices, type_: Any, count: int) -> Any | None:
    """All values in their order, stacked; None if they are not along the first axis, or not all there."""
    shape = list(tensor_type(which.source).shape)
    first, last = sorted((which.base, which.base + which.stride * (count - 1)))
    if which.axis or abs(which.stride) != 1 or shape[1:] != list(type_.shape) or which.sizes[0] != 1:
        return None
    if first < 0 or last >= shape[0]:
        return None
    part = which.source if (first, last) == (0, shape[0] - 1) else _range(which.source, first, last + 1)
    return part if which.stride == 1 else stablehlo.reverse(part, ir.DenseI64ArrayAttr.get([0]))


def slices_of(values: Sequence[Any | None], type_: Any, block: Any) -> Slices:
    """The values of copies as slices of one value, which is made if it is not there.

    Args:
        values: of each copy; None where it needs none.
        type_: of each.
        block: of the program's operations; an argument is added to it where the values are arguments.
    """
    found = _one_source(values)
    if found is not None:
        return found
    present = [value for value in values if value is not None]
    if all(isinstance(value.owner, ir.Block) for value in present) and len(set(present)) == len(present):
        parts = iter(_stack_arguments(present, type_, block))
        found = _one_source([None if value is None else next(parts) for value in values])
        if found is not None:
            return found
    for odd in (0, len(values) - 1):
        if values[odd] is not None and (found := _with_one_more(values, odd, type_)) is not None:
            return found
    filled = [*present, *[present[-1]] * (len(values) - len(present))]
    numbers = [_number_of(value) for value in filled]
    if None not in numbers:
        element = np.dtype({"f32": "f4", "f64": "f8", "i32": "i4", "i64": "i8"}[str(type_.element_type)])
        return Slices(stablehlo.constant(ir.DenseElementsAttr.get(np.array(numbers, element))), 0, 0, 1, (1,))
    rows = [stablehlo.reshape(stacked_type(type_, 1), value) for value in filled]
    return Slices(stablehlo.concatenate(rows, 0), 0, 0, 1, (1, *type_.shape))


def sliced_value(value: Any) -> tuple[Any, tuple[int, ...], tuple[int, ...]] | None:
    """The value of which this is a slice, reshaped or not, where that begins and how large it is."""
    owner = value.owner
    if not isinstance(owner, ir.Block) and owner.operation.name == "stablehlo.reshape":
        owner = owner.operation.operands[0].owner
    if isinstance(owner, ir.Block) or owner.operation.name != SLICE:
        return None
    operation = owner.operation
    starts, ends, strides = (
        tuple(ir.DenseI64ArrayAttr(operation.attributes[name]))
        for name in ("start_indices", "limit_indices", "strides")
    )
    if any(each != 1 for each in strides):
        return None
    return operation.operands[0], starts, tuple(b - a for a, b in zip(starts, ends, strict=True))


def _number_of(value: Any) -> float | None:
    """The number that a scalar constant has; None of anything else."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "stablehlo.constant":
        return None
    type_ = tensor_type(value)
    if type_.shape or str(type_.element_type) not in {"f32", "f64", "i32", "i64"}:
        return None
    text = str(owner.operation.attributes["value"]).removeprefix("dense<").partition(">")[0]
    try:
        return float(text)
    except ValueError:  # bits of a NaN
        return None


def _range(stack: Any, first: int, end: int) -> Any:
    shape = list(tensor_type(stack).shape)
    return stablehlo.slice(
        stack,
        ir.DenseI64ArrayAttr.get([first, *[0] * (len(shape) - 1)]),
        ir.DenseI64ArrayAttr.get([end, *shape[1:]]),
        ir.DenseI64ArrayAttr.get([1] * len(shape)),
    )


def _stack_arguments(arguments: Sequence[Any], type_: Any, block: Any) -> list[Any]:
    """Make one stacked argument of these; where they were used, its slices are, which are returned."""
    stack = block.add_argument(stacked_type(type_, len(arguments)), ir.Location.unknown())
    parts = []
    with ir.InsertionPoint.at_block_begin(block):
        for number, argument in enumerate(arguments):
            parts.append(take(stack, type_, number))
            argument.replace_all_uses_with(parts[-1])
    return parts


def _one_source(values: Sequence[Any | None]) -> Slices | None:
    """The one value of which these are slices, at equal distances along one axis, if there is one."""
    taken = [(number, sliced_value(value)) for number, value in enumerate(values) if value is not None]
    known = [(number, found) for number, found in taken if found is not None]
    if len(known) < max(2, len(taken)):
        return None
    (first, (source, starts, sizes)), (second, (_, following, _)) = known[:2]
    axes = [axis for axis, (a, b) in enumerate(zip(starts, following, strict=False)) if a != b]
    if len(axes) != 1 or len(starts) != len(following):
        return None
    axis = axes[0]
    stride = (following[axis] - starts[axis]) // (second - first)
    base = starts[axis] - stride * first
    for number, (other, where, shape) in known:
        expected = [0] * len(starts)
        expected[axis] = base + stride * number
        if other != source or list(where) != expected or shape != sizes:
            return None
    return Slices(source, axis, base, stride, sizes)


def _with_one_more(values: Sequence[Any | None], odd: int, type_: Any) -> Slices | None:
    """Slices of one value with another value before or behind them: what enters the first layer, no layer made."""
    found = _one_source([None if number == odd else value for number, value in enumerate(values)])
    if found is None or found.axis or abs(found.stride) != 1 or found.sizes[0] != 1:
        return None
    count = len(values)
    used = [found.base + found.stride * number for number in range(count) if number != odd]
    if min(used) < 0 or max(used) >= tensor_type(found.source).shape[0]:
        return None
    part = _range(found.source, min(used), max(used) + 1)
    row = stablehlo.reshape(stacked_type(type_, 1), values[odd])
    rows = [row, part] if (odd == 0) == (found.stride > 0) else [part, row]
    base = 0 if found.stride > 0 else count - 1
    return Slices(stablehlo.concatenate(rows, 0), 0, base, found.stride, (1, *type_.shape))
