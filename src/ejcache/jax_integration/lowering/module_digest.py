"""Digests the content of an MLIR module.

It is computed from a clone; the module that the compiler gets is not changed. Everything in the module counts except
debug locations (in kernel payloads, too), the numbering, order and repetition of private functions, and private
functions that nothing refers to. A module that this cannot handle completely (recursion, nested symbol tables, a
reference to a private function from an unexpected place) is digested with the names that JAX gave to its functions,
numbers included: that may cost a miss, but never gives a wrong hit.
"""

from __future__ import annotations

import hashlib
import io
from typing import Any, Final, NamedTuple

from jaxlib.mlir import ir, passmanager

from ejcache.jax_integration.lowering.private_functions import canonical_form
from ejcache.jax_integration.lowering.walking import count_symbol_tables

# Bytecode has the names of operations, without their dialects, and the texts of their attributes. These are those of
# private functions and of the operations that `private_functions` brings into canonical form.
NAMES_IN_BYTECODE: Final = (b"private", b"call", b"composite", b"custom_call")

# The attribute of computations that an accelerator's program runs on the host.
_HOST_CODE: Final = b"_xla_compute_type"


class ModuleDigest(NamedTuple):
    """Identity of a module's content.

    Attributes:
        digest: 64 hex digits.
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
    custom_partitionings: int
    inspections: int
    host_code: bool
    size: int
    custom_calls: frozenset[str]
    batched_calls: frozenset[str]


expected_digests: Final[dict[int, tuple[Any, ModuleDigest]]] = {}
"""By the identity of a module: the module, and what `digest_module` returns for it, as it would compute it."""


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
    known = expected_digests.get(id(module))
    if known is not None and not metadata and not known[1].custom_partitionings:
        return known[1]
    with module.context, ir.Location.unknown():
        clone = _Clone(module, metadata=metadata)
        content = clone.plain_bytecode()
        if content is not None:
            digest = _digest(content, form="functions by content")
            return ModuleDigest(digest, 0, 0, clone.host_code, len(content), frozenset(), frozenset())
        # Most small programs have neither private functions nor custom calls.

        found = canonical_form(clone, metadata=metadata, ignore_custom_partitioning=ignore_custom_partitioning)
        form = "functions by content" if found.by_content else "verbatim"
        return ModuleDigest(
            _digest(found.content, form=form),
            found.custom_partitionings,
            found.inspections,
            found.host_code,
            len(found.content) + found.functions_size,
            frozenset(found.custom_calls),
            frozenset(found.batched_calls),
        )


def _digest(content: bytes, *, form: str) -> str:
    """Digest (hex) of a module's bytes; modules in different canonical forms (`form`) never have the same one."""
    hasher = hashlib.sha256(f"ejcache module, {form}\n".encode())
    hasher.update(content)
    return hasher.hexdigest()


class _Clone:
    """A clone of a module, without its debug locations unless they count; to be used within the module's context."""

    def __init__(self, module: Any, *, metadata: bool) -> None:
        self.operation = module.operation.clone(ip=False)
        self.host_code = False
        self._of = module, metadata
        if not metadata:
            self.run("strip-debuginfo")

    def again(self) -> _Clone:
        """Return another clone of the module."""
        module, metadata = self._of
        return _Clone(module, metadata=metadata)

    def plain_bytecode(self) -> bytes | None:
        """Return the bytecode, if it is canonical as it is; None if there may be something that has to be changed.

        Looking at each operation in Python takes as long as all the rest. A module of one public function whose
        bytecode has no name of an operation that refers to functions needs none of that.
        """
        if len(self.operation.regions[0].blocks[0].operations) != 1 or self.has_nested_symbols():
            return None
        content = self.bytecode(self.operation)
        return None if any(map(content.__contains__, NAMES_IN_BYTECODE)) else content

    def bytecode(self, operation: Any) -> bytes:
        """Return the bytecode of an operation of the clone."""
        output = io.BytesIO()
        operation.operation.write_bytecode(output)
        content = output.getvalue()
        self.host_code = self.host_code or _HOST_CODE in content
        return content

    def has_nested_symbols(self) -> bool:
        """True if there are symbol tables inside of the module's own."""
        return count_symbol_tables(self.operation) != 1

    def run(self, passes: str) -> None:
        """Run passes over the clone."""
        manager = passmanager.PassManager.parse(f"builtin.module({passes})")
        # The verifier costs as much as the pass; the module was verified when it was lowered.
        manager.enable_verifier(False)
        manager.run(self.operation.operation)
