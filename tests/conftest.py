"""Fixtures of every test: an environment of its own, and programs in processes of their own."""

from __future__ import annotations

import compileall
import contextlib
import functools
import gc
import importlib.abc
import importlib.util
import logging
import os
import random
import shutil
import sys
import tempfile
import textwrap
import types
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from forking import Forked, ForkedWithClients, ForkedWithClientsToTheEnd, forked_python, shared_place
from helpers import ROOT, python_command, run_program, variables_to_clear
from soak_turns import SoakTurns
from steps import Clock

import ejcache
from ejcache.bucket.breaker import forget_breakers
from ejcache.coordination.single_flight import waiting_budget
from ejcache.journal.recorder import recorder
from ejcache.settings.resolve import set_command_line
from ejcache.util.daemon_threads import idle_threads
from ejcache.util.log import forget_warnings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from buckets import GcsServer
    from helpers import Finished

# Hundreds of processes import the package. Where PYTHONDONTWRITEBYTECODE is set, each of them would compile its modules
# anew, for a tenth of a second, each worker would rewrite every test module, for five, and each pytest, also one that a
# test starts, all of hypothesis, for one.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
import hypothesis  # noqa: E402  # after those lines

hypothesis.settings.register_profile(
    "default",
    max_examples=12,
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
# Tests compile thousands of small programs, and how quick those are in the end interests none of them. It halves what
# XLA takes, and is a part of every key as any other flag.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

# A search for credentials goes on in its thread when the test that began it has left it, and its warnings would be
# counted by a later test.
logging.getLogger("google.auth").setLevel(logging.ERROR)


_ONE_PYTHON = (
    "api/test_pytest_plugin.py",
    "autotune",
    "bucket",
    "cache/test_harmless.py",
    "cache/test_untrusted.py",
    "cli/test_cli_bench.py",
    "cli/test_cli_bucket.py",
    "cli/test_cli_completion.py",
    "cli/test_cli_doctor.py",
    "cli/test_cli_reference.py",
    "cli/test_cli_run.py",
    "cli/test_cli_target.py",
    "cli/test_cli_warm.py",
    "coordination",
    "docs",
    "hostile",
    "reuse",
    "jax_integration/test_absent_accelerators.py",
    "jax_integration/test_absent_devices.py",
    "jax_integration/test_asking.py",
    "jax_integration/test_credentials_in_urls.py",
    "jax_integration/test_ejkernel_directory.py",
    "jax_integration/test_floors.py",
    "jax_integration/test_forbid_compile.py",
    "jax_integration/test_key_ranks.py",
    "jax_integration/test_key_untouched.py",
    "jax_integration/test_pgle.py",
    "jax_integration/test_pgle_ranks.py",
    "jax_integration/test_pods.py",
    "jax_integration/test_preload_remote.py",
    "jax_integration/test_programs.py",
    "jax_integration/test_progress.py",
    "jax_integration/test_rank_drift.py",
    "jax_integration/test_remote_programs.py",
    "jax_integration/test_sharing.py",
    "jax_integration/test_tuning.py",
    "jax_integration/test_xla_caches.py",
    "keys",
    "maintenance",
    "history/test_explaining.py",
    "history/test_why_pairs.py",
    "reports",
    "stores/test_identities.py",
    "stores/test_kill_storm.py",
    "stores/test_shared_soak.py",
    "stores/test_shared_store.py",
    "stores/test_shared_stores.py",
    "stores/test_short_runs.py",
    "stores/test_storages.py",
    "stores/test_store_stateful.py",
    "stores/test_tiered_processes.py",
    "test_architecture.py",
    "test_bench.py",
    "test_examples.py",
    "test_one_of_each.py",
)
"""Files and directories of tests that take long and are about JAX, XLA, servers, file systems or our own source: mark
`one_python`."""

_ONE_JAX = (
    "api/test_notebook.py",
    "api/test_public_names.py",
    "api/test_pytest_plugin.py",
    "autotune/test_autotune_cli.py",
    "autotune/test_autotune_failures.py",
    "autotune/test_autotune_merging.py",
    "autotune/test_autotune_packages.py",
    "autotune/test_autotune_pod.py",
    "autotune/test_autotune_records.py",
    "autotune/test_autotune_right.py",
    "autotune/test_autotune_safety.py",
    "autotune/test_autotune_store.py",
    "autotune/test_autotune_tables.py",
    "autotune/test_autotune_time.py",
    "bucket",
    "cache/test_harmless.py",
    "cache/test_reporting.py",
    "cache/test_untrusted.py",
    "cli",
    "coordination",
    "docs",
    "hostile",
    "jax_integration/test_credentials_in_urls.py",
    "jax_integration/test_good_guest.py",
    "jax_integration/test_progress.py",
    "jax_integration/test_remote_programs.py",
    "maintenance",
    "history/test_why_pairs.py",
    "reports",
    "settings",
    "stores",
    "util",
    "test_architecture.py",
    "test_bench.py",
    "test_examples.py",
    "test_entry.py",
    "test_fuzz_formats.py",
    "test_import_cost.py",
    "test_one_of_each.py",
    "test_package.py",
)
"""Files and directories of tests that never ask which JAX compiles: mark `one_jax`."""


_LONGEST = (
    "autotune/test_autotune_ejkernel.py",  # with the oldest JAX
    "stores/test_shared_stores.py",
    "docs/test_readme.py",
    "hostile/test_fault_matrix.py",
    "autotune/test_autotune_decorator.py",
    "docs/test_site.py",
    "reuse",
    "cli/test_cli_run.py",
    "test_examples.py",
    "jax_integration",
    "cli/test_cli_warm.py",
    "hostile",
    "api/test_pytest_plugin.py",
    "keys",
    "autotune",
)
"""What begins, so that no worker is left with it at the end."""


@pytest.fixture(params=["https", "gcsfs"])
def gcs_client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What sends the requests to Google's storage, here and in programs: our own client, or gcsfs in its place."""
    from dead_ends import TO_GCSFS

    if request.param == "gcsfs":
        for name, value in TO_GCSFS.items():
            monkeypatch.setenv(name, value)
    return request.param


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files that have long tests only where none of them is asked for: some compute their tables."""
    wanted = not config.getoption("markexpr").startswith("not soak") or collection_path.suffix != ".py"
    return None if wanted or "\npytestmark = pytest.mark.soak\n" not in collection_path.read_text() else True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run files, and tests in each file, in a random order")


def shuffled(items: list[pytest.Item], seed: int) -> list[pytest.Item]:
    """The files in an order that the seed gives, and the tests of each file: the same order in every worker."""
    draw = random.Random(seed)
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    parts = sorted(files.values(), key=lambda _: draw.random())
    for part in parts:
        draw.shuffle(part)
    return [item for part in parts for item in part]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tests = ROOT / "tests"

    @functools.cache
    def below(path: Path, names: tuple[str, ...]) -> int:
        """The place of the name that is `path` or a directory of it; the number of names if none is."""
        parts = path.relative_to(tests).as_posix() + "/"
        return next((n for n, name in enumerate(names) if parts.startswith(f"{name}/")), len(names))

    seed = config.getoption("--shuffle")
    items[:] = sorted(items, key=lambda item: below(item.path, _LONGEST)) if seed is None else shuffled(items, seed)
    for mark, names in (("one_python", _ONE_PYTHON), ("one_jax", _ONE_JAX)):
        for item in items:
            if below(item.path, names) < len(names):
                item.add_marker(mark)


def rewrite_asserts(config: pytest.Config) -> None:
    """Have pytest rewrite all test modules, each processor a part of them: every worker of a fresh clone would."""
    hook = config.pluginmanager.rewrite_hook
    if not isinstance(hook, importlib.abc.Loader):  # with --assert=plain
        return
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    parts = os.cpu_count() or 1
    children = []
    for part in range(parts):
        child = os.fork()
        if child:
            children.append(child)
            continue
        try:
            for path in paths[part::parts]:
                module = types.ModuleType(path.stem)
                module.__spec__ = importlib.util.spec_from_file_location(path.stem, path, loader=hook)
                module.__dict__["__builtins__"] = {}  # so its first import fails: it is written, and does not run
                with contextlib.suppress(ImportError, SyntaxError):  # who collects it says what is wrong
                    hook.exec_module(module)
        finally:
            os._exit(0)
    for child in children:
        os.waitpid(child, 0)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SoakTurns())
    if not hasattr(config, "workerinput"):
        for directory in (Path(ejcache.__file__).parent, ROOT / "tests" / "support"):
            compileall.compile_dir(directory, quiet=2, workers=0)
        rewrite_asserts(config)
        place = contextlib.ExitStack()
        place.enter_context(shared_place())
        config.add_cleanup(place.close)


@pytest.fixture
def clock() -> Clock:
    """Seconds that stand still until the test moves them."""
    return Clock()


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
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    # Requests in the background would be counted by tests of something else; `test_preload.py` switches it on.
    monkeypatch.setenv("EJCACHE_PRELOAD", "0")
    # The command line tool, called within this process, leaves its options behind as a process of its own would.
    set_command_line({})
    return home


@pytest.fixture(autouse=True)
def fresh_process_state() -> Iterator[None]:
    """A test starts with closed breakers, no warning logged yet, no time spent waiting, and nothing recorded.

    Threads that wait for a task are kept, as before the first `disable()` of a process.
    """
    forget_breakers()
    idle_threads.keep()
    recorder.after_fork_in_child()
    forget_warnings()
    waiting_budget.spent = 0.0
    yield
    forget_breakers()


def _jax_flags() -> dict[str, object]:
    """JAX's flags and their values; none if no test module has imported JAX."""
    jax = sys.modules.get("jax")
    return {} if jax is None else dict(jax.config.values)


def _enabled() -> bool:
    activate = sys.modules.get("ejcache.jax_integration.activate")
    return activate is not None and activate.compiler_in_use() is not None


def pytest_collection_finish() -> None:
    """Refuse test modules that enable the cache when they are imported: the tests of every other file would run so."""
    if _enabled():
        raise pytest.UsageError("a test module enables the cache while it is imported; do that in a test or a fixture")
    # What was imported stays, and the collector would go through all of it again and again: a million objects.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def jax_as_before(clean_environment: Path) -> Iterator[None]:
    """After a test, JAX has its own cache, no cache open, and the flags that it had before the test.

    The flags and the cache belong to the process. A test that relied on what another file left would pass or fail by
    the order in which files come to a worker.
    """
    flags = _jax_flags()
    yield
    activate = sys.modules.get("ejcache.jax_integration.activate")
    if activate is not None:
        activate.disable()
    logs = sys.modules.get("ejcache.journal.appended_log")
    if logs is not None:
        # What the test compiled last belongs into its own log, whose directory its environment names.
        logs.write_now()
    now = _jax_flags()
    for name in flags:
        if now[name] != flags[name]:
            sys.modules["jax"].config.update(name, flags[name])
    own_cache = sys.modules.get("jax._src.compilation_cache")
    if own_cache is not None:
        own_cache.reset_cache()


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user can reach.

    Those of pytest are for their owner only, and pytest takes permissions for others away again from the directory that
    all its runs share whenever another run begins.
    """
    place = Path(tempfile.mkdtemp(prefix="ejcache-test-"))
    place.chmod(0o777)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def retry_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all retries: waits between tries cost no time, and however slow the machine is, none passes."""
    for module in ("ejcache.bucket.retry", "ejcache.bucket.breaker", "ejcache.util.time_budget"):
        monkeypatch.setattr(f"{module}.time", clock)
    return clock


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., Finished]:
    """Run a program text or file in a fresh interpreter: `run_python(code_or_path, *arguments, env=…, check=True)`.

    The text may be indented. It runs in the test's own directory, for 240 seconds at most unless `timeout` says
    otherwise; `env` changes the environment, None removing a variable. The answer has `.returncode`, `.stdout` and
    `.stderr`.
    """

    def run(code_or_path: str | os.PathLike[str], *arguments: str, **options: object) -> Finished:
        program = textwrap.dedent(code_or_path) if isinstance(code_or_path, str) else code_or_path
        return run_program(python_command(program, *arguments), **{"cwd": tmp_path, **options})

    return run


@pytest.fixture
def run_forked(run_python: Callable[..., Finished]) -> Callable[..., Finished]:
    """`run_python` in a process that has imported JAX already: see `forking.Forked`."""
    return functools.partial(run_python, start=Forked)


@pytest.fixture
def run_client(run_python: Callable[..., Finished]) -> Callable[..., Finished]:
    """`run_forked` in a process that has imported the libraries of remote storage, too."""
    return functools.partial(run_python, start=ForkedWithClients)


@pytest.fixture
def run_client_to_the_end(run_python: Callable[..., Finished]) -> Callable[..., Finished]:
    """`run_client` up to where the interpreter has taken its modules apart, of which clients may have a word to say."""
    return functools.partial(run_python, start=ForkedWithClientsToTheEnd)


@pytest.fixture
def forked_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python processes that a command in this process starts are forked: see `forking.ForkedWithChildren`."""
    monkeypatch.setattr(sys, "executable", forked_python())


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


@pytest.fixture(scope="session")
def answering_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What answers as this Python does when `ejcache doctor` asks it for JAX, and imports nothing for it."""
    program = tmp_path_factory.mktemp("python") / "python"
    program.write_text("#!/bin/sh\necho 0.12.0\necho ours\necho JAX 0.12.0 is built as expected\n")
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def doctor_is_told(answering_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A doctor in this process is told about JAX, without a process that imports it for two seconds."""
    monkeypatch.setattr(sys, "executable", answering_python)
