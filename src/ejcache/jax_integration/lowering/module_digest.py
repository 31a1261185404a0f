"""The content digest of an MLIR module.

It is computed from a clone; the module that the compiler gets is not changed. Everything in the module counts except
debug locations (in kernel payloads, too), the numbering, order and repetition of private functions, and private
functions that nothing refers to. A module that this cannot handle completely (recursion, nested symbol tables, a
reference to a private function from an unexpected place) is digested verbatim, numbers included: that may cost a miss,
but never gives a wrong hit.
"""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any, Final

from jaxlib.mlir import ir, passmanager

from ejcache.keys.canonical_modules import base_name, content_name, function_order, module_digest
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.jax_integration.lowering.kernels import KernelStripper

# Where StableHLO refers to functions. A reference from anywhere else is found afterwards.
_REFERENCES: Final = {
    "func.call": "callee",
    "stablehlo.composite": "decomposition",
    "stablehlo.custom_call": "called_computations",
}

# Bytecode has the names of its operations, without their dialects, and the texts of its attributes.
_NAMES_IN_BYTECODE: Final = (b"private", *(name.rpartition(".")[2].encode() for name in _REFERENCES))

# Where a custom call says how many of its dimensions are batch dimensions.
_FRONTEND: Final = "mhlo.frontend_attributes"
_BATCH_DIMENSIONS: Final = "num_batch_dims"

# The attribute of computations that an accelerator's program runs on the host.
_HOST_CODE: Final = b"_xla_compute_type"


class ModuleDigest(NamedTuple):
    """Identity of a module's content.

    Attributes:
        digest: 64 hex digits.
        verbatim: why private functions count by name and number, or None where they count by content.
        custom_partitionings: how many operations hold a pointer to a Python partitioner; unless they were ignored,
            the digest depends on these pointers and has no meaning outside this process.
        inspections: how many operations hold a pointer to a Python function that is called while the program
            compiles; the digest depends on these pointers, too.
        size: bytes of its canonical form, its private functions included; an idea of how long it takes to compile.
        host_code: parts of it are compiled for the host, whatever the platform is.
        custom_calls: the targets of its custom calls.
        batched_calls: those that say how many of their dimensions are batch dimensions.
    """

    digest: str
    verbatim: str | None
    custom_partitionings: int
    inspections: int
    host_code: bool
    size: int
    custom_calls: frozenset[str]
    batched_calls: frozenset[str]


_expected: Final[dict[int, tuple[Any, ModuleDigest]]] = {}
"""By the module: what is known of it."""


@contextlib.contextmanager
def digest_is_known(module: Any, digest: ModuleDigest) -> Iterator[None]:
    """Let `digest_module` return, in this block, `digest` for this module, as it would compute it, and reads
    nothing.
    """
    _expected[id(module)] = (module, digest)
    try:
        yield
    finally:
        _expected.pop(id(module), None)


class _UnexpectedError(Exception):  # control flow within this module
    """The module contains something that the canonical form cannot express."""


def digest_module(module: Any, *, metadata: bool = False, ignore_custom_partitioning: bool = False) -> ModuleDigest:
    """Return the content digest of an `ir.Module` of StableHLO; the module is not changed.

    Args:
        module: as JAX's lowering gives it.
        metadata: debug locations count (`jax_compilation_cache_include_metadata_in_key`).
        ignore_custom_partitioning: pointers to Python partitioners do not
            (`jax_remove_custom_partitioning_ptr_from_cache_key`).

    Raises:
        MLIRError: MLIR cannot process the module; then it has no key.
    """
    known = _expected.get(id(module))
    if known is not None and not metadata and not known[1].custom_partitionings:
        return known[1]
    with module.context, ir.Location.unknown():
        work = _Work(module, metadata=metadata, ignore_custom_partitioning=ignore_custom_partitioning)
        form, verbatim, content = "functions by content", None, work.plain_bytecode()
        if content is None:
            try:
                work.survey()
                work.name_functions_by_content()
            except _UnexpectedError as reason:
                work = _Work(module, metadata=metadata, ignore_custom_partitioning=ignore_custom_partitioning)
                work.survey()
                form, verbatim = "verbatim", str(reason)
            content = work.bytecode(work.clone)
        digest = module_digest(content, form=form)
        return ModuleDigest(
            digest,
            verbatim,
            work.custom_partitionings,
            work.inspections,
            work.host_code,
            len(content) + work.functions_size,
            frozenset(work.custom_calls),
            frozenset(work.batched_calls),
        )


def module_text(module: Any, *, locations: bool = False) -> str:
    """Return the module as text for people: constants above 64 elements elided, debug locations on request."""
    with module.context:
        return str(module.operation.get_asm(enable_debug_info=locations, large_elements_limit=64))


class _Work:
    """A clone of a module on its way to canonical form; to be used within the module's context."""

    def __init__(self, module: Any, *, metadata: bool, ignore_custom_partitioning: bool) -> None:
        self.clone = module.operation.clone(ip=False)
        self.custom_partitionings = 0
        self.inspections = 0
        self.host_code = False
        self.functions_size = 0
        self.custom_calls: set[str] = set()
        self.batched_calls: set[str] = set()
        self._metadata = metadata
        self._ignore_custom_partitioning = ignore_custom_partitioning
        self._kernels: KernelStripper | None = None
        if not metadata:
            _run(self.clone, "strip-debuginfo")
        # For each operation at the top: the references to functions in it.
        self._references: list[tuple[Any, list[_Reference]]] = []

    def plain_bytecode(self) -> bytes | None:
        """Return the bytecode, if it is canonical as it is; None if there may be something that `survey` would change.

        Looking at each operation in Python takes as long as all the rest. A module of one public function whose
        bytecode has no name of an operation that refers to functions needs none of that.
        """
        operations = self.clone.regions[0].blocks[0].operations
        if len(operations) != 1 or _count_symbol_tables(self.clone) != 1:
            return None
        content = self.bytecode(self.clone)
        return None if any(map(content.__contains__, _NAMES_IN_BYTECODE)) else content

    def survey(self) -> None:
        """Find the references to functions, and bring custom calls into canonical form."""
        operations = self.clone.regions[0].blocks[0].operations
        self._references = [(operation, self._survey(operation)) for operation in operations]

    def bytecode(self, operation: Any) -> bytes:
        output = io.BytesIO()
        operation.operation.write_bytecode(output)
        content = output.getvalue()
        self.host_code = self.host_code or _HOST_CODE in content
        return content

    def name_functions_by_content(self) -> None:
        """Remove the private functions from the clone, and name them by their content where they are referred to."""
        if _count_symbol_tables(self.clone) != 1:
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
            content = self.bytecode(operation)
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
        body = self.clone.regions[0].blocks[0]
        empty = ir.TypeAttr.get(ir.FunctionType.get([], []))
        for name in names:
            attributes = {
                "sym_name": ir.StringAttr.get(name),
                "sym_visibility": ir.StringAttr.get("private"),
                "function_type": empty,
            }
            body.append(ir.Operation.create("func.func", attributes=attributes, regions=1))
        _run(self.clone, "symbol-dce")
        remaining = list(body.operations)
        if any(_name(operation) in names for operation in remaining):
            raise _UnexpectedError("a reference to a private function from an unknown place")
        for operation in remaining:
            if _name(operation) in taken:
                operation.erase()

    def _survey(self, top: Any) -> list[_Reference]:
        found: list[_Reference] = []

        def visit(operation: Any) -> Any:
            attribute = _REFERENCES.get(operation.name)
            if attribute is not None:
                if operation.name == "stablehlo.custom_call":
                    self._canonicalise_custom_call(operation)
                if attribute in operation.attributes:
                    found.append(_Reference(operation, attribute))
            return ir.WalkResult.ADVANCE

        top.operation.walk(visit)
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
                from ejcache.jax_integration.lowering.kernels import KernelStripper  # few programs have one

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


def _run(operation: Any, passes: str) -> None:
    manager = passmanager.PassManager.parse(f"builtin.module({passes})")
    # The verifier costs as much as the pass; the module was verified when it was lowered.
    manager.enable_verifier(False)
    manager.run(operation.operation)


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


def _count_symbol_tables(operation: Any) -> int:
    count = 0

    def note(table: Any, uses_visible: Any) -> None:  # noqa: ARG001
        nonlocal count
        count += 1

    ir.SymbolTable.walk_symbol_tables(operation, True, note)
    return count
