"""The command line called in this process, and caches for it to look at."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

from archives import flipped

from ejcache import entry
from ejcache.cli.main import COMMANDS, load_command, main
from ejcache.keys.key import CacheKey, parse_key
from ejcache.maintenance import doctor
from ejcache.settings.resolve import set_command_line
from ejcache.stores.local.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The document, without the version that every object has."""
        value = json.loads(self.out)
        if isinstance(value, dict):
            assert value.pop("schema") == 1
        return value

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def ejcache(*arguments: object, columns: int | None = None) -> Said:
    """Run the command line as `main` does, in this process; the layer of its options is empty afterwards.

    Args:
        arguments: of the command line.
        columns: the width of the terminal that it prints to; without it, it prints to a pipe.
    """
    out, err = io.StringIO() if columns is None else Terminal(), io.StringIO()
    terminal = {} if columns is None else {"COLUMNS": str(columns), "NO_COLOR": "1"}
    try:
        with (
            mock.patch.dict(os.environ, terminal),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            status = main([str(argument) for argument in arguments])
    finally:
        set_command_line({})
    return Said(status, out.getvalue(), err.getvalue())


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands wait on a busy machine, too, which is no finding to a doctor."""
    for limit in ("SECONDS", "OPERATION_SECONDS", "FAR_SECONDS", "SLOW_DISK_SECONDS"):
        monkeypatch.setattr(doctor, limit, 60.0)
    monkeypatch.setattr(doctor, "JAX_SECONDS", 240.0)
    monkeypatch.setattr("ejcache.cli.commands.config.LIMITS_SECONDS", 60.0)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))


def every_command() -> dict[str, Any]:
    """Every command by its whole name, as typer calls it; groups themselves are not commands."""
    return dict(_below({name: load_command(name) for name in COMMANDS}, ()))


def _below(members: dict[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for name, command in members.items():
        path = (*above, name)
        if hasattr(command, "commands"):
            yield from _below(command.commands, path)
        else:
            yield " ".join(path), command


def key_text(name="jit_train", *, variant="plain", jaxlib="1.0", program="p", platform="cpu") -> str:
    components = {"computation": program, "jaxlib": jaxlib}
    return CacheKey(name=name, platform=platform, variant=variant, components=components).text


def put(store: LocalStore, key: str, raw: bytes = b"executable", *, seconds: float = 2.5, signature: str = "") -> bytes:
    parts = parse_key(key)
    header = entry.Header(
        key=key,
        name=parts.name if parts else "",
        platform=parts.platform if parts else "",
        logical_key=parts.logical if parts else "",
        compile_seconds=seconds,
        jax="0.12.0",
        jaxlib="0.12.0",
        components={"computation": "c0ffee"},
        extra={"signature": signature} if signature else {},
    )
    data = entry.encode(header, raw)
    assert store.put(key, data)
    return data


def fill(directory, *names: str) -> list[str]:
    """A local cache with one entry of each name; the keys, the least recently used first."""
    keys = [key_text(name) for name in names]
    with LocalStore(directory) as store:
        for key in keys:
            put(store, key)
        store.add_counters(
            {"hits": 3, "misses": 1, "miss_absent": 1, "stores": 1, "skip_quick": 2, "seconds_saved": 7.5}
        )
    return keys


def damage(directory, name: str) -> None:
    """Turn one bit of an entry over."""
    with LocalStore(directory) as store:
        store.replace(key_text(name), flipped(store.peek(key_text(name)) or b"", -320))


def files(directory) -> dict[str, bytes]:
    """Every file below a directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


PYTHON = sys.executable
