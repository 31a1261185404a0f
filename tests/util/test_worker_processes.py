"""Child processes that answer requests in lines of JSON."""

from __future__ import annotations

import os
import signal
import textwrap

import pytest

from ejcache.util.worker_processes import WorkerProcess, WorkerProcesses, how_it_ended

CHILD = """
    import json, os, sys
    from ejcache.util.worker_processes import answering

    with answering() as answer:
        print("printed before")
        for line in sys.stdin:
            request = json.loads(line)
            if "die" in request:
                os.kill(os.getpid(), request["die"])
            for number in range(request["count"]):
                os.write(1, b"printed by C\\n")
                answer(number=number, text="x" * request["length"])
"""


@pytest.fixture
def start(tmp_path):
    """Starts a child that counts, and ends those that a test leaves."""
    (tmp_path / "counting_child.py").write_text(textwrap.dedent(CHILD))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    workers = WorkerProcesses()

    def start():
        worker = WorkerProcess("counting_child", environment=environment)
        workers.add(worker)
        return worker

    start.workers = workers
    yield start
    workers.kill()


def test_answers_are_apart_from_what_is_printed(start):
    """Answers of any length come whole and in order, from all children; what they print does not mix with them."""
    children = {start(): [] for _ in range(2)}
    for child in children:
        child.send(count=3, length=200_000)
        child.finish()
    ended = []
    for child, answer in start.workers.answers():
        if answer is None:
            ended.append(child.end())
        else:
            children[child].append((answer["number"], len(answer["text"])))
    assert list(children.values()) == [[(number, 200_000) for number in range(3)]] * 2
    assert ended == [0, 0]


def test_a_child_that_dies_is_noticed_where_it_answers(start):
    """Requests to it are no errors; its end takes the place of an answer and has a name."""
    child = start()
    child.send(die=int(signal.SIGKILL))
    assert list(start.workers.answers()) == [(child, None)]
    child.send(count=1, length=1)
    assert how_it_ended(child.end()) == "SIGKILL"
    assert how_it_ended(3) == "exit status 3"


def test_a_removed_child_is_not_heard(start):
    """Answers that have come with the one after which a child was removed are dropped."""
    child = start()
    child.send(count=5, length=1)
    child.finish()
    seen = []
    for _, answer in start.workers.answers():
        seen.append(answer["number"])
        start.workers.remove(child)
        child.kill()
    assert seen == [0]
