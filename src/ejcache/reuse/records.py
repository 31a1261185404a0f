"""The records of reuse, beside the entries: from what inputs which functions gave which lowered programs.

A document holds the records of one main module on one kind of machine, and is stored as an object of kind
"reuse_record". A module is an object of kind "reuse_module" under the digest of its bytes. Version 1 of a document:

    payload   := JSON, an object of: version, records: [record, …], the latest first, at most 8
    record    := an object of:
      inputs     see below
      functions  an object: digest of the question → function
      traced     how many processes have traced with these inputs
      off        why nothing is reused with these inputs; empty if it may be
    inputs    := an object of:
      command       [text, …]
      environment   an object: name → 16 bits of the digest of its value
      variables     digest over all of them
      code configuration   objects: path → digest
      directories   [path, …] that were looked into for configuration
      places        [[path, …], [path, …], [path, …], [path, …]]: see `ProjectPlaces`
      packages      an object: distribution → version and digest of its RECORD
      edited        an object: file of a distribution that was changed since → digest
      late          [file, …] of distributions, imported while a function was traced
      machine       an object: name → text
    function  := an object of:
      name       module and qualified name
      quick      true if it is traced quickly, and so stays plain; then nothing else is there
      program tree   see `seam/reuse/lowering.py` and `trees.py`
      module     digest of the bytes of its module, under which they are stored
      content    what `module_digest.digest_module` says of the module; two traces must agree in its digest
      recorded   the witness that traced it first
      proven     the witness that traced it again and found the same program; null while it is unproven
      last       the number of the process, by `traced`, that asked for it last
      off        why it is never reused; empty if it may be
    witness   := an object of: process (random, in hex), seed (digest of the process's hash seed)

Unknown fields are ignored. A document of another version, or a damaged one, is none.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import secrets
from typing import TYPE_CHECKING, Any, Final

import jax
import jaxlib

from ejcache import entry
from ejcache.errors import MALFORMED
from ejcache.jax_integration.lowering.key import KEY_FORMAT
from ejcache.jax_integration.lowering.module_digest import ModuleDigest
from ejcache.keys.key import reuse_module_key, reuse_record_key
from ejcache.reuse.inputs.project import Project, ProjectPlaces
from ejcache.settings.environment import fixed_hash_seed
from ejcache.util.log import log
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ejcache.cache.policy import CachePolicy
    from ejcache.settings.table import Settings

RECORD_KIND: Final = "reuse_record"
MODULE_KIND: Final = "reuse_module"
_VERSION: Final = 1
_LARGEST_DOCUMENT: Final = 64 << 20
LARGEST_MODULE: Final = 64 << 20
_MOST_RECORDS: Final = 8


_NO_CONTENT: Final = ModuleDigest("", None, 0, 0, False, 0, frozenset(), frozenset())


class Witness(NamedTuple):
    """A process that traced a function.

    Attributes:
        process: a random name of the process, in hex.
        seed: differs for processes with different hash seeds.
    """

    process: str
    seed: str


class StartInputs(NamedTuple):
    """What a process was started from; see the grammar above."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    variables: str
    project: Project
    places: ProjectPlaces
    packages: Mapping[str, str]
    edited: Mapping[str, str]
    late: tuple[str, ...]
    machine: Mapping[str, str]


class RecordedFunction(NamedTuple):
    """A function with one question, and the program that it gave; see the grammar above."""

    name: str
    quick: bool = False
    program: Mapping[str, Any] = {}
    tree: Any = None
    module: str = ""
    content: ModuleDigest = _NO_CONTENT
    recorded: Witness | None = None
    proven: Witness | None = None
    last: int = 0
    off: str = ""

    @property
    def is_ready(self) -> bool:
        """True if its program may be reused."""
        return self.proven is not None and not self.off and not self.quick


class ReuseRecord(NamedTuple):
    """The functions of processes with the same inputs."""

    inputs: StartInputs
    functions: Mapping[str, RecordedFunction]
    traced: int = 0
    off: str = ""

    def waiting(self) -> list[RecordedFunction]:
        """Return the functions that keep every process with these inputs from reusing anything.

        One that two processes in turn did not ask for, although they traced, is waited for no longer.
        """
        return [
            each
            for each in self.functions.values()
            if not each.quick and not each.is_ready and (each.off or each.last >= self.traced - 1)
        ]


def encode_document(records: tuple[ReuseRecord, ...]) -> bytes:
    """Return the payload of a document."""
    about = {
        "version": _VERSION,
        "records": [
            {
                "inputs": {
                    **{name: value for name, value in each.inputs._asdict().items() if name != "project"},
                    "code": dict(each.inputs.project.code),
                    "configuration": dict(each.inputs.project.configuration),
                    "directories": sorted(each.inputs.project.directories),
                },
                "functions": {question: _function_fields(one) for question, one in each.functions.items()},
                "traced": each.traced,
                "off": each.off,
            }
            for each in records[:_MOST_RECORDS]
        ],
    }
    return json.dumps(about, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _function_fields(function: RecordedFunction) -> dict[str, Any]:
    if function.quick:
        return {"name": function.name, "quick": True}
    witnesses = {
        name: None if each is None else each._asdict()
        for name, each in (("recorded", function.recorded), ("proven", function.proven))
    }
    content = function.content
    calls = {"custom_calls": sorted(content.custom_calls), "batched_calls": sorted(content.batched_calls)}
    return {**function._asdict(), **witnesses, "content": {**content._asdict(), **calls}}


def decode_document(payload: bytes) -> tuple[ReuseRecord, ...]:
    """Return the records in a payload; none if it is damaged, or of another version."""
    try:
        about = json.loads(payload.decode("utf-8", "surrogatepass"))
        if about["version"] != _VERSION:
            return ()
        return tuple(map(_record, about["records"][:_MOST_RECORDS]))
    except MALFORMED as exc:
        log.debug("ejcache: a document of reuse cannot be read: %s", exc)
        return ()


def _record(fields: dict[str, Any]) -> ReuseRecord:
    given = fields["inputs"]
    directories, alone, beside, search = map(_all_texts, given["places"])
    inputs = StartInputs(
        command=_all_texts(given["command"]),
        environment=_texts(given["environment"]),
        variables=_text(given["variables"]),
        project=Project(
            _texts(given["code"]), _texts(given["configuration"]), frozenset(_all_texts(given["directories"]))
        ),
        places=ProjectPlaces(directories, alone, beside, search),
        packages=_texts(given["packages"]),
        edited=_texts(given["edited"]),
        late=_all_texts(given["late"]),
        machine=_texts(given["machine"]),
    )
    functions = {_text(question): _function(each) for question, each in fields["functions"].items()}
    return ReuseRecord(inputs, functions, int(fields["traced"]), _text(fields["off"]))


def _function(fields: dict[str, Any]) -> RecordedFunction:
    if fields["quick"]:
        return RecordedFunction(_text(fields["name"]), quick=True)
    return RecordedFunction(
        name=_text(fields["name"]),
        program=dict(fields["program"]),
        tree=list(fields["tree"]),
        module=_text(fields["module"]),
        content=_content(fields["content"]),
        recorded=_witness(fields["recorded"]),
        proven=_witness(fields["proven"]),
        last=int(fields["last"]),
        off=_text(fields["off"]),
    )


def _content(fields: dict[str, Any]) -> ModuleDigest:
    found = ModuleDigest(**fields)
    return found._replace(custom_calls=frozenset(found.custom_calls), batched_calls=frozenset(found.batched_calls))


def _witness(fields: dict[str, Any] | None) -> Witness | None:
    return None if fields is None else Witness(_text(fields["process"]), _text(fields["seed"]))


def _texts(fields: dict[str, Any]) -> dict[str, str]:
    """An object of JSON whose values are texts, as its names are."""
    _all_texts(fields.values())
    return fields


def _all_texts(values: Iterable[Any]) -> tuple[str, ...]:
    found = tuple(values)
    if not set(map(type, found)) <= {str}:
        raise ValueError(found)
    return found


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(value)
    return value


# -- the process that traces -----------------------------------------------------------------------------------------


@functools.cache
def _process_name(pid: int) -> str:
    """Return the random name of this process. A forked child, which has another number, has its own."""
    del pid
    return secrets.token_hex(8)


def witness() -> Witness:
    """This process."""
    # The hash of a fixed text differs wherever sets of texts may be in another order.
    return Witness(_process_name(os.getpid()), f"{hash('ejcache') & 0xFFFFFFFFFFFFFFFF:016x}")


def is_independent(recorded: Witness) -> bool:
    """True if this process can prove what `recorded` has seen: it is another one, with another hash seed.

    Where `PYTHONHASHSEED` fixes the seed, all processes that share the record have the same one, and the order of sets
    is part of what they share.
    """
    mine = witness()
    return mine.process != recorded.process and (mine.seed != recorded.seed or bool(fixed_hash_seed()))


# -- storage ---------------------------------------------------------------------------------------------------------


def document_key(main: str, machine: Mapping[str, str]) -> str:
    """Return the key of the document of a main module; each kind of machine has its own.

    Args:
        main: the name of the main module's file.
        machine: see `inputs.machine`.
    """
    versions = (jax.__version__, jaxlib.__version__, KEY_FORMAT)
    return reuse_record_key(main, json.dumps(sorted(machine.items())), *versions)


def read_records(key: str, policy: CachePolicy, settings: Settings) -> tuple[ReuseRecord, ...]:
    """Return the records under a key.

    Raises:
        StoreError: the storage failed.
    """
    raw = policy.read_beside(key, RECORD_KIND, settings, max_size=_LARGEST_DOCUMENT)
    return () if raw is None else decode_document(raw)


def write_records(key: str, records: tuple[ReuseRecord, ...], policy: CachePolicy, settings: Settings) -> bool:
    """Replace the document under a key; False if it was not stored.

    Of two processes that write at the same time one loses what it learnt, and learns it again at its next start.
    """
    payload = encode_document(records)
    if len(payload) > _LARGEST_DOCUMENT:
        return False
    header = entry.Header(key=key, kind=RECORD_KIND, name="reuse", jax=jax.__version__)
    return policy.write_beside(header, payload, settings)


def write_module(module: bytes, policy: CachePolicy, settings: Settings) -> str:
    """Store the bytes of a module, and return their digest; empty if they were not stored."""
    digest = hashlib.sha256(module).hexdigest()
    header = entry.Header(key=reuse_module_key(digest), kind=MODULE_KIND, name="reuse", jax=jax.__version__)
    return digest if policy.write_beside(header, module, settings) else ""


def read_module(digest: str, policy: CachePolicy, settings: Settings) -> bytes | None:
    """Return the bytes of a module; None if they are not stored, or damaged.

    Raises:
        StoreError: the storage failed.
    """
    raw = policy.read_beside(reuse_module_key(digest), MODULE_KIND, settings, max_size=LARGEST_MODULE)
    return raw if raw is not None and hashlib.sha256(raw).hexdigest() == digest else None
