"""Fixtures of every test: an environment of its own, and programs in processes of their own."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING

import hypothesis
import pytest
from helpers import python_command, run_program, variables_to_clear

from ejcache.settings import set_command_line
from ejcache.stores.breaker import forget_breakers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from buckets import GcsServer
    from helpers import Finished

hypothesis.settings.register_profile(
    "default",
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
    print_blob=True,
)
hypothesis.settings.register_profile(
    "soak", hypothesis.settings.get_profile("default"), max_examples=1_000, stateful_step_count=60, derandomize=False
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Before any test module imports jax: its back end is chosen once per process, and a test never wants an accelerator
# that happens to be there (the tests for one ask for it in a process of their own).
for _name in variables_to_clear(os.environ):
    if _name != "JAX_PLATFORMS":
        del os.environ[_name]
os.environ["JAX_PLATFORMS"] = "cpu"


@pytest.fixture(autouse=True)
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No setting of the person who runs the tests reaches them, and nothing of theirs reaches that person's home.

    Returns:
        The home directory of the test.
    """
    for name in variables_to_clear(os.environ):
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    # The command line tool, called within this process, leaves its options behind as a process of its own would.
    set_command_line({})
    return home


@pytest.fixture(autouse=True)
def closed_breakers() -> Iterator[None]:
    """No trouble that another test had with a storage is this test's; breakers are the process's."""
    forget_breakers()
    yield
    forget_breakers()


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., Finished]:
    """Run a program text or file in a fresh interpreter: `run_python(code_or_path, *arguments, env=…, check=True)`.

    The text may be indented. It runs in the test's own directory, for 120 seconds at most unless `timeout` says
    otherwise; `env` changes the environment, None removing a variable. The answer has `.returncode`, `.stdout` and
    `.stderr`.
    """

    def run(code_or_path: str | os.PathLike[str], *arguments: str, **options: object) -> Finished:
        program = textwrap.dedent(code_or_path) if isinstance(code_or_path, str) else code_or_path
        return run_program(python_command(program, *arguments), **{"cwd": tmp_path, **options})

    return run


@pytest.fixture(scope="module")
def server() -> Iterator[GcsServer]:
    """Google's protocol on loopback, for all tests of a file."""
    from buckets import GcsServer

    with GcsServer() as running:
        yield running


@pytest.fixture
def bucket(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> GcsServer:
    """An empty bucket on that server, which the environment leads to."""
    server.reset()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    return server
