"""A fleet in real time: eight processes on four hosts, while an operator recalls entries and turns the cache off.

Hosts have their own copies. Four processes run all the time; on the other two hosts processes start again and again, on
one of them each time without copies. All read, store what they miss, and upload.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import textwrap
import threading
import time

import pytest
from buckets import GcsServerProcess
from cli_helpers import PYTHON
from helpers import variables_to_clear

from ejcache import entry
from ejcache.cache.policy_watch import FRESH_SECONDS
from ejcache.cache.shared_policy_watch import LOOK_SECONDS
from ejcache.stores.opening import open_store

URL = "gs://bucket/fleet"
MINUTE = FRESH_SECONDS + LOOK_SECONDS
SOON = 5.0
"""Seconds that a busy machine may be late."""

WORKER = """
    import json, sys, threading, time, uuid
    from ejcache import entry
    from ejcache.cache.opening import open_cache
    from ejcache.cache.reading import CacheReader
    from ejcache.cache.writing import EntryWriter
    from ejcache.settings.resolve import resolve

    url, rounds = sys.argv[1], int(sys.argv[2])
    settings = resolve(calls={"dir": url, "min_compile_seconds": 0.0})
    policy = CacheReader(url, open_store=lambda: open_cache(url, settings))
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    keys = ["jit_%d-cpu-plain-%064x" % (n, n) for n in range(6)]
    while rounds and not ended.wait(0.5):
        rounds -= 1
        for number, key in enumerate(keys):
            began = time.time()
            found = policy.read(key, settings)
            said = {"time": began, "key": number, "miss": None}
            if isinstance(found, entry.Entry):
                header = found.header
                said |= {"id": found.raw.decode(), "writer": header.writer}
            else:
                said["miss"] = found
                made = uuid.uuid4().hex
                new = entry.Header(key=key, name=key[:5], compile_seconds=9.0)
                skip = EntryWriter(policy).write(new, made.encode(), settings).skip
                said["stored"] = "" if skip is not None else made
            print(json.dumps(said), flush=True)
    policy.flush(60)
    policy.close()
"""


class Worker:
    """One process of a host, and what it has said."""

    def __init__(self, server, home, *, rounds=10_000):
        home.mkdir(parents=True, exist_ok=True)
        self.home, self.began, self.is_gone = home, time.time(), False
        cleared = {name: value for name, value in os.environ.items() if name not in variables_to_clear(os.environ)}
        variables = {"STORAGE_EMULATOR_HOST": server.url, "EJCACHE_LOCAL_DIR": str(home), "HOME": str(home)}
        self.process = subprocess.Popen(
            [PYTHON, "-c", textwrap.dedent(WORKER), URL, str(rounds)],
            env=cleared | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said, self.errors = [], []
        self._readers = [
            threading.Thread(target=lambda: self.said.extend(map(json.loads, self.process.stdout)), daemon=True),
            threading.Thread(target=lambda: self.errors.extend(self.process.stderr), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def end(self):
        self.process.stdin.close()
        self.finished()

    def finished(self):
        """Wait for its end."""
        self.is_gone = True
        assert self.process.wait(120) == 0, self.errors
        for reader in self._readers:
            reader.join(60)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()


class Fleet:
    """All processes of the test, and the operator."""

    def __init__(self, server, place):
        self.server, self.place = server, place
        self.running = [Worker(server, place / f"host-{n // 2}") for n in range(4)]
        self.started = []
        self._stopped = threading.Event()
        self._starting = threading.Thread(target=self._start_again, daemon=True)
        self._starting.start()

    @property
    def workers(self):
        return [*self.running, *self.started]

    def _start_again(self):
        number = 0
        while not self._stopped.is_set():
            homes = (self.place / "host-2", self.place / f"new-host-{number}")
            now = [Worker(self.server, home, rounds=12) for home in homes for _ in range(2)]
            self.started += now
            for worker in now:
                worker.finished()
            number += 1

    def end(self):
        self._stopped.set()
        self._starting.join(200)
        for worker in self.running:
            worker.end()

    def answers(self, *, since=0.0):
        return [said for worker in self.workers for said in list(worker.said) if said["time"] >= since]

    def known(self, *, since=0.0):
        """The entries that were read, by their texts."""
        return {said["id"]: said for said in self.answers(since=since) if "id" in said}

    def stored(self, number):
        """The text of an entry in the bucket."""
        key = f"jit_{number}-cpu-plain-{number:064x}"
        with open_store(URL) as store:
            data = store.get(key)
        return "" if data is None else entry.decode(data, key=key).raw.decode()

    def command(self, *arguments, kill_after=None):
        variables = {**os.environ, "STORAGE_EMULATOR_HOST": self.server.url}
        command = [PYTHON, "-m", "ejcache", *arguments, "--dir", URL]
        process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, err = process.communicate(timeout=kill_after or 120)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            return ""
        assert process.returncode == 0, err
        return out


def wait_for(what, seconds=120.0):
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.2)
    return found


@pytest.mark.soak
def test_recalls_and_the_switch(tmp_path, monkeypatch):
    """No recalled entry is read a minute later, what was stored since stays, and then nobody asks for entries."""
    with GcsServerProcess() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        fleet = Fleet(server, tmp_path)
        try:
            for number in range(6):
                wait_for(lambda number=number: fleet.stored(number))
            wait_for(lambda: all(worker.said for worker in fleet.running))
            recall_some(fleet)
            recall_all(fleet)
            turn_off(fleet, server)
        finally:
            fleet.end()
    said = [[line for line in worker.errors if "turned off" in line] for worker in fleet.running]
    assert [len(lines) for lines in said] == [1, 1, 1, 1]
    for worker in fleet.workers:
        others = [line for line in worker.errors if "turned off" not in line and "were recalled" not in line]
        assert others == []


def last_read(worker):
    """The entries of its last six programs, None for one that it compiled."""
    return [said.get("id") for said in list(worker.said)[-6:]]


def recall_some(fleet):
    """One entry, and those of one process."""
    stored, before = fleet.stored(0), fleet.known()
    here = wait_for(lambda: None not in (last := last_read(fleet.running[0])) and last)
    by = next(said["writer"] for said in before.values() if said["key"] != 0)
    fleet.command("recall", "jit_0", "--yes")
    fleet.command("recall", "--by", by, "--yes")
    done = time.time()
    # A host that lost the race to store it keeps what it has made itself, which is another entry.
    recalled = {stored} | {each for each, said in before.items() if said["writer"] == by}
    time.sleep(MINUTE + SOON + 10.0)
    late = fleet.known(since=done + MINUTE + SOON)
    assert [said | {"after": said["time"] - done} for each, said in late.items() if each in recalled] == []
    assert {said["key"] for said in late.values()} == set(range(6))
    # What is not recalled stays: the first host reads what it read before.
    first = [said["id"] for said in fleet.running[0].said if "id" in said and said["time"] > done + MINUTE + SOON]
    assert {each for each in here if each not in recalled} <= set(first)


def recall_all(fleet):
    """Killed in the middle, and repeated."""
    before = set(fleet.known())  # a host that starts meanwhile stores at the new place before the command ends
    fleet.command("recall", "--all", "--yes", kill_after=0.8)
    fleet.command("recall", "--all", "--yes")
    done = time.time()
    time.sleep(MINUTE + SOON + 10.0)
    late = fleet.known(since=done + MINUTE + SOON)
    assert before & set(late) == set()
    assert {said["key"] for said in late.values()} == set(range(6))


def turn_off(fleet, server):
    fleet.command("config", "set", "enabled=false")
    time.sleep(MINUTE + SOON)
    server.clear_requests()
    began = time.time()
    time.sleep(MINUTE / 2)
    late, requests = fleet.answers(since=began), server.requests
    assert late
    new = [worker for worker in fleet.started if worker.began > began - SOON and "new-host" in worker.home.name]
    # A host that knows nothing of the cache asks for nothing before it has read the policy.
    assert [request for request in requests if "/entries/" in request.name] == []
    assert [said for said in late if "id" in said] == []
    assert [request for request in requests if "/leases/" in request.name] == []
    hosts = len({worker.home for worker in fleet.workers if worker.began < began - SOON and not worker.is_gone}) + 1
    policies = [request for request in requests if request.name.endswith("policy.json")]
    assert len(policies) <= hosts + len(new)
