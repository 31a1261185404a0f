"""A process records what JAX compiled for a call, and another one runs it without tracing, and then in C++."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from helpers import SUPPORT, run_program

if TYPE_CHECKING:
    from pathlib import Path

    Outcomes = dict[str, dict[str, Any]]

SERVED = (
    "automatic",
    "bound",
    "collective",
    "constants",
    "donated",
    "equinox",
    "explicit",
    "given_shardings",
    "held",
    "keys",
    "linear_algebra",
    "linen",
    "local_class",
    "mixed",
    "narrow",
    "nnx_split",
    "no_arguments",
    "no_outputs",
    "nothing_kept",
    "one_device",
    "partial",
    "plain",
    "pruned",
    "registered",
    "sharded",
    "static",
    "static_object",
    "trees",
    "weak",
)
REFUSED = {
    "callback": "it calls back into Python",
    "hidden": "the data of the result is a direct_cases.Hidden, which is in no argument",
    "printing": "it has effects, or its results are not all arrays",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcomes, Outcomes]:
    """What happened to each case when it was recorded, and when it was served by another process."""
    directory = tmp_path_factory.mktemp("direct")
    return driver("record", directory), driver("serve", directory)


def driver(mode: str, directory: Path) -> Outcomes:
    # Different hash seeds: nothing of a record may depend on the order of sets.
    env = {"PYTHONHASHSEED": {"record": "1", "serve": "2"}[mode], "JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "ignore"}
    env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    program = [sys.executable, SUPPORT / "direct_driver.py", mode, directory, *SERVED, *REFUSED]
    found: Outcomes = json.loads(run_program(program, env=env).stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", SERVED)
def test_a_record_replaces_the_trace(name, outcomes):
    """The other process never traces, loads once, gives the same bits and structure, and does not ask again."""
    recorded, served = outcomes

    assert recorded[name].get("traced") == 1, recorded[name]
    assert served[name].get("difference") == [], served[name]
    assert served[name]["equal"]
    assert served[name]["equal again"]
    assert (served[name]["traced"], served[name]["loads"], served[name]["compiled"]) == (0, 1, 0)
    assert served[name]["misses again"] == 0


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_record_cannot_hold_is_refused(name, outcomes):
    """A sentence says why, and nothing is written."""
    recorded, served = outcomes

    assert recorded[name] == {"refused": REFUSED[name]}
    assert name not in served


def test_numpy_arrays_numbers_and_unbound_arrays_need_one_record(outcomes):
    """C++ asks again for another class of arguments, and the same executable serves it."""
    _, served = outcomes

    assert served["mixed"]["calls"] == 3
    assert (served["mixed"]["misses"], served["mixed"]["loads"]) == (2, 1)
