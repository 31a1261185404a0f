"""Names who writes: the user, the host and the process, in entries and in what else is stored with a cache."""

from __future__ import annotations

import os
import pwd
import re
import socket
import uuid
from typing import Final

from ejcache.util.lifecycle import track_forks

_MOST: Final = 60
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]")


def user_and_host() -> str:
    """Return `anna@node-3`; the number of a user who has no name."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    return f"{_plain(user)}@{_plain(socket.gethostname())}"


def _plain(text: str) -> str:
    return _UNFIT.sub("_", text)[:_MOST] or "_"


class _Process:
    """Remembers the name of this process; a forked child makes its own."""

    def __init__(self) -> None:
        self.name = ""
        track_forks(self)

    def after_fork_in_child(self) -> None:
        self.name = ""


_process: Final = _Process()


def this_writer() -> str:
    """Return `anna@node-3/812-5f3a90c1`: the user, the host, the process and a number that no other process has."""
    if not _process.name:
        _process.name = f"{user_and_host()}/{os.getpid()}-{os.urandom(4).hex()}"
    return _process.name


def is_by(writer: str, wanted: str) -> bool:
    """True if `wanted` names the host, `user@`, `user@host` or the whole of a writer."""
    place, _, _ = writer.partition("/")
    user, _, host = place.partition("@")
    return bool(writer and wanted) and wanted in (writer, place, host, f"{user}@")


_PROCESS: Final = re.compile(r"([A-Za-z0-9_.-]{1,80})-([0-9]{1,10})-[0-9a-f]{32}")


def process_name() -> str:
    """Return a name that no other process and no other call has: host, process id, and a random number."""
    host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())[:80] or "host"
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex}"


def process_in_words(name: str) -> str:
    """Return `process 812 on node-3`, of a name that `process_name` made; empty for any other text."""
    found = _PROCESS.fullmatch(name)
    return "" if found is None else f"process {found[2]} on {found[1]}"


def is_process_name(name: str) -> bool:
    """True if `process_name` may have made `name`: only such names are ever removed as leftovers of dead processes."""
    return _PROCESS.fullmatch(name) is not None
