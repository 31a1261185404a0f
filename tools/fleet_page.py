"""Writes docs/fleet.md: what a fleet costs, from measurements of the emulated bucket, prices, and a simulation.

    python tools/fleet_page.py                     the page, from what was measured last (bench/data/fleet.json)
    python tools/fleet_page.py --measure           measures first: some minutes
    python tools/fleet_page.py --class-a 0.005 --class-b 0.0004 --month "March 2027"     with other prices

A start is measured with few and with many programs, so that what a host asks for is a part that is the same for every
program and a part for each. The rest is arithmetic.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any, Final

import numpy as np
from gcs_server import GcsServerProcess

from ejcache.cache.policy_watch import FRESH_SECONDS

ROOT: Final = Path(__file__).resolve().parents[1]
DATA: Final = ROOT / "bench" / "data" / "fleet.json"
PAGE: Final = ROOT / "docs" / "fleet.md"

FEW: Final = 10
MANY: Final = 40
SIZES: Final = ((64, 30), (2_000, 300), (20_000, 300))
"""Hosts and programs of the tables."""
LATENCY: Final = 0.03
TIMES: Final = "\N{MULTIPLICATION SIGN}"
STARTS: Final = ("cold", "new", "copies")
KINDS: Final = ("a", "b", "free")
COMMANDS: Final = (
    "ls",
    "stats",
    "config",
    "doctor",
    "report",
    "verify",
    "pull gs://bucket/cache --dir local",
    "prune --older-than 14d --dry-run",
    "recall --before 2020-01-01 --yes",
    "prune --all --yes",
)
"""Of the table of commands, in the order in which they are measured."""
LATER: Final = {"a": 1, "b": 1}
"""What a host with copies asks for in addition if it starts a minute or more after it last read the policy: that, and
to write a journal. The start that is measured is not so late."""

PROGRAM: Final = """
    import json, os, sys
    import jax, jax.numpy as jnp, numpy as np
    if sys.argv[1] != "none":
        import ejcache
        ejcache.enable("gs://bucket/cache", min_compile_seconds=0)
    x = np.arange(8, dtype=np.float32)
    for number in range(int(sys.argv[2])):
        def program(x, number=number):
            return jnp.sum(jnp.sin(x) * x) + number
        program.__name__ = f"program_{number}"
        jax.block_until_ready(jax.jit(program)(x))
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    files = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    links = [os.readlink(file) for file in files if os.path.islink(file)]
    print(json.dumps({
        "threads": int(status["Threads"]), "memory_kb": int(status["VmRSS"].split()[0]),
        "sockets": sum(link.startswith("socket:") for link in links),
        "files": sum(link.startswith("/") for link in links),
        "hits": ejcache.stats().hits if sys.argv[1] != "none" else 0,
    }))
"""


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure() -> dict[str, Any]:
    """What starts ask of the bucket, with few and with many programs, and what a process holds at the end of one."""
    measured: dict[str, Any] = {"starts": {}, "process": {}, "commands": {}}
    with GcsServerProcess("--latency", str(LATENCY)) as server, tempfile.TemporaryDirectory() as directory:
        for programs in (FEW, MANY):
            server.reset()
            for name, host in zip(STARTS, ("first", "second", "second"), strict=True):
                server.clear_requests()
                home = Path(directory) / f"{host}-{programs}"
                measured["process"][name] = run("ejcache", programs, home, server.url)
                measured["starts"].setdefault(name, {})[str(programs)] = asked(server)
            tier = [path for path in home.rglob("*") if path.is_file()]
            measured["tier"] = {"files": len(tier), "bytes": sum(path.stat().st_size for path in tier)}
            for command in COMMANDS:
                home = Path(directory) / f"operator-{programs}-{command.partition(' ')[0]}"
                ask(command, home, server)
                measured["commands"].setdefault(command, {})[str(programs)] = asked(server)
        measured["process"]["none"] = run("none", MANY, Path(directory) / "none", server.url)
    return measured


def run(cache: str, programs: int, home: Path, url: str) -> dict[str, Any]:
    """One process on a host of this home; what it holds at its end."""
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), cache, str(programs)]
    done = subprocess.run(command, env=on_host(home, url), cwd=home, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def ask(command: str, home: Path, server: GcsServerProcess) -> None:
    """One command, on a host that knows nothing of the cache."""
    words = command.split()
    if "--dir" not in words:
        words += ["--dir", "gs://bucket/cache"]
    command_line = [sys.executable, "-m", "ejcache", *words]
    environment = on_host(home, server.url)
    server.clear_requests()
    subprocess.run(command_line, env=environment, cwd=home, capture_output=True, check=True)


def on_host(home: Path, url: str) -> dict[str, str]:
    """The environment of a process on a host of this home, which is made."""
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EJCACHE", "JAX", "FSSPEC"))}
    return kept | {
        "HOME": str(home),
        "EJCACHE_LOCAL_DIR": str(home / "tiers"),
        "STORAGE_EMULATOR_HOST": url,
        "JAX_PLATFORMS": "cpu",
        "NO_GCE_CHECK": "true",
    }


def asked(server: GcsServerProcess) -> dict[str, int]:
    """The requests since the last time, as they are paid for: class A writes and lists, B reads; to delete is free.

    Without those that are made only for a program that takes a while to compile, for on a busy machine any may: its
    text, and a lease that is written again.
    """
    counts = {"a": 0, "b": 0, "free": 0, "sent": 0, "received": 0}
    leases: set[str] = set()
    for request in server.requests:
        if request.method == "POST" and ("/module_text-" in request.name or request.name in leases):
            continue
        if "/leases/" in request.name:
            leases.add(request.name)
        lists = request.method == "GET" and request.path.endswith("/o")
        kind = "free" if request.method == "DELETE" else "b" if request.method == "GET" and not lists else "a"
        counts[kind] += 1
        counts["sent"] += request.bytes_in
        counts["received"] += request.bytes_out
    return counts


# -- arithmetic --------------------------------------------------------------------------------------------------------


def of_start(measured: dict[str, Any], name: str, programs: int) -> dict[str, float]:
    """What one start of a host asks for with so many programs: on the line through both measurements."""
    few, many = (measured["starts"][name][str(each)] for each in (FEW, MANY))
    slope, more = (programs - FEW) / (MANY - FEW), LATER if name == "copies" else {}
    return {kind: few[kind] + (many[kind] - few[kind]) * slope + more.get(kind, 0) for kind in few}


def start_rows(measured: dict[str, Any], class_a: float, class_b: float) -> list[str]:
    """The rows of the table of restarts: all hosts at once, of each kind of start."""
    rows = []
    for hosts, programs in SIZES:
        one = {name: of_start(measured, name, programs) for name in STARTS}
        both = {
            "cold: nobody has compiled": [(1, one["cold"]), (hosts - 1, one["new"])],
            "new hosts, after `ejcache warm` or an earlier run": [(hosts, one["new"])],
            "hosts that have their copies": [(hosts, one["copies"])],
        }
        for what, parts in both.items():
            a, b, received = (sum(times * asks[kind] for times, asks in parts) for kind in ("a", "b", "received"))
            dollars = (a * class_a + b * class_b) / 1000
            paid = f"{a:,.0f} | {b:,.0f} | {received / 1e9:,.2f} GB | ${dollars:,.2f}"
            rows.append(f"| {hosts:,} {TIMES} {programs} | {what} | {paid} |")
    return rows


def line(few: float, many: float) -> str:
    """The formula of the line through both measurements, where P is the number of programs."""
    slope = (many - few) / (MANY - FEW)
    parts = [f"{few - slope * FEW:.0f}", f"{slope:.2g} {TIMES} P" if slope else ""]
    return " + ".join(part for part in parts if part not in ("", "0")) or "0"


def command_rows(measured: dict[str, Any]) -> list[str]:
    """What each command asks for."""
    rows = []
    for command, each in measured["commands"].items():
        few, many = each[str(FEW)], each[str(MANY)]
        rows.append(" | ".join((f"| `ejcache {command}`", *(line(few[kind], many[kind]) for kind in KINDS))) + " |")
    return rows


def minute_rows(class_a: float, class_b: float) -> list[str]:
    """What hosts ask for while their processes run: the switch, and the journal of each process that used something."""
    rows = []
    for hosts, _ in SIZES:
        reads, writes = hosts * 60 / FRESH_SECONDS, hosts
        dollars = (writes * class_a + reads * class_b) / 1000 * 60 * 24
        rows.append(f"| {hosts:,} | {reads / 60:,.0f} | {writes / 60:,.0f} | ${dollars:,.2f} |")
    return rows


# -- simulation --------------------------------------------------------------------------------------------------------

READS: Final = 5_000
"""Reads a second that a bucket of Google serves to begin with; it doubles that in 20 minutes."""
STEP: Final = 0.5
TOGETHER: Final = 32
"""Requests at once of a host that loads ahead, until one is refused (`jax_integration/preload/preloader.py`)."""
LONGEST_WAIT: Final = 2.0
"""Between two tries (`bucket/retry.py`)."""
PATIENCE: Final = 10.0
"""Seconds that a process waits in all for a storage that refuses (`bucket/breaker.py`); then it compiles."""


def simulate(hosts: int, reads: float, *, spread: float) -> dict[str, float]:
    """New hosts that start within `spread` seconds and read so many objects each, against the bucket's limit."""
    random = np.random.default_rng(0)
    ready = random.uniform(0, spread, hosts) if spread else np.zeros(hosts)
    left = np.full(hosts, round(reads))
    wait = np.zeros(hosts)
    waited = np.zeros(hosts)
    now = refused = compiled = 0.0
    last = 0.0
    while left.any():
        asks = (ready <= now) & (left > 0)
        each = np.where(wait > 0, 1, int(TOGETHER * STEP / LATENCY))
        wanted = np.where(asks, np.minimum(left, each), 0)
        served = READS * 2 ** (now / 1200) * STEP
        share = min(1.0, served / max(1.0, float(wanted.sum())))
        got = random.binomial(wanted, share)
        left -= got
        lost = wanted - got
        refused += float(lost.sum())
        throttled = lost > 0
        wait = np.where(throttled, np.clip(wait * 2, 0.1, LONGEST_WAIT), wait)
        pause = np.where(throttled, wait * random.uniform(0.5, 1.0, hosts), 0.0)
        ready = np.where(throttled, now + pause, ready)
        waited += np.where(got > 0, 0.0, pause)
        given_up = waited > PATIENCE
        compiled += float(left[given_up].sum())
        left[given_up] = 0
        now += STEP
        if got.any():
            last = now
    return {"seconds": last, "refused": refused / (hosts * reads), "compiled": compiled / (hosts * reads)}


def simulation_rows(measured: dict[str, Any]) -> list[str]:
    rows = []
    for hosts, programs in ((2_000, 300), (20_000, 30), (20_000, 300)):
        reads = of_start(measured, "new", programs)["b"]
        for spread in (0, 300, 1800):
            found = simulate(hosts, reads, spread=spread)
            rows.append(
                f"| {hosts:,} {TIMES} {programs} | {spread:,} s | {hosts * reads:,.0f} | {found['seconds']:,.0f} s | "
                f"{found['refused']:.2f} | {100 * found['compiled']:.1f}% |"
            )
    return rows


# -- the page ----------------------------------------------------------------------------------------------------------


def process_rows(measured: dict[str, Any]) -> list[str]:
    none = measured["process"]["none"]
    words = {
        "cold": "compiles and uploads everything",
        "new": "reads everything from the bucket",
        "copies": "has its copies",
    }
    rows = []
    for name in STARTS:
        each = measured["process"][name]
        memory = f"{(each['memory_kb'] - none['memory_kb']) / 1024:+.0f} MB"
        more = [f"{each[kind] - none[kind]:+d}" for kind in ("threads", "sockets", "files")]
        rows.append(f"| {words[name]} | {more[0]} | {memory} | {more[1]} | {more[2]} |")
    return rows


def page(measured: dict[str, Any], class_a: float, class_b: float, month: str) -> str:
    """The text of docs/fleet.md."""
    text = (ROOT / "tools" / "fleet_page.md").read_text(encoding="utf-8")
    per = {name: [of_start(measured, name, number) for number in (FEW, MANY)] for name in STARTS}
    values = {
        "starts": "\n".join(start_rows(measured, class_a, class_b)),
        "commands": "\n".join(command_rows(measured)),
        "minutes": "\n".join(minute_rows(class_a, class_b)),
        "simulation": "\n".join(simulation_rows(measured)),
        "process": "\n".join(process_rows(measured)),
        "class_a": f"${class_a:g}",
        "class_b": f"${class_b:g}",
        "month": month,
        "tier": f"{measured['tier']['files']} files with {measured['tier']['bytes'] / 1e6:.1f} MB",
        "many": str(MANY),
        "few": str(FEW),
    }
    for name in STARTS:
        few, many = per[name]
        for kind in KINDS:
            values[f"{name}_{kind}"] = line(few[kind], many[kind])
    for name, value in values.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--class-a", type=float, default=0.005, help="dollars for 1,000 writes or listings")
    parser.add_argument("--class-b", type=float, default=0.0004, help="dollars for 1,000 reads")
    parser.add_argument("--month", default="mid-2025", help="the date of these prices")
    options = parser.parse_args()
    if options.measure:
        DATA.write_text(json.dumps(measure(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    measured = json.loads(DATA.read_text(encoding="utf-8"))
    PAGE.write_text(page(measured, options.class_a, options.class_b, options.month), encoding="utf-8")


if __name__ == "__main__":
    main()
