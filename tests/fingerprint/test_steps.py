"""The instructions of code objects, as this project reads them, against the module `dis`."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json.decoder
import tarfile
import typing
from pathlib import Path
from types import CodeType

import pytest

from ejcache.fingerprint import steps


def code_objects(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_objects(constant)


@pytest.mark.parametrize("module", [argparse, dataclasses, inspect, json.decoder, tarfile, typing])
def test_steps_are_those_of_dis(module):
    """Every instruction of a large module has the name, constant or number that `dis` gives it."""
    source = Path(module.__file__)
    for code in code_objects(compile(source.read_text(), str(source), "exec")):
        found, expected = steps.steps_of(code), steps._read_by_dis(code)
        assert [each for each in found if each.operation != "KW_NAMES"] == [
            each for each in expected if each.operation != "KW_NAMES"
        ]
