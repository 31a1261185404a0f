"""`ejcache key`: what changes it, and what does not."""

from __future__ import annotations

import pytest
from capabilities import require
from cli_helpers import ejcache

from ejcache.jax_integration.lowering.plugins import has_cpu_alone


def test_one_host_has_one_key(run_forked, tmp_path):
    """Two processes of a host print one text, wherever they are; a lock file, a flag and the JSON's parts count."""
    (tmp_path / "requirements.lock").write_text("jax==0.10")
    command = "import sys; from ejcache.cli.main import main; sys.exit(main(sys.argv[1:]))"
    here = ejcache("key").out
    assert here.startswith("cpu-")
    assert run_forked(command, "key", cwd=tmp_path).stdout == here
    flags = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}
    assert run_forked(command, "key", env=flags).stdout != here
    assert run_forked(command, "key", env={"EJCACHE_NAMESPACE": "two"}).stdout != here
    locked = ejcache("key", "--lock", tmp_path / "requirements.lock", "--json").json
    assert locked["key"] != here.strip()
    assert {"jax", "jaxlib", "native_libraries", "cpu"} <= {*locked["components"]}
    (tmp_path / "moved.lock").write_text("jax==0.10")
    assert ejcache("key", "--lock", tmp_path / "moved.lock").out.strip() == locked["key"]
    (tmp_path / "moved.lock").write_text("jax==0.12")
    assert ejcache("key", "--lock", tmp_path / "moved.lock").out.strip() != locked["key"]


def packages(place, *names):
    for name in names:
        (place / name).mkdir()
        (place / name / "__init__.py").touch()


def test_without_an_accelerator_it_does_not_import_jax(run_python, tmp_path):
    """A job in CI asks for it before its tests, and to import JAX takes longer than all other commands of the job.

    A plug-in that finds no device on the host, as in an image that runs with and without one, changes nothing.
    """
    require("no accelerator")
    packages(tmp_path, "libtpu", "jax_cuda13_plugin")
    command = "import sys; from ejcache.cli.main import main; main(sys.argv[1:]); print('jax' in sys.modules)"
    said = run_python(command, "key", env={"PYTHONPATH": str(tmp_path), "JAX_PLATFORMS": ""}).stdout.split()
    assert said == [ejcache("key").out.strip(), "False"]


@pytest.mark.parametrize(
    ("installed", "variables", "alone"),
    [
        (["libneuronxla"], {"JAX_PLATFORMS": "cpu"}, True),
        (["libneuronxla"], {}, False),
        (["libtpu"], {}, True),
        (["libtpu"], {"JAX_FORCE_TPU_INIT": "1"}, False),
    ],
)
def test_only_jax_knows_of_other_accelerators(tmp_path, monkeypatch, installed, variables, alone):
    """A plug-in that may find a device, or is told to: then JAX is asked."""
    require("no accelerator")
    packages(tmp_path, *installed)
    monkeypatch.syspath_prepend(tmp_path)
    for name, value in ({"JAX_PLATFORMS": ""} | variables).items():
        monkeypatch.setenv(name, value)
    assert has_cpu_alone() is alone


def test_a_lock_file_that_does_not_exist():
    """It is bad usage, not another key."""
    said = ejcache("key", "--lock", "nothing.lock")
    assert (said.status, "nothing.lock" in said.err) == (2, True)
