"""`ejcache key`: what changes it, and what does not."""

from __future__ import annotations

from cli_helpers import ejcache


def test_one_host_has_one_key(run_python, tmp_path):
    """Two processes of a host print one text, wherever they are; a lock file, a flag and the JSON's parts count."""
    (tmp_path / "requirements.lock").write_text("jax==0.10")
    command = "import sys; from ejcache.cli.main import main; sys.exit(main(sys.argv[1:]))"
    here = ejcache("key").out
    assert here.startswith("cpu-")
    assert run_python(command, "key", cwd=tmp_path).stdout == here
    flags = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}
    assert run_python(command, "key", env=flags).stdout != here
    assert run_python(command, "key", env={"EJCACHE_NAMESPACE": "two"}).stdout != here
    locked = ejcache("key", "--lock", tmp_path / "requirements.lock", "--json").json
    assert locked["key"] != here.strip()
    assert {"jax", "jaxlib", "native_libraries", "cpu"} <= {*locked["components"]}
    (tmp_path / "moved.lock").write_text("jax==0.10")
    assert ejcache("key", "--lock", tmp_path / "moved.lock").out.strip() == locked["key"]
    (tmp_path / "moved.lock").write_text("jax==0.12")
    assert ejcache("key", "--lock", tmp_path / "moved.lock").out.strip() != locked["key"]


def test_a_lock_file_that_does_not_exist():
    """It is bad usage, not another key."""
    said = ejcache("key", "--lock", "nothing.lock")
    assert (said.status, "nothing.lock" in said.err) == (2, True)
