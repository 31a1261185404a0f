"""Where the walk of a call begins: the function, its static arguments, its pytree classes, and what the user names."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from ejcache.fingerprint.code import code_digest
from ejcache.fingerprint.refusal import RefusedError
from ejcache.jax_integration.seam.direct.registrations import registered_functions
from ejcache.settings.environment import variable_digests

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ejcache.jax_integration.direct.signature import Signature
    from ejcache.jax_integration.seam.direct.fastpath import ParsedCall

__all__ = ["call_roots", "function_name", "nameless_code"]


def function_name(fun: Any) -> str:
    """Module and qualified name of a function, or of the class of another callable."""
    named = fun if isinstance(getattr(fun, "__qualname__", None), str) else type(fun)
    return f"{named.__module__}.{named.__qualname__}"


def nameless_code(fun: Any) -> str:
    """The digest of the code of a lambda function, which its name does not tell from others; otherwise empty."""
    code = getattr(fun, "__code__", None)
    return code_digest(code).hex() if isinstance(code, CodeType) and code.co_name == "<lambda>" else ""


def call_roots(fun: Any, call: ParsedCall, signature: Signature, reads: Sequence[object]) -> Mapping[str, object]:
    """Everything that belongs to a call, as it is now, by the names that paths begin with.

    Args:
        fun: the function.
        call: the parsed call.
        signature: of the call: it has what the arguments' trees hold beside arrays.
        reads: what the user says that the trace reads.

    Raises:
        RefusedError: a file that the user names cannot be read.
    """
    roots: dict[str, object] = {function_name(fun).rpartition(".")[2]: fun}
    names = [*(f"argument {place}" for place in call.static_positions), *call.static_names]
    for name, value in zip(names, call.statics, strict=True):
        roots[f"static {name}"] = value
    roots.update(signature.parts)
    for kind in signature.classes:
        roots[f"pytree class {kind.__qualname__}"] = (kind, *registered_functions(kind))
    for place, value in enumerate(reads):
        roots[f"reads[{place}]"] = _named_content(value) if isinstance(value, str | Path) else value
    return roots


def _named_content(name: str | Path) -> object:
    """The content of a file, or the digest of an environment variable's value: `reads` names them."""
    if isinstance(name, str) and "/" not in name and "." not in name:
        return name, variable_digests([name])[name]
    try:
        return str(name), hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError as exc:
        raise RefusedError(f"the file {name}, which reads= names, cannot be read: {exc}") from exc
