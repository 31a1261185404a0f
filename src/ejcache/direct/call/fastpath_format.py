"""What C++ needs to run an executable without a trace, as JSON.

    record := an object of:
      options     the compile options of the executable, in base64
      devices     [device, …] in the order of its device assignment
      tree        of the outputs, see `trees`
      outputs     [[dtype, [size, …], weak, sharding, committed, spec], …]; the sharding is a number in `shardings`, and
                  the spec that in the type of the array, on the mesh of that sharding; null without a mesh
      inputs      [[sharding, layout], …] of the leaves that the executable takes
      kept        "0110…", which leaves of the arguments it takes
      shardings   [sharding, …], see `signature`, which has the layouts, too

Weak and committed are 0 or 1.

A record comes from a store that others may write to. So all numbers are checked, and names are looked up only among
what this process has imported. A record is read once when it is written, and refused unless it gives the same again.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from jax.core import ShapedArray
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from ejcache.direct.call.signature import (
    decode_layout,
    decode_spec,
    encode_layout,
    encode_spec,
)
from ejcache.direct.call.trees import TreeCodec
from ejcache.direct.records import checked_list, checked_number, checked_text
from ejcache.errors import EntryCorruptError
from ejcache.jax_integration.seam.backends import raw_options
from ejcache.jax_integration.seam.direct.executables import program_text, unknown_kernel
from ejcache.jax_integration.seam.direct.fastpath import FastpathParts
from ejcache.jax_integration.seam.direct.refusal import RefusedError
from ejcache.keys.options import without_cache_paths
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from ejcache.direct.call.signature import Devices
    from ejcache.jax_integration.program import CompileTarget
    from ejcache.jax_integration.seam.direct.fastpath import ParsedCall

__all__ = ["FastpathRecord", "decode_fastpath", "difference_to_record", "encode_fastpath"]

_MAX_LEAVES: Final = 1_000_000
_MAX_OPTIONS: Final = 64 << 10
_NO_MESH: Final = AbstractMesh((), ())
_PARTS: Final = set(FastpathParts._fields) - {"xla_executable", "const_args"}
_FIELDS: Final = {"options", "devices", "tree", "outputs", "inputs", "kept", "shardings"}


class FastpathRecord(NamedTuple):
    """A record that was read.

    Attributes:
        parts: for `run_loaded`.
        options: the compile options of the executable, serialised.
        devices: ids, in the order of its device assignment.
    """

    parts: Any
    options: bytes
    devices: tuple[int, ...]


def encode_fastpath(data: Any, target: CompileTarget, call: ParsedCall, devices: Devices) -> str:
    """The record of a call that JAX has just traced, compiled and run.

    Args:
        data: the fast-path data that JAX's miss returned.
        target: what the executable was compiled or loaded for.
        call: as it was parsed before it ran.
        devices: of the backend.

    Raises:
        RefusedError: the program cannot be run by a record alone.
    """
    if target.callbacks:
        raise RefusedError("it calls back into Python")
    executable = data.xla_executable
    if data.const_args:
        raise RefusedError("constants are given to it as arguments")
    unknown = unknown_kernel(program_text(executable))
    if unknown is not None:
        raise RefusedError(f"it calls the kernel {unknown}, which may be made ready while tracing")
    if executable.client is not devices.backend:
        raise RefusedError("it runs on another backend than the default one")
    try:
        record = _encode(data, target, call, devices)
        again = decode_fastpath(record, call, devices).parts
    except (EntryCorruptError, ValueError, RecursionError) as exc:
        raise RefusedError(f"its record cannot be read again: {exc}") from exc
    different = [name for name in _PARTS if not _is_equal(getattr(again, name), getattr(data, name))]
    if different or _encode(again, target, call, devices) != record:
        raise RefusedError(f"its record gives another {', '.join(different) or 'record'}")
    return record


def difference_to_record(record: str, fresh: str) -> str | None:
    """In words, how what JAX has just given for a call differs from its record; None if it does not.

    The key of a program says nothing about the structure of its results, which is in no executable.

    Args:
        record: from a store.
        fresh: what `encode_fastpath` gives now.
    """
    # Options that name directories differ between processes; the key has those that count.
    was, now = json.loads(record), json.loads(fresh)
    names = sorted(name for name in _FIELDS - {"options"} if now[name] != was.get(name))
    return f"its {', '.join(names)} is not what was recorded" if names else None


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other or list(one) == list(other))
    except Exception:
        return False  # what a class of the user's holds may not be comparable


def _encode(parts: Any, target: CompileTarget, call: ParsedCall, devices: Devices) -> str:
    written: list[Any] = []

    def number(sharding: Any) -> int:
        value = devices.encode(sharding)
        if value not in written:
            written.append(value)
        return written.index(value)

    results = zip(parts.out_avals, parts.out_shardings, parts.out_committed, strict=True)
    arguments = zip(parts.in_shardings, parts.in_device_local_layouts, strict=True)
    record = {
        "options": base64.b64encode(without_cache_paths(raw_options(target.options))).decode(),
        "devices": devices.encode_devices(target.devices),
        "tree": TreeCodec(call).encode_tree(parts.out_pytree_def),
        "outputs": [
            [*_encode_aval(aval), number(placed), int(bound), _spec_in_type(aval)] for aval, placed, bound in results
        ],
        "inputs": [[number(placed), encode_layout(layout)] for placed, layout in arguments],
        "kept": "".join("1" if kept else "0" for kept in parts.kept_var_bitvec),
        "shardings": written,
    }
    return json.dumps(record, separators=(",", ":"))


def _encode_aval(aval: Any) -> list[Any]:
    if not isinstance(aval.dtype, np.dtype):
        raise RefusedError(f"a result is of {aval.dtype}")
    return [str(aval.dtype.name), list(map(int, aval.shape)), int(aval.weak_type)]


def _spec_in_type(aval: Any) -> Any:
    return None if aval.sharding.mesh.empty else encode_spec(aval.sharding.spec)


# -- reading -------------------------------------------------------------------------------------------------------


def decode_fastpath(text: str, call: ParsedCall, devices: Devices) -> FastpathRecord:
    """What a record says, for a call with the signature under which it was stored.

    Raises:
        EntryCorruptError: it is damaged, or of another version.
        RefusedError: it names what this process or this call does not have.
    """
    try:
        record = json.loads(text)
        if set(record) != _FIELDS:
            raise EntryCorruptError("the fields of a record are missing, or there are others")
        return _decode(record, call, devices)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError, OverflowError, RuntimeError) as exc:
        raise EntryCorruptError("a record that cannot be") from exc


def _decode(record: dict[str, Any], call: ParsedCall, devices: Devices) -> FastpathRecord:
    shardings = [devices.decode(each) for each in _list(record["shardings"])]
    known: dict[str, tuple[Any, Any, bool]] = {}  # many outputs are alike
    outputs = [
        known.get(text := repr(each)) or known.setdefault(text, _output(each, shardings))
        for each in _list(record["outputs"])
    ]
    inputs = [
        (shardings[checked_number(number, len(shardings))], decode_layout(layout))
        for number, layout in _list(record["inputs"])
    ]
    kept = [bit == "1" for bit in checked_text(record["kept"])]
    tree = TreeCodec(call).decode_tree(record["tree"])
    if tree.num_leaves != len(outputs):
        raise EntryCorruptError(f"a tree of {tree.num_leaves} leaves for {len(outputs)} outputs")
    if len(kept) != len(call.leaves) or sum(kept) != len(inputs):
        raise EntryCorruptError(f"{sum(kept)} of {len(kept)} leaves for {len(inputs)} inputs and {len(call.leaves)}")
    options = base64.b64decode(checked_text(record["options"]), validate=True)
    if len(options) > _MAX_OPTIONS:
        raise EntryCorruptError("compile options that are too large")
    assigned = devices.decode_devices(record["devices"])
    if any(not sharding.device_set <= set(assigned) for sharding in shardings):
        raise EntryCorruptError("shardings on devices that the executable does not have")
    parts = FastpathParts(
        xla_executable=None,
        out_pytree_def=tree,
        in_shardings=[sharding for sharding, _ in inputs],
        out_shardings=[sharding for _, sharding, _ in outputs],
        out_avals=[aval for aval, _, _ in outputs],
        out_committed=[committed for _, _, committed in outputs],
        kept_var_bitvec=kept,
        in_device_local_layouts=[layout for _, layout in inputs],
        const_args=[],
    )
    return FastpathRecord(parts, options, tuple(int(device.id) for device in assigned))


def _output(value: Any, shardings: list[Any]) -> tuple[Any, Any, bool]:
    dtype, shape, weak, number, committed, spec = _list(value)
    sharding = shardings[checked_number(number, len(shardings))]
    sizes = tuple(checked_number(size, 1 << 53) for size in _list(shape))
    in_type = NamedSharding(_NO_MESH, PartitionSpec(*[None] * len(sizes)))
    if spec is not None:
        if not isinstance(sharding, NamedSharding):
            raise EntryCorruptError("the type of an array has a spec, and its sharding no mesh")
        in_type = NamedSharding(sharding.mesh.abstract_mesh, decode_spec(spec))
    aval = ShapedArray(sizes, np.dtype(checked_text(dtype)), bool(checked_number(weak, 2)), sharding=in_type)
    return aval, sharding, bool(checked_number(committed, 2))


def _list(value: Any) -> list[Any]:
    return checked_list(value, most=_MAX_LEAVES)
