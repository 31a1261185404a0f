"""What direct mode asks about a call: which record, if any, is about the state that the function is in now."""

from __future__ import annotations

import secrets
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

import jax

from ejcache._tuples import NamedTuple
from ejcache.fingerprint.refusal import RefusedError
from ejcache.fingerprint.walk import HASH_SEED, difference, walk
from ejcache.jax_integration.direct.record_store import read_document
from ejcache.jax_integration.direct.records import DirectDocument
from ejcache.jax_integration.direct.shardings import Devices
from ejcache.jax_integration.direct.signature import call_signature
from ejcache.jax_integration.direct.values import describe_value
from ejcache.jax_integration.lowering.key import UnkeyableError, program_independent_parts
from ejcache.keys.key import direct_record_key
from ejcache.settings.environment import fixed_hash_seed, variable_digests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ejcache.cache.policy import CachePolicy
    from ejcache.fingerprint.walk import Walk
    from ejcache.jax_integration.direct.records import DirectRecord
    from ejcache.jax_integration.direct.signature import Signature
    from ejcache.jax_integration.seam.direct.fastpath import ParsedCall
    from ejcache.settings.resolve import Settings

__all__ = ["Question", "ask", "is_due", "walk_function", "why_plain_everywhere"]

_PYTHON: Final = f"{sys.implementation.cache_tag} {sys.version} {sys.flags}"
"""Bytecode, and what it means, depend on these."""


class Question(NamedTuple):
    """A call that direct mode may answer, and what is known about it.

    Attributes:
        call: the parsed call.
        devices: of the backend.
        roots: returns where the walk begins.
        walked: what the walk found before the function is traced.
        key: of the document.
        document: the records of this function, signature and environment.
        fitting: the records of this state, as far as the walk and the environment variables tell, the latest first.
        missed: why there is none, in words; empty if there is one.
    """

    call: ParsedCall
    devices: Devices
    roots: Callable[[], Mapping[str, object]]
    walked: Walk
    key: str
    document: DirectDocument
    fitting: tuple[DirectRecord, ...]
    missed: str

    @property
    def state(self) -> tuple[str, str]:
        """Equal for two calls of a function if JAX would use the trace of one for the other."""
        return self.key, self.walked.digest


def why_plain_everywhere(settings: Settings) -> str:
    """Why no call of this process is answered from a record, whatever the function; empty if there is no reason."""
    if settings.recompile_force:
        return "every program is to be compiled anew (EASYDEL_RECOMPILE_FORCE)"
    if settings.check_contents:
        return "every hit is to be checked (jax_compilation_cache_check_contents)"
    if settings.include_metadata_in_key:
        return "the key has source lines in it (jax_compilation_cache_include_metadata_in_key)"
    if settings.enable_pgle or settings.expect_pgle:
        return "PGLE chooses between the variants of a program"
    return ""


def ask(
    call: ParsedCall,
    *,
    name: str,
    code: str,
    roots: Callable[[Signature], Mapping[str, object]],
    policy: CachePolicy,
    settings: Settings,
) -> Question:
    """Which records are about this call.

    Args:
        call: the parsed call, for which there is no reason to be plain.
        name: module and qualified name of the function.
        code: digest of its code, where other functions have the same name; otherwise empty.
        roots: returns where the walk begins, as it is now.
        policy: of the cache.
        settings: the current ones.

    Raises:
        RefusedError: the state cannot be described, so the call is traced.
        StoreError: the storage failed.
    """
    devices = Devices(jax.devices()[0].client)
    signature = call_signature(call, devices)
    try:
        parts = program_independent_parts(devices.backend, settings)
    except UnkeyableError as exc:
        raise RefusedError(str(exc)) from exc
    identity = (
        name,
        code,
        signature.text,
        *parts,
        jax.__version__,
        _PYTHON,
        _number_context(),
        fixed_hash_seed(),
    )
    key = direct_record_key(name, *identity)
    begin = partial(roots, signature)
    walked = walk_function(begin)
    document = read_document(key, policy, settings) or DirectDocument(name)
    fitting, missed = _fitting(document, walked)
    return Question(call, devices, begin, walked, key, document, fitting, missed)


def _number_context() -> str:
    """How decimal numbers are computed and long numbers are shown now; empty if that is as Python begins."""
    digits = sys.get_int_max_str_digits()
    limit = "" if digits == sys.int_info.default_max_str_digits else str(digits)
    decimal = sys.modules.get("decimal")
    if decimal is None:
        return limit
    texts = [
        repr((each.prec, each.rounding, each.Emin, each.Emax, each.clamp, sorted(map(str, each.traps.items()))))
        for each in (decimal.getcontext(), decimal.DefaultContext)
    ]
    return limit if texts[0] == texts[1] else f"{limit} {texts[0]}"


def walk_function(roots: Callable[[], Mapping[str, object]]) -> Walk:
    """Walk a function and what belongs to its call, as they are now.

    Raises:
        RefusedError: something that it reaches cannot be described.
    """
    walked = walk(roots(), describe=describe_value)
    if HASH_SEED in walked.tokens and not fixed_hash_seed():
        # Its record would hold for this process alone.
        raise RefusedError(
            "the order of a set, or hash(), decides what is traced, and that differs from one process to the next "
            "unless PYTHONHASHSEED is set"
        )
    return walked


def _fitting(document: DirectDocument, walked: Walk) -> tuple[tuple[DirectRecord, ...], str]:
    """The records of this state, or why there is none."""
    missed = "nothing is recorded for this function with these arguments, on this kind of machine"
    if document.records:
        nearest = document.records[0]
        missed = difference(nearest.tokens, walked.tokens) or "something that it reads changed"
    fitting = []
    for record in document.records:
        if record.walk != walked.digest:
            continue
        now = variable_digests(record.variables)
        changed = next((name for name, value in record.variables.items() if now[name] != value), None)
        if changed is None:
            fitting.append(record)
        else:
            missed = f"the environment variable {changed} was read while tracing, and changed"
    return tuple(fitting), "" if fitting else missed


def is_due(one_in: int) -> bool:
    """Whether this call is one of the sample that traces although a record would answer it."""
    # Not `random`, whose state belongs to the user.
    return one_in > 0 and secrets.randbelow(one_in) == 0
