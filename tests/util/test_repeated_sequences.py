"""Blocks that repeat in a sequence."""

from __future__ import annotations

from ejcache.util.repeated_sequences import repetitions, run_ends, shortest_period


def test_runs_of_copies():
    block = ["dot", "add", "tanh"]
    assert repetitions([*"ab", *block * 6, "z"]) == [(3, 6, [2])]
    assert repetitions([*block * 2, *"uvwxyz"]) == []
    assert repetitions(["add"] * 40) == []
    assert repetitions([]) == []


def test_a_block_forwards_and_another_backwards():
    """Of a gradient neither may make up half of the program: together they do."""
    forwards, backwards = ["dot", "add", "tanh"], ["mul", "transpose", "dot", "sub"]
    tokens = [*"ab", *forwards * 6, *map(str, range(20)), *backwards * 6, "z"]
    assert repetitions(tokens) == [(4, 6, [40]), (3, 6, [2])]


def test_the_block_is_the_outer_one():
    """A step has stages that are alike; the steps repeat as a whole."""
    stage, step = ["mul", "add", "dot", "tanh"], ["div"]
    assert repetitions((stage * 4 + step) * 9) == [(17, 9, [0])]


def test_ends_and_periods():
    run = list("abcabcab")
    assert run_ends([*run, "z"], 0, 3) == 8
    assert shortest_period(run, 6) == 3
    assert shortest_period(list("abcdab"), 4) == 4
