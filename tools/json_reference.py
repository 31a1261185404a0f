"""Prints the page about JSON, from what commands print with --json."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from ejcache import open_store
from ejcache.autotune.records.record import Candidate, Record, Source, Status, Timing
from ejcache.autotune.records.record_key import RecordKey
from ejcache.autotune.records.store import AutotuneStore
from ejcache.cli.main import main as ejcache
from ejcache.entry import Header, encode
from ejcache.journal.line import HIT, ProgramRecord, encode_line
from ejcache.journal.recorder import START_LOG
from ejcache.keys.key import CacheKey
from ejcache.settings.resolve import set_command_line

HEAD = """\
# JSON

Every object that a command prints with `--json` has `"schema": 1`. New versions of ejcache may add fields. A field
that is removed, or changes its meaning, makes the schema 2. Sizes are bytes, durations are seconds, and times are
seconds since 1970 (UTC). A missing value is `null` or an empty text.

A name has one type and one meaning in all objects; `default` and `value` have the type of a setting. `total_entries`
and `planned_entries` are numbers of entries, and `entries` is a list of them. `compile_seconds` is what compiling took,
and `seconds_saved` what hits saved of it.

`ejcache run --json` prints the report of the program, which has a `schema`, too, and the `version` of ejcache.

If a command fails, stdout has this object, stderr has the sentence, and the exit status is that without `--json`:

```json
{"schema": 1, "error": "there is no cache at /tmp/x: the directory does not exist", "kind": "NotAStoreError"}
```

`kind` is the class of the error: `UsageError` and `SettingError` for a command line or a setting that must be changed,
`NotAStoreError` for no cache, `NotFoundError` for no such entry, `StoreUnavailableError` for storage that does not
answer, or another error of `ejcache`.

In the tables, `[]` stands for each item of an array, and `*` for each key of an object whose keys are data, such as
the reasons of misses. The page is made from a small cache: where it says `array` or `object`, that one was empty.
"""

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("stats",), ("ls",), ("ls", "jit_train"), ("why", "jit_train"), ("report",), ("verify",),
    ("report", "--compare", "jax=1.0", "jax=1.0"), ("advise",),
    ("prune", "--max-entries", "1", "-n"),
    ("config",), ("config", "get", "max_size"),
    ("config", "set", "max_size=10GB"), ("config", "unset", "max_size"), ("push", "OTHER"), ("pull", "OTHER"),
    ("push", "FILE.tar"), ("pull", "FILE.tar"), ("doctor",), ("key",), ("prune", "--all", "jit_eval"),
    ("tuned", "ls"), ("tuned", "show", "matmul"), ("tuned", "why", "matmul"), ("tuned", "stats"),
    ("tuned", "pin", "matmul"), ("tuned", "unpin", "matmul"), ("tuned", "prune", "--name", "matmul", "-n"),
    ("tuned", "rm", "matmul"), ("warm", "TARGET", "--shapes", "f32[8]"),
)  # fmt: skip
"""In an order in which each finds what it needs. OTHER, FILE.tar and the like are places in the temporary directory."""

DATA = {"components", "metadata", "stored_limits", "misses_by_reason", "skipped", "tiers", "amounts", "operations",
        "devices", "sources", "configuration", "default_configuration", "provenance", "environment",
        "arguments", "counts", "phases", "versions", "changed_settings", "trouble", "seconds_by_function",
        "by_function", "days", "checks_by_result", "lanes"}  # fmt: skip
"""Objects whose keys are data rather than fields."""

ANY = {"settings[].default", "settings[].value", "value"}
"""Fields that have the type of a setting."""


def fields_of(value: Any, path: str = "") -> dict[str, set[str]]:
    """The types of each field in a document, by its path."""
    if path in ANY:
        return {path: {"any"}}
    found: dict[str, set[str]] = {}
    if isinstance(value, dict):
        data = path.rpartition(".")[2] in DATA
        below = [(f"{path}.{'*' if data else name}".lstrip("."), inner) for name, inner in value.items()]
    elif isinstance(value, list):
        below = [(f"{path}[]", inner) for inner in value]
    else:
        words = {bool: "true or false", int: "number", float: "number", str: "text"}
        return {path: {words.get(type(value), "null")}}
    for where, inner in below:
        for name, kinds in fields_of(inner, where).items():
            found.setdefault(name, set()).update(kinds)
    return found or {path: {"object" if isinstance(value, dict) else "array"}}


def _start(url: str) -> bytes:
    """The line of a process that compiled one program and loaded another one."""
    common: dict[str, Any] = {"url": url, "thread": "MainThread", "seconds": {"traced": 0.1}, "time": time.time()}
    compiled = ProgramRecord(name="jit_train", outcome="stored", reason="absent", compile_seconds=2.5, **common)
    loaded = ProgramRecord(name="jit_eval", outcome=HIT, **common)
    process = {"id": "1", "host": "host", "pid": 1, "program": "train.py"}
    process |= {"versions": {"jax": "1.0"}, "settings": {"preload": "False"}}
    return encode_line(process, (compiled, loaded), {"read an entry": 1})


def printed(home: Path) -> dict[tuple[str, ...], Any]:
    """What each command prints of a small cache."""
    program = home / "program.py"
    program.write_text("def step(x):\n    return x + x\n")
    place = {"OTHER": str(home / "other"), "FILE.tar": str(home / "all.tar"), "TARGET": f"{program}:step"}
    with open_store(home / "cache") as store:
        for name in ("jit_train", "jit_eval"):
            key = CacheKey(name=name, platform="cpu", variant="plain", components={"computation": name}).text
            header = Header(key=key, name=name, platform="cpu", compile_seconds=2.5, created=time.time())
            store.put(key, encode(header, b"executable"))
    AutotuneStore(str(home / "cache")).publish(
        Record(
            key=RecordKey("matmul", "1", "cpu", {"platform": "cpu"}, {"arguments": {"x": "float32[8,8]"}}),
            configuration={"block": 16},
            source=Source.TUNED,
            default={"block": 8},
            candidates=(Candidate({"block": 16}, Status.OK, Timing(0.5, 1.0, 2.0, 15), measured=1.0),),
            measurement={"gain": 0.5},
            provenance={"host": "tuner"},
            created=time.time(),
        )
    )
    START_LOG.append(_start(str(home / "cache")))
    answers = {}
    for command in COMMANDS:
        out = io.StringIO()
        # The configuration file is for all caches.
        place_of = (
            [] if command[0] == "config" and command[1:2] in (("set",), ("unset",)) else ["--dir", str(home / "cache")]
        )
        words = [*command, *place_of, "--json"]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            ejcache([place.get(word, word) for word in words])
        set_command_line({})
        answers[command] = json.loads(out.getvalue())
    return answers


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    with tempfile.TemporaryDirectory() as made:
        home = Path(made)
        for name in [name for name in os.environ if name.startswith(("EJCACHE", "EJKERNEL", "JAX_"))]:
            del os.environ[name]
        for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            os.environ[name] = made
        for command, answer in printed(home).items():
            shown = " ".join(("ejcache", *command, "--json"))
            rows = "".join(
                f"| `{path}` | {' or '.join(sorted(kinds))} |\n" for path, kinds in sorted(fields_of(answer).items())
            )
            parts.append(f"## {shown}\n\n| field | type |\n|---|---|\n{rows}")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
