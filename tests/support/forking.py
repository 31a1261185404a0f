"""Interpreters that cost a tenth: forks of a process that has imported JAX and done nothing with it.

Run as a script this file is that process. A request comes as one packet with four descriptors, which are the streams of
the program and the socket for the answer: the process's id and, at its end, its status.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import zlib
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

JAX = ("jax", "jax.numpy", "jaxlib.mlir.dialects.mhlo", "scipy.linalg")
IMPORTED = (
    *JAX,
    "ejcache.cli.main",
    "ejcache.jax_integration.activate",
    "ejcache.jax_integration.pipeline",
    "ejcache.history.host_log",
    "ejcache.stores.local.store",
    # What the first compilation, the first miss and the first put import.
    "jaxlib.mlir.dialects.builtin",
    "jaxlib.mlir.extras.meta",
    "ejcache.coordination.single_flight",
    "ejcache.jax_integration.candidates",
    "ejcache.jax_integration.misses",
    "ejcache.stores.local.order",
    "ejcache.stores.local.writing",
    "ejcache.stores.tiered.store",
    # What `ejcache run`, its program and commands that look import.
    "ejcache.bucket.files",
    "ejcache.cache.exit_report",
    "ejcache.cache.overruled",
    "ejcache.cli.chosen_cache",
    "ejcache.cli.entry",
    "ejcache.cli.interrupt",
    "ejcache.cli.run_settings",
    "ejcache.cli.starting",
    "ejcache.jax_integration.decorator",
    "ejcache.jax_integration.preload.preloader",
    "ejcache.jax_integration.preload.run_profile",
    "ejcache.journal.run_log",
    "ejcache.keys.flags",
    "ejcache.maintenance.recalls",
    "ejcache.stores.contents",
    "ejcache_jax_plugin",
    "multiprocessing.reduction",
    "pytest",
    # Imported late; a program that has become another user may not be able to read them any more.
    "grp",
    "pwd",
    "resource",
)
LARGEST = 1 << 17
"""Bytes of a request: its program and its environment."""


PYTHON = sys.executable
"""The interpreter, whatever a test puts in its place."""
PLACE = "TESTS_FORK_AT"
"""The variable with the directory of the sockets. What runs tests sets it, so that all its workers share processes."""


@contextlib.contextmanager
def shared_place() -> Iterator[None]:
    """Have one process of each kind for this process and all that it starts."""
    with tempfile.TemporaryDirectory(prefix="fork-") as place:
        Path(place, "lock").touch()
        os.environ[PLACE] = place
        yield
        del os.environ[PLACE]


@contextlib.contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Alone among those that start such a process, connect to it, or end as one."""
    with (place / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@functools.cache
def connected(*imported: str) -> socket.socket:
    """A socket to a process that has imported these modules.

    It starts with the first program that wants them, and ends with the last process that is connected.
    """
    if PLACE not in os.environ:
        shared = shared_place()
        shared.__enter__()
        atexit.register(shared.__exit__, None, None, None)
    path = address(*imported)
    ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with _locked(path.parent):
        if not path.exists():
            _start(path, imported)
        ours.connect(str(path))
    atexit.register(ours.close)
    return ours


def address(*imported: str) -> Path:
    """The socket at which the process with these modules is asked."""
    return Path(os.environ[PLACE], str(zlib.crc32(repr(imported).encode())))


def _start(path: Path, imported: tuple[str, ...]) -> None:
    from helpers import variables_to_clear  # it imports ejcache, which the new process may have to do without

    to_clear = variables_to_clear(os.environ)
    plain = {name: value for name, value in os.environ.items() if name not in to_clear}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        listening.listen(100)
        number = listening.fileno()
        command = [PYTHON, __file__, str(number), *imported]
        process = subprocess.Popen(command, pass_fds=[number], env=plain, cwd="/")
    atexit.register(process.wait)  # after the connection of this process is closed, as it is registered before that


class Forked(subprocess.Popen):
    """A program in a process of its own: `subprocess.Popen` with `[sys.executable, …]` and streams, `env` and `cwd`.

    What is run is a file, `-c` and a text, `-m` and a module, or `-`. The process has an environment, a back end, a
    cache and an end of its own. Not for tests of the start itself, nor for those of what must not depend on the
    process: the seed of hashes and the places of libraries are the same in all of them.

    It ends with its threads, its exit handlers and its streams. That the interpreter then takes its modules apart, more
    work than all else that a small program does, is left out unless `to_the_end` says otherwise.

    The three methods are those which start and await a child, in Python 3.11 to 3.13.
    """

    imported: tuple[str, ...] = IMPORTED
    to_the_end = False
    has_children = False

    def _execute_child(self, args, *options):
        cwd, env, *streams = options[4], options[5], *options[9:15]
        environment = dict(os.environ if env is None else env)
        assert args[0] == sys.executable
        changed = {name for name in {*environment, *os.environ} if environment.get(name) != os.environ.get(name)}
        assert not [name for name in changed - {"PYTHONPATH"} if name.startswith(("LD_", "PYTHON"))]
        request = {
            "arguments": list(map(os.fspath, args[1:])),
            "environment": environment,
            "cwd": cwd or str(Path.cwd()),
            "to_the_end": self.to_the_end,
            "python": forked_python() if self.has_children else None,
        }
        self._answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # The child's ends of the pipes; where there is none, it has the stream of this process.
            own = [number if end == -1 else end for number, end in enumerate((streams[0], streams[3], streams[5]))]
            requests = connected(*self.imported)
            socket.send_fds(requests, [json.dumps(request, default=os.fspath).encode()], [*own, theirs.fileno()])
        self._close_pipe_fds(*streams)
        self.pid = int(self._answers.recv(100))
        self._child_created = True

    def _try_wait(self, wait_flags):
        try:
            status = self._answers.recv(100, socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        self._answers.close()
        return self.pid, int(status)

    def _internal_poll(self, _deadstate=None):
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)
        return self.returncode


class ForkedWithClients(Forked):
    """The same with the libraries of remote storage, for tests to which it does not matter when they are imported."""

    imported = (
        *(*IMPORTED, "adlfs", "aiobotocore.session", "gcsfs.core", "s3fs"),
        *("ejcache.bucket.gcs", "ejcache.cache.opening_tiers", "ejcache.cache.shared_policy_watch"),
    )


class ForkedWithClientsToTheEnd(ForkedWithClients):
    """The same to the very end, for tests of what event loops and sockets of clients say when modules go."""

    to_the_end = True


class ForkedWithChildren(Forked):
    """The same, and so is each process of its `sys.executable`, as `ejcache run` starts one.

    Not for tests that send signals to those, or look at who is whose parent.
    """

    has_children = True


@functools.cache
def forked_python() -> str:
    """A `python` whose processes are forked, in place of `sys.executable`."""
    connected(*Forked.imported)
    folder = address(*Forked.imported).with_suffix(".commands")
    with _locked(folder.parent):
        if not folder.exists():
            folder.mkdir()
            forked_commands(folder)
    return str(folder / "python")


def forked_commands(folder: Path, kind: type[Forked] = Forked) -> None:
    """Make `python`, `ejcache` and `pytest` in a folder, for the PATH of a shell: their processes are of this kind.

    The processes that these start with `sys.executable` are, too.
    """
    connected(*kind.imported)
    client = Path(__file__).with_name("forking_client.py")
    start = f'exec "{PYTHON}" -I -S "{client}" {address(*kind.imported)} "{folder / "python"}"'
    for name, module in (("python", ""), ("ejcache", "-m ejcache "), ("pytest", "-m pytest ")):
        command = folder / name
        command.write_text(f'#!/bin/sh\n{start} {module}"$@"\n')
        command.chmod(0o755)


class ForkedBeforeEjcache(Forked):
    """The same with JAX alone, for tests of what ejcache imports, or finds, when it is imported."""

    imported = (*JAX, "grp", "pwd", "resource")


class ForkedBeforeEjcacheToTheEnd(ForkedBeforeEjcache):
    """The same to the very end, for tests of what runs when the interpreter takes its modules apart."""

    to_the_end = True


class ForkedWithFrameworks(Forked):
    """The same with libraries of models and optimizers, for starts that reuse traces: they know when this one began."""

    imported = (
        *(*IMPORTED, "ejcache.values.code_files"),
        *("equinox", "flax.linen", "flax.nnx", "flax.training.train_state", "optax"),
    )


class ForkedWithMoto(Forked):
    """A process with moto alone, for its servers: no JAX, and nothing of ejcache."""

    imported = ("boto3", "moto.s3.responses", "moto.server")


def write_as_old(path: Path, text: str) -> None:
    """Write a file of source that counts as older than the process whose modules a forked one has.

    Of a file with two names the time of its modification alone says so.
    """
    path.write_text(text)
    os.utime(path, (1e9, 1e9))
    link = path.with_suffix(".link")
    link.unlink(missing_ok=True)
    link.hardlink_to(path)


def _serve(listening: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; None in the process that serves, and the request in one that is to run a program."""
    waiting = selectors.DefaultSelector()
    waiting.register(listening, selectors.EVENT_READ)
    asking = 0
    while True:
        for ready, _ in waiting.select():
            if ready.fileobj is listening:
                waiting.register(listening.accept()[0], selectors.EVENT_READ)
                asking += 1
                continue
            if ready.data is not None:
                pid, answers = ready.data
                waiting.unregister(ready.fileobj)
                os.close(ready.fd)
                with answers, contextlib.suppress(BrokenPipeError):  # a test may have ended before its program
                    answers.send(str(os.waitpid(pid, 0)[1]).encode())
                continue
            data, descriptors, _, _ = socket.recv_fds(ready.fileobj, LARGEST, 4)
            if not data:
                waiting.unregister(ready.fileobj)
                ready.fileobj.close()
                asking -= 1
                if not asking and _is_last(listening):
                    return None
                continue
            pid = os.fork()
            if not pid:
                for number, descriptor in enumerate(descriptors[:3]):
                    os.dup2(descriptor, number)
                for descriptor in descriptors:
                    os.close(descriptor)
                for other in waiting.get_map().values():
                    if other.data is None:
                        other.fileobj.close()
                    else:
                        os.close(other.fd)
                        other.data[1].close()
                waiting.close()
                return dict(json.loads(data))
            for descriptor in descriptors[:3]:
                os.close(descriptor)
            answers = socket.socket(fileno=descriptors[3])
            answers.send(str(pid).encode())
            waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, answers))


def _is_last(listening: socket.socket) -> bool:
    """Take the address away, unless somebody has connected meanwhile."""
    path = Path(listening.getsockname())
    with contextlib.suppress(FileNotFoundError), _locked(path.parent):  # whoever runs tests has cleared up
        if select.select([listening], [], [], 0)[0]:
            return False
        path.unlink()
    return True


def _read_libraries(memo: Path) -> None:
    """Know what is in JAX's libraries, which each process with a home of its own would read: 300 MB.

    In an environment that pip has made for itself alone, they are not read.
    """
    from ejcache.jax_integration.lowering.native_libraries import library_digests, native_library_files

    child = os.fork()  # which may start threads
    if child:
        os.waitpid(child, 0)
    library_digests.digest_of(native_library_files("cpu"), memo=memo)
    if not child:
        os._exit(0)


def _know_packages() -> None:
    """Know the entry points of what is installed: JAX would read a file of each package in each process.

    A folder of packages that has changed since is read again.
    """
    known: dict[tuple[str, int], dict[str, metadata.EntryPoints]] = {}

    def below(path: str) -> dict[str, metadata.EntryPoints]:
        try:
            state = path, Path(path).stat().st_mtime_ns
        except OSError:
            return {}
        if state not in known:
            known[state] = {each.name: each.entry_points for each in metadata.distributions(path=[path])}
        return known[state]

    def entry_points(**chosen: str) -> metadata.EntryPoints:
        found: dict[str, metadata.EntryPoints] = {}
        for path in sys.path:
            found = below(path) | found
        return metadata.EntryPoints(each for points in found.values() for each in points).select(**chosen)

    metadata.entry_points = entry_points
    entry_points()


def _have(environment: dict[str, str]) -> None:
    """Have this environment, and the paths and flags of JAX that come from it when an interpreter starts."""
    os.environ.clear()
    os.environ.update(environment)
    for folder in reversed(environment.get("PYTHONPATH", "").split(os.pathsep)):
        if folder and folder not in sys.path:
            sys.path.insert(1, folder)
            if (start := Path(folder, "sitecustomize.py")).exists():
                runpy.run_path(str(start))
    if "jax" not in sys.modules:
        return
    config = sys.modules["jax"].config
    for name, before in list(config.values.items()):
        value = os.environ.get(name.upper())
        if value is not None:
            kind = type(before)
            parsed = value.lower() in ("1", "true", "yes", "on", "y", "t") if kind is bool else value
            config.update(name, kind(value) if kind in (int, float) else parsed)


def end_process(status: int) -> None:
    """End this process as the interpreter does, up to where it begins to take modules apart."""
    try:
        threading._shutdown()
    except BaseException:  # such as Ctrl-C: the interpreter prints it, and ends all the same
        traceback.print_exc()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it any more
            stream.flush()
    os._exit(status)


def main() -> None:
    """Serve, or in a forked process run the program that was requested as `__main__`."""
    for name in sys.argv[2:]:
        with contextlib.suppress(ImportError):  # a library that is not installed
            importlib.import_module(name)
    listening = socket.socket(fileno=int(sys.argv[1]))
    if "ejcache" in sys.modules:
        _read_libraries(Path(listening.getsockname()).with_name("libraries"))
    _know_packages()
    gc.freeze()
    request = _serve(listening)
    if request is None:
        return
    os.chdir(request["cwd"])
    if request.get("to_the_end"):
        _run(request)
        return
    try:
        _run(request)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        end_process((end.code or 0) & 0xFF)
    end_process(0)


def _run(request: dict[str, Any]) -> None:
    how, *rest = request["arguments"]
    sys.executable = request["python"] or PYTHON
    if how == "-P":
        del sys.path[0]
        how, *rest = rest
    elif how == "-u":  # as pytest starts workers
        how, *rest = rest
        sys.path[0] = ""
    else:
        sys.path[0] = "" if how in ("-c", "-m", "-") else str(Path(how).resolve().parent)
    _have(request["environment"])
    if how == "-m":
        sys.argv[:] = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    program = types.ModuleType("__main__")
    if how in ("-c", "-"):
        text, path = (rest.pop(0), "<string>") if how == "-c" else (sys.stdin.read(), "<stdin>")
        sys.argv[:] = [how, *rest]
    else:
        text, sys.argv[:] = Path(how).read_text(), request["arguments"]
        path = program.__file__ = str(Path(how).absolute())  # as an interpreter has it
    sys.modules["__main__"] = program
    exec(compile(text, path, "exec", dont_inherit=True), program.__dict__)  # the program of a test


if __name__ == "__main__":
    main()
