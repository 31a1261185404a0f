"""What direct mode asks about a call: which record, if any, is about the same call of the same function.

Two starts have the same program if the same call is made in the same JAX context, of a function with the same content,
between the same files. The call, the context and the variables that every key has are in the key of the document; the
content and the variables that the function's code names are the *state* of a record, and its files are in its manifest.

What programs set in libraries and libraries read while they trace is in a table of known contexts and configurations.
It is all that is compared of the state of libraries, besides what the program's own code names and has patched. A name
that a version of a library lacks is left out. A library that was not imported by the end of a recorded trace has no
part in it, whatever its context is now.

Read for this: flax 0.12, haiku 0.0, keras 3, chex 0.1, numpyro 0.21, gin 0.5.
"""

from __future__ import annotations

import decimal
import hashlib
import json
import locale
import sys
import threading
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jax

from ejcache.direct.call.signature import Devices, argument_names, call_signature
from ejcache.direct.describing.walk import difference, walk, whole_digest
from ejcache.direct.files.manifest import manifest_difference
from ejcache.direct.files.owners import Owners, module_file
from ejcache.direct.records import DirectDocument, read_document
from ejcache.jax_integration.lowering.key import UnkeyableError, program_independent_parts
from ejcache.jax_integration.seam.direct.refusal import RefusedError
from ejcache.jax_integration.seam.direct.rules import rules_that
from ejcache.jax_integration.seam.direct.traces import program_settings
from ejcache.keys.key import direct_record_key
from ejcache.settings.resolve import all_variables, fixed_hash_seed
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ejcache.cache.policy import CachePolicy
    from ejcache.direct.describing.graph import Graph
    from ejcache.direct.records import DirectRecord
    from ejcache.jax_integration.seam.direct.fastpath import ParsedCall
    from ejcache.settings.table import Settings


__all__ = [
    "TABLE",
    "Question",
    "State",
    "Subject",
    "ask",
    "contexts_of",
    "known_contexts",
    "make_subject",
    "why_plain_everywhere",
]

_PYTHON: Final = f"{sys.implementation.cache_tag} {sys.version} {sys.flags}"
"""Bytecode, and what it means, depend on these."""
_UNNAMED: Final = "a value without a name changed, or an environment variable that its code names"


class Subject(NamedTuple):
    """A direct function.

    Attributes:
        fun: the function.
        name: module and qualified name.
        code: digest of its code.
        reads: what the user says that the trace reads.
        ignored: paths that the user leaves out.
        owners: tells the project's code.
        root: the directory of the project.
    """

    fun: Any
    name: str
    code: str
    reads: tuple[object, ...]
    ignored: tuple[str, ...]
    owners: Owners
    root: str


def make_subject(
    fun: Any, name: str, code: str, reads: Sequence[object], ignored: Sequence[str], project: Sequence[str]
) -> Subject:
    """A direct function, and the project that it belongs to.

    Args:
        fun: the function.
        name: module and qualified name.
        code: digest of its code.
        reads: what the user says that the trace reads.
        ignored: paths that the user leaves out.
        project: packages and directories that the settings say are the project's.
    """
    module = str(getattr(fun, "__module__", None) or type(fun).__module__)
    top = module.partition(".")[0]
    own = [top] if top not in LIBRARIES else []
    path = module_file(top) if own else None
    root = Path.cwd() if path is None else Path(path).absolute().parent
    if path is not None and Path(path).stem == "__init__":
        root = root.parent
    return Subject(fun, name, code, tuple(reads), tuple(ignored), Owners([*own, *project]), str(root))


class State(NamedTuple):
    """What a function is now.

    Attributes:
        digest: of its content and the environment variables that its code names.
        lasting: the same without what a trace may add.
        tokens: path → short digest, to name a difference. It has no variables: whoever reads it could try values.
        functions: the names of the project's functions that it leads to.
    """

    digest: str
    lasting: str
    tokens: dict[str, str]
    functions: frozenset[str]


class Question(NamedTuple):
    """A call that direct mode may answer, and what is known about it.

    Attributes:
        call: the parsed call.
        subject: the function.
        devices: of the backend.
        look: describes the function and what belongs to this call as they are at that moment.
        state: what that gave before the function is traced.
        contexts: of libraries, then.
        key: of the document.
        document: the records of this function, signature and environment.
        fitting: the record of this state and these files; None if there is none.
        missed: why there is none, in words; empty if there is one.
    """

    call: ParsedCall
    subject: Subject
    devices: Devices
    look: Callable[[], State]
    state: State
    contexts: Mapping[str, str]
    key: str
    document: DirectDocument
    fitting: DirectRecord | None
    missed: str

    @property
    def asked(self) -> tuple[str, str]:
        """Equal for two calls of a function if JAX would use the trace of one for the other."""
        return self.key, self.state.digest


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


def ask(call: ParsedCall, subject: Subject, policy: CachePolicy, settings: Settings) -> Question:
    """What is known about a call.

    Args:
        call: the parsed call, for which there is no reason to be plain.
        subject: the function.
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
    options = json.dumps([sorted(subject.ignored), [repr(each) for each in subject.reads if isinstance(each, str)]])
    is_lambda = subject.name.endswith("<lambda>")
    identity = (
        *(subject.name, subject.code if is_lambda else "", options, signature, *parts),
        *(jax.__version__, _PYTHON, _number_context(), fixed_hash_seed()),
    )
    key = direct_record_key(subject.name, *identity)
    look = partial(_look, subject, _roots(subject, call))
    state = look()
    document = read_document(key, policy, settings) or DirectDocument(subject.name)
    contexts = contexts_of(subject)
    fitting, missed = _fitting(document, state, contexts, subject.root)
    return Question(call, subject, devices, look, state, contexts, key, document, fitting, missed)


def _number_context() -> str:
    """How decimal numbers are computed, and long numbers are shown, now."""
    now = decimal.getcontext()
    traps = sorted(map(str, now.traps.items()))
    return repr((sys.get_int_max_str_digits(), now.prec, now.rounding, now.Emin, now.Emax, now.clamp, traps))


# -- the state -----------------------------------------------------------------------------------------------------


def _roots(subject: Subject, call: ParsedCall) -> Mapping[str, object]:
    """Everything that belongs to a call but its arrays, by the names that paths begin with."""
    roots: dict[str, object] = {subject.name.rpartition(".")[2]: subject.fun}
    names = [*(f"argument {place}" for place in call.static_positions), *call.static_names]
    for name, value in zip(names, call.statics, strict=True):
        roots[f"static {name}"] = value
    roots.update(zip(argument_names(call), call.trees, strict=True))
    roots["the options of jax.jit"] = call.info
    roots["the settings of JAX"] = program_settings()
    roots["the arrays of JAX"] = type(jax.typeof(0))
    roots["the rules of JAX"] = rules_that(partial(subject.owners.is_project_function, unknown=False))
    return roots


def _look(subject: Subject, roots: Mapping[str, object]) -> State:
    named = {f"reads[{place}]": _named_content(each) for place, each in enumerate(subject.reads)}
    every = {**roots, **named}
    found = walk(every, owners=subject.owners, ignored=subject.ignored)
    if found.hash_order and not fixed_hash_seed():
        # Its record would hold for this process alone.
        raise RefusedError(
            f"the order of a set, or hash(), decides what is traced ({found.hash_order}), and that differs from one "
            "process to the next: sort it, or set PYTHONHASHSEED"
        )
    variables = _variables(found)
    digest, lasting = _digest(found.digest(), variables), _digest(found.lasting_digest(), variables)
    return State(digest, lasting, found.tokens, frozenset(found.functions))


def _named_content(value: object) -> object:
    """The content of a file, or an environment variable's value by its name: `reads` names them."""
    if not isinstance(value, str | Path):
        return value
    if isinstance(value, str) and "/" not in value and "." not in value:
        return "variable", value, hashlib.sha256(repr(all_variables().get(value)).encode()).hexdigest()
    try:
        return "file", hashlib.sha256(Path(value).read_bytes()).hexdigest()
    except OSError as exc:
        raise RefusedError(f"the file {value}, which reads= names, cannot be read: {exc}") from exc


_PLACES: Final = (
    *("abspath", "absolute", "cwd", "expanduser", "expandvars", "getcwd", "getcwdb", "home", "realpath", "resolve"),
    *("current_thread", "getrecursionlimit", "getlocale", "localeconv", "setlocale", "warn", "warn_explicit"),
)
"""Names with which code asks where and how it is run."""


def _variables(found: Graph) -> str:
    """The environment variables that the code names, as a text; where names are computed, all that may be meant."""
    every = all_variables()
    places = _places(every) if found.is_named(*_PLACES) else ()
    if not found.reads_environment:
        return repr((places, sorted((name, every[name]) for name in found.constants if name in every)))
    parts = tuple(each for each in found.constants if len(each) > 2)
    meant = sorted((name, value) for name, value in every.items() if not parts or _is_meant(name, parts))
    return repr((places, meant))


def _places(variables: Mapping[str, str]) -> tuple[object, ...]:
    """What a program may ask about the process that it runs in."""
    process = (threading.current_thread().name, sys.getrecursionlimit(), repr(warnings.filters))
    return str(Path.cwd()), variables.get("HOME"), *process, locale.setlocale(locale.LC_ALL)


def _is_meant(name: str, parts: tuple[str, ...]) -> bool:
    return name.startswith(parts) or name.endswith(parts)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogateescape")).hexdigest()


def contexts_of(subject: Subject) -> dict[str, str]:
    """The known contexts of libraries, as they are now."""
    return known_contexts(partial(whole_digest, owners=subject.owners))


def _fitting(
    document: DirectDocument, state: State, contexts: Mapping[str, str], root: str
) -> tuple[DirectRecord | None, str]:
    """The record of this state and these files, or why there is none."""
    missed = "nothing is recorded for this function with these arguments, on this kind of machine"
    if document.records:
        missed = difference(document.records[0].tokens, state.tokens) or _UNNAMED
    for record in document.records:
        if record.state == state.digest:
            other = next((label for label, each in record.contexts.items() if contexts.get(label) != each), None)
            changed = f"{other} changed" if other is not None else manifest_difference(record.manifest, root)
            if changed is None:
                return record, ""
            missed = changed
    return None, missed


_OF_HAIKU: Final = ("param_creator", "param_getter", "state_creator", "state_getter", "state_setter")
TABLE: Final = {
    "flax.configurations": ("config",),
    "flax.core.spmd": ("_axis_rules",),
    "flax.linen.module": ("_context", "_global_interceptor_stack"),
    "flax.nnx.graphlib": ("GRAPH_CONTEXT",),
    "flax.nnx.variablelib": ("VARIABLE_CONTEXT",),
    "haiku._src.config": ("tls",),
    "haiku._src.base": ("frame_stack", *(f"{name}_stack" for name in _OF_HAIKU)),
    "haiku._src.mixed_precision": ("_thread_local_state",),
    "haiku._src.module": ("interceptor_stack",),
    "keras.src.backend.common.global_state": ("GLOBAL_STATE_TRACKER",),
    "keras.src.backend.config": ("_FLOATX", "_EPSILON", "_IMAGE_DATA_FORMAT"),
    "chex._src.asserts_internal": ("DISABLE_ASSERTIONS",),
    "numpyro.primitives": ("_PYRO_STACK",),
    "numpyro.distributions.distribution": ("_VALIDATION_ENABLED",),
    "gin.config": ("_CONFIG", "_CONSTANTS", "_SCOPE_MANAGER"),
}
"""The names of each module in which a library keeps what programs set and traces read."""
LIBRARIES: Final = frozenset(
    {module.partition(".")[0] for module in TABLE}
    | {"blackjax", "brax", "diffrax", "equinox", "jax", "lineax", "numpy", "optax", "optimistix", "scipy"}
)
"""Packages of which users jit functions as they are (`model.apply`, `SVI.update`): the project is elsewhere."""


def known_contexts(digest: Callable[[object], str]) -> dict[str, str]:
    """Digests of the state of the libraries of the table that are imported, by what it is called.

    Args:
        digest: of a value and everything that it leads to.
    """
    held = {module: getattr(sys.modules.get(module), "__dict__", {}) for module in TABLE}
    return {
        f"{module}.{name}": digest(held[module][name])
        for module, names in TABLE.items()
        for name in names
        if name in held[module]
    }
