"""What C++ needs to run an executable without a trace, as JSON.

    record := an object of:
      name        of the function
      options     the compile options of the executable, in base64
      devices     [device, …] in the order of its device assignment
      tree        of the outputs, see `trees`
      outputs     [[dtype, [size, …], weak, sharding, committed, spec], …]; the sharding is a number in `shardings`, and
                  the spec that in the type of the array, on the mesh of that sharding; null without a mesh
      inputs      [[sharding, layout], …] of the leaves that the executable takes
      kept        "0110…", which leaves of the arguments it takes
      shardings   [sharding, …], see `shardings`

layout := null | [[axis, …], tiles | null, bits]. Weak and committed are 0 or 1.

A record comes from a store that others may write to. So all numbers are checked, and names are looked up only among
what this process has imported. A record is read once when it is written, and refused unless it gives the same again.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from jax.core import ShapedArray
from jax.experimental.layout import Layout
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from ejcache.direct.call.checked import checked_list, checked_text
from ejcache.direct.call.shardings import decode_spec, encode_spec
from ejcache.direct.call.signature import encode_layout
from ejcache.direct.call.trees.call_objects import CallObjects
from ejcache.direct.call.trees.encoding import decode_tree, encode_tree
from ejcache.errors import EntryCorruptError
from ejcache.jax_integration.seam.backends import raw_options
from ejcache.jax_integration.seam.direct.executables import program_text, unknown_kernel
from ejcache.jax_integration.seam.direct.fastpath import FastpathParts, split_fastpath
from ejcache.jax_integration.seam.direct.refusal import RefusedError
from ejcache.keys.options import without_cache_paths
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ejcache.direct.call.shardings import Devices
    from ejcache.jax_integration.program import CompileTarget
    from ejcache.jax_integration.seam.direct.fastpath import ParsedCall

__all__ = ["FastpathRecord", "decode_fastpath", "difference_to_record", "encode_fastpath", "objects_of"]

_MAX_LEAVES: Final = 1_000_000
_MAX_OPTIONS: Final = 64 << 10
_NO_MESH: Final = AbstractMesh((), ())
_FIELDS: Final = {"name", "options", "devices", "tree", "outputs", "inputs", "kept", "shardings"}


class FastpathRecord(NamedTuple):
    """A record that was read.

    Attributes:
        parts: for `run_loaded`.
        options: the compile options of the executable, serialised.
        devices: ids, in the order of its device assignment.
    """

    parts: FastpathParts
    options: bytes
    devices: tuple[int, ...]


def objects_of(call: ParsedCall) -> CallObjects:
    """What the arguments of a call bring along, for the trees of its outputs."""
    return CallObjects(call.trees, call.statics)


def encode_fastpath(data: Any, target: CompileTarget, call: ParsedCall, devices: Devices) -> dict[str, Any]:
    """The record of a call that JAX has just traced, compiled and run.

    Args:
        data: the fast-path data that JAX's miss returned; None if there is none.
        target: what the executable was compiled or loaded for.
        call: as it was parsed before it ran.
        devices: of the backend.

    Raises:
        RefusedError: the program cannot be run by a record alone.
    """
    if data is None:
        raise RefusedError("it has effects, or its results are not all arrays")
    if target.callbacks:
        raise RefusedError("it calls back into Python")
    executable, parts, constants = split_fastpath(data, str(getattr(call.jitted, "__name__", "")))
    if constants:
        raise RefusedError("constants are given to it as arguments")
    unknown = unknown_kernel(program_text(executable))
    if unknown is not None:
        raise RefusedError(f"it calls the kernel {unknown}, which may be made ready while tracing")
    if executable.client is not devices.backend:
        raise RefusedError("it runs on another backend than the default one")
    record = _encode(parts, target, call, devices)
    try:
        again = decode_fastpath(record, call, devices).parts
    except EntryCorruptError as exc:
        raise RefusedError(f"its record cannot be read again: {exc}") from exc
    different = [name for name in parts._fields if not _is_equal(getattr(again, name), getattr(parts, name))]
    if different or _encode(again, target, call, devices) != record:
        raise RefusedError(f"its record gives another {', '.join(different) or 'record'}")
    return record


def difference_to_record(
    record: Mapping[str, Any], data: Any, target: CompileTarget, call: ParsedCall, devices: Devices
) -> str | None:
    """In words, how what JAX has just given for a call differs from its record; None if it does not.

    The key of a program says nothing about the structure of its results, which is in no executable.

    Args:
        record: from a store.
        data: as for `encode_fastpath`, and so are the others.
        target: the target of the executable.
        call: the call.
        devices: of the backend.

    Raises:
        RefusedError: the program cannot be run by a record alone.
    """
    fresh = encode_fastpath(data, target, call, devices)
    # Options that name directories differ between processes; the key has those that count.
    names = sorted(name for name in _FIELDS - {"options"} if fresh[name] != record.get(name))
    return f"its {', '.join(names)} is not what was recorded" if names else None


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:
        return False  # what a class of the user's holds may not be comparable


def _encode(parts: FastpathParts, target: CompileTarget, call: ParsedCall, devices: Devices) -> dict[str, Any]:
    shardings: dict[str, int] = {}
    written: list[Any] = []

    def number(sharding: Any) -> int:
        value = devices.encode(sharding)
        text = repr(value)
        if text not in shardings:
            shardings[text] = len(written)
            written.append(value)
        return shardings[text]

    options = without_cache_paths(raw_options(target.options))
    outputs = [
        [*_encode_aval(aval), number(sharding), int(committed), _spec_in_type(aval)]
        for aval, sharding, committed in zip(parts.out_avals, parts.out_shardings, parts.out_committed, strict=True)
    ]
    inputs = [
        [number(sharding), encode_layout(layout)]
        for sharding, layout in zip(parts.in_shardings, parts.in_layouts, strict=True)
    ]
    return {
        "name": parts.name,
        "options": base64.b64encode(options).decode(),
        "devices": devices.encode_devices(target.devices),
        "tree": encode_tree(parts.out_tree, devices, objects_of(call)),
        "outputs": outputs,
        "inputs": inputs,
        "kept": "".join("1" if kept else "0" for kept in parts.kept),
        "shardings": written,
    }


def _encode_aval(aval: Any) -> list[Any]:
    if not isinstance(aval.dtype, np.dtype):
        raise RefusedError(f"a result is of {aval.dtype}")
    return [str(aval.dtype.name), list(map(int, aval.shape)), int(aval.weak_type)]


def _spec_in_type(aval: Any) -> Any:
    return None if aval.sharding.mesh.empty else encode_spec(aval.sharding.spec)


# -- reading -------------------------------------------------------------------------------------------------------


def decode_fastpath(record: Any, call: ParsedCall, devices: Devices) -> FastpathRecord:
    """What a record says, for a call with the signature under which it was stored.

    Raises:
        EntryCorruptError: it is damaged, or of another version.
        RefusedError: it names what this process or this call does not have.
    """
    if type(record) is not dict or set(record) != _FIELDS:
        raise EntryCorruptError("the fields of a record are missing, or there are others")
    try:
        return _decode(record, call, devices)
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError) as exc:
        raise EntryCorruptError("a record that cannot be") from exc


def _decode(record: dict[str, Any], call: ParsedCall, devices: Devices) -> FastpathRecord:
    shardings = [devices.decode(each) for each in _list(record["shardings"])]
    read = _OutputReader(shardings)
    outputs = [read.output(each) for each in _list(record["outputs"])]
    inputs = [_input(each, shardings) for each in _list(record["inputs"])]
    kept = _bits(record["kept"])
    tree = decode_tree(record["tree"], devices, objects_of(call))
    if tree.num_leaves != len(outputs):
        raise EntryCorruptError(f"a tree of {tree.num_leaves} leaves for {len(outputs)} outputs")
    if len(kept) != len(call.leaves) or sum(kept) != len(inputs):
        raise EntryCorruptError(f"{sum(kept)} of {len(kept)} leaves for {len(inputs)} inputs and {len(call.leaves)}")
    options = base64.b64decode(checked_text(record["options"]), validate=True)
    if len(options) > _MAX_OPTIONS:
        raise EntryCorruptError("compile options that are too large")
    assigned = devices.decode_devices(record["devices"])
    used = {each for sharding in shardings for each in sharding.device_set}
    if used and not used <= set(assigned):
        raise EntryCorruptError("shardings on devices that the executable does not have")
    parts = FastpathParts(
        name=checked_text(record["name"]),
        out_tree=tree,
        in_shardings=tuple(sharding for sharding, _ in inputs),
        in_layouts=tuple(layout for _, layout in inputs),
        out_shardings=tuple(sharding for _, sharding, _ in outputs),
        out_avals=tuple(aval for aval, _, _ in outputs),
        out_committed=tuple(committed for _, _, committed in outputs),
        kept=kept,
    )
    return FastpathRecord(parts, options, tuple(int(device.id) for device in assigned))


class _OutputReader:
    """Reads the outputs of a record, of which many are alike."""

    def __init__(self, shardings: list[Any]) -> None:
        self._shardings = shardings
        self._known: dict[str, tuple[Any, Any, bool]] = {}

    def output(self, value: Any) -> tuple[Any, Any, bool]:
        text = repr(value)
        if text not in self._known:
            self._known[text] = self._read(value)
        return self._known[text]

    def _read(self, value: Any) -> tuple[Any, Any, bool]:
        dtype, shape, weak, number, committed, spec = _list(value)
        sharding = self._shardings[_number(number, len(self._shardings))]
        sizes = tuple(_number(size, 1 << 53) for size in _list(shape))
        in_type = NamedSharding(_NO_MESH, PartitionSpec(*[None] * len(sizes)))
        if spec is not None:
            if not isinstance(sharding, NamedSharding):
                raise EntryCorruptError("the type of an array has a spec, and its sharding no mesh")
            in_type = NamedSharding(sharding.mesh.abstract_mesh, decode_spec(spec))
        aval = ShapedArray(sizes, np.dtype(checked_text(dtype)), bool(_number(weak, 2)), sharding=in_type)
        return aval, sharding, bool(_number(committed, 2))


def _input(value: Any, shardings: list[Any]) -> tuple[Any, Any]:
    sharding, layout = _list(value)
    return shardings[_number(sharding, len(shardings))], None if layout is None else _layout(layout)


def _layout(value: Any) -> Layout:
    axes, tiles, bits = _list(value)
    order = tuple(_number(axis, 64) for axis in _list(axes))
    if sorted(order) != list(range(len(order))):
        raise EntryCorruptError("a layout that orders no axes")
    tiling = None if tiles is None else tuple(tuple(_number(size, 1 << 32) for size in _list(tile)) for tile in tiles)
    return Layout(order, tiling, _number(bits, 65))


def _list(value: Any) -> list[Any]:
    return checked_list(value, most=_MAX_LEAVES)


def _number(value: Any, below: int) -> int:
    if type(value) is not int or not 0 <= value < below:
        raise EntryCorruptError(f"{value!r:.40} is no number below {below}")
    return value


def _bits(value: Any) -> tuple[bool, ...]:
    text = checked_text(value)
    if len(text) > _MAX_LEAVES or text.strip("01"):
        raise EntryCorruptError("the bits of a record are no bits")
    return tuple(bit == "1" for bit in text)
