"""Storage that refuses everything, or one object: what a start loses."""

from __future__ import annotations

import re
import textwrap

import pytest
from buckets import GcsServer
from dead_ends import leads_to
from forking import ForkedWithClients
from helpers import python_command, run_program

PROGRAM = """
    import logging, os, sys, threading
    import jax, numpy as np
    import ejcache
    said = threading.Event()
    logging.getLogger("ejcache").addFilter(lambda record: said.set() or True)
    with ejcache.enable("gs://bucket/cache", min_compile_seconds=0) as cache:
        for factor in map(int, sys.argv[1:]):
            def program():
                return np.float32(2 * factor)
            program.__name__ = f"program_{factor}"
            assert float(jax.jit(program)()) == 2 * factor
        print(cache.stats().hits)
        if "GOES_ON_UNTIL_SOMETHING_IS_SAID" in os.environ:
            assert said.wait(60)
"""


def start(server, host, *, programs, **variables):
    """Run so many programs, or those of these numbers, on the host whose local tier is in this directory."""
    numbers = range(1, programs + 1) if isinstance(programs, int) else programs
    local = {"EJCACHE_LOCAL_DIR": str(host), "EJCACHE_PUBLISH_FROM": "0", "EJCACHE_ASK_FROM": "0"}
    command = python_command(textwrap.dedent(PROGRAM), *map(str, numbers))
    return run_program(
        command, env={**leads_to("gs", server.url), **local, **variables}, cwd=host.parent, start=ForkedWithClients
    )


def outcome(finished):
    return int(finished.stdout.splitlines()[-1])


def test_a_bucket_that_only_asks_to_slow_down(tmp_path, bucket):
    """Each start says so once, and this host knows it from the first one on."""
    bucket.add_fault("status", status=429)
    for number in range(2):
        finished = start(bucket, tmp_path / "host", programs=3)
        assert outcome(finished) == (3 if number else 0)
        assert finished.stderr.count("goes on without it") == len(finished.stderr.splitlines()) <= 1
        assert "asks to slow down" in finished.stderr or number  # later ones may end before they have asked
        (note,) = tmp_path.rglob("scratch/storage")
        assert note.read_text() == "failed\n"


@pytest.mark.parametrize(
    ("status", "message", "first", "sentence"),
    [
        # One asks whether the cache is turned off.
        pytest.param(403, "no access", 5, "may not read|may not write", id="403"),
        pytest.param(
            404, "The specified bucket does not exist", 2, "there is no bucket", id="no bucket", marks=pytest.mark.soak
        ),
    ],
)
def test_a_bucket_that_refuses_everything(tmp_path, bucket, status, message, first, sentence):
    """It is asked a few times by the first start of a host, which says so in one line; later ones do not wait for it.

    So each asks at most once in the background, and says so if it lasts until the answer. Whether the cache is off
    is not asked again for a minute where it may not be read, and nothing else is asked there.
    """
    starts = [(first, {}), (1, {})]
    if status != 403:
        starts.append((1, {"GOES_ON_UNTIL_SOMETHING_IS_SAID": "1"}))
    bucket.add_fault("status", status=status, message=message)
    for number, (most, variables) in enumerate(starts):
        programs = range(5 * number, 5 * number + 5)
        finished = start(bucket, tmp_path / "host", programs=programs, **variables)
        assert outcome(finished) == 0
        is_said = number == 0 or bool(variables)
        lines = finished.stderr.splitlines()
        assert is_said <= len(lines) <= 1
        # On a slow host the client may be made so late that an upload is refused before a look-up.
        assert all(re.search(sentence, line) for line in lines)
        assert is_said <= len(bucket.requests) <= most
        bucket.clear_requests()


@pytest.fixture(scope="module")
def bucket_of_four(tmp_path_factory):
    """A bucket that a host has filled with four programs."""
    with GcsServer() as server:
        assert outcome(start(server, tmp_path_factory.mktemp("host") / "first", programs=4)) == 0
        yield server


@pytest.fixture
def filled(bucket_of_four):
    """That bucket, which is whole again after the test."""
    yield bucket_of_four
    bucket_of_four.clear_faults()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param({"action": "status", "status": 500}, id="500"),
        pytest.param({"action": "status", "status": 429}, id="429", marks=pytest.mark.soak),
        pytest.param({"action": "stall"}, id="silent", marks=pytest.mark.soak),
        pytest.param({"action": "reset"}, id="cut", marks=pytest.mark.soak),
    ],
)
def test_one_object_that_keeps_failing(tmp_path, filled, fault):
    """A fresh host loses that one program, and has hits for the three others."""
    filled.add_fault(path="entries/.*jit_program_3", **fault)
    assert outcome(start(filled, tmp_path / "fresh", programs=4)) == 3
