"""The format of a saved target: what a compiler must know of the devices and the process that will run its programs.

    targets/<name>.json := a JSON object: format, version, and the fields of `Target`; topology in base64

Version 1 is the first. Fields that this version does not know are ignored.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Final

from ejcache._tuples import NamedTuple
from ejcache.errors import EntryCorruptError, EntryVersionError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MAX_BYTES", "VERSION", "DeviceTarget", "decode", "document_path", "encode"]

VERSION: Final = 1
MAX_BYTES: Final = 16 << 20
_FORMAT: Final = "ejcache-target"


class DeviceTarget(NamedTuple):
    """Devices that another process has.

    Attributes:
        name: of the target.
        platform: PJRT platform.
        topology: XLA's serialised topology of the devices of all processes; empty if the name says it all.
        platform_version: what the client of that process says; empty if it is what a client of the topology says.
        cpu: digest of the CPU of that process's host, as keys have it; empty if it is not known.
        jaxlib: version.
        native_libraries: digest, as keys have it; empty if it is not known.
        packages: versions of the packages behind that digest.
        variables: environment variables that keys have, in normal form.
        device_kind: of the devices.
        devices: how many there are.
        processes: how many have them.
        memory: bytes of a device; 0 if it is not known.
        saved: when, in seconds since 1970; 0.0 if it was not saved.
        assumed: it is made of public descriptions; real devices may differ, and then their keys do.
    """

    name: str
    platform: str
    topology: bytes = b""
    platform_version: str = ""
    cpu: str = ""
    jaxlib: str = ""
    native_libraries: str = ""
    packages: Mapping[str, str] = {}
    variables: Mapping[str, str] = {}
    device_kind: str = ""
    devices: int = 0
    processes: int = 0
    memory: int = 0
    saved: float = 0.0
    assumed: bool = False


def document_path(name: str) -> str:
    """Where the target of this name is in a cache."""
    return f"targets/{name}.json"


def encode(target: DeviceTarget) -> bytes:
    """The bytes of a target's document."""
    fields = target._asdict() | {"topology": base64.b64encode(target.topology).decode()}
    return (json.dumps({"format": _FORMAT, "version": VERSION, **fields}, indent=1, sort_keys=True) + "\n").encode()


def decode(data: bytes) -> DeviceTarget:
    """The target in a document.

    Raises:
        EntryCorruptError: it is not the document of a target.
        EntryVersionError: it is of a later version.
    """
    try:
        fields = json.loads(data)
        if fields["format"] != _FORMAT:
            raise EntryCorruptError("not the document of a target")
        if fields["version"] != VERSION:
            raise EntryVersionError(f"a target of version {str(fields['version'])[:40]}; this code reads {VERSION}")
        known = {name: fields[name] for name in DeviceTarget._fields if name in fields}
        known["topology"] = base64.b64decode(fields["topology"], validate=True)
        target = DeviceTarget(**known)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise EntryCorruptError("not the document of a target") from exc
    blank = DeviceTarget("", "")
    if any(type(value) is not type(default) for value, default in zip(target, blank, strict=True)):
        raise EntryCorruptError("not the document of a target: a field has another type")
    return target
