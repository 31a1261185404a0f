"""Direct mode in an installed project: its configuration counts, however deep, as if it were not installed."""

from __future__ import annotations

import json
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="direct mode needs Python 3.12")

MODEL = """
import json, pathlib
import jax.numpy as jnp
import ejcache

CFG = json.loads(pathlib.Path(__file__).with_name("config.json").read_text())

def scaled(x):
    return x * CFG["a"]["b"]["c"]["d"]["e"]["scale"]

@ejcache.ejit(direct=True)
def step(x):
    return jnp.sin(scaled(x)).sum()
"""
PROGRAM = """
    import json, os
    import jax.numpy as jnp
    import ejcache
    from ejcache.direct.verdicts import last_verdicts
    ejcache.enable(os.environ["PLACE"], min_compile_seconds=0)
    from proj.model import step
    result = float(step(jnp.ones(3)))
    print(json.dumps([last_verdicts()[-1].verdict, result]))
"""


def test_a_deep_value_of_an_installed_project_is_compared(run_python, tmp_path):
    """After a value in its JSON file was edited, the call is traced with the new value; a review found a stale hit."""
    packages = tmp_path / "site-packages"
    package, information = packages / "proj", packages / "proj-1.0.dist-info"
    package.mkdir(parents=True)
    information.mkdir()
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text(MODEL)
    (information / "INSTALLER").write_text("pip\n")
    (information / "RECORD").write_text("proj/__init__.py,,\nproj/model.py,,\nproj/config.json,,\n")
    (information / "direct_url.json").write_text('{"url": "file:///src", "dir_info": {}}')
    env = {"PYTHONPATH": str(packages), "PLACE": str(tmp_path / "cache"), "EJCACHE_DIRECT_CHECK_ONE_IN": "0"}

    def start(scale):
        value = {"a": {"b": {"c": {"d": {"e": {"scale": scale}}}}}}
        (package / "config.json").write_text(json.dumps(value))
        return json.loads(run_python(PROGRAM, env=env).stdout.splitlines()[-1])

    first, second, third, changed = start(2.0), start(2.0), start(2.0), start(3.0)

    assert [first[0], second[0], third[0]] == ["missed", "unproven", "hit"]
    assert changed[0] == "missed"
    assert first[1] == second[1] == third[1] != changed[1]
