"""A program as it would be with `jax.lax.scan`: the copies of each repeated block become one loop, in the module.

The block is the body of a `stablehlo.while`. What each copy has from outside is stacked (`stacked_values`), and the
body takes its own by the number of the iteration. What other operations use of all copies is stacked by the loop, as
scan stacks what it returns. Copies that hand nothing on and only have operations by element, such as an optimizer's,
become operations on stacks, as they are in a program whose parameters are stacked.

The module is for its compile time alone: it is never run.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import func, stablehlo

from ejcache.jax_integration.lowering.block_copies import Apart, Carried, Copies, Each, Made, Own, Same, Step, copies_at
from ejcache.jax_integration.lowering.stacked_values import (
    SLICE,
    Slices,
    integer,
    put_in_loop,
    repeat,
    sliced_value,
    slices_of,
    stacked_type,
    take,
    take_in_loop,
    tensor_type,
    whole_stack,
    zeros,
)
from ejcache.util.repeated_sequences import repetitions
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    Place = tuple[int, int]
    """The place of an operation in a block, and the number of one of its operands or results."""

_BLOCKS: Final = 16
"""Repeated blocks that become loops at most."""
_LEAST_OF: Final = 0.004
"""The part of the program that each makes up."""
_ELIDED: Final = re.compile(r"dense_resource<__elided__> : tensor<((?:\d+x)+)([a-z]\w*)>")
_DTYPES: Final = {"f16": "f2", "f32": "f4", "f64": "f8"} | {
    f"{kind}{bits}": f"{kind}{bits // 8}" for kind in ("i", "ui") for bits in (8, 16, 32, 64)
}
_LARGEST: Final = 64_000_000
"""Bytes of a constant whose elements are made up."""
_CONSTANT: Final = "stablehlo.constant"
_BROADCAST: Final = "stablehlo.broadcast_in_dim"
_NAMES: Final = (
    "abs add and atan2 broadcast_in_dim cbrt ceil compare convert cosine divide exponential "
    "exponential_minus_one floor is_finite log log_plus_one logistic maximum minimum multiply negate not "
    "or power remainder rsqrt select sign sine sqrt subtract tan tanh xor"
)
_BY_ELEMENT: Final = frozenset(f"stablehlo.{name}" for name in _NAMES.split())
"""Operations that do the same with each element."""
_FREE: Final = frozenset({_CONSTANT, SLICE, "stablehlo.reshape", "stablehlo.concatenate"})
"""Operations that are erased if nothing uses what they make."""


class Rolled(NamedTuple):
    """What became of a program.

    Attributes:
        copies: of each block that became a loop, how many copies it had.
        before: how many operations the program had, without constants.
        after: how many it has now.
        kept: why other copies stay as they are.
    """

    copies: tuple[int, ...]
    before: int
    after: int
    kept: tuple[str, ...]


def with_elements(text: str) -> str:
    """A module's text in which constants whose elements it leaves out have some; raises `Apart` for very large ones."""

    def made_up(match: re.Match[str]) -> str:
        shape, kind = [int(size) for size in match[1].split("x") if size], match[2]
        type_ = f"tensor<{match[1]}{kind}>"
        if kind not in _DTYPES:
            return f"dense<{'true' if kind == 'i1' else '1.5' if 'f' in kind else '1'}> : {type_}"
        dtype = np.dtype(_DTYPES[kind].replace("ui", "u"))
        if math.prod(shape) * dtype.itemsize > _LARGEST:
            raise Apart("a constant of the program is very large")
        values = np.random.default_rng(0).random(math.prod(shape)) * (1.0 if dtype.kind == "f" else 100.0)
        return f'dense<"0x{values.astype(dtype).tobytes().hex().upper()}"> : {type_}'

    return _ELIDED.sub(made_up, text)


def roll(module: Any) -> Rolled:
    """Write each repeated block of a module once; to be called within its context. Raises `Apart` if there is none."""
    passes = "builtin.module(inline{default-pipeline=''},symbol-dce)"
    passmanager.PassManager.parse(passes).run(module.operation)
    main = next(
        each.operation
        for each in module.body.operations
        if "function_type" in each.operation.attributes
        and ir.StringAttr(each.operation.attributes["sym_name"]).value == "main"
    )
    with ir.Location.unknown():
        program = _Program(main)
        rolled, kept = program.roll_all()
        if not rolled:
            raise Apart(kept[0] if kept else "no block repeats among its operations")
        before = len(program.operations)
        after = program.finish()
        module.operation.verify()
        return Rolled(tuple(rolled), before, after, tuple(dict.fromkeys(kept)))


class _Entering(NamedTuple):
    """What enters a loop.

    Attributes:
        values: all of it: the number of the iteration, what is the same in all, stacks, what is handed on, and stacks
            that the loop fills.
        outer: what is the same in all iterations.
        slices: what each iteration takes of a stack, and its type.
        stacks: what they are taken of.
        handed_on: the number of the first value that is handed on.
        filled: the number of the first stack that the loop fills.
        stacked: what it fills them with.
        finals: those of which the last value alone is used.
    """

    values: list[Any]
    outer: list[Same]
    slices: dict[Each, tuple[Slices, Any]]
    stacks: list[Any]
    handed_on: int
    filled: int
    stacked: list[Place]
    finals: set[Place]


class _Program:
    """The main function of a module, in which all calls are written out.

    Attributes:
        operations: those that it had at first, without constants; a step is the number of one.
    """

    def __init__(self, main: Any) -> None:
        self._main = main
        self._block = main.regions[0].blocks[0]
        self._texts: dict[Any, str] = {}
        self._erase_conversions()
        every = [each.operation for each in self._block.operations]
        self.operations = [each for each in every if each.name != _CONSTANT]
        # By their results, because the hash of an operation changes with its operands.
        self._made = {
            result: Made(number, place)
            for number, operation in enumerate(self.operations)
            for place, result in enumerate(operation.results)
        }
        # Steps that a loop stands for now. They are erased last, so that no other operation gets their address.
        self._gone: set[int] = set()

    def _erase_conversions(self) -> None:
        """Erase those to the same type, which make a strong type of a weak one, in the first iteration alone."""
        for each in list(self._block.operations):
            operation = each.operation
            if operation.name == "stablehlo.convert" and operation.operands[0].type == operation.results[0].type:
                operation.results[0].replace_all_uses_with(operation.operands[0])
                operation.erase()

    def roll_all(self) -> tuple[list[int], list[str]]:
        """Make loops; returns how many copies each has, and why others were not made."""
        steps = [self._step(operation) for operation in self.operations]
        found = repetitions([step.token for step in steps], blocks=_BLOCKS, least_of=_LEAST_OF, most_of=0.0)
        rolled: list[int] = []
        kept: list[str] = []
        for start, period in sorted((start, each.period) for each in found for start in each.starts):
            try:
                copies = copies_at(steps, start, period, first=max(self._gone, default=-1) + 1)
                self._roll(copies)
            except Apart as exc:
                kept.append(str(exc))
            else:
                rolled.append(len(copies.table))
        return rolled, kept

    def finish(self) -> int:
        """Erase what nothing uses, return stacks instead of their slices; returns how many operations remain."""
        for number in sorted(self._gone, reverse=True):
            self.operations[number].erase()
        self._return_stacks()
        for each in reversed(list(self._block.operations)):
            operation = each.operation
            is_used = any(True for result in operation.results for _ in result.uses)
            if operation.name in _FREE | _BY_ELEMENT and not is_used:
                operation.erase()
        for number in reversed(range(len(self._block.arguments))):
            if not any(True for _ in self._block.arguments[number].uses):
                self._block.erase_argument(number)
        results = [each.type for each in list(self._block.operations)[-1].operation.operands]
        type_ = ir.FunctionType.get([each.type for each in self._block.arguments], results)
        self._main.attributes["function_type"] = ir.TypeAttr.get(type_)
        return sum(each.operation.name != _CONSTANT for each in self._block.operations)

    def _return_stacks(self) -> None:
        end = list(self._block.operations)[-1].operation
        returned: list[Any] = []
        for value in end.operands:
            found = sliced_value(value)
            whole = value
            if found is not None and found[2][0] == 1 and list(tensor_type(found[0]).shape[1:]) == list(found[2][1:]):
                whole = found[0]
            if whole is value or whole not in returned:
                returned.append(whole)
        with ir.InsertionPoint(end):
            func.ReturnOp(returned)
        end.erase()
        for name in ("arg_attrs", "res_attrs"):
            if name in self._main.attributes:
                del self._main.attributes[name]

    # -- as steps

    def _step(self, operation: Any) -> Step:
        uses = tuple(self._named(inner.operands[number]) for inner, number in self._outer_operands(operation))
        name, types, attributes, within = self._token(operation)
        if name == SLICE:
            return Step((name, types), attributes, uses)
        return Step((name, types, attributes, within), "", uses)

    def _token(self, operation: Any) -> tuple[Hashable, ...]:
        """Say what an operation does, whatever it uses."""
        types = tuple([self._text(each.type) for each in (*operation.operands, *operation.results)])
        attributes = tuple(sorted((each, self._text(operation.attributes[each])) for each in _names(operation)))
        within = tuple(
            self._token(each.operation)
            for region in operation.regions
            for block in region.blocks
            for each in block.operations
        )
        return operation.name, types, attributes, within

    def _text(self, value: Any) -> str:
        """A type or an attribute as text; each is printed once."""
        if value not in self._texts:
            self._texts[value] = str(value)
        return self._texts[value]

    def _named(self, value: Any) -> Hashable:
        """Return what a step says that it uses: constants with the same elements are equal."""
        if value in self._made:
            return self._made[value]
        owner = value.owner
        return str(owner.operation.attributes["value"]) if _is_constant(value) else value

    def _outer_operands(self, operation: Any) -> list[tuple[Any, int]]:
        """The operands of an operation, and of those within it if they are made outside of it."""
        return [
            (inner, number)
            for inner, number in _operands(operation)
            if inner == operation or _block_of(inner.operands[number]) == self._block
        ]

    # -- one block

    def _roll(self, copies: Copies) -> None:
        inside = set(copies.steps)
        outputs = self._outputs(copies, inside | self._gone)
        last = max(inside)
        with ir.InsertionPoint(self.operations[last + 1]):
            results = self._stack(copies, outputs) or self._loop(copies, outputs)
            for (place, result), numbers in outputs.items():
                for number in numbers:
                    old = self.operations[copies.table[number][place] or 0].results[result]
                    type_, new = tensor_type(old), results[place, result]
                    is_one = list(tensor_type(new).shape) == list(type_.shape)
                    old.replace_all_uses_with(new if is_one else take(new, type_, number))
        self._gone |= inside

    def _outputs(self, copies: Copies, inside: set[int]) -> dict[Place, list[int]]:
        """By place and result: the numbers of the copies of which something outside uses it."""
        found: dict[Place, list[int]] = {}
        for number, copy in enumerate(copies.table):
            for place in copies.places:
                step = copy[place]
                for result in self.operations[step].results if step is not None else ():
                    if any(self._number_of(use.owner) not in inside for use in result.uses):
                        found.setdefault((place, result.result_number), []).append(number)
        return found

    def _number_of(self, operation: Any) -> int | None:
        """The step that the operation is, or is within; None of what was not there at first."""
        operation = operation.operation
        while operation.block != self._block:
            operation = operation.parent.operation
        made = self._made.get(operation.results[0]) if len(operation.results) else None
        return made.step if made is not None else None

    def _values(self, copies: Copies, place: Place) -> list[Any]:
        """The operand of each copy, as it is now; None where a copy lacks the operation."""
        found = []
        for copy in copies.table:
            step = copy[place[0]]
            inner, number = (None, 0) if step is None else self._outer_operands(self.operations[step])[place[1]]
            found.append(None if inner is None else inner.operands[number])
        return found

    def _loop(self, copies: Copies, outputs: Mapping[Place, Sequence[int]]) -> dict[Place, Any]:
        """Make a loop; returns its results, stacked unless the last copy alone is used."""
        given = self._entering(copies, outputs)
        types = [value.type for value in given.values]
        loop = stablehlo.WhileOp(types, given.values).operation
        condition, body = (region.blocks.append(*types) for region in loop.regions)
        with ir.InsertionPoint(condition):
            direction = stablehlo.ComparisonDirectionAttr.get("LT")
            count = integer(len(copies.table))
            stablehlo.return_([stablehlo.compare(condition.arguments[0], count, direction)])
        with ir.InsertionPoint(body):
            stablehlo.return_(self._leaving(copies, given, list(body.arguments)))
        found = dict(zip(given.stacked, list(loop.results)[given.filled :], strict=True))
        here = given.handed_on
        for each in copies.of_kind(Carried):
            if len(each.first) == 1:
                found.setdefault((each.place, each.result), loop.results[here])
            here += len(each.first)
        return found

    def _entering(self, copies: Copies, outputs: Mapping[Place, Sequence[int]]) -> _Entering:
        count = len(copies.table)
        place_of = {relation: place for place, relation in copies.relations.items()}
        slices: dict[Each, tuple[Slices, Any]] = {}
        for relation in copies.of_kind(Each):
            values = self._values(copies, place_of[relation])
            type_ = tensor_type(next(value for value in values if value is not None))
            slices[relation] = slices_of(values, type_, self._block), type_
        same = {each: self._values(copies, place_of[each]) for each in copies.of_kind(Same)}
        first = {each: next(value for value in values if value is not None) for each, values in same.items()}
        outer = {each: value for each, value in first.items() if not _is_constant(value)}
        carried = copies.of_kind(Carried)
        finals = {key for key, numbers in outputs.items() if list(numbers) == [count - 1]}
        handed = {(each.place, each.result) for each in carried if len(each.first) == 1}
        stacked = [key for key in outputs if key not in finals or key not in handed]

        stacks = list(dict.fromkeys(which.source for which, _ in slices.values()))
        values = [integer(0), *outer.values(), *stacks]
        handed_on = len(values)
        for each in carried:
            model = self.operations[copies.model[each.place]].results[each.result]
            begin = self._values(copies, place_of[each])[: len(each.first)]
            values += [zeros(tensor_type(model)) if value is None else value for value in reversed(begin)]
        filled = len(values)
        for place, result in stacked:
            type_ = tensor_type(self.operations[copies.model[place]].results[result])
            values.append(zeros(type_ if (place, result) in finals else stacked_type(type_, count)))
        return _Entering(values, list(outer), slices, stacks, handed_on, filled, stacked, finals)

    def _leaving(self, copies: Copies, given: _Entering, arguments: list[Any]) -> list[Any]:
        """Make the body of a loop with these arguments; returns what the next iteration gets."""
        number = arguments[0]
        known: dict[Any, Any] = dict(zip(given.outer, arguments[1:], strict=False))
        by_stack = dict(zip(given.stacks, arguments[1 + len(given.outer) :], strict=False))
        for relation, (which, type_) in given.slices.items():
            known[relation] = take_in_loop(by_stack[which.source], which, number, type_)
        here = given.handed_on
        for each in copies.of_kind(Carried):
            here += len(each.first)
            known[each] = arguments[here - 1]
        made = self._body(copies, known)
        leaving = [stablehlo.add(number, integer(1)), *arguments[1 : given.handed_on]]
        for each in copies.of_kind(Carried):
            here = len(leaving)
            leaving += [made[each.place, each.result], *arguments[here : here + len(each.first) - 1]]
        for stack, key in zip(arguments[given.filled :], given.stacked, strict=True):
            leaving.append(made[key] if key in given.finals else put_in_loop(stack, made[key], number))
        return leaving

    def _body(self, copies: Copies, known: dict[Any, Any]) -> dict[Place, Any]:
        """Make the operations of the block, by what is known of their operands; constants are written again."""
        model = {place: self.operations[copies.model[place]] for place in copies.places}
        made: dict[Place, Any] = {}
        for place in copies.places:
            given = [inner.operands[number] for inner, number in self._outer_operands(model[place])]
            positions = [
                position
                for position, (inner, number) in enumerate(_operands(model[place]))
                if inner == model[place] or _block_of(inner.operands[number]) == self._block
            ]
            new = model[place].clone()
            every = list(_operands(new))
            for slot, (position, value) in enumerate(zip(positions, given, strict=True)):
                relation = copies.relations[place, slot]
                if not isinstance(relation, Own) and relation not in known:
                    constant = value.owner.operation.clone()
                    constant.move_before(new)
                    known[relation] = constant.results[0]
                inner, number = every[position]
                inner.operands[number] = (
                    made[relation.place, relation.result] if isinstance(relation, Own) else known[relation]
                )
            made |= {(place, result): value for result, value in enumerate(new.results)}
        return made

    def _stack(self, copies: Copies, outputs: Mapping[Place, Sequence[int]]) -> dict[Place, Any] | None:
        """Make operations on stacks; returns their results, stacked. None if the copies need a loop."""
        count = len(copies.table)
        model = {place: self.operations[copies.model[place]] for place in copies.places}
        if copies.of_kind(Carried) or not all(each.name in _BY_ELEMENT for each in model.values()):
            return None
        known: dict[Any, tuple[Any, bool]] = {}
        made: dict[Place, tuple[Any, bool]] = {}
        for place, operation in model.items():
            operands: list[tuple[Any, bool]] = []
            for slot, value in enumerate(operation.operands):
                relation = copies.relations[place, slot]
                if isinstance(relation, Own):
                    operands.append(made[relation.place, relation.result])
                    continue
                if relation not in known:
                    known[relation] = value, False
                    if isinstance(relation, Each):
                        type_ = tensor_type(value)
                        which = slices_of(self._values(copies, (place, slot)), type_, self._block)
                        known[relation] = whole_stack(which, type_, count), True
                if known[relation][0] is None:
                    return None
                operands.append(known[relation])
            made[place, 0] = _on_stacks(operation, operands, count)
        return {key: made[key][0] for key in outputs}


def _on_stacks(operation: Any, operands: Sequence[tuple[Any, bool]], count: int) -> tuple[Any, bool]:
    """An operation by element on stacks, and whether it makes one: not if no operand is one."""
    is_stacked = any(stacked for _, stacked in operands)
    values = [value if stacked == is_stacked else repeat(value, count) for value, stacked in operands]
    attributes = {name: operation.attributes[name] for name in _names(operation)}
    type_ = tensor_type(operation.results[0])
    if is_stacked and operation.name == _BROADCAST:
        axes = [0, *(axis + 1 for axis in ir.DenseI64ArrayAttr(attributes["broadcast_dimensions"]))]
        attributes["broadcast_dimensions"] = ir.DenseI64ArrayAttr.get(axes)
    results = [stacked_type(type_, count) if is_stacked else type_]
    return ir.Operation.create(operation.name, results, values, attributes).results[0], is_stacked


def _operands(operation: Any) -> Iterator[tuple[Any, int]]:
    """The operands of an operation and of those within it, in one order."""
    for number in range(len(operation.operands)):
        yield operation, number
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _operands(inner.operation)


def _block_of(value: Any) -> Any:
    """The block in which a value is made."""
    owner = value.owner
    return owner if isinstance(owner, ir.Block) else owner.operation.block


def _is_constant(value: Any) -> bool:
    owner = value.owner
    return not isinstance(owner, ir.Block) and owner.operation.name == _CONSTANT


def _names(operation: Any) -> list[str]:
    """The names of an operation's attributes; MLIR's versions differ in what iterating gives."""
    return [each if isinstance(each, str) else each.name for each in operation.attributes]
