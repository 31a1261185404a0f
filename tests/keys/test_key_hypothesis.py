"""Random small programs have one key in two processes of different history, and no two programs have the same key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from forking import Forked
from helpers import SUPPORT
from hypothesis import given, settings
from hypothesis import strategies as st
from key_histories import CONSTANTS, STEPS, WRAPS, inlined

SERVER = SUPPORT / "key_histories.py"
EXAMPLES = max(3, settings.default.max_examples // 5)
"""Each is three programs or four, and each of them is compiled twice."""

numbers = st.sampled_from([0.5, 1.5, 2.0, 3.0])
steps = st.one_of(st.sampled_from([[name] for name in STEPS]), st.tuples(st.sampled_from(CONSTANTS), numbers).map(list))


def bodies(helpers: int):
    """Bodies that may call the helpers before them, often several times."""
    if not helpers:
        return st.lists(steps, min_size=1, max_size=3)
    calls = st.integers(0, helpers - 1).map(lambda number: ["call", number])
    return st.lists(st.one_of(steps, calls, calls), min_size=1, max_size=5)


@st.composite
def programs(draw):
    helpers = [
        {
            "name": draw(st.sampled_from(["helper", "clip", "layer"])),
            "jitted": draw(st.sampled_from([True, True, False])),
            "body": draw(bodies(number)),
        }
        for number in range(draw(st.integers(0, 3)))
    ]
    return {
        "helpers": helpers,
        "body": draw(bodies(len(helpers))),
        "wrap": draw(st.sampled_from(WRAPS)),
        "shape": draw(st.sampled_from([[4], [3]])),
        "dtype": draw(st.sampled_from(["float32", "bfloat16"])),
    }


class Server:
    """A process that answers with the keys of the programs it is asked for."""

    def __init__(self, history: str, directory: str, *, start: type[subprocess.Popen] = subprocess.Popen) -> None:
        self._process = start(
            [sys.executable, SERVER, history, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )

    def ask(self, program: dict) -> None:
        self._process.stdin.write(json.dumps(program) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict:
        line = self._process.stdout.readline()
        assert line, "the server ended; its error is above"
        return json.loads(line)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    # One directory, since older versions of JAX have its path in their keys.
    directory = str(tmp_path_factory.mktemp("histories"))
    # Two interpreters, each with a random seed of its hashes.
    made = [Server("plain", directory, start=Forked), Server("eventful", directory)]
    yield made
    for server in made:
        server.close()


def test_one_key_in_two_histories_and_another_for_every_other_program(servers):
    """Same program, same key; different programs, different keys; no subclass is left out.

    That there was something to see is counted: history changed modules, and JAX's own key differs for those.
    """
    counts: Counter[str] = Counter()
    program_of: dict[str, str] = {}

    @settings(max_examples=EXAMPLES)
    @given(several=st.lists(programs(), min_size=3, max_size=4))
    def compare(several):
        for program in several:
            for server in servers:
                server.ask(program)
            plain, eventful = (server.answer() for server in servers)

            assert plain["ours"] == eventful["ours"], program
            assert program_of.setdefault(plain["ours"], inlined(program)) == inlined(program)
            assert plain["untouched"]
            assert eventful["untouched"]
            counts["programs"] += 1
            counts["keys of JAX's own that differ"] += plain["theirs"] != eventful["theirs"]
            counts["modules with other functions"] += plain["functions"] != eventful["functions"]

    compare()

    assert counts["programs"] >= 3 * EXAMPLES
    assert len(set(program_of.values())) >= 2 * EXAMPLES
    assert counts["keys of JAX's own that differ"] >= counts["programs"] // 10, counts
    assert counts["modules with other functions"] > 0, counts
