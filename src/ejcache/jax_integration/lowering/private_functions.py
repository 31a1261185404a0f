"""Brings a module with private functions or custom calls into its canonical form.

Only its own module can refer to a private function, so its name is only a label: JAX numbers it by what else was
lowered (`@clip_0`, `@clip_1`) and emits it once or twice depending on what was traced before. Here a private function
is identified by its content: its own bytes, in which each reference to another private function is replaced by that
function's identity. Where this is not possible, the names that JAX gave count.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jaxlib.mlir import ir

from ejcache.jax_integration.lowering.walking import operations_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Protocol

    from ejcache.jax_integration.lowering.kernel_locations import KernelStripper

    class Clone(Protocol):
        """A clone of a module, of which `module_digest` makes the digest."""

        operation: Any
        host_code: bool

        def again(self) -> Clone:
            """Return another clone of the module."""

        def bytecode(self, operation: Any) -> bytes:
            """Return the bytecode of an operation of the clone."""

        def has_nested_symbols(self) -> bool:
            """True if there are symbol tables inside of the module's own."""

        def run(self, passes: str) -> None:
            """Run passes over the clone."""


# Where StableHLO refers to functions. A reference from anywhere else is found afterwards.
REFERENCES: Final = {
    "func.call": "callee",
    "stablehlo.composite": "decomposition",
    "stablehlo.custom_call": "called_computations",
}

# Where a custom call says how many of its dimensions are batch dimensions.
_FRONTEND: Final = "mhlo.frontend_attributes"
_BATCH_DIMENSIONS: Final = "num_batch_dims"


class CanonicalForm(NamedTuple):
    """The bytes that stand for a module, and what was seen in it; `ModuleDigest` explains the rest.

    Attributes:
        content: bytecode of the module.
        by_content: its private functions are named by their content, otherwise as JAX named them.
        functions_size: bytes of those functions, which are not in the content.
    """

    content: bytes
    by_content: bool
    custom_partitionings: int
    inspections: int
    host_code: bool
    functions_size: int
    custom_calls: set[str]
    batched_calls: set[str]


class _UnexpectedError(Exception):  # control flow within this module
    """The module contains something that the canonical form cannot express."""


def canonical_form(clone: Clone, *, metadata: bool, ignore_custom_partitioning: bool) -> CanonicalForm:
    """Bring a clone into canonical form, or another one of the same module if the first one becomes unusable.

    Args:
        clone: of the module; it is changed.
        metadata: debug locations count.
        ignore_custom_partitioning: pointers to Python partitioners do not.

    Raises:
        MLIRError: MLIR cannot process the module.
    """
    by_content = True
    work = _Work(clone, metadata=metadata, ignore_custom_partitioning=ignore_custom_partitioning)
    try:
        work.survey()
        work.name_functions_by_content()
    except _UnexpectedError:
        by_content = False
        work = _Work(clone.again(), metadata=metadata, ignore_custom_partitioning=ignore_custom_partitioning)
        work.survey()
    content = work.clone.bytecode(work.clone.operation)
    return CanonicalForm(
        content,
        by_content,
        work.custom_partitionings,
        work.inspections,
        work.clone.host_code,
        work.functions_size,
        work.custom_calls,
        work.batched_calls,
    )


class _Work:
    """A clone of a module on its way to canonical form; to be used within the module's context."""

    def __init__(self, clone: Clone, *, metadata: bool, ignore_custom_partitioning: bool) -> None:
        self.clone = clone
        self.custom_partitionings = 0
        self.inspections = 0
        self.functions_size = 0
        self.custom_calls: set[str] = set()
        self.batched_calls: set[str] = set()
        self._metadata = metadata
        self._ignore_custom_partitioning = ignore_custom_partitioning
        self._kernels: KernelStripper | None = None
        # For each operation at the top: the references to functions in it.
        self._references: list[tuple[Any, list[_Reference]]] = []

    def survey(self) -> None:
        """Find the references to functions, and bring custom calls into canonical form."""
        operations = self.clone.operation.regions[0].blocks[0].operations
        self._references = [(operation, self._survey(operation)) for operation in operations]

    def name_functions_by_content(self) -> None:
        """Remove the private functions from the clone, and name them by their content where they are referred to."""
        if self.clone.has_nested_symbols():
            raise _UnexpectedError("a nested symbol table")
        private = {
            _name(operation): (operation, references)
            for operation, references in self._references
            if _is_private_function(operation)
        }
        if not private:
            return
        graph = {
            name: {callee for r in references for callee in r.names() if callee in private}
            for name, (_, references) in private.items()
        }
        order = function_order(graph)
        if order is None:
            raise _UnexpectedError("recursion between private functions")
        names: dict[str, str] = {}
        sizes: dict[str, int] = {}
        for name in order:
            operation, references = private[name]
            for reference in references:
                reference.rename(names)
            operation.attributes["sym_name"] = ir.StringAttr.get(base_name(name))
            content = self.clone.bytecode(operation)
            names[name] = content_name(name, content)
            sizes[names[name]] = len(content)
        self.functions_size = sum(sizes.values())
        for operation, references in self._references:
            if not _is_private_function(operation):
                for reference in references:
                    reference.rename(names)
        taken: set[str] = set()
        for number, (name, (operation, _)) in enumerate(private.items()):
            # A second function of the same content gets a name that nothing refers to.
            unique = names[name] if names[name] not in taken else f"{names[name]}.{number}"
            taken.add(unique)
            operation.attributes["sym_name"] = ir.StringAttr.get(unique)
        # The pass below frees operations, so nothing here may hold one any longer.
        self._references.clear()
        private.clear()
        del operation, references
        self._remove_functions(names, taken)

    def _remove_functions(self, names: dict[str, str], taken: set[str]) -> None:
        """Remove the private functions, which have the names `taken` now; raise if something uses one of `names`.

        `names` are those that the functions had before.
        """
        # Now nothing should refer to the old names. Only MLIR knows whether an attribute of some dialect does. So add
        # a declaration under each old name, and run the pass that removes private symbols without uses.
        body = self.clone.operation.regions[0].blocks[0]
        empty = ir.TypeAttr.get(ir.FunctionType.get([], []))
        for name in names:
            attributes = {
                "sym_name": ir.StringAttr.get(name),
                "sym_visibility": ir.StringAttr.get("private"),
                "function_type": empty,
            }
            body.append(ir.Operation.create("func.func", attributes=attributes, regions=1))
        self.clone.run("symbol-dce")
        remaining = list(body.operations)
        if any(_name(operation) in names for operation in remaining):
            raise _UnexpectedError("a reference to a private function from an unknown place")
        for operation in remaining:
            if _name(operation) in taken:
                operation.erase()

    def _survey(self, top: Any) -> list[_Reference]:
        found: list[_Reference] = []
        for operation in operations_in(top):
            attribute = REFERENCES.get(operation.name)
            if attribute is not None:
                if operation.name == "stablehlo.custom_call":
                    self._canonicalise_custom_call(operation)
                if attribute in operation.attributes:
                    found.append(_Reference(operation, attribute))
        return found

    def _canonicalise_custom_call(self, operation: Any) -> None:
        attributes = operation.attributes
        target = ir.StringAttr(attributes["call_target_name"]).value
        self.custom_calls.add(target)
        if _FRONTEND in attributes and _BATCH_DIMENSIONS in ir.DictAttr(attributes[_FRONTEND]):
            self.batched_calls.add(target)
        if target == "CustomSPMDPartitioning":
            self.custom_partitionings += 1
            if self._ignore_custom_partitioning:
                attributes["backend_config"] = ir.StringAttr.get("")
        elif target == "InspectSharding":
            self.inspections += 1
        elif not self._metadata:
            if self._kernels is None:
                from ejcache.jax_integration.lowering.kernel_locations import KernelStripper  # the door to kernels

                self._kernels = KernelStripper()
            self._kernels.strip(operation, target)


class _Reference:
    """An attribute of an operation that refers to functions."""

    def __init__(self, operation: Any, attribute: str) -> None:
        self._operation = operation
        self._attribute = attribute

    def names(self) -> Iterator[str]:
        value = self._operation.attributes[self._attribute]
        for symbol in value if isinstance(value, ir.ArrayAttr) else (value,):
            if isinstance(symbol, ir.FlatSymbolRefAttr):
                yield symbol.value

    def rename(self, names: dict[str, str]) -> None:
        def renamed(symbol: Any) -> Any:
            known = isinstance(symbol, ir.FlatSymbolRefAttr) and symbol.value in names
            return ir.FlatSymbolRefAttr.get(names[symbol.value]) if known else symbol

        value = self._operation.attributes[self._attribute]
        self._operation.attributes[self._attribute] = (
            ir.ArrayAttr.get([renamed(symbol) for symbol in value])
            if isinstance(value, ir.ArrayAttr)
            else renamed(value)
        )


def _name(operation: Any) -> str:
    attributes = operation.operation.attributes
    return str(ir.StringAttr(attributes["sym_name"]).value) if "sym_name" in attributes else ""


def _is_private_function(operation: Any) -> bool:
    attributes = operation.operation.attributes
    return (
        operation.operation.name == "func.func"
        and "sym_visibility" in attributes
        and ir.StringAttr(attributes["sym_visibility"]).value == "private"
        # A declaration has only its name, so its name counts.
        and len(operation.operation.regions[0].blocks) > 0
    )


# -- on plain values -----------------------------------------------------------------------------------------------


def base_name(symbol: str) -> str:
    """Return the name that a private symbol had before it was numbered: `clip` of `clip_1`."""
    match = re.fullmatch(r"(.+?)_\d+", symbol)
    return match[1] if match else symbol


def content_name(symbol: str, content: bytes) -> str:
    """Return the name of a private function by its content: equal for functions of equal base name and bytes.

    Args:
        symbol: the function's name.
        content: its bytes, with its own name as `base_name(symbol)` and those it refers to by their content names.
    """
    return f"{base_name(symbol)}.{hashlib.sha256(content).hexdigest()}"


def function_order(references: Mapping[str, Iterable[str]]) -> list[str] | None:
    """Order the functions of `references`, each after those that it refers to; None if they refer in a circle."""
    order: list[str] = []
    done: dict[str, bool] = {}  # False while the function's own references are being placed
    for root in references:
        stack = [(root, iter(references[root]))] if root not in done else []
        done.setdefault(root, False)
        while stack:
            name, following = stack[-1]
            for callee in following:
                if callee not in done:
                    done[callee] = False
                    stack.append((callee, iter(references.get(callee, ()))))
                    break
                if not done[callee]:
                    return None
            else:
                stack.pop()
                done[name] = True
                if name in references:
                    order.append(name)
    return order
