"""Whether two versions of ejcache use each other's stores: golden stores, and programs that share a place.

    python tools/mixed_fleet.py write DIRECTORY          write stores with the ejcache that is imported
    python tools/mixed_fleet.py read DIRECTORY           read them with the ejcache that is imported
    python tools/mixed_fleet.py programs OTHER_SRC       run JAX programs with this version and the one in OTHER_SRC

`write` with version 0.1.0 made tests/data/stores. `programs` runs each pair in both orders, on a local directory, on a
bucket and on a directory that hosts share, and fails unless the second program finds every executable of the first. On
one host and with each version's own floors, nothing may go wrong: each version may have a local tier of its own.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

KEYS = ("jit_f-cpu-plain-0123", "key with spaces/and ünicode", "k" * 600)
CREATED = 1_700_000_000.0


def value_of(key: str) -> bytes:
    """The payload under `key`: of one, too large for the index of a local store even when it is compressed."""
    if not key.startswith("kk"):
        return key.encode() * 3
    return b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(1_300))


def entry_of(key: str) -> bytes:
    """The entry under `key`."""
    from ejcache import entry

    header = entry.Header(key=key, name="jit_f", created=CREATED, compile_seconds=1.5, components={"flags": "ab"})
    return entry.encode(header, value_of(key))


def record() -> Any:
    """A tuned record, by whichever modules this version has."""
    try:
        from ejcache.autotune.records.record import Candidate, Record, RecordKey, Source, Status, Timing
    except ModuleNotFoundError:
        from ejcache.autotune.key import RecordKey  # type: ignore[no-redef, import-not-found, unused-ignore]

        from ejcache.autotune.records import (  # type: ignore[no-redef, attr-defined, unused-ignore]
            Candidate,
            Record,
            Source,
            Status,
            Timing,
        )
    key = RecordKey("matmul", "1", "cpu", {"platform": "cpu"}, {"arguments": {"x": "float32[8,8]"}, "mode": "forward"})
    tried = Candidate({"block": 16}, Status.OK, Timing(0.0005, 0.001, 0.002, 15), "", measured=CREATED)
    return Record(
        key=key,
        configuration={"block": 16},
        source=Source.TUNED,
        default={"block": 8},
        candidates=(tried,),
        measurement={"mode": "forward", "gain": 0.5},
        provenance={"host": "tuner"},
        created=CREATED,
    )


def open_stores(directory: Path) -> dict[str, Any]:
    """The local and the shared store below `directory`. A directory with v1/entries is shared."""
    import ejcache

    (directory / "shared" / "v1" / "entries").mkdir(parents=True, exist_ok=True)
    return {name: ejcache.open_store(directory / name) for name in ("local", "shared")}


def open_tuned(directory: Path) -> Any:
    """The tuned configurations below `directory`."""
    try:
        from ejcache.autotune.records.store import AutotuneStore
    except ModuleNotFoundError:
        from ejcache.autotune.store import AutotuneStore  # type: ignore[no-redef, import-not-found, unused-ignore]

    return AutotuneStore(str(directory / "tuned"))


def write(directory: Path) -> None:
    """Write a local store, a shared one and tuned configurations, each with all that version 0.1.0 keeps there."""
    for store in open_stores(directory).values():
        with store:
            for key in KEYS:
                store.put(key, entry_of(key))
            store.add_counters({"hits": 3, "seconds_saved": 1.5})
    tuned = open_tuned(directory)
    tuned.publish(record())
    tuned.close()


def problems(directory: Path) -> list[str]:
    """What of `write`'s stores this version does not find as it was written, one line each."""
    from ejcache import entry

    found = []
    for name, store in open_stores(directory).items():
        with store:
            if sorted(info.key for info in store.entries()) != sorted(KEYS):
                found.append(f"{name}: other keys are listed")
            for key in KEYS:
                data = store.get(key)
                if data is None or entry.decode(data, key=key).raw != value_of(key):
                    found.append(f"{name}: {key[:30]} is missing or different")
            if store.counters() != {"hits": 3, "seconds_saved": 1.5}:
                found.append(f"{name}: other counters: {store.counters()}")
            if store.put(KEYS[0], b"x"):
                found.append(f"{name}: an entry was written a second time")
    tuned = open_tuned(directory)
    seen = tuned.find(record().key)
    if seen is None or seen.record.configuration != {"block": 16} or seen.record.created != CREATED:
        found.append("tuned: the record is missing or different")
    tuned.close()
    return found


PROGRAM = """
import json, os, sys
import jax, jax.numpy as jnp
import ejcache

cache = ejcache.enable(sys.argv[1], **json.loads(sys.argv[2]))
values = [float(jax.jit(lambda x, n=n: (jnp.sin(x) * n).sum())(jnp.arange(8.0))) for n in range(4)]
cache.flush(60)
print(json.dumps({"values": values, **cache.stats().to_dict()}))
"""


NO_FLOORS = {"min_compile_seconds": 0, "min_entry_size": -1}


def run(source: Path, url: str, home: Path, settings: dict[str, int], **variables: str) -> dict[str, Any]:
    """The statistics of one program, with the ejcache in `source`, on the host whose home is `home`."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("EJCACHE", "JAX", "XDG"))}
    environ |= {"HOME": str(home), "PYTHONPATH": str(source), "JAX_PLATFORMS": "cpu", **variables}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, json.dumps(settings)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the program failed with {source}:\n{done.stderr}")
    fields: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return fields | {"stderr": done.stderr}


def programs(other: Path) -> int:
    """Run each pair of versions in both orders on each kind of storage; the exit status."""
    sys.path.insert(0, str(Path(__file__).parent))
    from gcs_server import GcsServer

    mine = Path(__file__).resolve().parent.parent / "src"
    failed = 0
    with tempfile.TemporaryDirectory() as name, GcsServer() as server:
        root = Path(name)
        for order, (first, second) in {"other, then this": (other, mine), "this, then other": (mine, other)}.items():
            place = root / order.replace(", ", "-").replace(" ", "-")
            (place / "shared" / "v1" / "entries").mkdir(parents=True)
            urls = {
                "local": str(place / "local"),
                "shared directory": str(place / "shared"),
                "bucket": f"gs://bucket/{place.name}",
            }
            emulator = {"STORAGE_EMULATOR_HOST": server.url}
            for kind, url in urls.items():
                cold = run(first, url, place / "one", NO_FLOORS, **emulator)
                warm = run(second, url, place / "two", NO_FLOORS, **emulator)
                failed += not _compare(f"{order:18} {kind:17}", cold, warm, complete=True)
            for kind, url in urls.items():
                starts = [run(source, f"{url}-2", place / "one", {}, **emulator) for source in (first, second, first)]
                for cold, warm in itertools.pairwise(starts):
                    failed += not _compare(f"{order:18} {kind:17} on one host, own floors:", cold, warm, complete=False)
    return int(failed > 0)


def _compare(what: str, cold: dict[str, Any], warm: dict[str, Any], *, complete: bool) -> bool:
    """Say whether the second start has found what the first one has stored, and nothing is wrong."""
    found = warm["hits"] == cold["stores"] > 0 == warm["misses"]
    good = (
        (found or not complete)
        and warm["values"] == cold["values"]
        and not (warm["errors"] or warm["corrupt"] or warm["stderr"])
    )
    print(
        f"{what} stored {cold['stores']}, then hits {warm['hits']}, misses {warm['misses']}: "
        f"{'ok' if good else 'FAILED ' + warm['stderr'][-500:]}"
    )
    return good


def main() -> int:
    """Do what the command line says."""
    command, place = sys.argv[1], Path(sys.argv[2])
    if command == "programs":
        return programs(place)
    if command == "write":
        write(place)
        return 0
    found = problems(place)
    print("\n".join(found) or "all as written")
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
