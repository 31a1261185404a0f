"""An error of ours is never the program's: each import and each file of ours that cannot be had costs no result."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from forking import ForkedBeforeEjcache
from helpers import SUPPORT

from ejcache.errors import CompileForbiddenError
from ejcache.jax_integration.own_failures import answer, note_compilation

ERRORS = ("EMFILE", "ENFILE", "EIO", "ESTALE", "ENOSPC", "EACCES", "MemoryError")
RESULTS = [[[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]
PARTS = 31
"""The tests take one of so many steps; another error with each, once and lasting."""


def failing(situation, place, choose):
    """The answers of processes in which those steps fail that `choose` names, of as many as there are."""
    command = [sys.executable, SUPPORT / "failing_steps.py", situation, place]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with ForkedBeforeEjcache(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdin.write("0 - 0\n")
        process.stdin.flush()
        first = json.loads(process.stdout.readline())
        asked = choose(first["steps"])
        printed, _ = process.communicate("".join(f"{number} {error} {lasting}\n" for number, error, lasting in asked))
    return first, [(*each, json.loads(line)) for each, line in zip(asked, printed.splitlines(), strict=True)]


def wrong(answers):
    """Those in which the program has another result or status, or was compiled twice, or nothing failed."""
    return [
        (number, error, lasting, found)
        for number, error, lasting, found in answers
        if found.get("results") != RESULTS
        or found["status"]
        or any(count > 1 for count in found["compiled"].values())
        or not found["failed"]
    ]


@pytest.mark.parametrize("situation", ["hit", "miss"])
def test_a_step_that_fails(tmp_path, situation):
    """The program's results and its exit status are those without ejcache, and it is compiled at most once."""

    def some(steps):
        numbers = range(1, steps - 3, PARTS)  # the last ones depend on what is written in the background
        return [(number, ERRORS[place % len(ERRORS)], place % 2) for place, number in enumerate(numbers)]

    first, answers = failing(situation, tmp_path / "steps", some)
    compiled = {} if situation == "hit" else {"jit_double": 1, "jit_add": 1}
    assert (first["results"], first["compiled"], first["status"], first["failed"]) == (RESULTS, compiled, 0, "")
    assert wrong(answers) == []


@pytest.mark.soak
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("situation", ["hit", "miss"])
def test_each_step_that_fails(tmp_path, situation, error):
    """So it is at each import and each file, with each error."""
    _, answers = failing(
        situation, tmp_path / "steps", lambda steps: [(number, error, number % 2) for number in range(1, steps - 3)]
    )
    assert wrong(answers) == []


# -- what reaches the program --------------------------------------------------------------------------------------


class Calls:
    """JAX's side of a request: how often JAX's own function was called, and what was reported."""

    def __init__(self, *, raises=False):
        self.own = 0
        self.reported = []
        self.raises = raises

    def compile(self):
        self.own += 1
        return "executable"

    def ask(self, ours):
        return answer(
            ours, self.compile, is_raised=lambda: self.raises, report=lambda _, exc: self.reported.append(exc)
        )


def failing_after(compile_it, exc):
    """A function of ours that compiles, and fails afterwards."""

    def ours():
        note_compilation(compile_it)
        raise exc

    return ours


def test_a_failure_after_the_compilation():
    """What is compiled already is given to the program, and nothing is compiled again."""
    calls = Calls()
    assert calls.ask(failing_after(calls.compile, OSError("disk"))) == "executable"
    assert (calls.own, [str(exc) for exc in calls.reported]) == (1, ["disk"])


def test_a_failure_of_the_compilation():
    """The program gets its own error, and only one compilation, also if a step of ours fails because of it."""
    error = RuntimeError("XLA")

    def fails():
        raise error

    def ours():
        try:
            note_compilation(fails)
        except RuntimeError:
            raise OSError("no file is left for the log") from None

    for each in (lambda: note_compilation(fails), ours):
        calls = Calls()
        with pytest.raises(RuntimeError) as caught:
            calls.ask(each)
        assert (caught.value, calls.own) == (error, 0)


@pytest.mark.parametrize("exc", [CompileForbiddenError("jit_f", "it is not there"), UserWarning("coverage")])
def test_what_is_meant_for_the_program(exc):
    """A refusal, and a warning that the program made an error, reach it, also after the compilation."""
    calls = Calls()
    with pytest.raises(type(exc)):
        calls.ask(failing_after(calls.compile, exc))
    assert calls.reported == []


def test_errors_that_are_asked_for():
    """`jax_raise_persistent_cache_errors` lets ours through."""
    calls = Calls(raises=True)
    with pytest.raises(OSError, match="disk"):
        calls.ask(failing_after(calls.compile, OSError("disk")))


def test_a_report_that_fails():
    """What counts and logs a failure may fail for the same reason."""

    def report(*_):
        raise MemoryError

    assert answer(failing_after(lambda: 1, OSError("disk")), lambda: 2, is_raised=lambda: False, report=report) == 1


def test_requests_inside_of_requests():
    """A program that another one compiles, as tuning does, leaves the outer request what it had."""
    calls = Calls()

    def outer():
        note_compilation(lambda: "outer")
        assert calls.ask(failing_after(lambda: "inner", OSError("disk"))) == "inner"
        raise OSError("disk")

    assert calls.ask(outer) == "outer"
